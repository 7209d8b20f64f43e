#!/usr/bin/env python3
"""Write the goldens of pre-tokenizing to tests/goldens/tokenizer/: what the `tokenizers` library does with patterns.

character_classes.txt: for each property that patterns may use, every code point that it holds for, asked one by one.
splits.jsonl.gz: the pieces that the patterns of several families cut varied strings into.
tiny/tokenizer.json, tiny.jsonl.gz: a byte-level BPE trained here, with what SmolLM2's file does not have: a Split pattern,
merges spelled as arrays, ignore_merges, a BOS from the post-processor, an added token that is not special.
"""

import json
import random

from make_tokenizer_goldens import CODE, OUT, SEED, SENTENCES, strings, write_lines
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PROPERTIES = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "Han"]
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
             r"\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
              r"\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek_cjk": r"[一-龥぀-ゟ゠-ヿ]+",
    "deepseek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
                r""" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "possessive": r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?+\p{L}++|\S+?[\r\n]+|\P{L}",
    "han": r"\p{Han}+|[^\s\p{Han}]+",
}


def ranges(code_points: list) -> str:
    """ "41-5a 61-61 ..." """
    found = []
    for c in code_points:
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return " ".join(f"{first:x}-{last:x}" for first, last in found)


def holders(step) -> list:
    """The code points c for which `step` isolates c between two letters "a"."""
    found = []
    for begin in range(0, len(CODE_POINTS), 4096):
        chunk = CODE_POINTS[begin:begin + 4096]
        # Three characters a code point, so that the middle one is never beside another code point.
        for _, (first, last) in step.pre_tokenize_str("".join(f"a{chr(c)}a" for c in chunk)):
            if last - first == 1 and first % 3 == 1:
                found.append(chunk[first // 3])
    return found


def write_classes() -> None:
    lines = [f"digits {ranges(holders(pre_tokenizers.Digits(individual_digits=True)))}\n"]
    for name in [r"\s"] + [rf"\p{{{p}}}" for p in PROPERTIES]:
        # "a" itself may have the property; a run of three is then cut by what surrounds it.
        pattern = rf"(?!a){name}"
        step = pre_tokenizers.Split(Regex(pattern), "isolated")
        members = holders(step)
        if pre_tokenizers.Split(Regex(name), "removed").pre_tokenize_str("a") == []:
            members = sorted(set(members) | {ord("a")})
        lines.append(f"{name} {ranges(members)}\n")
    (OUT / "character_classes.txt").write_text("".join(lines), encoding="utf-8", newline="\n")


def write_splits(draw: random.Random, texts: list) -> None:
    rows = []
    for pattern in PATTERNS.values():
        step = pre_tokenizers.Split(Regex(pattern), "isolated")
        # A long word is one piece; what is interesting is short.
        for text in draw.sample([t for t in texts if len(t) < 100], 250):
            rows.append({"pattern": pattern, "text": text, "pieces": [p for p, _ in step.pre_tokenize_str(text)]})
    write_lines("splits.jsonl.gz", rows)


def write_tiny(draw: random.Random, texts: list) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERNS["qwen2"]), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=["<s>", "<|end|>"],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(SENTENCES + CODE, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    file = json.loads(tokenizer.to_str())
    # Every fifth merge is taken away: what it made is reached only as a whole word now.
    file["model"]["merges"] = [merge for i, merge in enumerate(file["model"]["merges"]) if i % 5]
    file["model"]["ignore_merges"] = True
    (OUT / "tiny").mkdir(exist_ok=True)
    (OUT / "tiny" / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n",
                                                 encoding="utf-8", newline="\n")
    tokenizer = Tokenizer.from_file(str(OUT / "tiny" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    words = [w for w in tokenizer.get_vocab() if w[0].isascii() and w[0].isalpha()]
    rows = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids,
             "prompt_ids": tokenizer.encode(text, add_special_tokens=True).ids}
            for text in sorted(words) + draw.sample([t for t in texts if "<think>" not in t], 500)]
    write_lines("tiny.jsonl.gz", rows)


def main() -> None:
    draw = random.Random(SEED)
    texts = strings(random.Random(SEED))
    write_classes()
    write_splits(draw, texts)
    write_tiny(draw, texts)


if __name__ == "__main__":
    main()
