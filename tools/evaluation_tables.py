#!/usr/bin/env python3
"""Markdown tables of reports that `tessera evaluate --json` wrote (.json, or .json.gz), one column a report.

evaluation_tables.py scores FILE...      each task's first metric: share right, lost and won against the reference
evaluation_tables.py distances FILE...   mean KL divergence from the reference in nats, its interval, same best token
evaluation_tables.py pairs FILE          which plans' mean KL divergences are apart, with the interval of the difference
evaluation_tables.py cells FILE...       share right of each cell, of reports of one plan
evaluation_tables.py strip FILE OUT.gz   the report without its `outcomes` (one entry a question and plan)
"""

import gzip
import json
import sys


def load(path: str) -> dict:
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        return json.load(file)


def tasks(reports: list[dict]) -> list[tuple[dict, dict]]:
    return [(report, task) for report in reports for task in report["tasks"]]


def whole(rows: list[dict], metric: str | None = None) -> dict[str, dict]:
    """Of a task's rows those of no cell, by plan."""
    return {row["plan"]: row for row in rows if row["cell"] is None and row.get("metric") == metric}


def short(task: dict) -> str:
    return task["task"].removeprefix("pocket-")


def print_table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_columns(columns: list[tuple[str, dict[str, str]]]) -> None:
    """One row a plan, in the order in which the reports name them."""
    plans = dict.fromkeys(plan for _, column in columns for plan in column)
    print_table(["plan"] + [name for name, _ in columns], [[plan] + [column.get(plan, "-") for _, column in columns] for plan in plans])


def signed_percent(value: float) -> str:
    return f"{100 * value:+.2f}"


def scores(reports: list[dict]) -> None:
    """Verdicts: = equivalent, ! different, != different but within the margin, nothing: not enough data."""
    marks = {"equivalent": " =", "different": " **!**", "different_within": " **!**=", "not_enough_data": ""}
    columns = []
    for _, task in tasks(reports):
        metric = task["metrics"][0]["name"]
        values, compared = whole(task["values"], metric), whole(task["comparisons"], metric)
        column = {}
        for plan, value in values.items():
            text = f"{100 * value['value']:.2f}"
            if plan in compared:
                c = compared[plan]
                low, high = (signed_percent(end) for end in c["interval"])
                text += f" (-{c['counts']['lost']} +{c['counts']['won']}; {low} to {high}){marks[c['verdict']]}"
            column[plan] = text
        questions = next(iter(values.values()))["questions"]
        columns.append((f"{short(task)}, {questions:,}", column))
    print_columns(columns)


def distances(reports: list[dict]) -> None:
    columns = []
    for report in reports:
        for task in report["distances"]:
            column = {}
            for plan, row in whole(task["summaries"]).items():
                kl, (low, high) = row["kl"]["value"], row["kl"]["interval"]
                best = 100 * row["top1_agreement"]["value"]
                column[plan] = f"{kl:.1e} ({low:.1e} to {high:.1e}), {best:.2f} %"
            passages = next(iter(whole(task["summaries"]).values()))["passages"]
            columns.append((f"{short(task)}, {passages:,}", column))
    print_columns(columns)


def pairs(reports: list[dict]) -> None:
    rows = []
    for report in reports:
        for task in report["distances"]:
            for pair in task["pairs"]:
                low, high = pair["interval"]
                rows.append([short(task), pair["first"], pair["second"], f"{pair['difference']:+.2e}", f"{low:+.2e} to {high:+.2e}",
                             f"{pair['p_adjusted']:.4f}", "apart" if pair["apart"] else "not told apart"])
    print_table(["task", "first", "second", "second's mean KL less first's", "95% interval", "p (Holm)", ""], rows)


def cells(reports: list[dict]) -> None:
    rows = []
    for _, task in tasks(reports):
        for metric in task["metrics"]:
            for row in task["values"]:
                if row["cell"] is not None and row["metric"] == metric["name"] and row["value"] is not None:
                    low, high = (f"{100 * end:.1f}" for end in row["interval"])
                    rows.append([short(task), metric["name"], row["cell"], str(row["questions"]), f"{100 * row['value']:.1f}", f"{low} to {high}"])
    print_table(["task", "metric", "cell", "questions", "%", "95% interval"], rows)


def strip(path: str, out: str) -> None:
    report = load(path)
    for task in report["tasks"]:
        del task["outcomes"]
    with open(out, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write((json.dumps(report, ensure_ascii=False, separators=(",", ":")) + "\n").encode())


def main() -> None:
    tables = {"scores": scores, "distances": distances, "pairs": pairs, "cells": cells}
    if len(sys.argv) == 4 and sys.argv[1] == "strip":
        strip(sys.argv[2], sys.argv[3])
    elif len(sys.argv) > 2 and sys.argv[1] in tables:
        tables[sys.argv[1]]([load(path) for path in sys.argv[2:]])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
