"""Byte-level BPE with Kimi's pre-tokenizer, small: training, encoding, and the two file formats.

Ranks come first (256 bytes, then merges), the 32 special ids last, at Kimi K2's offsets. No merge holds a digit, so
numbers are single digits although the pre-tokenizer keeps up to three together. A pair merges when its joined bytes
have a rank, lowest first, which is tiktoken's rule; `tokenizer.json` lists every such pair as a merge, so that both
files give the same tokens.
"""

import base64
import json
from pathlib import Path

import regex

import chat

VOCAB_SIZE = 1024
N_RANKS = VOCAB_SIZE - chat.N_SPECIAL

# Kimi's pre-tokenizer, verbatim.
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
_SPLIT = regex.compile(PATTERN, regex.V1)
_CACHE_LIMIT = 400_000


def split(text: str) -> list[str]:
    return _SPLIT.findall(text)


class Tokenizer:
    def __init__(self, ranks: list[bytes]):
        if len(ranks) != N_RANKS:
            raise ValueError(f"{len(ranks)} ranks, expected {N_RANKS}")
        self.ranks = ranks
        self.rank_of = {token: i for i, token in enumerate(ranks)}
        self.special = {name: N_RANKS + offset for name, offset in chat.SPECIALS.items()}
        self.special_name = {i: name for name, i in self.special.items()}
        self.pad, self.im_end = self.special["[PAD]"], self.special["<|im_end|>"]
        self._cache: dict[str, list[int]] = {}

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        lines = (Path(folder) / "tiktoken.model").read_text().splitlines()
        pairs = [line.split() for line in lines]
        ordered = sorted(pairs, key=lambda pair: int(pair[1]))
        return cls([base64.b64decode(token) for token, _ in ordered])

    def _bpe(self, piece: str) -> list[int]:
        parts = [bytes([byte]) for byte in piece.encode()]
        while len(parts) > 1:
            best, at = None, -1
            for i in range(len(parts) - 1):
                rank = self.rank_of.get(parts[i] + parts[i + 1])
                if rank is not None and (best is None or rank < best):
                    best, at = rank, i
            if best is None:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.rank_of[part] for part in parts]

    def encode(self, text: str) -> list[int]:
        """Text alone: never gives a special token."""
        out: list[int] = []
        cache = self._cache
        for piece in _SPLIT.findall(text):
            ids = cache.get(piece)
            if ids is None:
                ids = self._bpe(piece)
                if len(cache) > _CACHE_LIMIT:
                    cache.clear()
                cache[piece] = ids
            out += ids
        return out

    def encode_segments(self, segments: list[chat.Segment]) -> tuple[list[int], list[int]]:
        """Token ids, and the loss weight of each as a target."""
        ids: list[int] = []
        weights: list[int] = []
        for text, is_special, weight in segments:
            new = [self.special[text]] if is_special else self.encode(text)
            ids += new
            weights += [weight] * len(new)
        return ids, weights

    def decode(self, ids: list[int]) -> str:
        out, pending = [], b""
        for i in ids:
            if i < N_RANKS:
                pending += self.ranks[i]
                continue
            out.append(pending.decode(errors="replace"))
            pending = b""
            out.append(self.special_name.get(i, f"<|reserved_{i}|>"))
        return "".join(out) + pending.decode(errors="replace")

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{base64.b64encode(token).decode()} {i}" for i, token in enumerate(self.ranks)]
        (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
        (folder / "tokenizer.json").write_text(json.dumps(self._hugging_face(), ensure_ascii=False, indent=1) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps(self._config(), ensure_ascii=False, indent=1) + "\n")

    def _added(self) -> list[tuple[int, str, bool]]:
        """Every special id, reserved ones too; as with Kimi, the thinking marks are added but not special."""
        names = {N_RANKS + offset: name for name, offset in chat.SPECIALS.items()}
        return [
            (i, names.get(i, f"<|reserved_token_{i}|>"), names.get(i) not in ("<think>", "</think>"))
            for i in range(N_RANKS, VOCAB_SIZE)
        ]

    def _hugging_face(self) -> dict:
        shown = [_visible(token) for token in self.ranks]
        merges = []
        for token in self.ranks[256:]:
            pairs = [
                (self.rank_of[token[:cut]], self.rank_of[token[cut:]])
                for cut in range(1, len(token))
                if token[:cut] in self.rank_of and token[cut:] in self.rank_of
            ]
            merges += [[shown[left], shown[right]] for left, right in sorted(pairs)]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": special}
                for i, name, special in self._added()
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                    byte_level,
                ],
            },
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(shown)},
                "merges": merges,
            },
        }

    def _config(self) -> dict:
        return {
            "added_tokens_decoder": {
                str(i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                         "single_word": False, "special": special}
                for i, name, special in self._added()
            },
            "bos_token": "[BOS]",
            "eos_token": "<|im_end|>",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 8192,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }


def _byte_letters() -> list[str]:
    """The printable character that stands for each byte in Hugging Face's byte-level files."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = [], 0
    for byte in range(256):
        if byte in plain:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + extra))
            extra += 1
    return letters


_LETTERS = _byte_letters()


def _visible(token: bytes) -> str:
    return "".join(_LETTERS[byte] for byte in token)


def train(texts, n_ranks: int = N_RANKS) -> list[bytes]:
    """Plain BPE over piece counts, most frequent pair first, ties by bytes; pieces with digits never merge."""
    counts: dict[bytes, int] = {}
    for text in texts:
        for piece in split(text):
            if len(piece) > 1 and not any(c.isdigit() for c in piece):
                counts[piece.encode()] = counts.get(piece.encode(), 0) + 1
    words = [[bytes([b]) for b in word] for word in counts]
    weight = list(counts.values())
    ranks = [bytes([b]) for b in range(256)]
    pairs: dict[tuple[bytes, bytes], int] = {}
    where: dict[tuple[bytes, bytes], set[int]] = {}
    for w, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] = pairs.get(pair, 0) + weight[w]
            where.setdefault(pair, set()).add(w)
    known = set(ranks)
    while len(ranks) < n_ranks:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        joined = best[0] + best[1]
        if joined not in known:
            ranks.append(joined)
            known.add(joined)
        for w in list(where.pop(best)):
            word = words[w]
            for pair in zip(word, word[1:]):
                pairs[pair] -= weight[w]
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [joined]
                i += 1
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + weight[w]
                where.setdefault(pair, set()).add(w)
        pairs.pop(best, None)
    return ranks


def main() -> None:
    import argparse
    import random

    import entities
    from tasks import TASKS

    parser = argparse.ArgumentParser(description="Train the tokenizer on the generator's seen wordings.")
    parser.add_argument("--out", required=True)
    parser.add_argument("--examples", type=int, default=24000)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    names = [name for name in TASKS if name != "retrieval"]

    def texts():
        for i in range(args.examples):
            module = TASKS[names[i % len(names)]]
            example = module.make(rng, rng.choice(module.LEVELS), False)
            for text, is_special, _ in chat.render(example.messages, example.tools):
                if not is_special:
                    yield text
        retrieval = TASKS["retrieval"]
        for i in range(args.examples // 20):
            yield retrieval.make(rng, rng.choice(retrieval.LEVELS), False, 300).messages[0]["content"]
        for _ in range(args.examples // 8):
            yield f"{chat.KIMI_SYSTEM} assistant tool_declare system user tool"
            # Common names and values are worth a token of their own: facts about them are the first that are told apart.
            for pool, count in ((entities.persons, 56), (entities.colours, 20), (entities.animals, 20), (entities.foods, 12)):
                yield " ".join(["", *pool.lists[False][:count]])

    Tokenizer(train(texts())).save(args.out)


if __name__ == "__main__":
    main()
