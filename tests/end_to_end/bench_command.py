"""Runs `tessera bench integrity` on a tiny random model and judges its JSON from the samples in it: counts, shares,
percentiles, intervals. No time is judged.

Usage: bench_command.py TESSERA MAKE_TINY_MODEL
"""

import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

LEVELS = ["tags", "digest", "digest-step"]
BATCH, CONTEXT, DECODE, BLOCK, REPEATS = 5, 40, 6, 2, 2


def run(command, expect=0):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode == 0) == (expect == 0), (command, result.returncode, result.stdout, result.stderr)
    return result


def percentile(samples, share):
    return sorted(samples)[math.ceil(share * len(samples)) - 1]


def close(a, b):
    return abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))


def check_report(report, text):
    assert (report["batch"], report["context"], report["decode"]) == (BATCH, CONTEXT, DECODE), report
    assert report["kv_format"] == "bf16" and report["command"].startswith("tessera bench integrity --model ")
    levels = report["levels"]
    assert [level["level"] for level in levels] == ["none", *LEVELS]
    assert [level["checked"] for level in levels] == [False] + [True] * len(LEVELS)
    engines = {level["engine"] for level in levels}
    assert len(report["first_contexts"]) == len(engines) == 3
    for first in report["first_contexts"]:
        # Filled one sequence a step: all are at the same length when the last one is.
        assert first["most"] == first["least"] >= CONTEXT, report["first_contexts"]
    turns = {}
    for level in levels:
        cycles = DECODE // BLOCK * REPEATS
        assert level["steps"] == cycles * BLOCK
        for field in ("turn_ms", "step_ns", "check_ns"):
            assert [len(cycle) for cycle in level[field]] == [BLOCK] * cycles, (field, level[field])
        turns[level["level"]] = turn = sum(level["turn_ms"], [])
        step, check = sum(level["step_ns"], []), sum(level["check_ns"], [])
        assert all(0 < c < s for c, s in zip(check, step, strict=True)), (check, step)
        assert all(s * 1e-6 < t for s, t in zip(step, turn, strict=True)), (step, turn)
        share = level["check_share"]
        assert 0 < share["low"] <= share["value"] <= share["high"] < 1, share
        assert close(share["value"], sum(check) / sum(step))
        assert close(level["check_us"], sum(check) / len(check) * 1e-3) and close(level["step_ms"], sum(step) / len(step) * 1e-6)
        for name, at in (("p50_ms", 0.5), ("p95_ms", 0.95)):
            assert level[name]["value"] == percentile(turn, at), (name, level[name])
            assert level[name]["low"] <= level[name]["value"] <= level[name]["high"]
        assert f"\n{level['level']} " in text
    for level in levels[1:]:
        for name, at in (("p50_more_ms", 0.5), ("p95_more_ms", 0.95)):
            more = level[name]
            assert close(more["value"], percentile(turns[level["level"]], at) - percentile(turns["none"], at)), more
            assert more["low"] <= more["value"] <= more["high"], more


def main():
    tessera, make_tiny_model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        model, out = f"{folder}/tiny", pathlib.Path(folder) / "out.json"
        run([make_tiny_model, model])
        integrity = [tessera, "bench", "integrity", "--model", model, "--threads", "1"]
        load = ["--batch", str(BATCH), "--context", str(CONTEXT), "--decode", str(DECODE), "--block", str(BLOCK),
                "--repeat", str(REPEATS)]
        done = run([*integrity, *load, "--level", ",".join(LEVELS), "--kv-cache-dtype", "bf16", "--page-size", "16",
                    "--json", str(out)])
        check_report(json.loads(out.read_text()), done.stdout)
        assert "filling" in done.stderr and "filling" not in done.stdout

        assert "integrity" in run([tessera, "bench", "--help"]).stdout
        assert "bench" in run([tessera, "--help"]).stdout
        for flags, words in (
            (["--level", "none"], ["--level", "tags"]),
            (["--decode", "6", "--block", "4"], ["--decode 6", "--block 4"]),
            (["--batch", "50", "--context", "49"], ["--context 49", "--batch 50"]),
            (["--context", "100000"], ["context"]),
            (["--json", f"{folder}/none/out.json"], ["--json", "none/out.json"]),
            (["--kv-cache-dtype", "f32"], ["f32", "simd"]),
        ):
            refused = run([*integrity, *flags], expect=1)
            message = refused.stdout + refused.stderr
            assert all(word in message for word in words), (flags, words, message)
        message = run([tessera, "bench", "integrity", "--model", f"{folder}/none"], expect=1).stderr
        assert "none" in message, message
        alone = shutil.copy(tessera, f"{folder}/tessera")
        message = run([alone, "bench", "integrity"], expect=1).stderr
        assert f"{folder}/tessera_bench" in message and "scripts/build.sh" in message, message
    print("bench: all held")


if __name__ == "__main__":
    main()
