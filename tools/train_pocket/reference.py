"""The same model written naively, one document and one token's experts at a time: the judge of model.py's gradients."""

import torch
import torch.nn.functional as F
from torch import Tensor

from config import PocketConfig


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def _rope(x: Tensor, frequencies: list[float]) -> Tensor:
    """x: [tokens, dim], pairs (2i, 2i + 1) turned by position * frequency i."""
    angle = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)[:, None] * torch.tensor(
        frequencies, dtype=x.dtype, device=x.device
    )
    a, b = x[:, 0::2], x[:, 1::2]
    out = torch.empty_like(x)
    out[:, 0::2] = a * angle.cos() - b * angle.sin()
    out[:, 1::2] = b * angle.cos() + a * angle.sin()
    return out


def _attention(c: PocketConfig, x: Tensor, p: dict[str, Tensor], i: int) -> Tensor:
    tokens = x.shape[0]
    frequencies = c.inverse_frequencies()
    q = _norm(x @ p["q_a"][i].T, p["q_norm"][i], c.rms_norm_eps) @ p["q_b"][i].T
    compressed = x @ p["kv_a"][i].T
    kv = _norm(compressed[:, : c.kv_lora_rank], p["kv_norm"][i], c.rms_norm_eps) @ p["kv_b"][i].T
    k_rope = _rope(compressed[:, c.kv_lora_rank :], frequencies)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
    outputs = []
    for h in range(c.num_attention_heads):
        qh = q[:, h * c.qk_head_dim : (h + 1) * c.qk_head_dim]
        width = c.qk_nope_head_dim + c.v_head_dim
        kvh = kv[:, h * width : (h + 1) * width]
        scores = qh[:, : c.qk_nope_head_dim] @ kvh[:, : c.qk_nope_head_dim].T
        scores = scores + _rope(qh[:, c.qk_nope_head_dim :], frequencies) @ k_rope.T
        probability = torch.softmax((scores * c.softmax_scale).masked_fill(hidden, float("-inf")), -1)
        outputs.append(probability @ kvh[:, c.qk_nope_head_dim :])
    return torch.cat(outputs, -1) @ p["o"][i].T


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _mixture(c: PocketConfig, x: Tensor, p: dict[str, Tensor], m: int, bias: Tensor) -> Tensor:
    scores = torch.sigmoid(x @ p["router"][m].T)
    rows = []
    for t in range(x.shape[0]):
        chosen = torch.topk(scores[t].detach() + bias, c.num_experts_per_tok).indices.tolist()
        total = sum(scores[t, e] for e in chosen)
        out = _swiglu(x[t], p["gate"][m, -1], p["up"][m, -1], p["down"][m, -1])
        for e in chosen:
            weight = scores[t, e] / total * c.routed_scaling_factor
            out = out + weight * _swiglu(x[t], p["gate"][m, e], p["up"][m, e], p["down"][m, e])
        rows.append(out)
    return torch.stack(rows)


def document_logits(c: PocketConfig, tokens: Tensor, p: dict[str, Tensor], bias: Tensor) -> Tensor:
    x = p["embed"][tokens]
    for i in range(c.num_hidden_layers):
        x = x + _attention(c, _norm(x, p["attn_norm"][i], c.rms_norm_eps), p, i)
        h = _norm(x, p["mlp_norm"][i], c.rms_norm_eps)
        if i < c.first_k_dense_replace:
            x = x + _swiglu(h, p["dense_gate"][i], p["dense_up"][i], p["dense_down"][i])
        else:
            m = i - c.first_k_dense_replace
            x = x + _mixture(c, h, p, m, bias[m])
    return _norm(x, p["final_norm"], c.rms_norm_eps) @ p["head"].T


def losses(c: PocketConfig, tokens: Tensor, start: Tensor, p: dict[str, Tensor], bias: Tensor) -> Tensor:
    """Cross entropy within each document of packed rows; 0 where a document ends."""
    rows = []
    for row, begins in zip(tokens, start.tolist()):
        out = []
        bounds = [i for i, b in enumerate(begins) if b == i] + [len(begins)]
        for a, b in zip(bounds, bounds[1:]):
            logits = document_logits(c, row[a:b], p, bias)
            inside = F.cross_entropy(logits[:-1], row[a + 1 : b], reduction="none")
            out.append(torch.cat((inside, inside.new_zeros(1))))
        rows.append(torch.cat(out))
    return torch.stack(rows)
