#!/usr/bin/env python3
"""Write tests/goldens/smollm2/: what transformers, in FP32 on the CPU, computes with the imported SmolLM2 folder.

Full logits at a few positions of three prompts, and for each of the 30 prompts of prompts.jsonl the 64 greedy tokens
(going on after a stop token) with the two best logits of every step. tests/goldens/README.md describes the files.
"""

import argparse
import hashlib
import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parents[1] / "tests" / "goldens" / "smollm2"
STEPS = 64
# Positions on both sides of a boundary of 64-token pages, a first and a last one; -1 is the last token of the prompt.
LOGITS_AT = {"chat_capital": [0, -1], "chat_long_turns": [63, 64, -1]}


def load_prompts(tokenizer) -> list:
    """The prompts, each with its token ids; chat prompts as the model's own template renders them."""
    prompts = []
    for line in (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        if "messages" in prompt:
            text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, tokenize=False)
        else:
            text = prompt["text"]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append({"name": prompt["name"], "token_ids": ids})
    return prompts


@torch.no_grad()
def greedy(model, ids: list) -> list:
    """STEPS rows [best id, its logit, second best id, its logit]; each step's input is the best of the step before."""
    steps, cache, pending = [], None, ids
    for _ in range(STEPS):
        output = model(torch.tensor([pending]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        values, tokens = output.logits[0, -1].topk(2)
        (best, second), (best_logit, second_logit) = tokens.tolist(), values.tolist()
        steps.append([best, round(best_logit, 5), second, round(second_logit, 5)])
        pending = [best]
    return steps


@torch.no_grad()
def write_logits(model, prompts: list, digest: str) -> None:
    cases, rows = [], []
    for prompt in prompts:
        if prompt["name"] not in LOGITS_AT:
            continue
        ids = prompt["token_ids"]
        positions = [p % len(ids) for p in LOGITS_AT[prompt["name"]]]
        rows.append(model(torch.tensor([ids])).logits[0, positions])
        cases.append({"name": prompt["name"], "token_ids": ids, "positions": positions})
    logits = torch.cat(rows).contiguous().numpy().astype("<f4")
    (OUT / "logits.f32").write_bytes(logits.tobytes())
    head = {"model_sha256": digest, "vocab_size": logits.shape[1], "rows": logits.shape[0], "cases": cases}
    (OUT / "logits.json").write_text(json.dumps(head) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=pathlib.Path, help="the folder that import_gguf.py wrote")
    folder = parser.parse_args().model
    torch.set_num_threads(1)  # the order of summation is then not a matter of how many cores the machine has
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    OUT.mkdir(parents=True, exist_ok=True)
    prompts = load_prompts(tokenizer)
    write_logits(model, prompts, digest)
    with open(OUT / "greedy.jsonl", "w", encoding="utf-8") as file:
        for done, prompt in enumerate(prompts, 1):
            steps = greedy(model, prompt["token_ids"])
            margin = min(step[1] - step[3] for step in steps)
            file.write(json.dumps({**prompt, "model_sha256": digest, "steps": steps}, separators=(",", ":")) + "\n")
            file.flush()
            print(f"{done} of {len(prompts)} {prompt['name']}: {len(prompt['token_ids'])} tokens, "
                  f"least margin {margin:.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
