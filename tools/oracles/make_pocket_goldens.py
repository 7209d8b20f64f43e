#!/usr/bin/env python3
"""Write tests/goldens/pocket/: what transformers, in FP32 on the CPU, computes with models/tessera-pocket.

Its FP8 blocks are dequantized to FP32 by transformers' own code. A question of each task of the model's held-out sets,
rendered by its own chat template: full logits at a few positions, and the greedy answer, up to its stop token, with the
two best logits of every step. Run it again whenever the weights change. tests/goldens/README.md describes the files.
"""

import argparse
import gzip
import hashlib
import json
import pathlib

import torch
import transformers

from make_tiny_goldens import load_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tessera-pocket"
OUT = ROOT / "tests" / "goldens" / "pocket"
STEPS = 64
# Level by task; the first questions of the split `unseen` whose choices of experts are clear.
LEVELS = {"arithmetic": 3, "choice": 2, "episodes": 2, "functions": 2, "retrieval": 2, "tools": 3, "tracing": 3}
QUESTIONS = 1
# A choice of experts must be clear by this score, errors of float32 being below, unless both experts weigh next to
# nothing: where few experts have a score at all, biases decide on the last one taken, and biases are nearly equal.
CHOICE_MARGIN = 2e-7
NO_WEIGHT = 1e-3
# The tokens on both sides of a boundary of 64-token pages, a first one and the last.
LOGITS_AT = (0, 63, 64, -1)


def records(task: str):
    with gzip.open(MODEL / "tasks" / f"pocket-{task}.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record["level"] == LEVELS[task] and record["split"] == "unseen":
                yield record


def messages_of(record: dict) -> list:
    """The conversation up to the first answer that the model is to give."""
    if "filler" in record:
        with gzip.open(MODEL / "tasks" / (record["filler"] + ".gz"), "rt", encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
        taken = [lines[(record["filler_start"] + i) % len(lines)] for i in range(record["filler_count"])]
        text = []
        for i in range(len(taken) + 1):
            text += [sentence for before, sentence in record["inserts"] if before == i] + taken[i : i + 1]
        return [{"role": "user", "content": "\n".join([record["before"], " ".join(text), record["after"]])}]
    messages = [dict(message) for message in record["messages"]]
    for message in messages:
        if "tool_calls" in message:  # Held-out sets leave out the wrapping that the API and templates have.
            message["tool_calls"] = [{"id": call["id"], "type": "function",
                                      "function": {"name": call["name"], "arguments": call["arguments"]}}
                                     for call in message["tool_calls"]]
    if messages[-1]["role"] == "user":
        return messages
    return messages[: max(i for i, m in enumerate(messages) if m["role"] == "tool") + 1]


class Margins:
    """By how much each choice of experts was clear, in the passes since `margins` was cleared."""

    def __init__(self, model):
        self.margins = []
        for layer in model.model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_hook(lambda gate, _, output: self._route(gate, output[0]))

    def _route(self, gate, logits) -> None:
        scores = logits.sigmoid()
        order = (scores + gate.e_score_correction_bias).sort(-1, descending=True)
        last, out = order.indices[:, gate.top_k - 1], order.indices[:, gate.top_k]
        weight = torch.stack([scores.gather(1, ids[:, None])[:, 0] for ids in (last, out)]).amax(0)
        share = weight / scores.gather(1, order.indices[:, : gate.top_k]).sum(-1)
        margin = order.values[:, gate.top_k - 1] - order.values[:, gate.top_k]
        self.margins += margin[share > NO_WEIGHT].tolist()


@torch.no_grad()
def greedy(model, ids: list, stop: int) -> list:
    """Rows [best id, its logit, second best id, its logit]; each step's input is the best of the step before."""
    steps, cache, pending = [], None, ids
    while len(steps) < STEPS and (not steps or steps[-1][0] != stop):
        output = model(torch.tensor([pending]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        values, tokens = output.logits[0, -1].topk(2)
        steps.append([tokens[0].item(), round(values[0].item(), 5), tokens[1].item(), round(values[1].item(), 5)])
        pending = [steps[-1][0]]
    return steps


@torch.no_grad()
def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)  # the order of summation is then not a matter of how many cores the machine has
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in sorted(MODEL.glob("*.safetensors")))).hexdigest()
    config = json.loads((MODEL / "config.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model, _ = load_model("tessera-pocket", MODEL, config)
    choices = Margins(model)
    cases, rows, answers = [], [], []
    for task in LEVELS:
        taken = 0
        for record in records(task):
            text = tokenizer.apply_chat_template(messages_of(record), tools=record.get("tools"), tokenize=False,
                                                 add_generation_prompt=True)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            steps = greedy(model, ids, config["eos_token_id"])
            choices.margins.clear()
            # One pass over everything: a second way to the same result, and the choices of all tokens.
            logits = model(torch.tensor([ids + [step[0] for step in steps]]), use_cache=False).logits[0]
            assert [row.argmax().item() for row in logits[len(ids) - 1 : -1]] == [step[0] for step in steps]
            name = record["id"]
            if min(choices.margins, default=1.0) < CHOICE_MARGIN:
                print(f"{name}: passed over, a choice of experts is clear by {min(choices.margins, default=1.0):.1e} only", flush=True)
                continue
            positions = sorted({p % len(ids) for p in LOGITS_AT if p < len(ids)})
            cases.append({"name": name, "token_ids": ids, "positions": positions})
            rows.append(logits[positions])
            answers.append({"name": name, "token_ids": ids, "model_sha256": digest, "steps": steps})
            print(f"{name}: {len(ids)} tokens, experts clear by {min(choices.margins, default=1.0):.1e}, answer by "
                  f"{min(s[1] - s[3] for s in steps):.2f}: {tokenizer.decode([s[0] for s in steps])!r}", flush=True)
            taken += 1
            if taken == QUESTIONS:
                break
        if taken < QUESTIONS:
            raise SystemExit(f"{task}: only {taken} questions with clear choices")
    table = torch.cat(rows).contiguous().numpy().astype("<f4")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "logits.f32").write_bytes(table.tobytes())
    head = {"model_sha256": digest, "vocab_size": table.shape[1], "rows": table.shape[0], "cases": cases}
    (OUT / "logits.json").write_text(json.dumps(head, separators=(",", ":")) + "\n", encoding="utf-8")
    lines = (json.dumps(answer, separators=(",", ":")) + "\n" for answer in answers)
    (OUT / "greedy.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
