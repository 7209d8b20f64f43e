"""The bundled model through the executable: an answer, a chat, and the prompts that its folder suggests.

Usage: bundled_model.py TESSERA MODEL_DIR
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(*command, text="", expect=0):
    result = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, timeout=300)
    assert result.returncode == expect, (command, result.returncode, result.stdout, result.stderr)
    return result


def chat(tessera, model, *lines, expect=0):
    return run(tessera, "serve", "--model", model, "--chat", "--temperature", "0", "--port", "0", "--log-level", "error",
               text="".join(line + "\n" for line in lines), expect=expect)


def with_examples(model, folder, text):
    """A copy of the model folder whose suggestions are `text` (bytes)."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("tasks", "examples.txt"))
    (folder / "examples.txt").write_bytes(text)
    return folder


def main():
    tessera, model = sys.argv[1], pathlib.Path(sys.argv[2])
    once = run(tessera, "serve", "--model", model, "--once", "Compute 34 times 27.")
    assert "918" in once.stdout, once.stdout
    for words in ("prefill KV bf16", "handoff", "fp8_e4m3", "pages verified"):
        assert words in once.stderr, (words, once.stderr)

    # Every suggestion that the folder makes is asked, and shown before its answer; behind the last there is none.
    lines = (model / "examples.txt").read_text(encoding="utf-8").split("\n")
    written = "\n".join(line for line in lines if not line.startswith("#"))
    suggested = [part.strip() for part in written.split("\n\n") if part.strip()]
    assert 2 <= len(suggested) <= 9
    lines = [line for number in range(len(suggested)) for line in ("/clear", f"/try {number + 1}")]
    said = chat(tessera, model, *lines, f"/try {len(suggested) + 1}", "/try", "/try 0").stdout
    print(said)
    for example in suggested:
        assert example in said, (example, said)
    assert said.count(f"expected /try and a number from 1 to {len(suggested)}") == 3, said

    # A line that ends in a backslash goes on: the program is one question.
    said = chat(tessera, model, "What does this program print?\\", "x = 5\\", "x = x + 8\\", "print(x)").stdout
    assert "13" in said and "unknown" not in said, said

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        two = b"# A remark.\r\nWhat is 2 + 3?\r\n\r\n\r\nWhat is\r\n4 + 5?"
        said = chat(tessera, with_examples(model, scratch / "two", two), "/try 2", "/try 3").stdout
        assert "What is\n4 + 5?" in said and "from 1 to 2" in said and "remark" not in said, said
        for name, text, word in (("long", b"a" * 20000, "16384"), ("bytes", b"\xff\xfe", "UTF-8"),
                                 ("many", b"What?\n\n" * 10, "at most 9")):
            message = chat(tessera, with_examples(model, scratch / name, text), "/quit", expect=1).stderr
            assert "examples.txt" in message and word in message, message
        none = with_examples(model, scratch / "none", b"")
        (none / "examples.txt").unlink()
        assert "this model suggests no prompts" in chat(tessera, none, "/try 1").stdout
    print("bundled model: all held")


if __name__ == "__main__":
    main()
