"""The whole executable on tiny checkpoints of every family and weight format: 64 streams at a time through both pools
equal what each says alone, and checkpoints that are wrong or hostile are refused without taking the memory they ask for.
Needs nothing but Python's standard library.

Usage: tiny_models.py TESSERA MAKE_TINY_MODEL
"""

import concurrent.futures
import json
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from tiny_serving import Server, check_balance

STREAMS = 64
# A server that refuses a checkpoint needs little more than its libraries; one that believes it needs what it asks for.
ADDRESS_SPACE_MAX = 1 << 30
# Of processor time, the start of the program included: far less than a second is used. The kernel ends what takes more.
CPU_SECONDS_MAX = 1


def prompt(stream):
    return [(37 * stream + 11 * j + stream * j) % 250 + 3 for j in range(1 + 37 * stream % 40)]


def check_streams(tessera, make_tiny_model, name):
    with tempfile.TemporaryDirectory() as model:
        subprocess.run([make_tiny_model, model, name], check=True)
        # Pools too small for all: sequences wait, are preempted and recomputed.
        server = Server(tessera, model, "--prefill-pages", "24", "--decode-pages", "16", "--max-running-requests", "16")

        def answer(stream):
            return server.answer(prompt(stream), max_tokens=20 + 29 * stream % 37)

        solo = [answer(stream) for stream in range(STREAMS)]
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            together = list(pool.map(answer, range(STREAMS)))
        assert together == solo, [i for i in range(STREAMS) if together[i] != solo[i]]
        assert len(set(solo)) > STREAMS // 4, "answers hardly depend on their prompts"
        check_balance(server)
        preemptions = sum(value for name, _, value in server.metrics() if name == "tessera_engine_preemptions_total")
        assert preemptions > 0
        server.process.send_signal(signal.SIGTERM)
        status, log = server.end()
        assert status == 0, log
        print(f"{name}: {STREAMS} streams equal their solo answers, {preemptions:.0f} preemptions", flush=True)


def check_once(tessera, make_tiny_model):
    """Without a chat format a prompt is completed."""
    with tempfile.TemporaryDirectory() as model:
        subprocess.run([make_tiny_model, model, "kimi_k26_int4"], check=True)
        command = [tessera, "serve", "--model", model]
        for arguments, text in ((["--once", "hello"], ""), (["--chat", "--port", "0"], "hello\n")):
            results = [subprocess.run([*command, *arguments], input=text.encode(), capture_output=True, timeout=120) for _ in range(2)]
            for result in results:
                assert result.returncode == 0 and b"each prompt is completed as it is" in result.stderr, result
                assert len(result.stdout) > 10, result
            assert arguments[0] != "--once" or results[0].stdout == results[1].stdout, results
        print("prompts are completed where there is no chat format", flush=True)


def check_long_streams(tessera, make_tiny_model):
    """Prompts and answers on both sides of the 2048 tokens that sparse attention selects."""
    with tempfile.TemporaryDirectory() as model:
        subprocess.run([make_tiny_model, model, "glm_moe_dsa_topk2048"], check=True)
        server = Server(tessera, model, "--prefill-pages", "600", "--decode-pages", "600")

        def answer(stream):
            tokens = [(37 * stream + 11 * j + j * j) % 250 + 3 for j in range(2030 + 40 * stream)]
            return server.answer(tokens, max_tokens=40)

        solo = [answer(stream) for stream in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            together = list(pool.map(answer, range(4)))
        assert together == solo
        check_balance(server)
        server.process.send_signal(signal.SIGTERM)
        status, log = server.end()
        assert status == 0, log
        print("4 streams around and past 2048 tokens equal their solo answers", flush=True)


def refused(tessera, folder, words):
    command = [tessera, "serve", "--model", folder, "--once", "x"]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))

    began = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60)
    seconds = time.monotonic() - began
    message = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
    assert result.returncode == 1 and all(word in result.stderr for word in words), (words, result.returncode, result.stderr)
    print(f"refused after {seconds:.2f} s: {message[:160]}", flush=True)


def check_refusals(tessera, make_tiny_model):
    with tempfile.TemporaryDirectory() as root:
        sound = pathlib.Path(root) / "sound"
        subprocess.run([make_tiny_model, sound, "kimi_k2_f8_block"], check=True)
        shards = sorted(path.name for path in sound.glob("*.safetensors"))
        index = json.loads((sound / "model.safetensors.index.json").read_text())
        assert len(shards) > 1

        def check(change, *words):
            folder = pathlib.Path(root) / "broken"
            shutil.copytree(sound, folder)
            change(folder)
            refused(tessera, str(folder), words)
            shutil.rmtree(folder)

        def with_config(**fields):
            def change(folder):
                config = json.loads((folder / "config.json").read_text())
                config.update(fields)
                (folder / "config.json").write_text(json.dumps(config))

            return change

        def with_index(change):
            def apply(folder):
                copy = json.loads(json.dumps(index))
                change(copy["weight_map"])
                (folder / "model.safetensors.index.json").write_text(json.dumps(copy))

            return apply

        def with_header(change):
            """Of the first shard."""

            def apply(folder):
                data = (folder / shards[0]).read_bytes()
                length = struct.unpack("<Q", data[:8])[0]
                header = json.loads(data[8 : 8 + length])
                change(header)
                text = json.dumps(header).encode()
                (folder / shards[0]).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

            return apply

        for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                      "moe_intermediate_size", "n_routed_experts", "kv_lora_rank", "max_position_embeddings"):
            for value in (10**9, 10**18, -1, 0):
                check(with_config(**{field: value}), "config.json", field)
        # Each size allowed, the whole absurd: what is missing is named, and nothing is allocated for the rest.
        check(with_config(num_hidden_layers=250, n_routed_experts=256), "model.layers.")
        check(with_config(vocab_size=1 << 20), "model.embed_tokens.weight")
        check(with_config(quantization_config={"quant_method": "gptq"}), "config.json", "gptq")

        names = sorted(index["weight_map"])
        scale = next(name for name in names if name.endswith("experts.3.up_proj.weight_scale_inv"))
        weight = scale.removesuffix("_scale_inv")
        check(with_index(lambda m: m.update({weight: "../sound/" + m[weight]})), "../sound/")
        check(with_index(lambda m: m.update({weight: "/etc/passwd"})), "/etc/passwd")
        check(with_index(lambda m: m.pop(weight)), weight)
        check(lambda folder: (folder / shards[-1]).unlink(), shards[-1])
        check(lambda folder: (folder / shards[0]).write_bytes(b"\xff" * 8 + b"{}"), shards[0])
        check(lambda folder: (folder / shards[0]).write_bytes((folder / shards[0]).read_bytes()[:-5]), shards[0])

        first = next(name for name in names if index["weight_map"][name] == shards[0] and name.endswith("proj.weight"))
        check(with_header(lambda h: h[first].update(shape=[1 << 40, 1 << 40])), shards[0], first)
        check(with_header(lambda h: h[first].update(data_offsets=[0, 1 << 62])), shards[0], first)
        check(with_header(lambda h: h[first].update(dtype="BF16")), first)
        check(with_header(lambda h: h.update({first + "_scale": h.pop(first + "_scale_inv")})), first + "_scale")
        check(with_header(lambda h: h[first + "_scale_inv"].update(shape=h[first + "_scale_inv"]["shape"][::-1] + [1])),
              first + "_scale_inv")


def main():
    tessera, make_tiny_model = sys.argv[1:]
    check_refusals(tessera, make_tiny_model)
    check_once(tessera, make_tiny_model)
    names = subprocess.run([make_tiny_model, "--list"], check=True, capture_output=True, text=True).stdout.split()
    assert len(names) >= 15, names
    for name in names:
        check_streams(tessera, make_tiny_model, name)
    check_long_streams(tessera, make_tiny_model)
    print("all held")


main()
