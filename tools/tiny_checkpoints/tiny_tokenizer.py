"""The tokenizer of all tiny checkpoints: byte-level BPE with a vocabulary of 320, in Hugging Face's tokenizer.json.

Every byte is a token (0 .. 255), then come the few merges below, reserved tokens, and the special ones at the end.
"""

import json
import pathlib

VOCAB = 320
# Each is split at every place in turn, so that the merges lead to it from left to right.
_WORDS = ["Ġthe", "Ġand", "Ġof", "Ġto", "Ġin", "ing", "er", "on", "re", "at", "en", "es", "Ġa", "Ġs", "Ġw", "ion", "or"]
_SPECIAL = ["<|reserved_0|>", "<|reserved_1|>", "<|begin|>", "<|end|>"]  # 316, 317, 318, 319


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


def _added(token_id: int, content: str, special: bool) -> dict:
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}


def build() -> dict:
    vocabulary = {character: i for i, character in enumerate(_byte_characters())}
    merges = []
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                merges.append(f"{word[:end - 1]} {word[end - 1]}")
                vocabulary[word[:end]] = len(vocabulary)
    added = []
    for i in range(len(vocabulary), VOCAB - len(_SPECIAL)):
        added.append(_added(i, f"<|unused_{i}|>", False))
    added += [_added(VOCAB - len(_SPECIAL) + i, content, True) for i, content in enumerate(_SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocabulary, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}


def write(folder: pathlib.Path) -> None:
    text = json.dumps(build(), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _SPECIAL[-1], "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
