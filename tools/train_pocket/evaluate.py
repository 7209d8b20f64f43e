"""Scores a released checkpoint (or a training state) on the held-out sets.

python evaluate.py --model DIR --json FILE [--limit 200] [--tasks arithmetic,choice] [--part 2/8]
python evaluate.py --merge PART PART ... --json FILE
Prints a table and writes accuracies with 95% Wilson intervals, the share of valid tool calls, how experts are used,
and a few wrong answers of each cell.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch

import chat
import checkpoint
import score
from config import PocketConfig
from generate import Decoder
from heldout import EVALUATED, Cell, cells, example, question
from model import Pocket
from tokenizer import Tokenizer

ANSWER_LIMIT = {"arithmetic": 420, "choice": 4, "retrieval": 24, "tools": 200, "episodes": 90, "tracing": 260, "functions": 110}
TOKENS_PER_BATCH = 160_000


def wilson(right: int, count: int) -> list[float]:
    z, p = 1.96, right / count
    centre, spread = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return [round((centre - spread) / (1 + z * z / count), 4), round((centre + spread) / (1 + z * z / count), 4)]


class Evaluator:
    def __init__(self, decoder: Decoder, tokenizer: Tokenizer):
        self.decoder, self.tokenizer = decoder, tokenizer

    def prompt(self, messages: list[dict], tools: list[dict]) -> list[int]:
        segments = chat.render(messages, tools) + chat.GENERATION_PROMPT
        return self.tokenizer.encode_segments(segments)[0]

    def _batches(self, prompts: list[list[int]], limit: int):
        """Indices of prompts of like length, as many together as the token budget allows."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) + 1) * (len(prompts[i]) + limit) > TOKENS_PER_BATCH:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def answers(self, prompts: list[list[int]], limit: int) -> list[str]:
        out = [""] * len(prompts)
        for batch in self._batches(prompts, limit):
            for i, ids in zip(batch, self.decoder.generate([prompts[i] for i in batch], limit)):
                out[i] = self.tokenizer.decode(ids)
        return out

    def likeliest(self, prompts: list[list[int]], options: list[list[str]]) -> list[str]:
        """The option of each prompt whose tokens have the largest summed log-probability."""
        pairs = [(i, option) for i, offered in enumerate(options) for option in offered]
        ended = [self.tokenizer.encode(option) for _, option in pairs]
        wholes = [prompts[i] + tail for (i, _), tail in zip(pairs, ended)]
        best: dict[int, tuple[float, str]] = {}
        for batch in self._batches(wholes, 0):
            sums = self.decoder.log_likelihoods([wholes[b] for b in batch], [len(ended[b]) for b in batch])
            for b, value in zip(batch, sums):
                i, option = pairs[b]
                best[i] = max(best.get(i, (-math.inf, "")), (value, option))
        return [best[i][1] for i in range(len(prompts))]

    def run(self, cell: Cell, count: int) -> dict:
        made = [example(cell, i) for i in range(count)]
        self.decoder.take_loads()
        if cell.task == "episodes":
            right, valid, made_calls, wrong = self._episodes(made)
        else:
            prompts = [self.prompt(question(e), e.tools) for e in made]
            if cell.task == "choice":
                texts = self.likeliest(prompts, [list(e.facts.get("letters", e.facts["options"])) for e in made])
            else:
                texts = self.answers(prompts, ANSWER_LIMIT[cell.task])
            judged = [score.judge(e.scoring, text, e.answer) for e, text in zip(made, texts)]
            right = sum(judged)
            called = [(e, t) for e, t in zip(made, texts) if e.scoring == "calls" or "<|tool_call" in t]
            made_calls = len(called)
            valid = sum(score.valid_calls(t, e.tools) for e, t in called)
            wrong = [
                {"asked": e.messages[0]["content"][-400:], "expected": e.answer, "got": text[-300:]}
                for e, text, ok in zip(made, texts, judged) if not ok
            ][:3]
        record = {"cell": cell.name, "split": cell.split, "right": right, "count": count, "accuracy": round(right / count, 4),
                  "interval": wilson(right, count), "wrong": wrong}
        if made_calls:
            record |= {"calls": made_calls, "valid_calls": valid}
        record["loads"] = self.decoder.take_loads().long().tolist()
        return record

    def _episodes(self, made: list) -> tuple[int, int, int, list]:
        """Turn by turn: an episode goes on only while every turn was right, with the results it then really gets."""
        alive, valid, made_calls, wrong = list(range(len(made))), 0, 0, []
        turns = {i: [t for t, m in enumerate(e.messages) if m["role"] == "assistant"] for i, e in enumerate(made)}
        right, turn = 0, 0
        while alive:
            prompts = [self.prompt(made[i].messages[: turns[i][turn]], made[i].tools) for i in alive]
            texts = self.answers(prompts, ANSWER_LIMIT["episodes"])
            survivors = []
            for i, text in zip(alive, texts):
                expected = made[i].messages[turns[i][turn]]
                if "tool_calls" in expected:
                    made_calls += 1
                    valid += score.valid_calls(text, made[i].tools)
                    ok = score.calls(text, [(c["name"], c["arguments"]) for c in expected["tool_calls"]])
                else:
                    ok = text.strip() == expected["content"]
                if not ok:
                    wrong.append({"turn": turn, "asked": made[i].messages[0]["content"], "expected": expected, "got": text[-300:]})
                elif turn + 1 == len(turns[i]):
                    right += 1
                else:
                    survivors.append(i)
            alive, turn = survivors, turn + 1
        return right, valid, made_calls, wrong[:3]


def entropy(loads: torch.Tensor) -> torch.Tensor:
    """Of the last axis, as a share of the largest possible."""
    p = loads / loads.sum(-1, keepdim=True).clamp(min=1)
    return -(p * (p + 1e-12).log()).sum(-1) / math.log(loads.shape[-1])


def routing(records: list[dict]) -> dict:
    """How evenly experts are used overall and within a task, per MoE layer; the gap is what tells tasks apart."""
    by_task: dict[str, torch.Tensor] = {}
    for record in records:
        task = record["cell"].split("/")[0]
        by_task[task] = by_task.get(task, 0) + torch.tensor(record["loads"], dtype=torch.float64)
    shares = {t: load / load.sum(-1, keepdim=True) for t, load in by_task.items()}
    overall = torch.stack(list(shares.values())).mean(0)
    rounded = lambda t: [round(x, 4) for x in t.tolist()]  # noqa: E731
    return {
        "overall_entropy": rounded(entropy(overall)),
        "entropy_by_task": {t: rounded(entropy(share)) for t, share in shares.items()},
        "shares_by_task": {t: [rounded(layer) for layer in share] for t, share in shares.items()},
    }


def load_model(path: str, device: str) -> Pocket:
    c = PocketConfig()
    if path.endswith(".pt"):
        state = torch.load(path, map_location=device, weights_only=True)
        parameters, bias = state["parameters"], state["bias"]
    else:
        parameters, bias = checkpoint.load_release(path, c)
    parameters = {k: v.to(device) for k, v in parameters.items()}
    return Pocket(c, parameters, bias.to(device), torch.bfloat16 if device == "cuda" else torch.float32, compiled=False)


def save(path: str, limit: int, records: list[dict], part: bool) -> None:
    """A part keeps the loads of each cell, for the merge; a whole report holds what they come to."""
    if part:
        Path(path).write_text(json.dumps({"limit": limit, "cells": records}, ensure_ascii=False))
        return
    shown = [{key: value for key, value in record.items() if key != "loads"} for record in records]
    report = {"limit": limit, "cells": shown, "routing": routing(records)}
    Path(path).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def merge(parts: list[str], path: str) -> None:
    reports = [json.loads(Path(part).read_text()) for part in parts]
    order = {(cell.name, cell.split): i for i, cell in enumerate(cells())}
    records = sorted((r for report in reports for r in report["cells"]), key=lambda r: order[r["cell"], r["split"]])
    missing = len(order) - len(records)
    if missing:
        print(f"{missing} cells are missing")
    save(path, reports[0]["limit"], records, part=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a released checkpoint's folder, or a state.pt")
    parser.add_argument("--tokenizer", help="folder with tiktoken.model; the model's own by default")
    parser.add_argument("--json", required=True)
    parser.add_argument("--limit", type=int, default=200, help="questions a cell")
    parser.add_argument("--part", default="", help="i/n: every n-th cell from the i-th (0 to n - 1), for n processes")
    parser.add_argument("--merge", nargs="+", help="reports of all parts, to be made one")
    parser.add_argument("--tasks", default=",".join(EVALUATED))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.merge:
        merge(args.merge, args.json)
        return
    tokenizer = Tokenizer.load(args.tokenizer or args.model)
    evaluator = Evaluator(Decoder(load_model(args.model, args.device), tokenizer.pad, tokenizer.im_end), tokenizer)
    wanted, records, began = args.tasks.split(","), [], time.monotonic()
    mine = [cell for cell in cells() if cell.task in wanted]
    if args.part:
        index, parts = map(int, args.part.split("/"))
        mine = mine[index::parts]
    for cell in mine:
        records.append(evaluator.run(cell, args.limit))
        r = records[-1]
        calls = f", valid calls {r['valid_calls']}/{r['calls']}" if "calls" in r else ""
        print(f"{time.monotonic() - began:6.1f} s  {r['cell']:20s} {r['split']:10s} {100 * r['accuracy']:5.1f}%{calls}", flush=True)
        save(args.json, args.limit, records, bool(args.part))


if __name__ == "__main__":
    main()
