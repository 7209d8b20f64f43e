#!/usr/bin/env python3
"""Write a checkpoint of the DeepSeek-V3 architecture again in a lower precision, or with a known fault in its weights.

The source is a folder in BF16 or in FP8 blocks; for --damage also one that --experts wrote. The result is a folder that
tessera serves, and that is the same to the byte whenever it is made. It appears under its name only when it is complete.

    python tools/lower_precision/lower_precision.py --model models/tessera-pocket --out DIR --experts int3
"""

import argparse
import dataclasses
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable

import numpy as np

import formats
from checkpoint import INDEX, BadCheckpoint, Source, write_json, write_safetensors

Stored = dict[str, tuple[str, np.ndarray]]  # What follows a module's name, to dtype and elements.
BITS = {"int4": 4, "int3": 3, "int2": 2}
# What is copied beside the weights: configurations and text, never code or pickles.
COPIED = (".json", ".jinja", ".model", ".txt")
LICENCES = ("LICENSE", "LICENCE", "NOTICE")


def f8_config() -> dict:
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [formats.BLOCK, formats.BLOCK]}


def int4_config() -> dict:
    """As Kimi K2.5's and K2.6's: the routed experts alone are in groups of 4-bit integers."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": formats.GROUP,
               "dynamic": False, "actorder": None}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "kv_cache_scheme": None, "config_groups": {"group_0": group},
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}


def layer_of(module: str) -> int:
    return int(module.split(".")[2])


def is_routed(module: str) -> bool:
    return ".mlp.experts." in module


# ---- The source's weights ----------------------------------------------------------------------------------------


def source_format(config: dict) -> str:
    """bf16, f8 or int4; everything else is refused."""
    stated = config.get("quantization_config")
    if stated is None:
        return "bf16"
    if stated == int4_config():
        return "int4"
    if not isinstance(stated, dict) or stated.get("quant_method") != "fp8":
        raise BadCheckpoint("config.json: quantization_config is neither FP8 blocks nor what --experts of this tool writes")
    known = {**f8_config(), "scale_fmt": "float", "modules_to_not_convert": []}
    for name, value in stated.items():
        if name not in known or (value is not None and value != known[name]):
            raise BadCheckpoint(f"config.json: quantization_config.{name} is {value!r}, expected {known.get(name, 'no such field')!r}")
    if stated.get("weight_block_size") is None:
        raise BadCheckpoint(f"config.json: quantization_config.weight_block_size is missing, expected {known['weight_block_size']}")
    return "f8"


class Weights:
    """The products of a source, as they are stored and as numbers."""

    def __init__(self, source: Source):
        self._source, self.format = source, source_format(source.config)
        self.shapes = dict(source.shape.products())
        if self.format == "int4":
            for module, shape in self.shapes.items():
                if is_routed(module) and shape[1] % formats.GROUP:
                    raise BadCheckpoint(f"'{module}' has {shape[1]} columns, expected a multiple of {formats.GROUP}")

    def of_module(self, module: str) -> str:
        """The format of one module."""
        return "bf16" if self.format == "int4" and not is_routed(module) else self.format

    def tensor_names(self, module: str) -> list[str]:
        suffixes = {"bf16": [".weight"], "f8": [".weight", ".weight_scale_inv"],
                    "int4": [".weight_packed", ".weight_scale", ".weight_shape"]}
        return [module + suffix for suffix in suffixes[self.of_module(module)]]

    def stored(self, module: str) -> Stored:
        shape, kind = self.shapes[module], self.of_module(module)
        wanted = {"bf16": ((("BF16",), shape),),
                  "f8": ((("F8_E4M3",), shape), (("F32", "BF16"), formats.block_shape(*shape))),
                  "int4": ((("I32",), (shape[0], shape[1] // 8)), (("BF16",), (shape[0], shape[1] // formats.GROUP)),
                           (("I64",), (2,)))}[kind]
        out = {}
        for name, (dtypes, expected) in zip(self.tensor_names(module), wanted):
            out[name[len(module) :]] = self._source.read(name, dtypes, expected)
        if kind == "int4" and tuple(out[".weight_shape"][1]) != shape:
            raise BadCheckpoint(f"tensor '{module}.weight_shape' says {out['.weight_shape'][1].tolist()}, expected {list(shape)}")
        return out

    def file_of(self, module: str) -> str:
        return self._source.file_of(self.tensor_names(module)[0])

    def values(self, module: str) -> np.ndarray:
        values = as_numbers(self.stored(module))
        if not np.isfinite(values).all():
            raise BadCheckpoint(f"'{module}.weight' holds values that are not finite")
        return values


def as_numbers(stored: Stored) -> np.ndarray:
    """The float32 elements of a product in any of the three formats."""
    if ".weight_packed" in stored:
        return formats.dequantize_int(formats.unpack_int4(stored[".weight_packed"][1]), stored[".weight_scale"][1])
    dtype, weight = stored[".weight"]
    if dtype == "BF16":
        return formats.from_bf16(weight)
    scale_dtype, scales = stored[".weight_scale_inv"]
    return formats.dequantize_f8(weight, formats.from_bf16(scales) if scale_dtype == "BF16" else scales)


# ---- What is made of them ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Plan:
    """What is written for each module, and the quantization_config (None: none) that describes it."""

    what: str
    quantization: dict | None
    write: Callable[[str], Stored]


def f8_stored(values: np.ndarray, scales: np.ndarray) -> Stored:
    return {".weight": ("F8_E4M3", formats.quantize_f8(values, scales)), ".weight_scale_inv": ("F32", scales)}


def bf16_stored(values: np.ndarray) -> Stored:
    return {".weight": ("BF16", formats.to_bf16(values))}


def expect_source(weights: Weights, *allowed: str) -> None:
    if weights.format not in allowed:
        raise BadCheckpoint(f"the checkpoint is in {weights.format}, expected {' or '.join(allowed)} for this")


def plan_experts(weights: Weights, name: str) -> Plan:
    expect_source(weights, "bf16", "f8")
    for module, (_, columns) in weights.shapes.items():
        if is_routed(module) and columns % formats.GROUP:
            raise BadCheckpoint(f"'{module}' has {columns} columns, expected a multiple of {formats.GROUP}")

    def write(module: str) -> Stored:
        values = weights.values(module)
        if not is_routed(module):
            return bf16_stored(values)
        try:
            whole, scales = formats.quantize_int(values, BITS[name])
        except ValueError as error:
            raise BadCheckpoint(f"'{module}.weight': {error}") from error
        return {".weight_packed": ("I32", formats.pack_int4(whole)), ".weight_scale": ("BF16", scales),
                ".weight_shape": ("I64", np.array(values.shape, np.int64))}

    return Plan(f"routed experts in {name.upper()}, groups of {formats.GROUP}, rounded to nearest; the rest in BF16",
                int4_config(), write)


def plan_bf16(weights: Weights) -> Plan:
    expect_source(weights, "f8")
    return Plan("all weights in BF16", None, lambda module: bf16_stored(weights.values(module)))


def plan_f8_blocks(weights: Weights) -> Plan:
    expect_source(weights, "bf16")

    def write(module: str) -> Stored:
        values = weights.values(module)
        return f8_stored(values, formats.block_scales(values))

    return Plan("projections in FP8 blocks of 128 x 128", f8_config(), write)


def plan_f8_one_scale(weights: Weights) -> Plan:
    expect_source(weights, "bf16", "f8")

    def group(module: str) -> str:
        return re.sub(r"\.experts\.\d+\.", ".experts.*.", module)

    largest: dict[str, np.float32] = {}
    for module in weights.shapes:
        largest[group(module)] = max(largest.get(group(module), np.float32(1e-12)), np.abs(weights.values(module)).max())

    def write(module: str) -> Stored:
        values = weights.values(module)
        scale = largest[group(module)] / formats.F8_MAX
        return f8_stored(values, np.full(formats.block_shape(*values.shape), scale, np.float32))

    return Plan("projections in FP8 with one scale for each projection of a layer, which its routed experts share",
                f8_config(), write)


def damaged_layer(weights: Weights, text: str, routed_only: bool) -> int:
    layers = 1 + max(map(layer_of, weights.shapes))
    layer = int(text) if re.fullmatch(r"\d{1,6}", text) else -1
    if not 0 <= layer < layers:
        raise BadCheckpoint(f"--damage: layer '{text}', expected 0 to {layers - 1}")
    if routed_only and not any(is_routed(m) and layer_of(m) == layer for m in weights.shapes):
        raise BadCheckpoint(f"--damage: layer {layer} has no routed experts")
    return layer


def plan_damage(weights: Weights, spec: str, quantization: dict | None) -> Plan:
    kind, _, rest = spec.partition(":")
    where, separator, factor_text = rest.partition(":")
    if kind == "permute-experts" and not separator:
        layer = damaged_layer(weights, where, routed_only=True)
        experts = len({m.split(".")[5] for m in weights.shapes if is_routed(m) and layer_of(m) == layer})

        def write(module: str) -> Stored:
            if is_routed(module) and layer_of(module) == layer:
                parts = module.split(".")
                parts[5] = str((int(parts[5]) + 1) % experts)
                module = ".".join(parts)
            return weights.stored(module)

        return Plan(f"fault: in layer {layer} every routed expert has the weights of the next one", quantization, write)
    if kind == "wrong-scale":
        expect_source(weights, "f8", "int4")
        layer = damaged_layer(weights, where, routed_only=weights.format == "int4")
        try:
            factor = np.float32(factor_text) if separator else np.float32(2)
        except ValueError:
            factor = np.float32(math.nan)
        if not (np.isfinite(factor) and factor > 0):
            raise BadCheckpoint(f"--damage: factor '{factor_text}', expected a positive number")

        def write(module: str) -> Stored:
            stored = weights.stored(module)
            if layer_of(module) != layer or not module.endswith(".down_proj") or ".shared_experts." in module:
                return stored
            name = ".weight_scale_inv" if ".weight_scale_inv" in stored else ".weight_scale"
            dtype, scales = stored.get(name, (None, None))
            if dtype is None:
                raise BadCheckpoint(f"'{module}' has no scales")
            wrong = (formats.from_bf16(scales) if dtype == "BF16" else scales) * factor
            if not np.isfinite(wrong).all():
                raise BadCheckpoint(f"--damage: the scales of '{module}' times {factor} are not finite")
            return stored | {name: (dtype, formats.to_bf16(wrong) if dtype == "BF16" else wrong)}

        return Plan(f"fault: the scales of layer {layer}'s down_proj (of its routed experts, where it has them) times {factor:g}",
                    quantization, write)
    raise BadCheckpoint(f"--damage '{spec}', expected wrong-scale:LAYER, wrong-scale:LAYER:FACTOR or permute-experts:LAYER")


def make_plan(args: argparse.Namespace, weights: Weights, config: dict) -> Plan:
    if args.experts is not None:
        return plan_experts(weights, args.experts)
    if args.bf16:
        return plan_bf16(weights)
    if args.fp8_blocks:
        return plan_f8_blocks(weights)
    if args.fp8_one_scale:
        return plan_f8_one_scale(weights)
    return plan_damage(weights, args.damage, config.get("quantization_config"))


# ---- The folder --------------------------------------------------------------------------------------------------


class Changes:
    """How far the written weights are from the source's."""

    def __init__(self):
        self._squares = self._differences = 0.0
        self.products = 0

    def add(self, before: np.ndarray, after: np.ndarray) -> None:
        difference = float(np.sum((after.astype(np.float64) - before) ** 2))
        if difference > 0:
            self.products += 1
            self._differences += difference
            self._squares += float(np.sum(before.astype(np.float64) ** 2))

    def relative(self) -> float:
        return math.sqrt(self._differences / self._squares) if self._squares > 0 else 0.0


def write_weights(source: Source, weights: Weights, plan: Plan, folder: pathlib.Path) -> Changes:
    """One file for each of the source's, with what replaces its tensors, and an index where there is more than one."""
    expected = {name for module in weights.shapes for name in weights.tensor_names(module)}
    plain = dict(source.shape.others())
    unknown = sorted(source.names() - expected - plain.keys())
    if unknown:
        raise BadCheckpoint(f"{len(unknown)} tensors are not of this architecture, the first is '{unknown[0]}'")
    changes, total, placed = Changes(), 0, {}
    for name in plain:  # A missing one is found before anything is written.
        source.read(name, ("BF16", "F32"), plain[name])
    for file in source.files:
        tensors: Stored = {}
        for name in plain:
            if source.file_of(name) == file.name:
                tensors[name] = source.read(name, ("BF16", "F32"), plain[name])
        for module in weights.shapes:
            if weights.file_of(module) != file.name:
                continue
            stored = plan.write(module)
            changes.add(weights.values(module), as_numbers(stored))
            tensors |= {module + suffix: tensor for suffix, tensor in stored.items()}
        total += write_safetensors(folder / file.name, tensors)
        placed |= dict.fromkeys(tensors, file.name)
    if len(source.files) > 1 or (source.folder / INDEX).is_file():
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))})
    return changes


def copy_texts(source: pathlib.Path, folder: pathlib.Path) -> None:
    for path in sorted(source.iterdir()):
        wanted = path.suffix in COPIED or path.name.startswith(LICENCES)
        if path.is_file() and wanted and path.name not in ("config.json", INDEX):
            shutil.copyfile(path, folder / path.name)


def make(args: argparse.Namespace) -> str:
    out = args.out
    if out.exists() or out.is_symlink():
        raise BadCheckpoint(f"'{out}' exists already")
    source = Source(args.model)
    weights = Weights(source)
    for module in weights.shapes:  # As with the others: all are there and of their shapes.
        weights.stored(module)
    plan = make_plan(args, weights, source.config)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        partial.chmod(0o755)
        changes = write_weights(source, weights, plan, partial)
        config = {k: v for k, v in source.config.items() if k != "quantization_config"}
        write_json(partial / "config.json",
                   config if plan.quantization is None else config | {"quantization_config": plan.quantization})
        copy_texts(args.model, partial)
        name = args.model.resolve().name
        (partial / "README.md").write_text(
            f"# {name}, changed\n\nMade of the checkpoint `{name}` by `tools/lower_precision/lower_precision.py`: {plan.what}.\n"
            "Licence and all else are that checkpoint's.\n", encoding="utf-8")
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    return (f"{out}: {plan.what}; {changes.products} of {len(weights.shapes)} products changed, relative error of their "
            f"weights {changes.relative():.4g}; {size / 2**20:.2f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path, help="the checkpoint folder to start from")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the folder to make; must not exist")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--experts", choices=sorted(BITS), help="routed experts in whole numbers, in INT4 containers; rest BF16")
    action.add_argument("--fp8-one-scale", action="store_true", help="one FP8 scale for each projection of a layer")
    action.add_argument("--fp8-blocks", action="store_true", help="BF16 to FP8 blocks of 128 x 128")
    action.add_argument("--bf16", action="store_true", help="FP8 blocks to BF16")
    action.add_argument("--damage", metavar="SPEC", help="wrong-scale:LAYER[:FACTOR] or permute-experts:LAYER")
    try:
        print(make(parser.parse_args()))
    except (BadCheckpoint, OSError) as error:
        print(f"lower_precision: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
