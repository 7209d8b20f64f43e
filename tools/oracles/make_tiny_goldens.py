#!/usr/bin/env python3
"""Write tests/goldens/tiny/*/{goldens.json,logits.f32}: what transformers computes, in FP32 with eager attention, with
the tiny checkpoints of tools/tiny_checkpoints, and how compressed-tensors and transformers dequantize them.

Logits at a few positions of a prompt, 64 greedy tokens with the two best logits of every step, the experts that each
token takes, and for sparse attention the tokens that each query selects. tests/goldens/README.md describes the files.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import tempfile
from unittest import mock

import numpy as np
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

HERE = pathlib.Path(__file__).resolve().parent
TINY = HERE.parents[1] / "tests" / "goldens" / "tiny"
sys.path.insert(0, str(HERE.parent / "tiny_checkpoints"))
import families  # noqa: E402
import make_tiny_checkpoints  # noqa: E402
import recipe  # noqa: E402

STEPS = 64
PROMPT_TOKENS = {"glm_moe_dsa_topk2048": 2112}
# Queries whose selection is written down where a prompt is long.
LONG_QUERIES = [2046, 2047, 2048, 2049, 2080, 2111]
# What a choice must be clear by: the score (of experts or tokens) of the last one taken over the first one left out.
# Errors of float32 are well below.
CHOICE_MARGIN = 1e-5
# More different tokens than this among the greedy ones: a model that repeats itself proves little.
DIFFERENT_TOKENS = 10
BLOCK = 128


# ---- Dequantization, by the libraries that own the formats ----

def dequantize_block(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """transformers' own, which wants whole blocks: incomplete ones are filled up and cut off again."""
    rows, cols = weight.shape
    whole = torch.zeros(scale.shape[0] * BLOCK, scale.shape[1] * BLOCK, dtype=weight.dtype)
    whole[:rows, :cols] = weight
    return Fp8Dequantize(None)._dequantize_one(whole, scale, torch.float32)[:rows, :cols].contiguous()


def decompress(compressor: str, parts: dict, weights: dict) -> torch.Tensor:
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    return BaseCompressor.get_value_from_registry(compressor).decompress(parts, scheme)["weight"]


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def load_dequantized(folder: pathlib.Path, config: dict) -> tuple[dict, list]:
    """All tensors in FP32 under their names, and for every quantized weight what the libraries made of it.

    compressed-tensors multiplies in the dtype of the scales. Stored in BF16, they give weights rounded to BF16 ("bf16"
    below); widened to FP32 first, they give the exact products ("f32"), which is what logits are computed with.
    """
    stored = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= load_file(file)
    quantization = config.get("text_config", config).get("quantization_config", {})
    arguments = quantization.get("config_groups", {}).get("group_0", {}).get("weights")
    out, records = {}, []
    for name, tensor in stored.items():
        if name.endswith(("_scale", "_scale_inv", "_shape")):
            continue
        stem = name.removesuffix("_packed")
        if f"{stem}_scale_inv" in stored:
            out[stem] = dequantize_block(tensor, stored[f"{stem}_scale_inv"])
            records.append({"name": stem, "format": "f8_block128", "f32": sha256(out[stem])})
        elif f"{stem}_scale" in stored:
            packed = name != stem
            kind = "pack-quantized" if packed else "float-quantized"
            scale = stored[f"{stem}_scale"]
            parts = {"weight_packed": tensor, "weight_shape": stored[f"{stem}_shape"]} if packed else {"weight": tensor}
            rounded = decompress(kind, parts | {"weight_scale": scale}, arguments)
            out[stem] = decompress(kind, parts | {"weight_scale": scale.float()}, arguments)
            assert rounded.dtype == torch.bfloat16 and torch.equal(out[stem].bfloat16(), rounded)
            records.append({"name": stem, "format": "int4_group32" if packed else "f8_channel",
                            "f32": sha256(out[stem]), "bf16": sha256(rounded)})
        else:
            out[name] = tensor.float()
    return out, sorted(records, key=lambda r: r["name"])


# ---- The model ----

def load_model(name: str, folder: pathlib.Path, config: dict):
    """The FP32 model of a tiny checkpoint; every tensor that the engine uses must be used, and none missing."""
    tensors, records = load_dequantized(folder, config)
    inner = dict(config.get("text_config", config))
    inner.pop("quantization_config", None)
    inner["torch_dtype"] = "float32"
    if inner["model_type"] == "kimi_k2":  # transformers knows it as its architecture's type
        inner["model_type"] = "deepseek_v3"
    prefix = "language_model." if "text_config" in config else ""
    behind = f"model.layers.{inner['num_hidden_layers']}."
    kept = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    kept = {n: t for n, t in kept.items() if not n.startswith(behind)}
    with tempfile.TemporaryDirectory() as plain:
        (pathlib.Path(plain) / "config.json").write_text(json.dumps(inner))
        save_file({n: t.contiguous() for n, t in kept.items()}, f"{plain}/model.safetensors", metadata={"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
            output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (name, kind, info[kind])
    assert type(model).__name__ == inner["architectures"][0]
    return model.eval(), records


class Choices:
    """What routers and indexers chose in the passes that ran while it was installed, and by how much."""

    def __init__(self, model):
        self.experts, self.selected, self.margins = {}, {}, []
        for index, layer in enumerate(model.model.layers):
            gate = getattr(layer.mlp, "gate", None)
            if gate is not None:
                gate.register_forward_hook(lambda m, _, out, i=index: self._route(i, m, out))
            if getattr(layer.self_attn, "indexer", None) is not None:
                layer.self_attn.indexer.register_forward_hook(lambda _, __, out, i=index: self._select(i, out))

    def _route(self, layer: int, gate, output) -> None:
        logits, _, ids = output
        self.experts.setdefault(layer, []).extend(sorted(row) for row in ids.tolist())
        choice = logits.sigmoid() + gate.e_score_correction_bias
        groups = getattr(gate, "num_group", 1)
        if groups > 1:
            best = choice.view(len(choice), groups, -1).topk(2, dim=-1)[0].sum(-1).sort(-1, descending=True)
            self.margins.append((best.values[:, gate.topk_group - 1] - best.values[:, gate.topk_group]).min().item())
            allowed = torch.zeros_like(best.values).scatter(1, best.indices[:, :gate.topk_group], 1.0)
            choice = choice.masked_fill(allowed.repeat_interleave(choice.shape[1] // groups, 1) == 0, float("-inf"))
        ordered = choice.sort(-1, descending=True).values
        self.margins.append((ordered[:, gate.top_k - 1] - ordered[:, gate.top_k]).min().item())

    def _select(self, layer: int, ids) -> None:
        self.selected.setdefault(layer, []).extend(row for row in ids[0].tolist())


def watch_topk(choices: Choices):
    """Records the margin of every selection of tokens, which the model makes with Tensor.topk on [1, queries, keys]."""
    original = torch.Tensor.topk

    def topk(scores, k, *args, **kwargs):
        if scores.dim() == 3 and scores.dtype == torch.float32 and kwargs.get("dim") == -1 and k > 2:
            ordered = scores.sort(-1, descending=True).values[0]
            if ordered.shape[1] > k:
                taken, left = ordered[:, k - 1], ordered[:, k]
                real = left > torch.finfo(torch.float32).min / 2
                choices.margins += (taken - left)[real].tolist()
        return original(scores, k, *args, **kwargs)

    return mock.patch.object(torch.Tensor, "topk", topk)


@torch.no_grad()
def greedy(model, ids: list) -> list:
    steps, cache, pending = [], None, ids
    for _ in range(STEPS):
        output = model(torch.tensor([pending]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        values, tokens = output.logits[0, -1].topk(2)
        steps.append([tokens[0].item(), round(values[0].item(), 5), tokens[1].item(), round(values[1].item(), 5)])
        pending = [steps[-1][0]]
    return steps


def prompt(name: str, salt: int) -> list:
    words = recipe.words("prompt", f"{name}/{salt}", PROMPT_TOKENS.get(name, 40))
    return (words % np.uint64(316)).astype(int).tolist()


def selections(choices: Choices, length: int) -> dict:
    """{layer: {query: positions}}, or the positions left out where most are taken."""
    out = {}
    for layer, rows in choices.selected.items():
        queries = LONG_QUERIES if length > 200 else range(length)
        out[layer] = {}
        for query in queries:
            taken = {p for p in rows[query] if p <= query}
            out[layer][query] = sorted(set(range(query + 1)) - taken) if length > 200 else sorted(taken)
    return out


@torch.no_grad()
def make(name: str, model_folder: pathlib.Path) -> None:
    config = json.loads((TINY / name / "config.json").read_text())
    model, dequantized = load_model(name, model_folder, config)
    for salt in range(100):
        ids = prompt(name, salt)
        steps = greedy(model, ids)
        tokens = ids + [step[0] for step in steps]
        choices = Choices(model)
        with watch_topk(choices):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        # The pass over everything at once and the passes with a cache are two ways to one result.
        assert [row.argmax().item() for row in logits[len(ids) - 1:-1]] == [step[0] for step in steps]
        margin = min(choices.margins, default=1.0)
        varied = len({step[0] for step in steps}) > DIFFERENT_TOKENS
        if varied and margin >= CHOICE_MARGIN and min(step[1] - step[3] for step in steps) > 1e-3:
            break
        model, _ = load_model(name, model_folder, config)  # without hooks
    else:
        raise SystemExit(f"{name}: no prompt with clear choices and varied tokens")
    count = len(ids)
    positions = sorted({0, 1, 7, 15, 16, 31, 63, 64, 2047, 2048, count - 1} & set(range(count)))
    golden = {"fingerprint": (TINY / name / "fingerprint.txt").read_text().strip(), "vocab_size": logits.shape[1],
              "token_ids": ids, "positions": positions, "steps": steps}
    if choices.experts:
        rows = range(count) if count < 200 else [0, 1, 2, count - 1]
        golden["experts"] = {layer: [table[row] for row in rows] for layer, table in choices.experts.items()}
        golden["expert_rows"] = list(rows)
    if choices.selected:
        golden["left_out" if count > 200 else "selected"] = selections(choices, count)
        with torch.no_grad():  # Sparse must not be dense by accident.
            wide = dict(config, index_topk=1 << 16)
            dense, _ = load_model(name, model_folder, wide)
            difference = (dense(torch.tensor([ids])).logits[0, -1] - logits[count - 1]).norm() / logits[count - 1].norm()
        assert difference > 1e-3, (name, difference)
        golden["dense_differs_by"] = round(difference.item(), 4)
    if dequantized:
        golden["dequantized"] = dequantized
    (TINY / name / "logits.f32").write_bytes(logits[positions].contiguous().numpy().astype("<f4").tobytes())
    (TINY / name / "goldens.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{name}: prompt {salt}, choices clear by {margin:.1e}, tokens by "
          f"{min(step[1] - step[3] for step in steps):.3f}, {len(set(s[0] for s in steps))} different tokens", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them where none is given")
    names = parser.parse_args().names or list(families.CHECKPOINTS)
    torch.set_num_threads(1)  # the order of summation is then not a matter of how many cores the machine has
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            make_tiny_checkpoints.write_checkpoint(name, pathlib.Path(folder))
            make(name, pathlib.Path(folder) / name)


if __name__ == "__main__":
    main()
