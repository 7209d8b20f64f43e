"""How experts specialise: what an expert choice tells about the task and about the token it serves.

python routing.py --model models/tessera-pocket --json FILE [--documents 20]
Prints, for each MoE layer, the entropy of the expert choice over all tokens, within a task and for a given token, each
as a share of log2(experts), and the share of the choice's entropy that the task or the token id explains. Small samples
overstate what rare tokens explain, so only token ids seen at least 50 times count.
"""

import argparse
import json
import random
from pathlib import Path

import torch

import chat
from evaluate import entropy, load_model
from generate import Decoder
from tasks import TASKS
from tokenizer import Tokenizer

OFTEN = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--documents", type=int, default=20, help="per task")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    tokenizer = Tokenizer.load(args.model)
    model = load_model(args.model, args.device)
    decoder = Decoder(model, tokenizer.pad, tokenizer.im_end)
    layers, experts = model.c.n_moe_layers, model.c.n_routed_experts
    by_task = torch.zeros(len(TASKS), layers, experts, dtype=torch.float64)
    by_token = torch.zeros(model.c.vocab_size, layers, experts, dtype=torch.float64)
    rng = random.Random("routing")
    for t, module in enumerate(TASKS.values()):
        for _ in range(args.documents):
            made = module.make(rng, rng.choice(module.LEVELS), False)
            ids = tokenizer.encode_segments(chat.render(made.messages, made.tools))[0][:1024]

            def observe(layer: int, chosen: torch.Tensor, t=t, ids=ids) -> None:
                rows = chosen[0].double().cpu()
                by_task[t, layer] += rows.sum(0)
                by_token[:, layer].index_add_(0, torch.tensor(ids), rows)

            decoder.observe = observe
            decoder.prefill([ids], 1)
    task_share = by_task / by_task.sum((1, 2), keepdim=True)
    overall = entropy(task_share.mean(0))
    within = entropy(by_task).mean(0)
    often = by_token[by_token[:, 0].sum(-1) >= OFTEN * model.c.num_experts_per_tok]
    weight = often[:, 0].sum(-1) / often[:, 0].sum()
    token_overall = entropy(often.sum(0))
    given_token = (entropy(often) * weight[:, None]).sum(0)
    rounded = lambda values: [round(v, 4) for v in values.tolist()]  # noqa: E731
    report = {
        "documents_per_task": args.documents,
        "tokens": int(by_task[:, 0].sum() / model.c.num_experts_per_tok),
        "frequent_token_ids": len(often),
        "entropy_overall": rounded(overall),
        "entropy_within_task": rounded(within),
        "explained_by_task": rounded(1 - within / overall),
        "entropy_given_token": rounded(given_token),
        "explained_by_token": rounded(1 - given_token / token_overall),
    }
    Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
