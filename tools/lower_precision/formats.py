"""Number formats: BF16, FP8 (E4M3 with 128 x 128 scale blocks), and INT4 in groups as compressed-tensors packs it.

All arithmetic is float32, as PyTorch's would be, so that the results can be compared with it to the bit. Nothing here
knows files or names.
"""

import numpy as np

BLOCK = 128
GROUP = 32
F8_MAX = np.float32(448.0)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of finite float32 `values`, rounded to BF16: to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _e4m3_values() -> np.ndarray:
    """What the codes 0 to 126 stand for, ascending; 127 is NaN, and bit 7 is the sign."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp(8.0 + mantissa, exponent - 10)
    return np.where(exponent == 0, np.ldexp(mantissa.astype(np.float64), -9), normal).astype(np.float32)


_POSITIVE = _e4m3_values()
_VALUES = np.concatenate([_POSITIVE, [np.float32(np.nan)], -_POSITIVE, [np.float32(np.nan)]]).astype(np.float32)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """The codes of finite float32 `values` within +-448 (a rounding error beyond it counts as 448): to nearest, ties to
    the even code."""
    size = np.minimum(np.abs(values), F8_MAX)
    bits = size.view(np.uint32)
    # From 2^-6 on: three bits of mantissa stay of 23, and the exponent's bias becomes 7 instead of 127. Below, codes
    # are multiples of 2^-9, and rounding up to the eighth gives the first of the others.
    normal = ((bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - np.uint32(120 << 3)
    small = np.rint(size * np.float32(512)).astype(np.uint32)
    code = np.where(size < np.float32(2.0**-6), small, normal).astype(np.uint8)
    return code | (np.signbit(values).astype(np.uint8) << np.uint8(7))


def from_e4m3(codes: np.ndarray) -> np.ndarray:
    """NaN for the two codes that are none."""
    return _VALUES[codes]


def _spread(scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Each element's own factor, from those of the blocks."""
    return np.repeat(np.repeat(scales, BLOCK, 0)[:rows], BLOCK, 1)[:, :columns]


def block_shape(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // BLOCK), -(-columns // BLOCK)


def block_scales(values: np.ndarray) -> np.ndarray:
    """The F32 factor of each block, with which its largest element becomes 448; of a block of zeros the smallest one
    in use, so that nothing is divided by zero."""
    tall, wide = block_shape(*values.shape)
    padded = np.zeros((tall * BLOCK, wide * BLOCK), np.float32)
    padded[: values.shape[0], : values.shape[1]] = np.abs(values)
    largest = padded.reshape(tall, BLOCK, wide, BLOCK).max(axis=(1, 3))
    return np.maximum(largest, np.float32(1e-12)) / F8_MAX


def quantize_f8(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return to_e4m3(values / _spread(scales, *values.shape))


def dequantize_f8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return from_e4m3(codes) * _spread(scales, *codes.shape)


def quantize_int(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Round to nearest, symmetric, in groups of 32 of a row: whole numbers of `bits` bits (int8) and the BF16 bits of
    each group's factor.

    As compressed-tensors does it: the factor is the group's largest magnitude over half of the range (7.5 for 4 bits,
    3.5 for 3, 1.5 for 2), rounded to BF16 before anything is divided by it; a group of zeros gets 1.
    """
    rows, columns = values.shape
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    groups = values.reshape(rows, columns // GROUP, GROUP)
    factor = np.abs(groups).max(axis=2) / np.float32((highest - lowest) / 2)
    scales = to_bf16(np.where(factor == 0, np.float32(1), factor))
    if (from_bf16(scales) == 0).any():
        raise ValueError("a group's factor is below all BF16 numbers")
    whole = np.rint(groups / from_bf16(scales)[:, :, None])
    return np.clip(whole, lowest, highest).astype(np.int8).reshape(rows, columns), scales


def dequantize_int(whole: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return whole.astype(np.float32) * np.repeat(from_bf16(scales), GROUP, 1)


def pack_int4(whole: np.ndarray) -> np.ndarray:
    """Eight elements of a row to an I32 word, the first in its lowest four bits, each as u = q + 8."""
    nibbles = (whole.astype(np.int16) + 8).astype(np.uint32).reshape(whole.shape[0], -1, 8)
    words = np.zeros(nibbles.shape[:2], np.uint32)
    for at in range(8):
        words |= nibbles[:, :, at] << np.uint32(4 * at)
    return words.view(np.int32)


def unpack_int4(words: np.ndarray) -> np.ndarray:
    nibbles = (words.view(np.uint32)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32)) & np.uint32(15)
    return (nibbles.astype(np.int16) - 8).astype(np.int8).reshape(words.shape[0], -1)
