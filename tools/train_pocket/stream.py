"""The training stream: packed rows of conversations, the same for every run with the same seed.

Chunk `i` of shard `s` depends on the seed, `s`, `i` and the progress it stands for, never on the number of workers or
GPUs. Workers are processes of their own that write chunks to a spool folder, a bounded number ahead of the trainer:
`python stream.py --worker ...` is how the trainer starts them.
"""

import argparse
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import chat
from example import Example
from tasks import TASKS
from tokenizer import Tokenizer

# Shares of training tokens by task; recall starts with RECALL_FIRST and falls to its share by RECALL_UNTIL.
SHARES = {
    "arithmetic": 0.18, "choice": 0.24, "retrieval": 0.15, "tools": 0.11, "episodes": 0.11, "tracing": 0.08,
    "functions": 0.05, "dialogue": 0.03, "recall": 0.05,
}
RECALL_FIRST, RECALL_UNTIL = 0.35, 0.2
TASK_NAMES = list(SHARES)
# Easy levels come first; from this part of the run on each level is somewhat more frequent than the one before it.
EASY_UNTIL, EASY_FIRST, HARD_LATER = 0.12, 0.8, 0.15
LONG_DOCUMENT = 512  # tokens; the prompts of longer ones carry no loss
# Tasks that have another form of training, by the option that asks for it.
FORMS = {"dense": {"tracing", "recall"}, "chains": {"choice", "recall"}, "talk": {"dialogue"}}
CHAINED = {"arithmetic", "choice", "tracing", "functions", "dialogue"}

SYSTEMS = [
    "You are a helpful assistant.", "You are a small model.", "Answer briefly.", "Be exact.", "You solve small tasks.",
    "You are tessera-pocket.", "Help the user.", "Think step by step.", "You are an assistant that can call tools.",
]


def _named_numbers(text: str) -> dict[str, float]:
    return {name: float(number) for name, number in (part.split("=") for part in text.split(",") if part)}


@dataclass(frozen=True)
class Mix:
    """What a part of a run draws otherwise than the first one did. All of it is empty for the first."""

    shares: dict[str, float] = field(default_factory=dict)  # of tasks, before all are scaled to 1
    emphasis: dict[str, float] = field(default_factory=dict)  # how much more often a level is drawn, by `task/level`
    dense: bool = False
    chains: bool = False
    talk: bool = False

    @staticmethod
    def parse(shares: str, emphasis: str, dense: bool = False, chains: bool = False, talk: bool = False) -> "Mix":
        """From `tracing=0.12,recall=0.1`, `tracing/2=3` and which other forms are asked for."""
        mix = Mix(_named_numbers(shares), _named_numbers(emphasis), dense, chains, talk)
        levels = {f"{task}/{level}" for task, module in TASKS.items() for level in module.LEVELS}
        unknown = (set(mix.shares) - set(SHARES)) | (set(mix.emphasis) - levels)
        if unknown:
            raise ValueError(f"unknown tasks or levels: {sorted(unknown)}")
        return mix

    @staticmethod
    def of(args) -> "Mix":
        """From parsed arguments to which `add_mix` added."""
        return Mix.parse(args.shares, args.emphasis, args.dense, args.chains, args.talk)

    def forms(self, task: str) -> dict[str, bool]:
        """What to pass to a task's `make`."""
        return {form: True for form, tasks in FORMS.items() if task in tasks and getattr(self, form)}


def add_mix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shares", default="", help="shares of tokens that differ, as tracing=0.12,recall=0.1; all are scaled to 1")
    parser.add_argument("--emphasis", default="", help="levels to draw more often, as tracing/2=3,choice/4=2")
    parser.add_argument("--dense", action="store_true", help="the denser forms of tracing and recall")
    parser.add_argument("--chains", action="store_true", help="recall asks for two lookups in a row, written and at once")
    parser.add_argument("--talk", action="store_true", help="dialogue has the wider forms")


def mix_options(args) -> tuple[str, ...]:
    return ("--shares", args.shares, "--emphasis", args.emphasis, *(f"--{form}" for form in FORMS if getattr(args, form)))


def shares(progress: float, mix: Mix) -> dict[str, float]:
    wanted = SHARES | mix.shares
    total = sum(wanted.values())
    recall = RECALL_FIRST + (wanted["recall"] / total - RECALL_FIRST) * min(1.0, progress / RECALL_UNTIL)
    rest = (1.0 - recall) / (total - wanted["recall"])
    return {name: recall if name == "recall" else share * rest for name, share in wanted.items()}


def level_of(rng: random.Random, task: str, progress: float, mix: Mix) -> int:
    late, levels = min(1.0, progress / EASY_UNTIL), TASKS[task].LEVELS
    tilt = HARD_LATER * late - EASY_FIRST * (1.0 - late)
    return rng.choices(levels, [math.exp(tilt * level) * mix.emphasis.get(f"{task}/{level}", 1.0) for level in levels])[0]


def drawn(rng: random.Random, task: str, progress: float, mix: Mix) -> Example:
    level = level_of(rng, task, progress, mix)
    return TASKS[task].make(rng, level, False, **mix.forms(task))


def conversation(rng: random.Random, task: str, progress: float, mix: Mix) -> Example:
    example = drawn(rng, task, progress, mix)
    if task in CHAINED and rng.random() < 0.15:
        example.messages += drawn(rng, rng.choice(sorted(CHAINED)), progress, mix).messages
    return example


def system_text(rng: random.Random) -> str | None:
    pick = rng.random()
    if pick < 0.25:
        return None
    if pick < 0.5:
        return chat.KIMI_SYSTEM
    return chat.DEFAULT_SYSTEM if pick < 0.85 else rng.choice(SYSTEMS)


def document(rng: random.Random, tokenizer: Tokenizer, task: str, progress: float, mix: Mix) -> tuple[list[int], list[int]]:
    """Token ids and loss weights. Short answers weigh more a token, so that no task drowns another."""
    example = conversation(rng, task, progress, mix)
    ids, weights = tokenizer.encode_segments(chat.render(example.messages, example.tools, system_text(rng)))
    answers = sum(weight == chat.ANSWER for weight in weights)
    scale = min(6.0, max(0.6, math.sqrt(64 / max(1, answers)) * max(1.0, math.sqrt(len(ids) / LONG_DOCUMENT))))
    answer = min(255, round(2 * chat.ANSWER * scale))
    prompt = 3 * chat.PROMPT if len(ids) <= LONG_DOCUMENT else 0
    return ids, [answer if w == chat.ANSWER else prompt if w else 0 for w in weights]


def pack(seed: str, tokenizer: Tokenizer, rows: int, length: int, progress: float, mix: Mix) -> dict[str, np.ndarray]:
    """One chunk. `weight[t]` belongs to the prediction of token t + 1; `start[t]` is where t's document begins."""
    rng = random.Random(seed)
    tokens = np.full((rows, length), tokenizer.pad, np.int16)
    weight = np.zeros((rows, length), np.uint8)
    start = np.tile(np.arange(length, dtype=np.int16), (rows, 1))
    task = np.full((rows, length), 255, np.uint8)
    filled = [0] * rows
    spent = dict.fromkeys(TASK_NAMES, rng.random() * 500.0)
    misses, share = 0, shares(progress, mix)
    while misses < 24:
        name = min(TASK_NAMES, key=lambda t: spent[t] / share[t])
        ids, weights = document(rng, tokenizer, name, progress, mix)
        size = len(ids)
        row = next((r for r in range(rows) if filled[r] + size <= length), None)
        if row is None:
            misses += 1
            spent[name] += 50.0  # lets another task try the gap
            continue
        at = filled[row]
        tokens[row, at : at + size] = ids
        weight[row, at : at + size - 1] = weights[1:]
        start[row, at : at + size] = at
        task[row, at : at + size] = TASK_NAMES.index(name)
        filled[row] = at + size
        spent[name] += size
    return {"tokens": tokens, "weight": weight, "start": start, "task": task}


class Stream:
    """Starts workers for the given shards and hands out their chunks in order."""

    def __init__(self, tokenizer_dir: str, spool: str, seed: int, shards: list[int], rows: int, length: int,
                 total_steps: int, first_step: int, workers: int, first_progress: float = 0.0, mix: tuple[str, ...] = (),
                 ahead: int = 48):
        self.spool, self.shards = Path(spool), shards
        self.spool.mkdir(parents=True, exist_ok=True)
        for old in self.spool.glob("*.np[yz]"):
            old.unlink()
        self._consumed(first_step)
        command = [sys.executable, os.path.abspath(__file__), "--worker", "--tokenizer", tokenizer_dir, "--spool", spool,
                   "--seed", str(seed), "--shards", ",".join(map(str, shards)), "--rows", str(rows), "--length", str(length),
                   "--total-steps", str(total_steps), "--first-progress", str(first_progress), "--first-step", str(first_step), "--ahead", str(ahead),
                   "--workers", str(workers), "--parent", str(os.getpid()), *mix]
        quiet = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        self.processes = [subprocess.Popen([*command, "--index", str(i)], env=quiet) for i in range(workers)]
        self.waited_s = 0.0

    def _consumed(self, step: int) -> None:
        scratch = self.spool / "consumed.tmp"
        scratch.write_text(str(step))
        scratch.replace(self.spool / "consumed")

    def take(self, step: int, shard: int) -> dict[str, np.ndarray]:
        path = self.spool / f"{shard}_{step}.npz"
        began = time.monotonic()
        while not path.exists():
            if any(process.poll() not in (None, 0) for process in self.processes):
                raise RuntimeError("a data worker died")
            time.sleep(0.002)
        self.waited_s += time.monotonic() - began
        with np.load(path) as loaded:
            chunk = {name: loaded[name] for name in loaded.files}
        path.unlink()
        if shard == self.shards[-1] and step % 4 == 0:
            self._consumed(step)
        return chunk

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


def _worker(args) -> None:
    tokenizer = Tokenizer.load(args.tokenizer)
    spool, shards = Path(args.spool), [int(s) for s in args.shards.split(",")]
    mix, index = Mix.of(args), args.index
    while True:
        step, shard = args.first_step + index // len(shards), shards[index % len(shards)]
        while step > int((spool / "consumed").read_text()) + args.ahead:
            if os.getppid() != args.parent:
                return
            time.sleep(0.01)
        progress = args.first_progress + (1.0 - args.first_progress) * min(1.0, step / args.total_steps)
        chunk = pack(f"{args.seed}/{shard}/{step}", tokenizer, args.rows, args.length, progress, mix)
        scratch = spool / f"{shard}_{step}.tmp.npy"
        with open(scratch, "wb") as out:
            np.savez(out, **chunk)
        scratch.rename(spool / f"{shard}_{step}.npz")
        index += args.workers


def main() -> None:
    parser = argparse.ArgumentParser(description="Data worker; the trainer starts it.")
    parser.add_argument("--worker", action="store_true", required=True)
    for name in ("tokenizer", "spool", "shards"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("seed", "rows", "length", "total-steps", "first-step", "ahead", "workers", "index", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--first-progress", type=float, default=0.0)
    add_mix(parser)
    _worker(parser.parse_args())


if __name__ == "__main__":
    main()
