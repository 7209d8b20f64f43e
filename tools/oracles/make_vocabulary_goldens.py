#!/usr/bin/env python3
"""Write tests/goldens/tokenizer/: what the real vocabularies of Kimi K2, GLM-4.5 and Qwen3 make of 20,000 strings.

varied.jsonl.gz    the strings, one JSON string a line
varied_*.u64       per vocabulary and string, XXH64 (seed 0) of its ids as little-endian int32, little-endian
varied_ids.jsonl.gz  {"index", "kimi_k2", "glm45", "qwen3"}: the ids themselves of every 50th string, for a person to read

Kimi's judge is tiktoken with the vendor's pattern, on the blocks that the vendor's tokenizer cuts; GLM's and Qwen's is the
`tokenizers` library. splintr-rs and, for GLM, tiktoken give further opinions: what differs is printed.
"""

import argparse
import base64
import gzip
import json
import pathlib
import random
import struct
import sys
import unicodedata

import splintr
import tiktoken
import tokenizers
import xxhash

from make_tokenizer_goldens import CODE, EMOJI, LOOKALIKES, OUT, SENTENCES, SPACES, piece

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from dump_vocabularies import GLM_PATTERN, letters  # noqa: E402

SEED = 20261130
COUNT = 20000
KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
MARKERS = LOOKALIKES + ["<|im_user|>", "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<think>",
                        "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>", "[gMASK]", "<sop>", "[BOS]",
                        "[EOS]", "/nothink", "<|user|>", "<|assistant|>", "<|observation|>", "<|reserved_token_163840|>"]
HAN = ["世", "界", "中文", "〇", "々", "〻", "𠮷", "㐀", "龥", "豈", "⼀", "〡", "ー", "、", "。", "「", "——", "・", "㊀", "丽"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'rE", "'VE", "'m", "'M", "'Ll", "'d", "'D", "'ſ", "’s", "'x", "''s"]
WORDS = "I you CAN WON it She they'RE iPhone McDonald naïve ÉTÉ ǅ ᾳ ß İ K ŉ x Straße don O’Neil XMLHttp ПРИВЕТ Мир".split()
# Scripts, by stretches of code points; what is not assigned among them is part of the test.
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
           (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x7C0, 0x7FF), (0x900, 0x97F),
           (0x980, 0x9FF), (0xA00, 0xA7F), (0xA80, 0xAFF), (0xB00, 0xB7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xC80, 0xCFF),
           (0xD00, 0xD7F), (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F),
           (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1400, 0x167F), (0x1680, 0x16FF),
           (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1C80, 0x1CBF), (0x1D00, 0x1DBF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
           (0x2070, 0x218F), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2C00, 0x2DFF), (0x2E80, 0x2FDF),
           (0x3000, 0x303F), (0x3040, 0x30FF), (0x3100, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF),
           (0xA640, 0xA6FF), (0xA700, 0xA7FF), (0xAB30, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
           (0xFE00, 0xFE4F), (0xFF00, 0xFFEF), (0x10000, 0x100FF), (0x10300, 0x1034F), (0x10400, 0x1044F),
           (0x10A00, 0x10A5F), (0x11000, 0x110CF), (0x12000, 0x123FF), (0x13000, 0x1342F), (0x16FE0, 0x16FFF),
           (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1F)]


def characters(draw: random.Random, count: int) -> str:
    low, high = draw.choice(SCRIPTS)
    return "".join(chr(draw.randint(low, high)) for _ in range(count))


def part(draw: random.Random) -> str:
    """One stretch of one kind of trouble."""
    kind = draw.randrange(17)
    if kind == 0:
        return characters(draw, draw.randrange(1, 6))
    if kind == 1:
        return "".join(draw.choice(SPACES) for _ in range(draw.randrange(1, 5)))
    if kind == 2:
        return "".join(draw.choice("0123456789") for _ in range(draw.randrange(1, 8)))
    if kind == 3:
        return draw.choice(MARKERS)
    if kind == 4:
        return draw.choice(WORDS) + draw.choice(CONTRACTIONS)
    if kind == 5:
        return "".join(draw.choice(HAN) for _ in range(draw.randrange(1, 5)))
    if kind == 6:
        return "".join(draw.choice(EMOJI + ["\u200d", "\ufe0f", "🇩", "🏽"]) for _ in range(draw.randrange(1, 3)))
    if kind == 7:
        return draw.choice("aeoAInsгη") + "".join(chr(draw.randint(0x300, 0x36F)) for _ in range(draw.randrange(1, 4)))
    if kind == 8:
        return chr(draw.choice((draw.randrange(0x20), draw.randint(0x7F, 0x9F), 0xFFFD, 0xFEFF, 0xAD, 0x200B, 0xE000)))
    if kind == 9:
        return draw.choice(("}\n///", "//\n", ");\n\n", "{\r\n", "'\n", "—\n—", "...\n", " .\r\r", "!?\n x", "\n}", "*/\n"))
    if kind == 10:
        return unicodedata.normalize("NFD", draw.choice(("한글", "가각", "é", "Ǻ", "ガ", "ệ", "क़", "Ω", "ΰ")))
    if kind == 11:
        return "".join(draw.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(draw.randrange(1, 5)))
    if kind in (12, 13):
        line = draw.choice(CODE)
        begin = draw.randrange(len(line))
        return line[begin:begin + draw.randrange(3, 20)]
    if kind == 14:
        return piece(draw)
    return draw.choice(draw.choice(SENTENCES).split(" "))


def strings() -> list:
    draw = random.Random(SEED)
    made = ["", "世界世世——I'm CAN'T", "}\n///", "〇", "Hello world", "中文English混合", *SENTENCES, *CODE, *EMOJI, *SPACES,
            *MARKERS, *HAN, *CONTRACTIONS]
    # Where the vendor of Kimi's tokenizer cuts; these compress to nothing.
    made += ["a" * 25001, "a" * 60000, " " * 60000, "й" * 30001, "世" * 30000, "ab " * 140000, "7" * 30000, "\n" * 30000,
             "x" + "😀" * 26000, "a b" * 120000 + " " * 50001, "한" * 26000, "é\u0301" * 13000, "." * 50000 + "A" * 50001,
             "a " * 195000 + "b" * 30000, "\x1c " * 13000]
    made += [chr(first) + chr(first + 1) + " " + chr(first) for first in range(0xA0, 0x3400, 7)]
    made += [chr(draw.randint(0x20000, 0x323AF)) + "a" for _ in range(100)]
    seen = dict.fromkeys(made)
    while len(seen) < COUNT:
        seen.setdefault("".join(part(draw) for _ in range(draw.choice((1, 2, 3, 3, 4, 5)))))
    return list(seen)


def kimi_blocks(text: str) -> list:
    """At most 400,000 characters, and a cut before the 25,001st of a run that is white space, or is not."""
    blocks = []
    for begin in range(0, len(text), 400_000):
        rest, start, run = text[begin:begin + 400_000], 0, 0
        for i, c in enumerate(rest):
            if i == 0 or c.isspace() != rest[i - 1].isspace():
                run = 1
            elif run == 25_000:
                blocks.append(rest[start:i])
                start, run = i, 1
            else:
                run += 1
        blocks.append(rest[start:])
    return blocks


def write(name: str, data: bytes) -> None:
    (OUT / name).write_bytes(data)
    print(f"{name}: {len(data)} bytes", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=pathlib.Path, required=True, help="what scripts/vocabularies.sh prints")
    folder = parser.parse_args().vocabularies
    texts = strings()

    kimi_ranks = {base64.b64decode(token): int(rank) for token, rank in
                  (line.split() for line in (folder / "kimi_k2/tiktoken.model").read_bytes().splitlines())}
    kimi = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=kimi_ranks, special_tokens={})
    byte_of = {letter: b for b, letter in enumerate(letters())}
    glm_file = json.loads((folder / "glm45/tokenizer.json").read_text(encoding="utf-8"))
    glm_ranks = {bytes(byte_of[c] for c in token): i for token, i in glm_file["model"]["vocab"].items()}
    glm = tiktoken.Encoding("glm", pat_str=GLM_PATTERN, mergeable_ranks=glm_ranks, special_tokens={})
    judges = {"kimi_k2": lambda text: [i for block in kimi_blocks(text) for i in kimi.encode_ordinary(block)]}
    for name in ("glm45", "qwen3"):
        library = tokenizers.Tokenizer.from_file(str(folder / name / "tokenizer.json"))
        # Added tokens are no part of text (the library would look for them): those of the model alone remain.
        plain = json.loads(library.to_str())
        plain["added_tokens"] = []
        library = tokenizers.Tokenizer.from_str(json.dumps(plain))
        judges[name] = lambda text, library=library: library.encode(text, add_special_tokens=False).ids
    ids = {name: [judge(text) for text in texts] for name, judge in judges.items()}

    second = {"kimi_k2": splintr.Tokenizer.from_pretrained("kimi_k2").encode_ordinary,
              "glm45": splintr.Tokenizer.from_pretrained("glm4").encode_ordinary,
              "qwen3": splintr.Tokenizer.from_pretrained("qwen3").encode_ordinary}
    for name, opinion in [*second.items(), ("glm45", glm.encode_ordinary)]:
        differ = [i for i, text in enumerate(texts) if len(text) < 20000 and opinion(text) != ids[name][i]]
        print(f"{name}: {len(differ)} of {len(texts)} differ from {opinion.__qualname__}", file=sys.stderr)
        for i in differ[:12]:
            print(f"  {texts[i]!r}: {opinion(texts[i])}, not {ids[name][i]}", file=sys.stderr)

    lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
    write("varied.jsonl.gz", gzip.compress(lines.encode(), compresslevel=9, mtime=0))
    for name, rows in ids.items():
        hashes = b"".join(xxhash.xxh64_digest(struct.pack(f"<{len(row)}i", *row))[::-1] for row in rows)
        write(f"varied_{name}.u64", hashes)
    rows = [{"index": i, **{name: ids[name][i] for name in ids}} for i in range(len(texts))
            if (i % 50 == 0 or i < 20) and len(texts[i]) < 1000]
    lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    write("varied_ids.jsonl.gz", gzip.compress(lines.encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
