"""tessera-pocket in PyTorch, for training: DeepSeek-V3's layers over packed rows.

Parameters of all layers are stacked, [layers, ...], so that the optimizer works on few large tensors. Every expert
runs on every token and the router's weight, zero for experts that were not chosen, multiplies its activations: at
this size the dense products cost as much time as sorting tokens would, have fixed shapes, and leave no room for a
wrong gradient. The shared expert is one more expert whose weight is always 1. Attention is FlexAttention over the
blocks that a row's documents really touch.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from config import PocketConfig

BLOCK = 128


def parameter_shapes(c: PocketConfig) -> dict[str, tuple[int, ...]]:
    layers, moe, dense, d = c.num_hidden_layers, c.n_moe_layers, c.first_k_dense_replace, c.hidden_size
    heads, width, experts = c.num_attention_heads, c.moe_intermediate_size, c.n_routed_experts + c.n_shared_experts
    return {
        "embed": (c.vocab_size, d),
        "head": (c.vocab_size, d),
        "final_norm": (d,),
        "attn_norm": (layers, d),
        "q_a": (layers, c.q_lora_rank, d),
        "q_norm": (layers, c.q_lora_rank),
        "q_b": (layers, heads * c.qk_head_dim, c.q_lora_rank),
        "kv_a": (layers, c.kv_lora_rank + c.qk_rope_head_dim, d),
        "kv_norm": (layers, c.kv_lora_rank),
        "kv_b": (layers, heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank),
        "o": (layers, d, heads * c.v_head_dim),
        "mlp_norm": (layers, d),
        "dense_gate": (dense, c.intermediate_size, d),
        "dense_up": (dense, c.intermediate_size, d),
        "dense_down": (dense, d, c.intermediate_size),
        "router": (moe, c.n_routed_experts, d),
        # The last expert is the shared one.
        "gate": (moe, experts, width, d),
        "up": (moe, experts, width, d),
        "down": (moe, experts, d, width),
    }


ATTENTION = ("attn_norm", "q_a", "q_norm", "q_b", "kv_a", "kv_norm", "kv_b", "o", "mlp_norm")
KEPT_FP32 = ("router",)


def initial_parameters(c: PocketConfig, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in parameter_shapes(c).items():
        if name.endswith("norm"):
            out[name] = torch.ones(shape)
            continue
        std = 0.8 / math.sqrt(shape[-1])
        if name in ("o", "down", "dense_down"):
            std /= math.sqrt(2 * c.num_hidden_layers)
        elif name == "embed":
            std = 0.3
        elif name == "head":
            std = 0.3 / math.sqrt(shape[-1])
        out[name] = torch.randn(shape, generator=generator) * std
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on interleaved pairs; x is [..., heads, rope], cos and sin [..., rope / 2]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


def attention_inputs(c: PocketConfig, x: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor]):
    """Normed x to queries, keys [B, H, T, 128] and values [B, H, T, 64]."""
    batch, length = x.shape[:2]
    q = rms_norm(x @ w["q_a"].T, w["q_norm"], c.rms_norm_eps) @ w["q_b"].T
    q = q.view(batch, length, c.num_attention_heads, c.qk_head_dim)
    q_nope, q_rope = q.split((c.qk_nope_head_dim, c.qk_rope_head_dim), -1)
    latent, k_rope = (x @ w["kv_a"].T).split((c.kv_lora_rank, c.qk_rope_head_dim), -1)
    kv = rms_norm(latent, w["kv_norm"], c.rms_norm_eps) @ w["kv_b"].T
    kv = kv.view(batch, length, c.num_attention_heads, c.qk_nope_head_dim + c.v_head_dim)
    k_nope, v = kv.split((c.qk_nope_head_dim, c.v_head_dim), -1)
    k_rope = rotate(k_rope.unsqueeze(-2), cos, sin).expand(-1, -1, c.num_attention_heads, -1)
    q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1)
    k = torch.cat((k_nope, k_rope), -1)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def route(c: PocketConfig, x: Tensor, router: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [..., experts], zero where not chosen, the choice, and all scores. The bias selects and does not weigh."""
    scores = torch.sigmoid(x.float() @ router.T)
    chosen = torch.topk((scores + bias).detach(), c.num_experts_per_tok, dim=-1).indices
    mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    weights = scores * mask
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor, mask, scores


def choice_by_sort(c: PocketConfig, chosen: Tensor, scores: Tensor, sorts: Tensor) -> Tensor:
    """How often each sort of token, [..., sorts] one-hot, chose each expert: [sorts, experts]. The counts are the real
    ones; gradients pass to the scores' shares, as if those had been counted."""
    shares = scores / scores.sum(-1, keepdim=True)
    counted = chosen / c.num_experts_per_tok - shares.detach() + shares
    return sorts.flatten(0, -2).T @ counted.flatten(0, -2)


def told_by_choice(counts: Tensor) -> Tensor:
    """Nats that an expert choice tells about a token's sort, all sorts being equally likely: [layers]."""
    totals = counts.sum(-1, keepdim=True)
    present = (totals > 0.5).float()
    within = counts / totals.clamp(min=1.0)
    overall = (within * present).sum(1, keepdim=True) / present.sum(1, keepdim=True)
    terms = within.clamp(min=1e-9) * (within.clamp(min=1e-9).log() - overall.clamp(min=1e-9).log())
    return (terms.sum(-1) * present.squeeze(-1)).sum(1) / present.sum((1, 2))


def experts(c: PocketConfig, x: Tensor, weights: Tensor, w: dict[str, Tensor]) -> Tensor:
    d, width = c.hidden_size, c.moe_intermediate_size
    gate = x @ w["gate"].reshape(-1, d).T
    up = x @ w["up"].reshape(-1, d).T
    weights = torch.cat((weights, torch.ones_like(weights[..., : c.n_shared_experts])), -1)
    hidden = (F.silu(gate.float()) * up.float()).unflatten(-1, (-1, width)) * weights.unsqueeze(-1)
    return hidden.flatten(-2).to(x.dtype) @ w["down"].permute(1, 0, 2).reshape(d, -1).T


def attend(c: PocketConfig, x: Tensor, cos: Tensor, sin: Tensor, mask, w: dict[str, Tensor]) -> Tensor:
    """`mask` is a BlockMask, or on the CPU, where FlexAttention has no backward, a boolean [B, 1, T, T]."""
    q, k, v = attention_inputs(c, rms_norm(x, w["attn_norm"], c.rms_norm_eps), cos, sin, w)
    if isinstance(mask, Tensor):
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=c.softmax_scale)
    else:
        mixed = flex_attention(q, k, v, block_mask=mask, scale=c.softmax_scale)
    return x + mixed.transpose(1, 2).flatten(-2) @ w["o"].T


def dense_layer(c: PocketConfig, x: Tensor, cos: Tensor, sin: Tensor, mask, w: dict[str, Tensor]) -> Tensor:
    x = attend(c, x, cos, sin, mask, w)
    h = rms_norm(x, w["mlp_norm"], c.rms_norm_eps)
    hidden = F.silu((h @ w["dense_gate"].T).float()) * (h @ w["dense_up"].T).float()
    return x + hidden.to(x.dtype) @ w["dense_down"].T


def moe_layer(c: PocketConfig, x: Tensor, cos: Tensor, sin: Tensor, mask, w: dict[str, Tensor], bias: Tensor, sorts: Tensor):
    x = attend(c, x, cos, sin, mask, w)
    h = rms_norm(x, w["mlp_norm"], c.rms_norm_eps)
    weights, chosen, scores = route(c, h, w["router"], bias)
    return x + experts(c, h, weights, w), chosen.flatten(0, -2).sum(0), choice_by_sort(c, chosen, scores, sorts)


def head_loss(c: PocketConfig, x: Tensor, norm: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of every position, in FP32."""
    logits = (rms_norm(x, norm, c.rms_norm_eps) @ head.T).float()
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)


class RowMask:
    """The block mask of packed rows, built from where each token's document starts.

    A query block sees the key blocks from the start of its first token's document to itself. Those between the
    start of its last token's document and the diagonal are seen by all its queries: they need no masking.
    """

    def __init__(self, rows: int, length: int, device):
        self.start = torch.zeros(rows, length, dtype=torch.int32, device=device)
        start = self.start

        def causal_within_document(b, h, q, k):
            return (q >= k) & (start[b, q] <= k)

        self._rule = causal_within_document
        self._blocks = torch.arange(length // BLOCK, device=device, dtype=torch.int32)

    def build(self, start: Tensor) -> BlockMask:
        self.start.copy_(start)
        first = (self.start[:, ::BLOCK] // BLOCK).to(torch.int32)
        last_start = self.start[:, BLOCK - 1 :: BLOCK]
        own = self._blocks.expand_as(first)
        full_from = torch.minimum((last_start + BLOCK - 1) // BLOCK, own).to(torch.int32)
        full_from = torch.maximum(full_from, first)
        slot = self._blocks.view(1, 1, -1)
        partial_count = full_from - first + 1
        partial = first.unsqueeze(-1) + slot
        partial = torch.where(slot == (partial_count - 1).unsqueeze(-1), own.unsqueeze(-1), partial)
        full_count = own - full_from
        full = full_from.unsqueeze(-1) + slot
        top = self._blocks.numel() - 1
        return BlockMask.from_kv_blocks(
            partial_count.unsqueeze(1).contiguous(),
            partial.clamp(max=top).unsqueeze(1).to(torch.int32).contiguous(),
            full_count.unsqueeze(1).to(torch.int32).contiguous(),
            full.clamp(max=top).unsqueeze(1).to(torch.int32).contiguous(),
            BLOCK_SIZE=BLOCK,
            mask_mod=self._rule,
        )


class Pocket:
    """The model over packed rows. `parameters` are FP32 masters; products run in `dtype`."""

    def __init__(self, c: PocketConfig, parameters: dict[str, Tensor], bias: Tensor, dtype=torch.bfloat16, compiled=True):
        self.c, self.parameters, self.bias, self.dtype = c, parameters, bias, dtype
        wrap = (lambda f: torch.compile(f, fullgraph=True, dynamic=False)) if compiled else (lambda f: f)
        self._dense, self._moe, self._head = wrap(dense_layer), wrap(moe_layer), wrap(head_loss)
        device = parameters["embed"].device
        angles = torch.outer(
            torch.arange(c.max_position_embeddings, dtype=torch.float32),
            torch.tensor(c.inverse_frequencies(), dtype=torch.float32),
        )
        self.cos, self.sin = angles.cos().to(device), angles.sin().to(device)
        self._masks: dict[tuple[int, int], RowMask] = {}

    def layer_weights(self) -> list[dict[str, Tensor]]:
        """Per layer, views of the stacked parameters cast once."""
        c = self.c
        cast = {
            name: (p if name in KEPT_FP32 or name.endswith("norm") else p.to(self.dtype)).unbind(0)
            for name, p in self.parameters.items()
            if name not in ("embed", "head", "final_norm")
        }
        layers = []
        for i in range(c.num_hidden_layers):
            names = {name: cast[name][i] for name in ATTENTION}
            if i < c.first_k_dense_replace:
                names |= {name: cast[name][i] for name in ("dense_gate", "dense_up", "dense_down")}
            else:
                names |= {name: cast[name][i - c.first_k_dense_replace] for name in ("router", "gate", "up", "down")}
            layers.append(names)
        return layers

    def losses(self, tokens: Tensor, start: Tensor, sorts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cross entropy [rows, length] of each next token, tokens per expert [moe layers, experts], and the same by the
        sort of token [moe layers, sorts, experts]; `sorts` is [rows, length, sorts], one-hot or zero."""
        c = self.c
        rows, length = tokens.shape
        index = torch.arange(length, device=tokens.device)
        if tokens.is_cuda:
            if (rows, length) not in self._masks:
                self._masks[rows, length] = RowMask(rows, length, tokens.device)
            mask = self._masks[rows, length].build(start)
        else:
            mask = ((index[:, None] >= index) & (start.unsqueeze(-1) <= index)).unsqueeze(1)
        positions = index - start
        cos, sin = self.cos[positions], self.sin[positions]
        x = F.embedding(tokens, self.parameters["embed"].to(self.dtype))
        loads, by_sort = [], []
        for i, w in enumerate(self.layer_weights()):
            if i < c.first_k_dense_replace:
                x = self._dense(c, x, cos, sin, mask, w)
            else:
                x, load, counts = self._moe(c, x, cos, sin, mask, w, self.bias[i - c.first_k_dense_replace], sorts)
                loads.append(load)
                by_sort.append(counts)
        targets = torch.roll(tokens, -1, 1)
        loss = self._head(c, x, self.parameters["final_norm"], self.parameters["head"].to(self.dtype), targets)
        return loss, torch.stack(loads), torch.stack(by_sort)
