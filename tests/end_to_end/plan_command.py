"""Drives `tessera plan` from a command line, and compares its table with its JSON.

Usage: plan_command.py TESSERA CONFIGS_DIR
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile


class Executable:
    def __init__(self, path):
        self.path = path

    def plan(self, *arguments, expect=0):
        result = subprocess.run([self.path, "plan", *arguments], capture_output=True, text=True, timeout=120)
        assert (result.returncode == 0) == (expect == 0), (arguments, result.returncode, result.stdout, result.stderr)
        return result


def section(text, title):
    """The rows of cells under the section that begins so; columns are at least two spaces apart."""
    block = text[text.index("\n" + title) + 1 :].split("\n\n")[0]
    return [re.split(r"\s{2,}", line.strip()) for line in block.split("\n")[1:] if line.startswith("  ")]


def number(cell):
    return float(cell.replace(",", ""))


def same(cell, value, scale=1.0):
    """The cell is the value, rounded to the cell's digits."""
    digits = len(cell.split(".")[1]) if "." in cell else 0
    assert abs(number(cell) - value / scale) <= 0.5000001 * 10**-digits, (cell, value / scale)


def rows_after(rows, header):
    return rows[next(i for i, row in enumerate(rows) if row[0] == header) + 1 :]


def check_phase(text, title, phase):
    rows = section(text, title)
    parts = rows_after(rows, "part")
    assert len(phase["parts"]) >= 7
    for row, part in zip(parts, phase["parts"]):
        assert row[0] == part["part"], (row, part)
        same(row[1], part["parameters"], 1e9)
        same(row[2], part["bytes"], 1e9)
        same(row[3], part["rank_bytes"], 1e9)
        same(row[4], part["replicated_bytes"], 1e9)
    total = parts[len(phase["parts"])]
    assert total[0] == "sum"
    same(total[2], phase["weight_bytes"], 1e9)
    same(total[3], phase["rank_weight_bytes"], 1e9)
    same(total[4], phase["rank_replicated_bytes"], 1e9)
    assert phase["rank_weight_bytes"] == sum(part["rank_bytes"] for part in phase["parts"])
    for row, kv in zip(rows_after(rows, "KV format"), phase["kv"], strict=True):
        assert row[0] == kv["format"]
        for cell, value in zip(row[1:5], ("token_bytes", "index_token_bytes", "rank_token_bytes", "tokens")):
            assert number(cell) == kv[value], (row, kv)
        assert [number(cell) for cell in row[5:]] == [entry["requests"] for entry in kv["requests"]], (row, kv)


def check_agreement(tessera, config, *flags):
    arguments = ["--model", str(config), "--tp", "8", *flags]
    text = tessera.plan(*arguments).stdout
    values = json.loads(tessera.plan(*arguments, "--json").stdout)
    assert f"{values['model']['parameters'] / 1e9:.2f} B; {values['model']['active_parameters'] / 1e9:.2f} B active" in text
    assert f"{values['reserve_bytes'] / 1e9:.2f} GB = {values['reserve_bytes'] / 2**30:.2f} GiB of each GPU" in text
    for row, size in zip(rows_after(section(text, "Checkpoint size"), "weights"), values["checkpoints"], strict=True):
        assert row[0] == size["weights"]
        for cell, value in zip(row[1:5], ("routed_expert_bytes", "other_bytes", "speculation_bytes", "bytes")):
            same(cell, size[value], 1e9)
        same(row[5], size["bytes"], 2**30)
        same(row[6], size["bytes"], 2**33)
    check_phase(text, "Prefill pool", values["prefill"])
    check_phase(text, "Decode pool: weights", values["decode"])
    step = values["decode_step"]
    rows = rows_after(section(text, "Decode floor"), "context")
    for row, entry in zip(rows, step["rows"], strict=True):
        assert (number(row[0]), number(row[1])) == (entry["context"], entry["batch"])
        same(row[2], entry["experts_touched"], step["expert_layers"])
        same(row[3], entry["routed_expert_bytes"], 1e9)
        same(row[4], entry["kv_bytes"], 1e9)
        same(row[5], entry["bytes_moved"], 1e9)
        same(row[6], entry["floor_ms"])
        same(row[7], entry["tokens_per_second"])
        assert row[8] == ("yes" if entry["kv_fits"] else "no")
        # The record of a step can be recomputed from these fields alone.
        moved = step["outside_bytes"] + entry["experts_touched"] * step["expert_bytes"] + entry["kv_bytes"]
        assert abs(moved / entry["bytes_moved"] - 1) < 1e-9
        assert abs(moved / step["read_bandwidth"] * 1e3 / entry["floor_ms"] - 1) < 1e-9
    for row, entry in zip(rows_after(section(text, "Prefill floor"), "prompt"), values["prefill_prompts"], strict=True):
        for cell, value in zip(row[1:5], ("dense_flop", "routed_expert_flop", "attention_flop", "indexer_flop")):
            same(cell, entry[value], 1e12)
        same(row[5], entry["compute_ms"])
        same(row[7], entry["floor_ms"])
        same(row[8], entry["tokens_per_second"])
    for row, group in zip(rows_after(section(text, "Decode pool on groups"), "GPUs"), values["groups"], strict=True):
        assert number(row[0]) == group["tp"]
        assert ("cannot" in row[2]) == (not group["fits"]), (row, group)
    if values["implied_reserves"]:
        rows = rows_after(section(text, "Reserve that would explain"), "tokens")
        for row, implied in zip(rows, values["implied_reserves"], strict=True):
            assert number(row[0]) == implied["tokens"] and row[1] == implied["weights"]
            same(row[5], implied["reserve_bytes"], 1e9)
            assert ("impossible" in row[7]) == (implied["reserve_bytes"] < 0)
    return values


def check_fit(tessera, configs):
    kimi = str(configs / "kimi-k2.6.json")
    one = tessera.plan("--model", kimi, "--tp", "1")
    assert "one h200 cannot hold it: 594.2 GB of weights + 14.1 GB of reserve = 608.3 GB" in one.stdout, one.stdout
    failed = tessera.plan("--model", kimi, "--tp", "1", "--require-fit", expect=1)
    assert failed.stdout == one.stdout and "one h200 cannot hold it" in failed.stderr, failed.stderr
    values = json.loads(tessera.plan("--model", kimi, "--tp", "1", "--json").stdout)
    assert not values["fits"] and "GB too much" in values["does_not_fit"]
    tessera.plan("--model", kimi, "--tp", "8", "--require-fit")


def check_refusals(tessera, configs):
    kimi = str(configs / "kimi-k2.6.json")
    glm = str(configs / "glm-4.6.json")
    for flags, words in (
        (["--model", kimi, "--gpu", "h300"], ["'h300'", "h200"]),
        (["--model", kimi, "--tp", "7"], ["64 attention heads", "7 ranks"]),
        (["--model", kimi, "--tp", "8", "--gpus", "12"], ["gpus", "multiple of tp 8"]),
        (["--model", kimi, "--weights", "int3"], ["'int3'", "int4"]),
        (["--model", kimi, "--kv-cache-dtype", "int8"], ["'int8'", "fp8_e4m3"]),
        (["--model", kimi, "--routing", "zipf:x"], ["'zipf:x'"]),
        (["--model", kimi, "--reserve", "lots"], ["--reserve", "'lots'"]),
        (["--model", kimi, "--reserve", "120%"], ["reserve"]),
        (["--model", kimi, "--gpu-memory", "10TB"], ["--gpu-memory", "'10TB'"]),
        (["--model", kimi, "--read-bandwidth", "0"], ["read bandwidth"]),
        (["--model", kimi, "--context", "0"], ["context is 0"]),
        (["--model", kimi, "--batch", "1,x"], ["--batch"]),
        (["--model", glm, "--tp", "8", "--weights", "fp8"], ["units of 128", "mlp"]),
        (["--model", str(configs / "none.json")], ["none.json"]),
        (["--model", str(configs)], ["config.json"]),
    ):
        message = tessera.plan(*flags, expect=1).stderr
        assert all(word in message for word in words), (flags, words, message)
        print("refused:", message.strip()[:150])
    with tempfile.TemporaryDirectory() as folder:
        absurd = pathlib.Path(folder) / "config.json"
        config = json.loads((configs / "glm-5.2.json").read_text())
        for field, value in (("num_hidden_layers", 10**12), ("n_routed_experts", 10**9), ("hidden_size", -1)):
            absurd.write_text(json.dumps({**config, field: value}))
            for model in (folder, str(absurd)):
                message = tessera.plan("--model", model, expect=1).stderr
                assert "config.json" in message and field in message, message


def main():
    tessera, configs = Executable(sys.argv[1]), pathlib.Path(sys.argv[2])
    kimi = check_agreement(tessera, configs / "kimi-k2.6.json")
    assert kimi["fits"] and kimi["decode"]["kv_cache_dtype"] == "fp8_e4m3" and kimi["prefill"]["kv_cache_dtype"] == "bf16"
    assert [row["tokens"] for row in kimi["implied_reserves"]] == [686000, 1370000]
    skewed = check_agreement(tessera, configs / "kimi-k2.6.json", "--routing", "zipf:1", "--context", "4096,131072",
                             "--batch", "8,256", "--reserve", "20GiB", "--held-tokens", "500000,5000000")
    assert skewed["reserve_bytes"] == 20 * 2**30 and len(skewed["decode_step"]["rows"]) == 4
    assert skewed["decode_step"]["rows"][0]["experts_touched"] < kimi["decode_step"]["rows"][1]["experts_touched"]
    glm = check_agreement(tessera, configs / "glm-5.2.json", "--decode-weights", "int4-fp8", "--context", "8192,524288")
    assert glm["model"]["index_layers"] == 21 and glm["decode"]["weights"] == "int4-fp8"
    check_agreement(tessera, configs / "glm-4.6.json", "--gpu", "b200", "--weights", "fp8-channel")
    check_agreement(tessera, configs / "deepseek-v3.json", "--gpu", "h200", "--gpu-memory", "139GiB")
    check_fit(tessera, configs)
    check_refusals(tessera, configs)
    print("plan: all held")


if __name__ == "__main__":
    main()
