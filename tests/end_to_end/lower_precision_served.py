"""What tools/lower_precision makes of the bundled model is sound for `tessera inspect`, and answers under `tessera serve`.

Usage: lower_precision_served.py TESSERA TOOL MODEL_DIR
"""

import pathlib
import subprocess
import sys
import tempfile

# Right as shipped, and in every precision that is good enough.
QUESTION, ANSWER = "Compute 34 times 27.", "918"


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (command, result.returncode, result.stdout, result.stderr)
    return result.stdout


def main():
    tessera, tool, model = sys.argv[1:]
    # Dtypes that `inspect` must count, and whether the model still answers: a damaged one may never come to an end.
    cases = (
        ("int4", ["--experts", "int4"], ["I32", "BF16"], ["F8_E4M3"], True),
        ("one_scale", ["--fp8-one-scale"], ["F8_E4M3"], ["I32"], True),
        ("permuted", ["--damage", "permute-experts:1"], ["F8_E4M3"], ["I32"], False),
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name, action, there, not_there, answers in cases:
            folder = pathlib.Path(scratch) / name
            print(run(sys.executable, tool, "--model", model, "--out", folder, *action).strip())
            text = run(tessera, "inspect", folder)
            assert "sound: every tensor is there" in text, text
            counted = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
            assert set(there) <= set(counted) and not set(not_there) & set(counted), text
            if not answers:
                continue
            answer = run(tessera, "serve", "--model", folder, "--log-level", "error", "--once", QUESTION).strip()
            print(f"{name}: {answer}")
            assert ANSWER in answer, answer
    print("lower precisions: all held")


if __name__ == "__main__":
    main()
