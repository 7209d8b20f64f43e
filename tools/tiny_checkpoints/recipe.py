"""Recipes: the text files from which Python and C++ make the same tiny checkpoints, to the byte.

A recipe is a list of lines, `#` begins a comment:

    shard                       the tensors that follow go into the next file (without any: one model.safetensors)
    NAME DTYPE SHAPE FILL ...   one tensor, or as many as NAME has combinations of its ranges {first..last}

DTYPE is safetensors' (F32, BF16, F8_E4M3, I32, I64), SHAPE is like 320x256. FILL is one of

    normal M        element = n * M * 2^-40, n the sum of the word's four 16-bit lanes less 131070: bell-shaped, with a
                    standard deviation of 37837 M 2^-40
    uniform C S     element = C * 2^-24 + S * 2^-24 * u, u = (word >> 40) * 2^-23 - 1 in [-1, 1)
    codes           F8_E4M3: the word's lowest byte, where it is NaN its lowest bit flipped; I32: the lowest 32 bits
    values A B ...  these whole numbers

The words are those of splitmix64: word i of a tensor is mix64(seed + (i + 1) * 0x9e3779b97f4a7c15), its seed the 64-bit
FNV-1a hash of "<checkpoint>/<tensor>". Elements are computed in double, where every product here is exact, rounded once
to float32 and, for BF16, once more (to nearest, ties to even).

A fingerprint is the SHA-256 of, for every tensor in the order of names, "<name> <dtype> <shape>\n" and its bytes.
"""

import hashlib
import itertools
import json
import pathlib
import re
import struct
from dataclasses import dataclass

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_DTYPES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I32": 4, "I64": 8}


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: list[str]
    shard: int  # from 1; 0 in a recipe without shards

    def header_line(self) -> str:
        return f"{self.name} {self.dtype} {'x'.join(map(str, self.shape))}\n"


def expand(name: str) -> list[str]:
    """All names of a pattern such as layers.{1..2}.experts.{0..7}, the last range turning fastest."""
    parts = re.split(r"\{(\d+)\.\.(\d+)\}", name)
    choices = [[parts[0]]]
    for first, last, text in zip(parts[1::3], parts[2::3], parts[3::3]):
        choices += [[str(i) for i in range(int(first), int(last) + 1)], [text]]
    return ["".join(choice) for choice in itertools.product(*choices)]


def parse(text: str) -> list[Tensor]:
    tensors, shard = [], 0
    for line in text.splitlines():
        fields = line.split("#")[0].split()
        if fields == ["shard"]:
            shard += 1
        elif fields:
            shape = tuple(int(extent) for extent in fields[2].split("x"))
            tensors += [Tensor(name, fields[1], shape, fields[3:], shard) for name in expand(fields[0])]
    names = [tensor.name for tensor in tensors]
    assert len(set(names)) == len(names), "a recipe names a tensor twice"
    return tensors


def words(checkpoint: str, name: str, count: int) -> np.ndarray:
    """The first `count` words of a tensor."""
    seed = 0xCBF29CE484222325
    for byte in f"{checkpoint}/{name}".encode():
        seed = ((seed ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * _STEP
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def data(checkpoint: str, tensor: Tensor) -> bytes:
    """The tensor's bytes as they lie in the file."""
    count = int(np.prod(tensor.shape))
    kind, arguments = tensor.fill[0], [int(a) for a in tensor.fill[1:]]
    if kind == "values":
        assert len(arguments) == count
        return np.array(arguments, {"I32": "<i4", "I64": "<i8"}[tensor.dtype]).tobytes()
    drawn = words(checkpoint, tensor.name, count)
    if kind == "codes":
        if tensor.dtype == "I32":
            return drawn.astype("<u4").tobytes()
        assert tensor.dtype == "F8_E4M3"
        codes = (drawn & np.uint64(0xFF)).astype(np.uint8)
        return np.where((codes & 0x7F) == 0x7F, codes ^ 1, codes).astype(np.uint8).tobytes()
    if kind == "normal":
        lanes = sum(((drawn >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48))
        values = (lanes - 131070).astype(np.float64) * (arguments[0] * 2.0**-40)
    else:
        assert kind == "uniform"
        u = (drawn >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
        values = arguments[0] * 2.0**-24 + (arguments[1] * 2.0**-24) * u
    values = values.astype("<f4")
    return values.tobytes() if tensor.dtype == "F32" else _to_bf16(values).tobytes()


def fingerprint(checkpoint: str, tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda t: t.name.encode()):
        digest.update(tensor.header_line().encode())
        digest.update(data(checkpoint, tensor))
    return digest.hexdigest()


def _write_file(path: pathlib.Path, checkpoint: str, tensors: list[Tensor]) -> None:
    header, offset = {}, 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape)) * _DTYPES[tensor.dtype]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            file.write(data(checkpoint, tensor))


def write_weights(folder: pathlib.Path, checkpoint: str, tensors: list[Tensor]) -> None:
    """Writes model.safetensors, or the shards and their index."""
    shards = max(tensor.shard for tensor in tensors)
    if shards == 0:
        _write_file(folder / "model.safetensors", checkpoint, tensors)
        return
    weight_map = {}
    for shard in range(1, shards + 1):
        name = f"model-{shard:05}-of-{shards:05}.safetensors"
        mine = [tensor for tensor in tensors if tensor.shard == shard]
        _write_file(folder / name, checkpoint, mine)
        weight_map |= {tensor.name: name for tensor in mine}
    total = sum(int(np.prod(t.shape)) * _DTYPES[t.dtype] for t in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
