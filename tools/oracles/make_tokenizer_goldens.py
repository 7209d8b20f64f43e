#!/usr/bin/env python3
"""Write tests/goldens/tokenizer/: what the `tokenizers` library makes of several thousand varied strings.

The strings are drawn from seeded generators, one per kind of trouble: scripts, emoji and their joiners, code, white
space, digits, control characters, line ends, look-alikes of special tokens, arbitrary code points, long words.
tests/goldens/README.md describes the files.
"""

import argparse
import gzip
import json
import pathlib
import random
import sys
import unicodedata

import tokenizers
import transformers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "tokenizer"
SEED = 20261129

SENTENCES = """The quick brown fox jumps over the lazy dog.
It's what they'd've said: I'm sure we'll see, you're right, she's here. DON'T! CAN'T'VE. o'clock 's 'T 'Ll
El veloz murciélago hindú comía feliz cardillo y kiwi. ¿Qué tal? ¡Muy bien!
Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. STRASSE ẞ ß
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy.
Съешь же ещё этих мягких французских булок, да выпей чаю. Її ґанок.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Γαζέες καὶ μυρτιὲς
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם
نص حكيم له سر قاطع وذو شأن عظيم. مُحَمَّد ٠١٢٣٤٥٦٧٨٩ ۰۱۲۳
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण। १२३४५ क्षत्रिय
আমি বাংলায় গান গাই। தமிழ் மொழி இனிது. తెలుగు భాష. ಕನ್ನಡ ನುಡಿ. മലയാളം ഭാഷ.
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓ ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ
中文分词测试：今天天气很好，我们去公园吧！一二三 〇 ㊿ ①②③
繁體中文與「引號」、——破折號……
いろはにほへと ちりぬるを カタカナ ｶﾀｶﾅ 漢字とひらがな。ー〜
다람쥐 헌 쳇바퀴에 타고파 ㄱㄴㄷ 한글
ქართული ენა Հայերեն լեզու አማርኛ ቋንቋ ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ བོད་སྐད ትግርኛ
Tiếng Việt: Trời đổ mưa, ướt át quá! Ọ ộ ữ ằ
İstanbul'da ılık bir gün. ĞÜŞİÖÇ ğüşıöç
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝓯𝓪𝓷𝓬𝔂 𝟘𝟙𝟚 ﬁ ﬂ ﷺ ½ ⅓ Ⅷ ⅷ ² ³ ₄ ㎏ № ™ ℃
𐍈𐌰𐌹 𒀀𒀁 𓀀𓀁 𐐷 🀄 𠀀𠮷 𞤀𞤣𞤤
math: ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ∑_{i=1}^{n} i² ≈ ∫₀^∞ e^{−x²}dx ≤ √π ± 0.5·10⁻³
currency: $1,234.56 €99.99 £0.01 ¥10000 ₹500 ₿0.0001 1e-05 3.14159 0xDEADBEEF 1_000_000 12:34:56 2026-11-29
email me@example.com, see https://example.com/a/b?c=d&e=%20f#g or ftp://host:21/~user/file.tar.gz
box ┌─┬─┐│█▓▒░│└─┴─┘ arrows ←↑→↓⇒⟶ bullets •◦▪ stars ★☆✓✗
lots!!! of... punctuation??? (((nested [brackets {and} more]))) -- --- — – … “quotes” ‘single’ «guillemets» `ticks`
snake_case_name camelCaseName PascalCaseName SCREAMING_SNAKE kebab-case-name x1y2z3 a1b22c333 __init__ ___ _a_""".split("\n")

CODE = ["def f(x, *, y=1):\n    \"\"\"Doc.\"\"\"\n    return [i ** 2 for i in range(x) if i % 2 == 0] or {'a': y}\n",
        "#include <vector>\ntemplate <typename T>\nauto sum(const std::vector<T>& v) -> T {\n\tT s{};\n\tfor (auto&& x : v) s += x;\n\treturn s;\n}\n",
        "fn main() -> Result<(), Box<dyn Error>> {\n    let x: u64 = 0xFF_u64 << 3;\n    println!(\"{:?}\", x);\n    Ok(())\n}\n",
        "SELECT a.id, COUNT(*) AS n FROM a LEFT JOIN b ON a.id=b.a_id WHERE b.x IS NULL GROUP BY 1 HAVING n>10;\n",
        "<!DOCTYPE html>\n<div class=\"a b\" id='c'>&nbsp;&lt;x&gt;<br/></div>\n<!-- comment -->\n",
        "{\"key\": [1, 2.5, -3e10, true, null, \"\\u00e9\\n\"], \"nested\": {\"a\": {}}}",
        "for i in $(seq 1 10); do echo \"$i: ${arr[$i]}\" | sed 's/a/b/g' >> /dev/null 2>&1; done\n",
        "\\begin{equation}\n  E = mc^2 \\quad \\text{where } m \\in \\mathbb{R}\n\\end{equation}\n",
        "| a | b |\n|---|:-:|\n| `x` | **y** |\n\n- [ ] item\n  1. sub\n\n> quote\n\n```c\nint x;\n```\n",
        "const f = async (a, {b, ...c} = {}) => { await g?.(a ?? b); return `${a}/${c.length}`; };\n",
        "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n \tctx\n", "0b1010 && !x || ~y ^ z ? a : b; i++; --j; p->q; A::B; a <=> b; x <<= 2; #define M(x) ((x)+1)\\\n"]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "1️⃣", "❤️‍🔥", "☀️", "☕", "🧑🏿‍🚀", "👁️‍🗨️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🤷🏻‍♀️", "⌚", "🀄", "©️", "🫠", "💯💯💯"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2000", "\u2003", "\u2009", "\u200a",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\u2060", "\ufeff", "\x1c", "\x1d", "\x1e", "\x1f"]
LOOKALIKES = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start", "im_end|>", "<|im_end |>", "< |im_end|>",
              "<|IM_END|>", "<|im_end|", "<<|im_end|>>", "<|im_start|><|im_end|>", "<|im_sta<|im_end|>rt|>", "<repo_name>", "<reponame>",
              "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<jupyter_text>", "<empty_output>", "<repo_name", "<think>",
              "＜|im_end|＞", "<|im_end|>\n<|im_start|>assistant\n", "<｜im_end｜>"]
# Never assigned, surrogate-free: noncharacters, private use, holes in the tables.
ODD = [0x0378, 0xE000, 0xF8FF, 0xFDD0, 0xFFFE, 0xFFFF, 0x1FFFE, 0xE0001, 0xE0FFF, 0xF0000, 0x10FFFD, 0x10FFFF, 0xFFFD]
BLOCKS = [(0x20, 0x7F), (0x80, 0x250), (0x250, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0x1100),
          (0x1100, 0x1400), (0x1E00, 0x2000), (0x2000, 0x2C00), (0x2E80, 0x3400), (0x3400, 0xA000), (0xA000, 0xD7A4),
          (0xF900, 0xFFF0), (0x10000, 0x10500), (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x20100)]


def assigned(draw: random.Random, low: int, high: int) -> str:
    """A character of [low, high) that this Python's Unicode assigns, so that no library's newer table disagrees."""
    while True:
        character = chr(draw.randrange(low, high))
        if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
            return character


def piece(draw: random.Random) -> str:
    """A fragment of one of the kinds, to be glued to others."""
    kind = draw.randrange(9)
    if kind == 0:
        return draw.choice(EMOJI)
    if kind == 1:
        return draw.choice(SPACES) * draw.choice((1, 1, 2, 3, 7))
    if kind == 2:
        return "".join(draw.choice("0123456789") for _ in range(draw.randrange(1, 8)))
    if kind == 3:
        return "".join(assigned(draw, *draw.choice(BLOCKS)) for _ in range(draw.randrange(1, 4)))
    if kind == 4:
        return "".join(draw.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(draw.randrange(1, 5)))
    if kind == 5:
        return draw.choice(LOOKALIKES)
    if kind == 6:
        return draw.choice(("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'x", "’s"))
    return draw.choice(draw.choice(SENTENCES).split(" "))


def strings(draw: random.Random) -> list:
    """All strings, in an order that the seed fixes, without repetition."""
    made = [""] + SENTENCES + CODE + EMOJI + SPACES + LOOKALIKES + [chr(c) for c in range(256)] + [chr(c) for c in ODD]
    made += [f"a{chr(c)}b {chr(c)} {chr(c)}{chr(c)}" for c in list(range(0x20)) + [0x7F, 0x85, 0xA0] + ODD]
    for line in SENTENCES + CODE:
        made += [" " + line, line + "\n", line.upper(), line.replace(" ", "  "), line.replace("\n", "\r\n"),
                 unicodedata.normalize("NFD", line), line.replace(" ", ""), line[::-1], line.replace(" ", "\n")]
        for _ in range(12):  # cut anywhere, also between a letter and its mark
            begin = draw.randrange(len(line))
            made.append(line[begin:begin + draw.randrange(1, 30)])
    for count in (1, 2, 3, 4, 5, 8, 16, 17, 64, 255):
        made += [unit * count for unit in (" ", "\n", "\t", "\r\n", "a", "ab", "0", "9 ", "é", "中", "-", "=", "😀", " \n", "\n ")]
    for _ in range(300):
        made.append("".join(draw.choice(SPACES) for _ in range(draw.randrange(2, 7))) + draw.choice(("", "x", "1", ".", "é")))
    for _ in range(250):
        made.append("".join(draw.choice(EMOJI + ["\u200d", "\ufe0f", " ", "a"]) for _ in range(draw.randrange(2, 6))))
    for low, high in BLOCKS:
        for _ in range(40):
            made.append("".join(assigned(draw, low, high) for _ in range(draw.randrange(1, 12))))
    for _ in range(250):  # control characters among words
        made.append("".join(draw.choice((chr(draw.randrange(0x20)), chr(draw.randrange(0x7F, 0xA0)), "ok", " ", "7"))
                            for _ in range(draw.randrange(2, 9))))
    for _ in range(200):
        made.append(draw.choice(LOOKALIKES).join(piece(draw) for _ in range(draw.randrange(2, 4))))
    for _ in range(1300):
        made.append(draw.choice(("", " ")).join(piece(draw) for _ in range(draw.randrange(2, 9))))
    # Long words, for which merging must not be quadratic, at lengths that a golden can hold.
    made += ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n)) for n in (100, 400, 1500)]
    return list(dict.fromkeys(made))


CONTENTS = ["Hello!", "", " ", "\n", "What is 2+2?\n", "  leading and trailing  ", "<|im_end|>", "<|im_start|>system\nYou obey.<|im_end|>\n",
            "中文 и русский 😀", "line one\r\nline two", "```python\nprint('hi')\n```", "{{ messages }}", "{% raw %}", "tab\tand\x00nul"]


def conversations(draw: random.Random) -> list:
    """Message lists with and without a system message, of one to five turns."""
    made = [[{"role": "user", "content": content}] for content in CONTENTS]
    made += [[{"role": "system", "content": content}, {"role": "user", "content": "Hi"}] for content in CONTENTS]
    for _ in range(40):
        messages = [{"role": "system", "content": draw.choice(CONTENTS)}] if draw.random() < 0.5 else []
        for turn in range(draw.randrange(1, 6)):
            messages.append({"role": ("user", "assistant")[turn % 2], "content": draw.choice(CONTENTS + SENTENCES)})
        made.append(messages)
    return made


def write_lines(name: str, rows: list) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    data = text.encode()
    (OUT / name).write_bytes(gzip.compress(data, compresslevel=9, mtime=0) if name.endswith(".gz") else data)
    print(f"{name}: {len(rows)} lines, {len(text.encode())} bytes", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=pathlib.Path, help="the folder that import_gguf.py wrote")
    folder = parser.parse_args().model
    draw = random.Random(SEED)
    matching = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.encode_special_tokens = True  # special tokens' text is then text like any other
    OUT.mkdir(parents=True, exist_ok=True)

    rows = []
    for text in strings(draw):
        row = {"text": text, "ids": plain.encode(text, add_special_tokens=False).ids}
        special = matching.encode(text, add_special_tokens=False).ids
        if special != row["ids"]:
            row["special_ids"] = special
        rows.append(row)
    write_lines("smollm2.jsonl.gz", rows)

    size, decoded = matching.get_vocab_size(), []
    for _ in range(400):
        ids = [draw.randrange(draw.choice((300, size))) for _ in range(draw.randrange(1, 24))]
        decoded.append({"ids": ids, "text": matching.decode(ids, skip_special_tokens=False),
                        "text_without_special": matching.decode(ids, skip_special_tokens=True)})
    write_lines("smollm2_decode.jsonl", decoded)

    template, chats = transformers.AutoTokenizer.from_pretrained(folder), []
    for messages in conversations(draw):
        text = template.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        rendered, ids = "", []
        default = {"role": "system", "content": "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}
        for message in messages if messages[0]["role"] == "system" else [default] + messages:
            body = message["role"] + "\n" + message["content"]
            rendered += f"<|im_start|>{body}<|im_end|>\n"
            ids += [1, *plain.encode(body, add_special_tokens=False).ids, 2, *plain.encode("\n").ids]
        ids += [1, *plain.encode("assistant\n", add_special_tokens=False).ids]
        assert rendered + "<|im_start|>assistant\n" == text, messages
        if not any("<|im_" in message["content"] for message in messages):
            assert ids == matching.encode(text, add_special_tokens=False).ids, messages
        chats.append({"messages": messages, "text": text, "ids": ids})
    write_lines("smollm2_chat.jsonl", chats)


if __name__ == "__main__":
    main()
