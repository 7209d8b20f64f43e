#!/usr/bin/env python3
"""Write tests/goldens/quality/pocket_judge.jsonl.gz: what tools/train_pocket/score.py says of varied answers.

Right answers of held-out questions, and the same with numbers, names, keys, types, marks and white space changed. Each
line has the answer as the API gives it (text and calls, taken from the model's marks here), the verdict, and whether
its calls are valid.
"""

import gzip
import json
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train_pocket"))
import score  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "quality" / "pocket_judge.jsonl.gz"
TASKS = ROOT / "models" / "tessera-pocket" / "tasks"
SEED = 20261130


def questions(task: str) -> list[dict]:
    with gzip.open(TASKS / f"pocket-{task}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def number_answers(rng: random.Random, n: int) -> list[str]:
    say = f"The answer is {n}."
    return [
        f"First 3 + 4 = 7. {say}", say, f"The answer is {n + 1}.", f"{say} The answer is {n - 1}.", f"The answer is 5. {say}",
        f"The answer is {n}", f"The answer is  {n}.", f"The answer is {n}.5", f"the answer is {n}.", f"The answer is -{abs(n)}.",
        f"The answer is 00{abs(n)}.", f"The answer is --{abs(n)}.", f"{say} The answer is x.", f"{say} The answer is 12", "",
        f"The answer is The answer is {n}.", f"The answer is -0.", f"The answer is {n}{rng.randrange(10)}.", f"The answer is {n}. ",
        f"The answer is 1{'0' * 30}{n}.",
    ]


def trace_answers(rng: random.Random, value: str) -> list[str]:
    say = f"It prints {value}."
    return [
        f"z = 3\n{say}", say, f"It prints {value}0.", f"{say} It prints 1.", f"It prints 1. {say}", f"It prints {value}",
        f"It prints  {value}.", f"it prints {value}.", f"It prints -{value}.", f"It prints '{value}'.", f"{say} It prints 1", "",
        f"It prints {value}x.", f"It prints é. {say}", f"{say} It prints é.", f"It prints It prints {value}.", f"It prints 0{value}.",
        f"It prints {value}.{rng.randrange(9)}",
    ]


def written(calls: list) -> str:
    made = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{made}<|tool_calls_section_end|>"


def changed(rng: random.Random, calls: list, tools: list) -> list[str]:
    """Arguments as texts, so that they can be no JSON."""
    right = [(name, json.dumps(arguments)) for name, arguments in calls]

    def with_arguments(change) -> str:
        which = rng.randrange(len(calls))
        arguments = json.loads(right[which][1])
        change(arguments)
        return written([(n, json.dumps(arguments)) if i == which else (n, a) for i, (n, a) in enumerate(right)])

    def other_value(arguments: dict) -> None:
        key = rng.choice(list(arguments))
        value = arguments[key]
        arguments[key] = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else value + "s"

    def other_type(arguments: dict) -> None:
        key = rng.choice(list(arguments))
        value = arguments[key]
        if isinstance(value, bool):
            arguments[key] = rng.choice([int(value), str(value)])
        elif isinstance(value, int):
            arguments[key] = rng.choice([float(value), str(value), bool(value), [value]])
        else:
            arguments[key] = rng.choice([7, None, True, [value], {"x": value}])

    def no_key(arguments: dict) -> None:
        arguments.pop(rng.choice(list(arguments)))

    def more_keys(arguments: dict) -> None:
        arguments[rng.choice(["extra", "size"])] = rng.choice([1, "x", None])

    def swapped(arguments: dict) -> None:
        pairs = list(arguments.items())
        arguments.clear()
        arguments.update(reversed(pairs))

    def unicode_value(arguments: dict) -> None:
        arguments[rng.choice(list(arguments))] = "caf\u00e9 \u4f60"

    name = rng.choice(tools)["function"]["name"]
    return [
        written(right), written(right[::-1]), written(right + right[:1]), written(right[:-1]) if len(right) > 1 else written(right),
        with_arguments(other_value), with_arguments(other_type), with_arguments(no_key), with_arguments(more_keys),
        with_arguments(swapped), with_arguments(unicode_value), with_arguments(other_type), with_arguments(other_value),
        written([(name, a) for _, a in right]), written([("no_such_tool", a) for _, a in right]),
        written([(n, a[:-1]) for n, a in right]), written([(n, "[1]") for n, _ in right]), written([(n, "{}") for n, _ in right]),
        written([(n, a.replace(": ", ":  ")) for n, a in right]), "Sure. " + written(right), written(right) + "\n", " ",
        "I cannot do that.", written([(n, a[:-1] + ', "k": 1, "k": 2}') for n, a in right]),
    ]


def api(text: str) -> dict:
    """Text and calls as a server gives them: what is outside of the section is text."""
    section = score.SECTION.search(text)
    if not section:
        return {"text": text, "calls": []}
    calls = [[m.group(1), m.group(3)] for m in score.CALL.finditer(section.group(1))]
    return {"text": text[: section.start()] + text[section.end() :], "calls": calls}


def main() -> None:
    rng = random.Random(SEED)
    lines = []
    for task in ("arithmetic", "tracing", "tools", "retrieval"):
        for q in rng.sample(questions(task), 60 if task == "tools" else 25):
            answer, tools = q["answer"], q.get("tools", [])
            if q["scoring"] == "number":
                texts = number_answers(rng, answer)
            elif q["scoring"] == "trace":
                texts = trace_answers(rng, answer)
            elif q["scoring"] == "calls":
                texts = changed(rng, answer, tools)
            else:
                made = written([(tools[0]["function"]["name"], "{}")]) if tools else "It is."
                texts = [answer, f" {answer}\n", answer[:-1], answer + ".", f"It is {answer}", answer.upper(), "", made, "\u00a0" + answer]
            for text in texts:
                line = {"scoring": q["scoring"], "answer": answer} | api(text)
                line["right"] = score.judge(q["scoring"], text, answer)
                if tools:
                    line |= {"tools": tools, "valid": score.valid_calls(text, tools)}
                lines.append(line)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    with open(OUT, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(text.encode())
    right = sum(line["right"] for line in lines)
    valid = [line["valid"] for line in lines if "valid" in line]
    print(f"{len(lines)} answers, {right} right; {sum(valid)} of {len(valid)} valid")


if __name__ == "__main__":
    main()
