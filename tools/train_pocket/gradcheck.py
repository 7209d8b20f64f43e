"""Checks the training model's losses and gradients against reference.py in FP64, on a small packed batch.

python gradcheck.py [--device cuda] : FP32 without compilation (CPU), or, on a GPU, the compiled form in FP32 and in the BF16 that trains.
"""

import argparse
from dataclasses import replace

import torch

import reference
from config import PocketConfig
from model import Pocket, initial_parameters


def small_batch(c: PocketConfig, length: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, c.vocab_size, (2, length), generator=generator)
    start = torch.zeros(2, length, dtype=torch.long)
    for row, cuts in enumerate(([0, 37, 150], [0, 129, 131, length - 3])):
        for a, b in zip(cuts, cuts[1:] + [length]):
            start[row, a:b] = a
    ends = torch.ones(2, length, dtype=torch.bool)
    ends[:, :-1] = start[:, 1:] != start[:, :-1]
    return tokens, start, ~ends


def compare(c: PocketConfig, device: str, dtype, compiled: bool, seed: int = 3, length: int = 256) -> dict[str, float]:
    """Relative error (norm of the difference over norm of the reference) of the loss and of each gradient."""
    tokens, start, counted = (t.to(device) for t in small_batch(c, length, seed))
    parameters = {k: v.to(device) for k, v in initial_parameters(c, seed).items()}
    # Untrained weights choose experts by tiny margins, so the choice is pinned by a large bias that rounding cannot turn.
    bias = torch.zeros(c.n_moe_layers, c.n_routed_experts, device=device)
    if dtype != torch.float32:
        bias[:, torch.arange(0, c.n_routed_experts, max(1, c.n_routed_experts // c.num_experts_per_tok))] = 2.0

    def run(losses, params):
        loss = (losses(params) * counted).sum() / counted.sum()
        return loss.detach(), dict(zip(params, torch.autograd.grad(loss, list(params.values()))))

    exact = {k: v.double().requires_grad_() for k, v in parameters.items()}
    want_loss, want = run(lambda p: reference.losses(c, tokens, start, p, bias.double()), exact)
    fast = {k: v.clone().requires_grad_() for k, v in parameters.items()}
    model = Pocket(c, fast, bias, dtype, compiled)
    sorts = torch.zeros(*tokens.shape, 2, device=device)
    got_loss, got = run(lambda p: model.losses(tokens, start, sorts)[0], fast)
    errors = {"loss": abs((got_loss - want_loss) / want_loss).item()}
    for name in want:
        errors[name] = ((got[name].double() - want[name]).norm() / want[name].norm()).item()
    return errors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    c = replace(PocketConfig(), num_hidden_layers=3)
    checks = [("fp32", torch.float32, False, 1e-4)]
    if args.device != "cpu":
        checks = [("fp32 compiled", torch.float32, True, 2e-3), ("bf16 compiled", torch.bfloat16, True, 0.15)]
    failed = False
    for label, dtype, compiled, limit in checks:
        errors = compare(c, args.device, dtype, compiled)
        worst = max(errors, key=errors.get)
        print(f"{label}: worst {worst} {errors[worst]:.2e}, loss {errors['loss']:.2e}", flush=True)
        if not errors[worst] < limit:
            failed = True
            print({k: f"{v:.2e}" for k, v in errors.items()})
    if failed:
        raise SystemExit("gradients disagree")


if __name__ == "__main__":
    main()
