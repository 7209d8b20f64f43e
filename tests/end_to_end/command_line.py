"""Drives the executable from a command line, as a person would.

Usage: command_line.py TESSERA MODEL_DIR
"""

import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile


class Executable:
    def __init__(self, path):
        self.path = path

    def run(self, *arguments, expect=0, text=""):
        result = subprocess.run([self.path, *arguments], input=text, capture_output=True, text=True, timeout=300)
        assert result.returncode == expect, (arguments, result.returncode, result.stdout, result.stderr)
        return result


def read_header(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_checkpoint(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def check_help(tessera):
    for arguments, words in (
        (["--help"], ["serve", "chat", "inspect", "plan"]),
        (["serve", "--help"], ["--model-path", "--kv-cache-dtype", "--role", "--page-size", "--config"]),
        (["chat", "--help"], ["--url", "--once"]),
        (["inspect", "--help"], ["--json"]),
    ):
        text = tessera.run(*arguments).stdout
        assert all(word in text for word in words), text
    assert tessera.run("--version").stdout.strip()[0].isdigit()


def check_once(tessera, model):
    result = tessera.run("serve", "--model", model, "--once", "What is the capital of France?")
    assert "Paris" in result.stdout and len(result.stdout.strip().splitlines()) >= 1, result.stdout
    log = result.stderr
    for words in ("from the prefix cache", "prefill KV bf16", "handoff", "fp8_e4m3", "pages verified", "tokens/s"):
        assert words in log, (words, log)
    print(result.stdout.strip(), log[-600:], sep="\n")
    unified = tessera.run("serve", "--model", model, "--role", "unified", "--once", "What is the capital of France?")
    assert "Paris" in unified.stdout and "handoff " not in unified.stderr

    # The terminal chat, with its input from a pipe.
    chat = tessera.run("serve", "--model", model, "--chat", "--temperature", "0", "--port", "0", "--log-level", "error",
                       text="What is the capital of France?\n/help\n/nonsense\n/clear\n/quit\n")
    assert "Paris" in chat.stdout and "unknown command /nonsense" in chat.stdout, chat.stdout


def check_inspect(tessera, model):
    text = tessera.run("inspect", model).stdout
    assert "134.52 M parameters" in text and "sound: every tensor is there" in text, text
    values = json.loads(tessera.run("inspect", model, "--json", "--tensors").stdout)
    assert values["tensors"] == len(values["tensor_list"]) == 272
    assert values["kv_bytes_per_token"]["bf16"] == 30 * 2 * 3 * 64 * 2
    assert values["kv_bytes_per_token"]["fp8_e4m3"] == 30 * 2 * (3 * 64 + 3 * 2)


def check_bad_checkpoints(tessera, model):
    """Each fault is refused by inspect and by serve, with the name of the thing."""
    name = "model.layers.3.mlp.up_proj.weight"
    header, body = read_header(pathlib.Path(model) / "model.safetensors")

    def broken(change):
        folder = pathlib.Path(tempfile.mkdtemp())
        for file in pathlib.Path(model).iterdir():
            if file.name != "model.safetensors":
                shutil.copy(file, folder)
        change(folder)
        return folder

    def with_header(change):
        def apply(folder):
            copy = json.loads(json.dumps(header))
            change(copy)
            write_checkpoint(folder / "model.safetensors", copy, body)

        return broken(apply)

    def with_text_file(file_name, change):
        def apply(folder):
            write_checkpoint(folder / "model.safetensors", header, body)
            change(folder / file_name)

        return broken(apply)

    def too_many_tokens(path):
        tokenizer = json.loads(path.read_text())
        token = dict(tokenizer["added_tokens"][0], id=len(tokenizer["model"]["vocab"]), content="<|one too many|>")
        tokenizer["added_tokens"].append(token)
        path.write_text(json.dumps(tokenizer))

    def truncated(folder):
        write_checkpoint(folder / "model.safetensors", header, body[:-1000])

    def bad_config(folder):
        write_checkpoint(folder / "model.safetensors", header, body)
        config = json.loads((folder / "config.json").read_text())
        config["num_attention_heads"] = 10**15
        (folder / "config.json").write_text(json.dumps(config))

    cases = (
        (broken(truncated), ["model.safetensors"]),
        (with_header(lambda h: h[name].update(shape=[576, 1536])), [name, "[1536, 576]"]),
        (with_header(lambda h: h.update({name + "x": h.pop(name)})), [name]),
        (with_header(lambda h: h[name].update(dtype="F8_E5M2")), [name, "F8_E5M2"]),
        # Like BF16 in size, so that nothing but the dtype is wrong; in a norm too, which has a backend path of its own.
        (with_header(lambda h: h[name].update(dtype="F16")), [name, "F16", "expected F32 or BF16"]),
        (with_header(lambda h: h["model.norm.weight"].update(dtype="F16")), ["model.norm.weight", "F16"]),
        (with_text_file("tokenizer.json", lambda path: path.write_text("{")), ["tokenizer.json"]),
        (with_text_file("tokenizer.json", lambda path: path.write_text("{}")), ["tokenizer.json", "decoder"]),
        (with_text_file("tokenizer.json", too_many_tokens), ["the tokenizer has 49153 tokens", "49152"]),
        (with_text_file("tokenizer_config.json", lambda path: path.write_text("[")), ["tokenizer_config.json"]),
        (broken(bad_config), ["config.json", "num_attention_heads"]),
        (broken(lambda folder: None), ["model.safetensors"]),
        (broken(lambda folder: (folder / "config.json").write_text("{")), ["config.json"]),
    )
    for folder, words in cases:
        for command in (["inspect", str(folder)], ["serve", "--model", str(folder), "--once", "x"]):
            message = tessera.run(*command, expect=1).stderr
            assert all(word in message for word in words), (command, words, message)
        print("refused:", message.strip().splitlines()[-1][:150])
        assert "sound" not in tessera.run("inspect", str(folder), expect=1).stdout, words
        shutil.rmtree(folder)

    # Weights alone are sound, and what is not there is said.
    folder = with_text_file("tokenizer.json", lambda path: path.unlink())
    text = tessera.run("inspect", str(folder)).stdout
    assert "sound: every tensor is there" in text and "tokenizer     none: " in text, text
    shutil.rmtree(folder)


def check_bad_flags(tessera, model):
    for flags, words in (
        (["--role", "both"], ["--role"]),
        (["--page-size", "0"], ["--page-size"]),
        (["--kv-cache-dtype", "int8"], ["--kv-cache-dtype"]),
        (["--kv-cache-dtype", "f32"], ["f32", "simd"]),
        (["--prefill-kv-cache-dtype", "fp8_e4m3", "--decode-kv-cache-dtype", "bf16"],
         ["--decode-kv-cache-dtype", "no conversion from fp8_e4m3 to bf16; possible: fp8_e4m3"]),
        (["--backend", "reference", "--prefill-kv-cache-dtype", "f32"],
         ["no conversion from f32 to fp8_e4m3; possible: f32, bf16"]),
        (["--kv-sweep-pages-per-second", "64"],
         ["--kv-sweep-pages-per-second needs --kv-integrity digest or digest-step"]),
        (["--device", "tpu"], ["--device"]),
        (["--device", "cuda", "--backend", "reference"], ["--backend", "--device"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--chat-format", "chatml"], ["--chat-format", "chatml", "kimi_k2", "glm45", "qwen3", "smollm2"]),
        (["--chat-format", "kimi_k2"], ["--chat-format", "<|im_user|>"]),
        (["--reasoning-parser", "gpt-oss"], ["--reasoning-parser", "gpt-oss", "kimi_k2", "glm45", "deepseek-r1"]),
        (["--tool-call-parser", "pythonic"], ["--tool-call-parser", "pythonic", "kimi_k2", "glm45", "hermes"]),
        (["--reasoning-field", "thoughts"], ["--reasoning-field"]),
    ):
        result = subprocess.run([tessera.path, "serve", "--model", model, *flags, "--once", "x"], capture_output=True,
                                text=True, timeout=120)
        assert result.returncode != 0 and all(word in result.stderr for word in words), (flags, result.stderr)
    message = tessera.run("serve", "--model", model, "--host", "0.0.0.0", "--once", "x", expect=1).stderr
    assert "--api-key" in message, message
    message = tessera.run("serve", "--model", model, "--mem-fraction-static", "0.011", "--once", "x", expect=1).stderr
    assert "budget" in message, message
    # Without that flag there is a budget too: what the machine has.
    for flags in (["--max-total-tokens", "1000000000"], ["--decode-pages", "15000000"]):
        message = tessera.run("serve", "--model", model, *flags, "--once", "x", expect=1).stderr
        assert all(w in message for w in ("do not fit the memory budget", "KV pages", "weights", "total")), message
    message = tessera.run("chat", "--url", "http://127.0.0.1:1", "--once", "x", expect=1).stderr
    assert "cannot reach a server at 127.0.0.1:1" in message, message
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('role = "unified"\npage-size = 32\nmax-running-requests = 5\n')
        file.flush()
        log = tessera.run("serve", "--model", model, "--config", file.name, "--max-running-requests", "7", "--once", "Hi").stderr
        assert "unified engine" in log and "pages of 32 tokens" in log and "7 sequences at once" in log, log
        file.write("no-such-option = 1\n")
        file.flush()
        result = subprocess.run([tessera.path, "serve", "--model", model, "--config", file.name, "--once", "x"],
                                capture_output=True, text=True, timeout=120)
        assert result.returncode != 0 and "no-such-option" in result.stderr, result.stderr
    result = subprocess.run([tessera.path, "serve", "--model", model, "--config", "/no/such/file", "--once", "x"],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode != 0 and "/no/such/file" in result.stderr, result.stderr


def main():
    tessera, model = Executable(sys.argv[1]), sys.argv[2]
    check_help(tessera)
    check_inspect(tessera, model)
    check_once(tessera, model)
    check_bad_checkpoints(tessera, model)
    check_bad_flags(tessera, model)
    print("command line: all held")


if __name__ == "__main__":
    main()
