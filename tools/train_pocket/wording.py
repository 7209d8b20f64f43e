"""Wordings: sentence patterns that are composed from parts, and split for good into seen and unseen ones.

A pattern is written with alternatives in square brackets, `[Then |Later, |]{name} [buys|gets] {n} {things}.`, and
stands for every composition of its parts. Each composition is one wording. A checksum of the wording decides, once
and for all, whether training may see it (about nine in ten) or whether only the unseen-wording held-out sets use it.
"""

import itertools
import zlib

UNSEEN_ONE_IN = 10
MAX_WORDINGS = 6000


def is_unseen(text: str) -> bool:
    """True for strings that training never sees: the one rule for wordings and for entities."""
    return zlib.crc32(text.encode()) % UNSEEN_ONE_IN == 0


def _parse(pattern: str) -> list[list[str]]:
    """Splits a pattern into a sequence of alternatives; literal text is a single alternative."""
    parts, at = [], 0
    while at < len(pattern):
        open_at = pattern.find("[", at)
        if open_at < 0:
            parts.append([pattern[at:]])
            break
        if open_at > at:
            parts.append([pattern[at:open_at]])
        close_at = pattern.index("]", open_at)
        parts.append(pattern[open_at + 1 : close_at].split("|"))
        at = close_at + 1
    return parts


def expand(pattern: str) -> list[str]:
    """All compositions of a pattern, evenly thinned where there are more than MAX_WORDINGS."""
    parts = _parse(pattern)
    total = 1
    for part in parts:
        total *= len(part)
    # A stride that shares no factor with the total visits distinct compositions.
    if total <= MAX_WORDINGS:
        return ["".join(choice) for choice in itertools.product(*parts)]
    stride = 1_000_003
    out = []
    for i in range(MAX_WORDINGS):
        index, pieces = (i * stride) % total, []
        for part in parts:
            index, which = divmod(index, len(part))
            pieces.append(part[which])
        out.append("".join(pieces))
    return out


class Wordings:
    """The wordings of one slot. `pick(rng, unseen)` draws one and fills its fields."""

    def __init__(self, *patterns: str):
        everything = sorted({_capital(text) for pattern in patterns for text in expand(pattern)})
        self.seen = [text for text in everything if not is_unseen(text)]
        self.unseen = [text for text in everything if is_unseen(text)]
        if not self.seen or not self.unseen:
            raise ValueError(f"too few compositions to hold any out: {patterns}")

    def __len__(self) -> int:
        return len(self.seen) + len(self.unseen)

    def pick(self, rng, unseen: bool, **fields) -> str:
        pool = self.unseen if unseen else self.seen
        text = pool[int(rng.random() * len(pool))].format(**fields)
        return text[0].upper() + text[1:]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
