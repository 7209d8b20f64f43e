#!/usr/bin/env python3
"""Write tests/goldens/quality/bfcl.jsonl.gz: which calls the leaderboard's own checker takes for right.

bfcl_eval's ast_checker judges right calls of the questions of data/evaluation/bfcl_single_turn.jsonl.gz (an accepted
value of each argument, in another order and another spelling too) and the same with names, values, types and counts
changed. The package's table of models, which imports every vendor's client, is left out: the checker asks it only
whether a model's names have dots, and here they have. Where the checker stops with an exception, the answer is wrong.
"""

import copy
import gzip
import json
import random
import sys
import types
from pathlib import Path

table = types.ModuleType("bfcl_eval.constants.model_config")
table.MODEL_CONFIG_MAPPING = {"any": types.SimpleNamespace(underscore_to_dot=False)}
sys.modules[table.__name__] = table
for language in ("java", "js"):
    converter = types.ModuleType(f"bfcl_eval.eval_checker.ast_eval.type_convertor.{language}_type_converter")
    setattr(converter, f"{language}_type_converter", None)
    sys.modules[converter.__name__] = converter

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "quality" / "bfcl.jsonl.gz"
DATA = ROOT / "data" / "evaluation" / "bfcl_single_turn.jsonl.gz"
SEED = 20261130


def accepted_value(rng: random.Random, value):
    """Accepted dicts hold accepted lists in turn."""
    if isinstance(value, dict):
        made = {}
        for key, values in value.items():
            if "" in values and rng.random() < 0.5:
                continue
            usable = [v for v in values if v != ""]
            if usable:
                made[key] = rng.choice(usable)
        return made
    if isinstance(value, list):
        return [accepted_value(rng, item) if isinstance(item, dict) else item for item in value]
    return value


def right_calls(rng: random.Random, question: dict) -> list:
    calls = []
    for expected in question["answer"]:
        (name, arguments), = expected.items()
        required = next(f for f in question["functions"] if f["name"] == name)["parameters"]["required"]
        made = {}
        for argument, values in arguments.items():
            usable = [v for v in values if v != ""]
            if not usable or ("" in values and argument not in required and rng.random() < 0.5):
                continue
            made[argument] = accepted_value(rng, rng.choice(usable))
        calls.append([name, made])
    return calls


def respelled(rng: random.Random, text: str) -> str:
    """As the checker takes it for the same."""
    return rng.choice([text.upper(), text.lower(), f" {text}", text.replace(" ", ""), text.replace(" ", "_"), f"{text}.", text.replace("'", '"')])


def other(rng: random.Random, value):
    """Another value, or the same in another type."""
    if isinstance(value, bool):
        return rng.choice([not value, int(value), str(value)])
    if isinstance(value, int):
        return rng.choice([value + 1, float(value), str(value), -value, value + 0.5, [value], True])
    if isinstance(value, float):
        return rng.choice([value + 1, int(value), str(value), None])
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1], "", 7, None, [value], {"a": value}, f"({value})"])
    if isinstance(value, list):
        return rng.choice([value[::-1], value + value[:1], value[1:], [], [str(v) for v in value], [respelled(rng, v) if isinstance(v, str) else v for v in value],
                           [float(v) if type(v) is int else v for v in value], [other(rng, v) for v in value], "x", {}])
    if isinstance(value, dict):
        made = copy.deepcopy(value)
        if made and rng.random() < 0.7:
            key = rng.choice(list(made))
            rng.choice([lambda: made.pop(key), lambda: made.update({key: other(rng, made[key])}),
                        lambda: made.update({key: respelled(rng, made[key]) if isinstance(made[key], str) else made[key]})])()
            return made
        return rng.choice([made | {"extra": 1}, {}, [made], "x"])
    return rng.choice([0, "", [], {}])


def changed(rng: random.Random, question: dict, calls: list) -> list:
    calls = copy.deepcopy(calls)
    if not calls:
        return calls
    which = rng.randrange(len(calls))
    name, arguments = calls[which]
    argument = rng.choice(list(arguments)) if arguments else None
    kind = rng.randrange(10)
    if kind == 0:
        calls[which][0] = rng.choice([name.replace(".", "_"), name + "x", name.upper(), question["functions"][-1]["name"]])
    elif kind == 1:
        calls = calls[:-1] if rng.random() < 0.5 else [*calls, calls[0]]
    elif kind == 2:
        rng.shuffle(calls)
    elif kind == 3 and argument is not None:
        del arguments[argument]
    elif kind == 4:
        declared = next((f for f in question["functions"] if f["name"] == name), question["functions"][0])
        spare = [p for p in declared["parameters"]["properties"] if p not in arguments] + ["no_such_argument"]
        arguments[rng.choice(spare)] = rng.choice([1, "", "x", True, [], 0.5])
    elif kind == 5 and isinstance(arguments.get(argument), str):
        arguments[argument] = respelled(rng, arguments[argument])
    elif kind == 6 and isinstance(arguments.get(argument), int):
        arguments[argument] = float(arguments[argument])
    elif argument is not None:
        arguments[argument] = other(rng, arguments[argument])
    return calls


def is_right(question: dict, calls: list) -> bool:
    if question["category"] == "irrelevance":
        return not calls
    made = [{name: arguments} for name, arguments in calls]
    try:
        return bool(ast_checker(question["functions"], copy.deepcopy(made), question["answer"], Language.PYTHON, question["category"], "any")["valid"])
    except Exception:  # noqa: BLE001 - the checker's own trouble with an answer
        return False


def main() -> None:
    rng = random.Random(SEED)
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        questions = [json.loads(line) for line in file]
    lines = []
    for question in questions:
        if question["category"] == "irrelevance":
            if rng.random() < 0.1:
                call = [question["functions"][0]["name"], {}]
                lines += [{"id": question["id"], "calls": calls, "right": is_right(question, calls)} for calls in ([], [call])]
            continue
        right = right_calls(rng, question)
        tries = [right, *(changed(rng, question, right) for _ in range(4)), changed(rng, question, changed(rng, question, right))]
        lines += [{"id": question["id"], "calls": calls, "right": is_right(question, calls)} for calls in tries]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    with open(OUT, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(text.encode())
    print(f"{len(lines)} answers, {sum(line['right'] for line in lines)} right")


if __name__ == "__main__":
    main()
