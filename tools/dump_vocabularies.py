#!/usr/bin/env python3
"""Write the real vocabularies of Kimi K2, GLM-4.5 and Qwen3 out of the package splintr-rs into folders for the tests.

OUT/kimi_k2/   tiktoken.model, tokenizer_config.json
OUT/glm45/     tokenizer.json
OUT/qwen3/     tokenizer.json, with the NFC normalizer

The vocabularies are the vendors' and are not part of this repository. Merges are derived from the ranks as transformers
converts tiktoken files: every way in which two tokens make a third, by the rank of the third. Control tokens and
patterns are written down here.
"""

import argparse
import base64
import json
import pathlib

import splintr

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GLM_PATTERN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN_PATTERN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST

# By id; True where the vendor calls the token special.
KIMI_FIRST = 163584
KIMI = {163584: ("[BOS]", True), 163585: ("[EOS]", True), 163586: ("<|im_end|>", True), 163587: ("<|im_user|>", True),
        163588: ("<|im_assistant|>", True), 163590: ("<|start_header_id|>", True),
        163591: ("<|end_header_id|>", True), 163593: ("[EOT]", True), 163594: ("<|im_system|>", True),
        163595: ("<|tool_calls_section_begin|>", False), 163596: ("<|tool_calls_section_end|>", False),
        163597: ("<|tool_call_begin|>", False), 163598: ("<|tool_call_argument_begin|>", False),
        163599: ("<|tool_call_end|>", False), 163601: ("<|im_middle|>", True), 163606: ("<think>", False),
        163607: ("</think>", False), 163838: ("[UNK]", True), 163839: ("[PAD]", True)}
GLM_FIRST = 151329
GLM_SPECIAL = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
               "<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>",
               "<|end_of_video|>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>",
               "<|end_of_transcription|>", "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"]
GLM_ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
             "</arg_key>", "<arg_value>", "</arg_value>", "/nothink", "<|begin_of_box|>", "<|end_of_box|>"]
QWEN_FIRST = 151643
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
                "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
                "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
              "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def numbered(first: int, special: list, added: list) -> dict:
    tokens = [(content, True) for content in special] + [(content, False) for content in added]
    return {first + i: token for i, token in enumerate(tokens)}


def ranks(name: str, count: int) -> list:
    """The bytes of the tokens 0 to count - 1."""
    tokenizer = splintr.Tokenizer.from_pretrained(name)
    tokens = [tokenizer.decode_token_bytes(i) for i in range(count)]
    known = set(tokens)
    assert len(known) == count, f"{name}: tokens that are the same"
    assert all(bytes([b]) in known for b in range(256)), f"{name}: a byte without a token"
    return tokens


def letters() -> list:
    """GPT-2's letter of each byte."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return [chr(b if b in own else 256 + others.index(b)) for b in range(256)]


def merges(tokens: list) -> list:
    rank = {token: i for i, token in enumerate(tokens)}
    made = []
    for token in tokens:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        made += sorted(((left, right) for left, right in pairs if left in rank and right in rank),
                       key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    return made


def write_kimi(folder: pathlib.Path) -> None:
    tokens = ranks("kimi_k2", KIMI_FIRST)
    lines = [base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    decoder = {str(i): {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                        "special": special} for i, (content, special) in KIMI.items()}
    config = {"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
              "unk_token": "[UNK]", "tokenizer_class": "TikTokenTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def write_json(folder: pathlib.Path, name: str, first: int, added: dict, pattern: str, normalizer: dict | None) -> None:
    tokens = ranks(name, first)
    letter = letters()
    spelled = {token: "".join(letter[b] for b in token) for token in tokens}
    file = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": special} for i, (content, special) in added.items()],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {spelled[token]: i for i, token in enumerate(tokens)},
                  "merges": [[spelled[left], spelled[right]] for left, right in merges(tokens)]},
    }
    text = json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n"
    (folder / "tokenizer.json").write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    for name in ("kimi_k2", "glm45", "qwen3"):
        (out / name).mkdir(parents=True, exist_ok=True)
    write_kimi(out / "kimi_k2")
    write_json(out / "glm45", "glm4", GLM_FIRST, numbered(GLM_FIRST, GLM_SPECIAL, GLM_ADDED), GLM_PATTERN, None)
    write_json(out / "qwen3", "qwen3", QWEN_FIRST, numbered(QWEN_FIRST, QWEN_SPECIAL, QWEN_ADDED), QWEN_PATTERN,
               {"type": "NFC"})


if __name__ == "__main__":
    main()
