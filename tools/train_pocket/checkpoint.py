"""Checkpoints: the released form (Hugging Face names, FP8 blocks of 128 x 128 or BF16, shards) and back to parameters."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from config import PocketConfig

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
SHARD_LIMIT = 15 * 2**20

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "q_a": "self_attn.q_a_proj",
    "q_norm": "self_attn.q_a_layernorm",
    "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_norm": "self_attn.kv_a_layernorm",
    "kv_b": "self_attn.kv_b_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
}
_KINDS = ("gate", "up", "down")


def named(c: PocketConfig) -> list[tuple[str, str, tuple[int, ...]]]:
    """Every released tensor: its name, the stacked parameter it comes from, and the index into that."""
    out = [("model.embed_tokens.weight", "embed", ())]
    for i in range(c.num_hidden_layers):
        prefix = f"model.layers.{i}."
        out += [(f"{prefix}{theirs}.weight", ours, (i,)) for ours, theirs in _ATTENTION.items()]
        if i < c.first_k_dense_replace:
            out += [(f"{prefix}mlp.{kind}_proj.weight", f"dense_{kind}", (i,)) for kind in _KINDS]
            continue
        m = i - c.first_k_dense_replace
        out.append((f"{prefix}mlp.gate.weight", "router", (m,)))
        out.append((f"{prefix}mlp.gate.e_score_correction_bias", "bias", (m,)))
        for e in range(c.n_routed_experts):
            out += [(f"{prefix}mlp.experts.{e}.{kind}_proj.weight", kind, (m, e)) for kind in _KINDS]
        out += [(f"{prefix}mlp.shared_experts.{kind}_proj.weight", kind, (m, c.n_routed_experts)) for kind in _KINDS]
    return out + [("model.norm.weight", "final_norm", ()), ("lm_head.weight", "head", ())]


def _is_quantized(name: str) -> bool:
    return "_proj" in name


def quantize(w: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 values and the F32 factor of each 128 x 128 block: w = q * scale_inv."""
    rows, columns = w.shape
    tall, wide = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(tall * BLOCK, wide * BLOCK)
    padded[:rows, :columns] = w.float().cpu()
    blocks = padded.view(tall, BLOCK, wide, BLOCK)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-12) / FP8_MAX
    q = (blocks / scale[:, None, :, None]).view_as(padded)[:rows, :columns]
    return q.to(FP8).contiguous(), scale


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    spread = scale.repeat_interleave(BLOCK, 0)[: q.shape[0]].repeat_interleave(BLOCK, 1)[:, : q.shape[1]]
    return q.float() * spread


def release_tensors(c: PocketConfig, parameters: dict[str, Tensor], bias: Tensor, quantized: bool = True) -> dict[str, Tensor]:
    tensors = {}
    source = {**parameters, "bias": bias}
    for name, ours, index in named(c):
        w = source[ours][index].detach().cpu()
        if ours == "bias":
            tensors[name] = w.float().clone()
        elif quantized and _is_quantized(name):
            tensors[name], tensors[name + "_scale_inv"] = quantize(w)
        else:
            tensors[name] = w.to(torch.bfloat16).clone()
    return tensors


def save_release(folder: str | Path, c: PocketConfig, parameters: dict[str, Tensor], bias: Tensor, tokenizer,
                 quantized: bool = True) -> int:
    """Writes shards, index, config and generation config; returns the shards' bytes. Without `quantized`, projections are
    rounded to BF16 like the other weights, and the config names no quantization: what FP8's cost is measured against."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in release_tensors(c, parameters, bias, quantized).items():
        if used + tensor.nbytes > SHARD_LIMIT:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += tensor.nbytes
    index: dict[str, str] = {}
    total = 0
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
        total += sum(t.nbytes for t in shard.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    save_configs(folder, c, tokenizer, quantized)
    return sum((folder / file).stat().st_size for file in set(index.values()))


def save_configs(folder: Path, c: PocketConfig, tokenizer, quantized: bool) -> None:
    end, pad, begin = tokenizer.im_end, tokenizer.pad, tokenizer.special["[BOS]"]
    _write_json(folder / "config.json", c.release_config(end, pad, begin, quantized))
    _write_json(folder / "generation_config.json", {
        "bos_token_id": begin, "eos_token_id": end, "pad_token_id": pad, "do_sample": False,
        "max_length": c.max_position_embeddings,
    })


def _write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def load_release(folder: str | Path, c: PocketConfig) -> tuple[dict[str, Tensor], Tensor]:
    """The weights of a folder that `save_release` wrote, as FP32 stacked parameters, and the routing bias."""
    folder = Path(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(index.values())):
        tensors |= load_file(folder / file)
    from model import parameter_shapes

    out = {name: torch.zeros(shape) for name, shape in parameter_shapes(c).items()}
    out["bias"] = torch.zeros(c.n_moe_layers, c.n_routed_experts)
    for name, ours, at in named(c):
        w = tensors.pop(name)
        w = dequantize(w, tensors.pop(name + "_scale_inv")) if w.dtype == FP8 else w.float()
        out[ours][at] = w
    if tensors:
        raise ValueError(f"unknown tensors: {sorted(tensors)[:5]}")
    bias = out.pop("bias")
    return out, bias


def save_state(path: str | Path, step: int, parameters: dict[str, Tensor], bias: Tensor, optimizer=None) -> None:
    """The training state, exact; written beside and renamed, so that a reader never sees half of it."""
    path = Path(path)
    state = {"step": step, "parameters": {k: v.detach() for k, v in parameters.items()}, "bias": bias}
    if optimizer is not None:
        state["optimizer"] = optimizer.state
        state["adam_steps"] = optimizer.adam_steps
    scratch = path.with_suffix(".tmp")
    torch.save(state, scratch)
    scratch.replace(path)
