"""Checkpoint folders of the DeepSeek-V3 architecture: which tensors there are, reading and writing them.

Reading checks what tessera's own reader checks, as far as this tool relies on it: names, shapes, dtypes and offsets.
Tensors are read where they lie in the mapped files, one at a time.
"""

import json
import math
import pathlib
import re
import struct

import numpy as np

# BF16 and FP8 as their bits, which formats.py knows how to read.
DTYPES = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F8_E4M3": np.dtype("u1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
HEADER_MAX = 100_000_000
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class BadCheckpoint(Exception):
    """What is wrong with the input, in words for the person who gave it."""


# ---- Tensors of the architecture ---------------------------------------------------------------------------------


class Shape:
    """The sizes of a config.json, and the tensors that follow from them."""

    def __init__(self, config: dict):
        def number(name: str, least: int) -> int:
            value = config.get(name)
            if type(value) is not int or not least <= value < 2**31:
                raise BadCheckpoint(f"config.json: {name} is {value!r}, expected a whole number of at least {least}")
            return value

        if config.get("architectures") != ["DeepseekV3ForCausalLM"] or config.get("model_type") not in ("deepseek_v3", "kimi_k2"):
            raise BadCheckpoint(f"config.json: architectures {config.get('architectures')!r}, model_type "
                                f"{config.get('model_type')!r}; expected DeepseekV3ForCausalLM as deepseek_v3 or kimi_k2")
        for name, plain in (("tie_word_embeddings", False), ("num_nextn_predict_layers", 0), ("attention_bias", False),
                            ("moe_layer_freq", 1)):
            if config.get(name, plain) != plain:
                raise BadCheckpoint(f"config.json: {name} is {config[name]!r}; this tool knows only {plain!r}")
        self.vocab, self.hidden = number("vocab_size", 1), number("hidden_size", 1)
        self.layers, self.dense = number("num_hidden_layers", 1), number("first_k_dense_replace", 0)
        self.intermediate, self.moe = number("intermediate_size", 1), number("moe_intermediate_size", 1)
        self.heads, self.kv_rank = number("num_attention_heads", 1), number("kv_lora_rank", 1)
        self.q_rank = None if config.get("q_lora_rank") is None else number("q_lora_rank", 1)
        self.nope, self.rope, self.value = (number(n, 1) for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        self.experts, self.shared = number("n_routed_experts", 1), number("n_shared_experts", 0)

    def is_moe(self, layer: int) -> bool:
        return layer >= self.dense

    def _attention(self, prefix: str):
        qk = self.heads * (self.nope + self.rope)
        if self.q_rank is None:
            yield prefix + "q_proj", (qk, self.hidden)
        else:
            yield prefix + "q_a_proj", (self.q_rank, self.hidden)
            yield prefix + "q_b_proj", (qk, self.q_rank)
        yield prefix + "kv_a_proj_with_mqa", (self.kv_rank + self.rope, self.hidden)
        yield prefix + "kv_b_proj", (self.heads * (self.nope + self.value), self.kv_rank)
        yield prefix + "o_proj", (self.hidden, self.heads * self.value)

    def _mlp(self, prefix: str, width: int):
        yield prefix + "gate_proj", (width, self.hidden)
        yield prefix + "up_proj", (width, self.hidden)
        yield prefix + "down_proj", (self.hidden, width)

    def products(self):
        """The weights that formats may be lowered for: module name and shape [N, K]."""
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            yield from self._attention(at + "self_attn.")
            if not self.is_moe(layer):
                yield from self._mlp(at + "mlp.", self.intermediate)
                continue
            for expert in range(self.experts):
                yield from self._mlp(f"{at}mlp.experts.{expert}.", self.moe)
            if self.shared:
                yield from self._mlp(at + "mlp.shared_experts.", self.moe * self.shared)

    def others(self):
        """Everything else, which is copied: name and shape."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            yield at + "input_layernorm.weight", (self.hidden,)
            yield at + "post_attention_layernorm.weight", (self.hidden,)
            if self.q_rank is not None:
                yield at + "self_attn.q_a_layernorm.weight", (self.q_rank,)
            yield at + "self_attn.kv_a_layernorm.weight", (self.kv_rank,)
            if self.is_moe(layer):
                yield at + "mlp.gate.weight", (self.experts, self.hidden)
                yield at + "mlp.gate.e_score_correction_bias", (self.experts,)
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocab, self.hidden)


# ---- Reading -----------------------------------------------------------------------------------------------------


def _plain_json(path: pathlib.Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path.name}: {error}") from error


def read_json_object(path: pathlib.Path) -> dict:
    value = _plain_json(path)
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path.name}: expected a JSON object")
    return value


class File:
    """One safetensors file, mapped."""

    def __init__(self, path: pathlib.Path):
        self.name = path.name
        try:
            size = path.stat().st_size
            with open(path, "rb") as file:
                length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else 0
                if not 0 < length <= min(HEADER_MAX, size - 8):
                    raise BadCheckpoint(f"{self.name}: no safetensors file: {size} bytes, header of {length}")
                header = json.loads(file.read(length))
            if not isinstance(header, dict):
                raise BadCheckpoint(f"{self.name}: the header is no JSON object")
            self._map = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise BadCheckpoint(f"{self.name}: {error}") from error
        self._begin = 8 + length
        header.pop("__metadata__", None)
        self.tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for name, entry in header.items():
            self.tensors[name] = self._checked(name, entry, size - self._begin)
        end = 0
        for dtype, shape, begin, stop in sorted(self.tensors.values(), key=lambda t: t[2:]):
            if begin != end:
                raise BadCheckpoint(f"{self.name}: the tensors overlap or leave a hole at byte {end} of the data")
            end = stop
        if end != size - self._begin:
            raise BadCheckpoint(f"{self.name}: the tensors end at byte {end} of {size - self._begin} of the data")

    def _checked(self, name: str, entry, room: int) -> tuple[str, tuple[int, ...], int, int]:
        def whole(values, count=None) -> bool:
            return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values) and count in (None, len(values))

        if not isinstance(entry, dict) or not whole(entry.get("shape")) or not whole(entry.get("data_offsets"), 2):
            raise BadCheckpoint(f"{self.name}: tensor '{name}' is described by {entry!r}")
        if entry.get("dtype") not in DTYPES:
            raise BadCheckpoint(f"{self.name}: tensor '{name}' has dtype {entry.get('dtype')!r}, expected one of {', '.join(DTYPES)}")
        begin, stop = entry["data_offsets"]
        if stop > room or stop - begin != math.prod(entry["shape"]) * DTYPES[entry["dtype"]].itemsize:
            raise BadCheckpoint(f"{self.name}: tensor '{name}' of shape {entry['shape']} does not fit its offsets {begin} to {stop}")
        return entry["dtype"], tuple(entry["shape"]), begin, stop

    def read(self, name: str) -> np.ndarray:
        dtype, shape, begin, stop = self.tensors[name]
        return np.frombuffer(self._map[self._begin + begin : self._begin + stop].tobytes(), DTYPES[dtype]).reshape(shape)


class Source:
    """A checkpoint folder as it is: config, and every tensor of every shard."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.config = read_json_object(folder / "config.json")
        self.shape = Shape(self.config)
        if (folder / INDEX).is_file():
            placed = read_json_object(folder / INDEX).get("weight_map")
            if not isinstance(placed, dict) or not placed:
                raise BadCheckpoint(f"{INDEX}: weight_map is missing")
            names = sorted(set(map(str, placed.values())))
            for name in names:
                if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors", name):
                    raise BadCheckpoint(f"{INDEX}: '{name}' is not the plain name of a safetensors file")
        else:
            placed, names = None, [SINGLE]
        self.files = [File(folder / name) for name in names]
        self._where = {}
        for file in self.files:
            for name in file.tensors:
                if name in self._where or (placed is not None and placed.get(name) != file.name):
                    raise BadCheckpoint(f"{file.name}: tensor '{name}' is not where {INDEX} says, or there twice")
                self._where[name] = file
        for name in placed or ():
            if name not in self._where:
                raise BadCheckpoint(f"{INDEX}: tensor '{name}' is not in {placed[name]}")

    def names(self) -> set[str]:
        return set(self._where)

    def file_of(self, name: str) -> str:
        return self._where[name].name

    def read(self, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str, np.ndarray]:
        """The tensor's dtype and its elements, of one of `dtypes` and of `shape`."""
        if name not in self._where:
            raise BadCheckpoint(f"tensor '{name}' is missing")
        dtype, found = self._where[name].tensors[name][:2]
        if dtype not in dtypes or found != shape:
            raise BadCheckpoint(f"tensor '{name}' is {dtype} {list(found)}, expected {' or '.join(dtypes)} {list(shape)}")
        return dtype, self._where[name].read(name)


# ---- Writing -----------------------------------------------------------------------------------------------------


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, np.ndarray]]) -> int:
    """Header and tensors, the widest dtype first so that each is aligned; returns the bytes of the tensors."""
    order = sorted(tensors, key=lambda name: (-DTYPES[tensors[name][0]].itemsize, name))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        dtype, values = tensors[name]
        begin, end = end, end + values.size * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in order:
            dtype, values = tensors[name]
            file.write(np.ascontiguousarray(values, DTYPES[dtype]).tobytes())
        if file.tell() != 8 + len(encoded) + end:
            raise BadCheckpoint(f"{path.name}: wrote {file.tell()} bytes, expected {8 + len(encoded) + end}")
    return end


def write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
