#!/usr/bin/env python3
"""Write tests/goldens/kv_rounding/rows.json: rows of keys and values rounded by the `ml_dtypes` library in every simulated
KV format of `tessera evaluate` (apps/tessera/kv_rounding.h has the rules).

A row has a latent of 96 elements and a rope of 32, drawn from a seed, with a few values that matter: zeros, ties of e4m3,
its subnormals, magnitudes past 448. Floats are stored as the hexadecimal digits of their bits, so that equal is equal.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "kv_rounding" / "rows.json"
LATENT, ROPE = 96, 32
E4M3_MAX = np.float32(448.0)


def bits(values: np.ndarray) -> str:
    return "".join(f"{v:08x}" for v in values.astype(np.float32).view(np.uint32).tolist())


def bf16_up(value: np.float32) -> np.float32:
    """The smallest bfloat16 that is not below a positive value."""
    rounded = np.float32(ml_dtypes.bfloat16(value))
    if rounded >= value:
        return rounded
    return np.float32(np.nextafter(ml_dtypes.bfloat16(value), ml_dtypes.bfloat16(np.inf)))


def scale_of(amax: np.float32) -> np.float32:
    return bf16_up(np.float32(amax / E4M3_MAX)) if amax > 0 else np.float32(1)


def scaled(values: np.ndarray, scale: np.float32) -> np.ndarray:
    clipped = np.clip((values / scale).astype(np.float32), -E4M3_MAX, E4M3_MAX)
    return clipped.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


def main() -> None:
    random = np.random.default_rng(20261130)
    rows = []
    for index in range(8):
        row = random.normal(0.0, [0.02, 1.0, 3.0, 40.0, 300.0, 1e-6, 1.0, 1.0][index], LATENT + ROPE)
        row[LATENT:] *= [1.0, 8.0, 0.1, 1.0, 3.0, 1.0, 0.0, 1.0][index]
        row = row.astype(np.float32)
        if index == 1:
            row[:6] = [0.0, -0.0, 1.0625, 1.1875, -2.0**-10, 3 * 2.0**-10]  # Ties, also among subnormals.
        if index == 7:
            row[:LATENT] = 0.0
        rows.append(row)
    latents, ropes = [r[:LATENT] for r in rows], [r[LATENT:] for r in rows]
    # The constants are those of the first three rows; others go past them.
    seen = slice(0, 3)
    latent_scale = scale_of(np.float32(max(np.abs(r).max() for r in latents[seen])))
    rope_scale = scale_of(np.float32(max(np.abs(r).max() for r in ropes[seen])))
    one_scale = max(latent_scale, rope_scale)
    formats = {name: [] for name in ("fp8", "rope-bf16", "one-scale", "per-tensor", "scale-1")}
    for latent, rope in zip(latents, ropes):
        own = scaled(latent, scale_of(np.abs(latent).max()))
        results = {
            "fp8": (own, scaled(rope, scale_of(np.abs(rope).max()))),
            "rope-bf16": (own, rope),  # The page rounds to BF16; here nothing is done.
            "one-scale": (scaled(latent, one_scale), scaled(rope, one_scale)),
            "per-tensor": (scaled(latent, latent_scale), scaled(rope, rope_scale)),
            "scale-1": (scaled(latent, np.float32(1)), scaled(rope, np.float32(1))),
        }
        for name, parts in results.items():
            formats[name].append(bits(np.concatenate(parts)))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    golden = {"latent": LATENT, "rope": ROPE, "observed": seen.stop, "rows": [bits(r) for r in rows], "formats": formats}
    OUT.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
