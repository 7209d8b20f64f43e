#!/usr/bin/env python3
"""Makes data/evaluation of the full data sets: small files whole, of large ones a part by a fixed rule.

The full sets have the same file names and formats (data/evaluation/README.md), so that `tessera evaluate --data FULL`
reads them instead; a question has the same id in a part and in the whole. Running it again writes the same bytes.

    tools/evaluation_data/subset.py --full FULL --out data/evaluation
"""

import argparse
import gzip
import json
import pathlib
import sys

WHOLE = [
    "arc_challenge_test", "arc_easy_test", "bfcl_single_turn", "gsm8k_fewshot", "gsm8k_test", "humaneval", "mmlu_dev",
    "mmlu_pro_dev",
]
MMLU_A_SUBJECT = 20
MMLU_PRO_STEP = 2
WIKITEXT_ARTICLES = 10
MOBY_DICK_CHAPTERS = 16


def read(path: pathlib.Path) -> list:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def write(path: pathlib.Path, records: list) -> None:
    text = "".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)
    path.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))
    print(f"{path.name}: {len(records)} records, {path.stat().st_size} bytes")


def mmlu(records: list) -> list:
    """Of each subject's n questions those numbered floor(i n / 20): spread over the subject. `index` keeps the number."""
    subjects: dict = {}
    for record in records:
        subjects.setdefault(record["subject"], []).append(record)
    chosen = []
    for questions in subjects.values():
        for i in range(MMLU_A_SUBJECT):
            index = i * len(questions) // MMLU_A_SUBJECT
            chosen.append({"subject": questions[index]["subject"], "index": index, **questions[index]})
    return chosen


def article_starts(text: str) -> list:
    """Offsets of the lines " = Title = ", by the rule of the document-level edition of WikiText that is published."""
    starts, offset = [], 0
    for line in text.split("\n"):
        bare = line.replace("= = =", "===").replace("= =", "==").strip()
        if bare.startswith("= ") and bare.endswith(" ="):
            starts.append(offset)
        offset += len(line) + 1
    return starts


def wikitext(records: list) -> list:
    """The text's beginning, whole articles of it; the newline before the next article's title belongs to neither."""
    (record,) = records
    text = record["text"][:article_starts(record["text"])[WIKITEXT_ARTICLES] - 1]
    print(f"wikitext2_test: {WIKITEXT_ARTICLES} articles, {len(text.encode('utf-8'))} bytes, {len(text.split())} words")
    return [{**record, "text": text}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=pathlib.Path, required=True, help="folder with the full sets")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    full = {path.name.removesuffix(".jsonl.gz"): path for path in arguments.full.glob("*.jsonl.gz")}
    missing = [n for n in WHOLE + ["mmlu_test", "mmlu_pro_sample", "wikitext2_test", "moby_dick"] if n not in full]
    if missing:
        print(f"{arguments.full}: lacks {', '.join(name + '.jsonl.gz' for name in missing)}", file=sys.stderr)
        return 1
    parts = {name: read(full[name]) for name in WHOLE}
    parts["mmlu_test"] = mmlu(read(full["mmlu_test"]))
    parts["mmlu_pro_sample"] = read(full["mmlu_pro_sample"])[::MMLU_PRO_STEP]
    parts["wikitext2_test"] = wikitext(read(full["wikitext2_test"]))
    parts["moby_dick"] = read(full["moby_dick"])[:MOBY_DICK_CHAPTERS]
    for name, records in sorted(parts.items()):
        write(arguments.out / f"{name}.jsonl.gz", records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
