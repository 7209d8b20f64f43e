"""The held-out sets: cells of (task, level, split), recreated from nothing but their names.

Split `new_draws` has seen wordings and entities in new combinations; `unseen` has wordings and entities that training
never drew. A task's levels in BEYOND are harder than any that training draws. Retrieval has a cell for each length as
well. `python heldout.py --out DIR` writes them as JSON lines, half as many of those harder levels.
"""

import argparse
import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path

from example import Example
from tasks import TASKS, choice, retrieval

SPLITS = ("new_draws", "unseen")
EVALUATED = [name for name in TASKS if name not in ("dialogue", "recall")]


@dataclass(frozen=True)
class Cell:
    task: str
    level: int
    split: str
    length: int = 0

    @property
    def name(self) -> str:
        return f"{self.task}/{self.level}" + (f"/{self.length}" if self.length else "")


def cells() -> list[Cell]:
    out = []
    for task in EVALUATED:
        for level in TASKS[task].LEVELS + getattr(TASKS[task], "BEYOND", ()):
            for split in SPLITS:
                lengths = retrieval.LENGTHS if task == "retrieval" else (0,)
                out += [Cell(task, level, split, length) for length in lengths]
    return out


def example(cell: Cell, index: int) -> Example:
    """Question `index` of a cell; its seed is its name, which the training stream cannot draw."""
    rng = random.Random(f"held out/{cell.task}/{cell.level}/{cell.length}/{cell.split}/{index}")
    unseen = cell.split == "unseen"
    if cell.task == "choice":
        return choice.make(rng, cell.level, unseen, plain=True)
    if cell.task == "retrieval":
        return retrieval.make(rng, cell.level, unseen, cell.length)
    return TASKS[cell.task].make(rng, cell.level, unseen)


def question(example: Example) -> list[dict]:
    """The messages up to the first judged answer; episodes keep all, since their answers are judged turn by turn."""
    if example.scoring == "episode":
        return example.messages
    last = max(i for i, message in enumerate(example.messages) if message["role"] == "user")
    return example.messages[: last + 1]


def exported(cell: Cell, index: int) -> dict:
    made = example(cell, index)
    record = {"id": f"{cell.name}/{cell.split}/{index}", "task": f"pocket-{cell.task}", "level": cell.level, "split": cell.split,
              "scoring": made.scoring, "answer": made.answer}
    if cell.task == "retrieval":
        haystack = made.facts["haystack"]
        record |= {"length": cell.length, "before": made.facts["before"], "after": made.facts["after"],
                   "filler": f"filler_{cell.split}.txt", "filler_start": haystack["start"], "filler_count": haystack["count"],
                   "inserts": haystack["inserts"]}
        return record
    if cell.task == "choice":
        record["choices"] = list(made.facts.get("letters", made.facts["options"]))
    record["messages"] = question(made)
    if made.tools:
        record["tools"] = made.tools
    return record


def export(folder: Path, per_cell: int, per_retrieval_cell: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    by_task: dict[str, list[dict]] = {}
    for cell in cells():
        count = per_retrieval_cell if cell.task == "retrieval" else per_cell
        if cell.level not in TASKS[cell.task].LEVELS:
            count //= 2
        by_task.setdefault(cell.task, []).extend(exported(cell, i) for i in range(count))
    for task, records in by_task.items():
        lines = "".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in records)
        with open(folder / f"pocket-{task}.jsonl.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
            out.write(lines.encode())
    for split in SPLITS:
        text = "\n".join(retrieval.fillers(split == "unseen")) + "\n"
        with open(folder / f"filler_{split}.txt.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
            out.write(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--per-cell", type=int, default=200)
    parser.add_argument("--per-retrieval-cell", type=int, default=40)
    args = parser.parse_args()
    export(Path(args.out), args.per_cell, args.per_retrieval_cell)


if __name__ == "__main__":
    main()
