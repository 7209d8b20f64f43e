#!/usr/bin/env python3
"""Write tests/goldens/lower_precision/formats.npz: what PyTorch and compressed-tensors make of some numbers.

torch rounds float32 to BF16 and to E4M3 and says what every E4M3 code stands for; compressed-tensors chooses the scales
of groups of 4, 3 and 2 bits, rounds to them, packs and unpacks. tests/goldens/README.md describes the arrays.

With --check DIR ... it writes nothing, and compares instead how the two and tools/lower_precision read every quantized
weight of checkpoint folders, to the bit.
"""

import argparse
import pathlib
import sys

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file

from make_tiny_goldens import decompress, dequantize_block

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "lower_precision" / "formats.npz"
SEED = 20261130
GROUP = 32
CONTAINER = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}


def f8_inputs() -> np.ndarray:
    """Every finite code's value, the middle to the next one, and their neighbours in float32; and random numbers."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    exact = np.concatenate([codes, (codes[:-1] + codes[1:]) / 2])
    near = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(0))])
    rng = np.random.default_rng(SEED)
    drawn = np.exp(rng.uniform(np.log(2.0**-12), np.log(440.0), 2000)).astype(np.float32)
    positive = np.concatenate([near[near <= 448], drawn])
    return np.concatenate([positive, -positive]).astype(np.float32)


def group_inputs() -> np.ndarray:
    """Rows of groups of all sizes, one of zeros, and one whose elements lie in the middle between two steps."""
    rng = np.random.default_rng(SEED + 1)
    values = rng.standard_normal((24, 4 * GROUP)) * np.exp(rng.uniform(-9, 3, (24, 1)))
    values[3, :GROUP] = 0
    values[5, :GROUP] = np.linspace(-7.5, 7.5, GROUP)
    values[6, :GROUP] = np.tile([-3.5, -2.5, -0.5, 0.5, 1.5, 2.5, 3.5, 3.0], 4)
    return values.astype(np.float32)


def main_goldens() -> None:
    arrays = {"f8_inputs": f8_inputs(), "group_inputs": group_inputs()}
    inputs = torch.from_numpy(arrays["f8_inputs"])
    arrays["f8_codes"] = inputs.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    arrays["f8_values"] = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    arrays["bf16"] = inputs.bfloat16().view(torch.int16).numpy().view(np.uint16)
    values = torch.from_numpy(arrays["group_inputs"])
    groups = values.reshape(len(values), -1, GROUP)
    for bits in (4, 3, 2):
        args = QuantizationArgs(**{**CONTAINER, "num_bits": bits})
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        # A group of zeros may have any scale; the others are stored in BF16.
        scale = torch.where(groups.abs().amax(-1) == 0, torch.ones_like(scale), scale).bfloat16()
        whole = quantize(values, scale.float(), zero, args, dtype=torch.int8)
        packed = pack_to_int32(whole, 4)
        parts = {"weight_packed": packed, "weight_scale": scale.float(), "weight_shape": torch.tensor(values.shape)}
        arrays |= {f"int{bits}": whole.numpy(), f"int{bits}_scales": scale.view(torch.int16).numpy().view(np.uint16),
                   f"int{bits}_packed": packed.numpy(), f"int{bits}_values": decompress("pack-quantized", parts, CONTAINER).numpy()}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUT, **arrays)
    print(f"{OUT}: {', '.join(arrays)}; {OUT.stat().st_size} bytes")


def check(folder: pathlib.Path) -> None:
    sys.path.insert(0, str(ROOT / "tools" / "lower_precision"))
    import checkpoint
    import lower_precision

    stored = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= load_file(file)
    weights = lower_precision.Weights(checkpoint.Source(folder))
    compared = {"int4": 0, "f8": 0, "bf16": 0}
    for module in weights.shapes:
        kind = weights.of_module(module)
        if kind == "int4":
            parts = {n: stored[f"{module}.{n}"] for n in ("weight_packed", "weight_scale", "weight_shape")}
            theirs = decompress("pack-quantized", parts | {"weight_scale": parts["weight_scale"].float()}, CONTAINER)
        elif kind == "f8":
            theirs = dequantize_block(stored[module + ".weight"], stored[module + ".weight_scale_inv"])
        else:
            theirs = stored[module + ".weight"].float()
        ours = torch.from_numpy(weights.values(module))
        if not torch.equal(ours, theirs):
            raise SystemExit(f"{folder}: {module} ({kind}) is read differently")
        compared[kind] += 1
    print(f"{folder}: equal to the bit: {', '.join(f'{count} in {kind}' for kind, count in compared.items() if count)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", type=pathlib.Path, metavar="DIR")
    args = parser.parse_args()
    for folder in args.check or ():
        check(folder)
    if args.check is None:
        main_goldens()


if __name__ == "__main__":
    main()
