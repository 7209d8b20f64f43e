"""Muon for the stacked matrices, AdamW for embeddings, head, norms and router.

Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix by five Newton-Schulz steps, scaled by
0.2 sqrt(max(m, n)) so that an update has the size of an Adam one (Liu et al. 2025, Moonlight).
"""

import torch
from torch import Tensor

ADAM_NAMES = ("embed", "head", "router")
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def uses_adam(name: str) -> bool:
    return name in ADAM_NAMES or name.endswith("norm")


def orthogonalize(g: Tensor) -> Tensor:
    """g: [n, rows, columns]; every matrix of the stack on its own."""
    a, b, c = _COEFFICIENTS
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class MuonAdam:
    def __init__(self, parameters: dict[str, Tensor], muon_lr: float, adam_lr: dict[str, float], decay: float,
                 momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.95)):
        self.parameters = parameters
        self.muon_lr, self.decay, self.momentum, self.betas = muon_lr, decay, momentum, betas
        self.adam_lr = {n: adam_lr.get(n, adam_lr["norm"]) for n in parameters if uses_adam(n)}
        self.state = {
            n: {k: torch.zeros_like(p) for k in (("m", "v") if uses_adam(n) else ("m",))} for n, p in parameters.items()
        }
        self.adam_steps = 0

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], rate: float) -> None:
        """`rate` in [0, 1] multiplies every learning rate."""
        self.adam_steps += 1
        b1, b2 = self.betas
        for name, p in self.parameters.items():
            g, state = gradients[name], self.state[name]
            if uses_adam(name):
                state["m"].lerp_(g, 1 - b1)
                state["v"].lerp_(g * g, 1 - b2)
                m = state["m"] / (1 - b1**self.adam_steps)
                v = state["v"] / (1 - b2**self.adam_steps)
                p.sub_(m / (v.sqrt() + 1e-10) * (self.adam_lr[name] * rate))
                continue
            state["m"].lerp_(g, 1 - self.momentum)
            update = g.lerp(state["m"], self.momentum)
            rows, columns = p.shape[-2:]
            update = orthogonalize(update.reshape(-1, rows, columns)).view_as(p)
            lr = self.muon_lr * rate
            p.mul_(1 - lr * self.decay).sub_(update, alpha=lr * 0.2 * max(rows, columns) ** 0.5)
