#!/usr/bin/env python3
"""Write tests/goldens/quality/pocket_code.jsonl.gz: which functions tools/train_pocket/score.py takes for right.

The generator's own right answers of held-out questions, and the same changed: other numbers and operators, other marks
around them, and every construct that the rule does not allow.
"""

import gzip
import json
import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train_pocket"))
import heldout  # noqa: E402
import score  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "quality" / "pocket_code.jsonl.gz"
SEED = 20261130


def changed(rng: random.Random, text: str) -> list[str]:
    code = text.removeprefix("```python\n").removesuffix("```")
    head, _, body = code.partition("\n")
    name = re.match(r"def (\w+)\(", head)[1]
    parameter = re.search(r"\((\w+)", head)[1]

    def fenced(inner: str) -> str:
        return f"```python\n{inner}```"

    numbers = re.findall(r"\d+", code)
    number = rng.choice(numbers) if numbers else "1"
    return rng.sample([
        f"Here it is:\n{text}\nDone.", text + "\n" + fenced("1"), fenced("1") + text, code, text.replace("```python", "```"),
        text[:-3], fenced(code.replace(number, str(int(number) + 1), 1)), fenced(code.replace("-", "+")), fenced(code.replace("return", "retrun", 1)),
        fenced("import os\n" + code), fenced(code + f"\n{name}(1)\n"), fenced("@abs\n" + code), fenced(f"{head}\n    x = 1\n{body}"),
        fenced(f"{head}\n    while True:\n        pass\n{body}"), fenced(f"{head}\n    {name}({parameter})\n{body}"),
        fenced(f"{head}\n    {parameter}.real\n{body}"), fenced(f"{head}\n    2 ** 2\n{body}"), fenced(f"{head}\n    2 << 2\n{body}"),
        fenced(f"{head}\n    2 >> 2\n{body}"), fenced(f"{head}\n    print(1)\n{body}"), fenced(f"{head}\n    sum([1])\n{body}"),
        fenced(f"{head}\n    (lambda: 1)()\n{body}"), fenced(f"{head}\n    'a text'\n{body}"), fenced(f"{head}\n    {{1: 2}}\n{body}"),
        fenced(f"{head}\n    return 1 / 0\n"), fenced(f"{head}\n    return missing\n"), fenced(f"{head}\n    return True\n"),
        fenced(f"{head}\n    {'1 + ' * 150}1\n{body}"), fenced(f"{head}\n    {'1 + ' * 120}1\n{body}"), fenced(code.replace(name, name + "_")),
        fenced(f"{head}\n    'é\u4f60\U0001f600\\n\"'\n{body}"), fenced(code.replace("    ", "  ")), fenced(f"{head}\n    __import__('os')\n{body}"),
        fenced(f"async {code}"), fenced(f"{head}\n    [i for i in [1]]\n    {parameter} if 1 else 2\n{body}"), "", "```python\n```",
        fenced(f"{head}\n    f'{{1}}'\n{body}"), fenced(f"{head}\n    {'(' * 150}1{')' * 150}\n{body}"), text.replace("```python\n", "```python \n"),
    ], 7)


def main() -> None:
    rng = random.Random(SEED)
    lines = []
    for cell in heldout.cells():
        if cell.task != "functions":
            continue
        for index in range(2):
            example = heldout.example(cell, index)
            for text in [example.messages[-1]["content"], *changed(rng, example.messages[-1]["content"])]:
                lines.append({"text": text, "tests": example.answer, "right": score.code(text, example.answer)})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    with open(OUT, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(text.encode())
    print(f"{len(lines)} answers, {sum(line['right'] for line in lines)} right")


if __name__ == "__main__":
    main()
