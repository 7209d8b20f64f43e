#!/usr/bin/env python3
"""Write tessera/text/unicode_table.h: what kind of character each code point is, as the `tokenizers` library counts.

The source is tests/goldens/tokenizer/character_classes.txt (make_split_goldens.py), in which the library was asked about
every code point; so the product's Unicode is the library's, whatever is installed.
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S"]  # 1 and up; 0 is any other.
FLAGS = {r"\s": 0x10, "Han": 0x20, "digits": 0x40}
HEADER = """\
// Made by tools/oracles/make_unicode_table.py from what the `tokenizers` library counts in each class. Do not edit.
//
// Runs of code points of one kind: each entry is the run's first code point << 8 | its kind, and the run ends where the
// next begins. A kind's low four bits are the category (0 other, then Lu Ll Lt Lm Lo M N P S), and above them are flags:
// 10 White_Space, 20 script Han, 40 numeric for the Digits pre-tokenizer.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::text {

inline constexpr std::array<std::uint32_t, %d> kUnicodeRuns = {
"""


def main() -> None:
    kinds = bytearray(0x110000)
    lines = (ROOT / "tests/goldens/tokenizer/character_classes.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        name, *ranges = line.split()
        name = name.removeprefix(r"\p{").removesuffix("}")
        for first, last in (r.split("-") for r in ranges):
            for c in range(int(first, 16), int(last, 16) + 1):
                if name in FLAGS:
                    kinds[c] |= FLAGS[name]
                elif name in CATEGORIES:
                    assert kinds[c] & 15 == 0, (name, hex(c))
                    kinds[c] |= CATEGORIES.index(name) + 1
                else:
                    assert name == "L"
    runs = [c << 8 | kinds[c] for c in range(0x110000) if c == 0 or kinds[c] != kinds[c - 1]]
    text = HEADER % len(runs)
    for i in range(0, len(runs), 11):
        text += "    " + ", ".join(f"0x{run:x}" for run in runs[i:i + 11]) + ",\n"
    text += "};\n\n}  // namespace tessera::text\n"
    (ROOT / "tessera/text/unicode_table.h").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
