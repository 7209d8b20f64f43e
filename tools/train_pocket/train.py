"""Trains tessera-pocket on its own generator's stream.

One GPU: python train.py --out run; several: torchrun --nproc-per-node N train.py ... with N dividing --shards. The
global batch is `shards` chunks whatever the number of GPUs, so a run's log does not depend on it beyond rounding.
Parts resume from each other: --resume-state takes a run's own state file, --resume-from a released checkpoint.
"""

import argparse
import json
import os
import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import checkpoint
from config import PocketConfig
from model import Pocket, initial_parameters, told_by_choice
from optimizer import MuonAdam
from stream import TASK_NAMES, Mix, Stream, add_mix, mix_options
from tokenizer import Tokenizer

ANSWER_AT_LEAST = 12  # loss weights from here up belong to answers


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for log.jsonl and state.pt")
    parser.add_argument("--tokenizer", required=True, help="folder with tiktoken.model")
    parser.add_argument("--spool", default="/dev/shm/pocket-spool", help="where data workers put chunks")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--decay-from", type=int, default=7000, help="step at which the rate starts to fall, linearly, to 0")
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--stop-at", type=int, default=-1, help="stop early, for trials")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="rows of a shard's chunk")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--muon-lr", type=float, default=2e-3)
    parser.add_argument("--embed-lr", type=float, default=3e-3)
    parser.add_argument("--head-lr", type=float, default=1e-3)
    parser.add_argument("--adam-lr", type=float, default=1e-3, help="norms and router")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--bias-rate", type=float, default=1e-3, help="step of the routing bias")
    parser.add_argument("--specialise", type=float, default=0.02, help="weight of the wish that expert choice tells the task")
    parser.add_argument("--specialise-until", type=float, default=0.5, help="nats a layer's choice should tell; no more is asked")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-seed", type=int, default=11)
    parser.add_argument("--first-progress", type=float, default=0.0, help="where the curriculum stands at the first step; for parts")
    add_mix(parser)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=1000)
    parser.add_argument("--resume-state", help="a state.pt: continue exactly")
    parser.add_argument("--resume-from", help="a released checkpoint: its weights, a new optimizer, a new warm-up")
    return parser.parse_args()


class Schedule:
    """Warm-up, a constant rate, and a linear fall to zero. A file `decay` in the run's folder, holding two numbers
    (start of the fall, last step), replaces the plan while the run goes on; rank 0 reads it and tells the others."""

    def __init__(self, args, device):
        self.warmup, self.path = args.warmup, Path(args.out) / "decay"
        self.plan = torch.tensor([args.decay_from, args.steps], device=device)
        self.decay_from, self.steps = args.decay_from, args.steps

    def refresh(self, rank: int, world: int) -> None:
        if rank == 0 and self.path.exists():
            self.plan.copy_(torch.tensor([int(n) for n in self.path.read_text().split()[:2]]))
        if world > 1:
            dist.broadcast(self.plan, 0)
        self.decay_from, self.steps = self.plan.tolist()

    def rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / self.warmup)
        if step < self.decay_from:
            return warm
        return warm * max(0.0, (self.steps - step) / (self.steps - self.decay_from))


class Feeder(threading.Thread):
    """Moves chunks to the GPU ahead of the step that needs them."""

    def __init__(self, stream: Stream, shards: list[int], first_step: int, device):
        super().__init__(daemon=True)
        self.stream, self.shards, self.step, self.device = stream, shards, first_step, device
        self.ready: queue.Queue = queue.Queue(maxsize=6)
        self.start()

    def run(self) -> None:
        try:
            while True:
                for shard in self.shards:
                    chunk = self.stream.take(self.step, shard)
                    self.ready.put({
                        "tokens": torch.from_numpy(chunk["tokens"].astype("int64")).to(self.device, non_blocking=True),
                        "start": torch.from_numpy(chunk["start"].astype("int64")).to(self.device, non_blocking=True),
                        "weight": torch.from_numpy(chunk["weight"]).to(self.device, non_blocking=True),
                        "task": torch.from_numpy(chunk["task"]).to(self.device, non_blocking=True),
                    })
                self.step += 1
        except Exception as error:  # noqa: BLE001 - handed to the training loop, which raises it
            self.ready.put(error)

    def next(self) -> dict[str, torch.Tensor]:
        item = self.ready.get()
        if isinstance(item, Exception):
            raise item
        return item


def answer_losses(losses: torch.Tensor, batch: dict[str, torch.Tensor], world: int) -> dict[str, float]:
    """Mean cross entropy of answer tokens by task, over all ranks."""
    counted = (batch["weight"] >= ANSWER_AT_LEAST).float()
    task = batch["task"].long().clamp(max=len(TASK_NAMES)).flatten()
    sums = torch.zeros(2, len(TASK_NAMES) + 1, device=losses.device)
    sums[0].index_add_(0, task, (losses.detach() * counted).flatten())
    sums[1].index_add_(0, task, counted.flatten())
    if world > 1:
        dist.all_reduce(sums)
    mean = (sums[0] / sums[1].clamp(min=1)).tolist()
    return {name: round(mean[i], 4) for i, name in enumerate(TASK_NAMES)}


def one_hot_tasks(task: torch.Tensor) -> torch.Tensor:
    """[..., tasks], zero where no document lies."""
    return (task.long().unsqueeze(-1) == torch.arange(len(TASK_NAMES), device=task.device)).float()


def reduce_gradients(gradients: dict[str, torch.Tensor], world: int) -> dict[str, torch.Tensor]:
    if world == 1:
        return gradients
    flat = torch.cat([g.flatten() for g in gradients.values()])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    pieces = flat.split([g.numel() for g in gradients.values()])
    return {name: piece.view_as(g) for (name, g), piece in zip(gradients.items(), pieces)}


def initial_state(args, c: PocketConfig, device):
    """Parameters, routing bias, first step and the optimizer's state, if any."""
    if args.resume_state:
        state = torch.load(args.resume_state, map_location=device, weights_only=True)
        return state["parameters"], state["bias"], state["step"], state
    if args.resume_from:
        parameters, bias = checkpoint.load_release(args.resume_from, c)
    else:
        parameters, bias = initial_parameters(c, args.seed), torch.zeros(c.n_moe_layers, c.n_routed_experts)
    return {k: v.to(device) for k, v in parameters.items()}, bias.to(device), 0, None


def main() -> None:
    args = parse()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    Mix.of(args)  # a wrong name is told here, before workers start
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    c = PocketConfig()
    parameters, bias, first_step, state = initial_state(args, c, device)
    for p in parameters.values():
        p.requires_grad_(True)
    optimizer = MuonAdam(parameters, args.muon_lr, {"embed": args.embed_lr, "head": args.head_lr, "norm": args.adam_lr}, args.weight_decay)
    if state is not None:
        optimizer.state, optimizer.adam_steps = state["optimizer"], state["adam_steps"]
    shards = list(range(rank, args.shards, world))
    stream = Stream(args.tokenizer, f"{args.spool}-{rank}", args.data_seed, shards, args.rows, args.length, args.steps, first_step,
                    max(1, args.workers // world), args.first_progress, mix_options(args))
    feeder = Feeder(stream, shards, first_step, device)
    model = Pocket(c, parameters, bias, torch.bfloat16 if device.type == "cuda" else torch.float32, device.type == "cuda")
    schedule = Schedule(args, device)
    if rank == 0:
        (out / "arguments.json").write_text(json.dumps(vars(args) | {"world": world, "torch": torch.__version__}, indent=1) + "\n")
    try:
        run(args, out, rank, world, first_step, shards, feeder, stream, model, optimizer, schedule)
    finally:
        stream.close()
    if world > 1:
        dist.destroy_process_group()


def run(args, out, rank, world, first_step, shards, feeder, stream, model, optimizer, schedule) -> None:
    parameters, bias = model.parameters, model.bias
    log = open(out / "log.jsonl", "a") if rank == 0 else None
    step_tokens = args.shards * args.rows * args.length
    began = lap = time.monotonic()
    lap_step, step = first_step, first_step
    while step < schedule.steps and step != args.stop_at:
        if step % 20 == 0:
            schedule.refresh(rank, world)
        rate = schedule.rate(step)
        total, load = None, None
        for _ in shards:
            batch = feeder.next()
            sorts = one_hot_tasks(batch["task"])
            losses, new_load, by_task = model.losses(batch["tokens"], batch["start"], sorts)
            weight = batch["weight"].float()
            loss = (losses * weight).sum() / weight.sum() / len(shards)
            told = told_by_choice(by_task)
            wish = torch.relu(args.specialise_until - told).mean() * (args.specialise / len(shards))
            (loss + wish).backward()
            total = loss.detach() if total is None else total + loss.detach()
            load = new_load if load is None else load + new_load
        gradients = reduce_gradients({n: p.grad for n, p in parameters.items()}, world)
        if world > 1:
            dist.all_reduce(load)
        optimizer.step(gradients, rate)
        for p in parameters.values():
            p.grad = None
        bias.add_(torch.sign(load.mean(-1, keepdim=True) - load), alpha=args.bias_rate * rate)
        if step % args.log_every == 0:
            if world > 1:
                dist.all_reduce(total, op=dist.ReduceOp.AVG)
            answers = answer_losses(losses, batch, world)
            value, now = total.item(), time.monotonic()
            if value != value:
                raise RuntimeError(f"loss is not a number at step {step}")
            if log:
                speed = (step - lap_step) * step_tokens / max(now - lap, 1e-9)
                record = {"step": step, "tokens": step * step_tokens, "seconds": round(now - began, 1), "loss": round(value, 4),
                          "rate": round(rate, 4), "tokens_per_s": round(speed), "data_wait_s": round(stream.waited_s, 1),
                          "load_max_over_mean": round((load.max(-1).values / load.mean(-1)).max().item(), 2),
                          "told_by_choice": [round(nats, 3) for nats in told.tolist()], "answers": answers}
                log.write(json.dumps(record) + "\n")
                log.flush()
                print(json.dumps(record), flush=True)
            lap, lap_step = now, step
        step += 1
        if rank == 0 and (step % args.save_every == 0 or step == schedule.steps or step == args.stop_at):
            checkpoint.save_state(out / "state.pt", step, parameters, bias, optimizer)
    if rank == 0:
        (out / "finished").write_text(str(step))


if __name__ == "__main__":
    main()
