"""Arithmetic: word problems with worked steps, and results at once.

1: one addition or subtraction; 2: two of them; 3: three steps, one a product with a digit; 4: a product of two
two-digit numbers and a sum; 5: five steps, exact division and three-digit factors among them; 6: eight such steps.
Without any working: 7: a product with a digit, and a sum or difference, or four two-digit terms; 8: a product of two
two-digit numbers. What must be worked out in one go has no certain answer at this size: there precision shows.
"""

import entities
from example import Example, assistant, user
from wording import Wordings

LEVELS = (1, 2, 3, 4, 5, 6, 7, 8)
BEYOND = (9, 10)  # never trained: twelve and ten steps like level 5's
AT_ONCE = (7, 8)

START = Wordings(
    "[At first |In the morning |Today |To begin with, |At the start |On Monday |This week |]{a} "
    "[has|owns|keeps|holds|starts with|begins with] {n} {things}[.| at home.| in a box.| in a bag.| on the table.]",
    "[There are|We see|You can count] {n} {things} [in the box|on the table|in the house|in the bag|on the shelf] "
    "[of|that belongs to|owned by] {a}.",
)
GAIN = Wordings(
    "[Then |Later |After that |Next |In the afternoon |The next day |Soon |]{a} "
    "[buys|gets|finds|receives|picks up|collects|wins|earns|is given] {n} [more |extra |new |other |]{things}"
    "[.| from {b}.| at the market.| in the shop.| at school.]",
    "[Then |Later |After that |Next |]{b} [gives|hands|brings|sends|sells|lends] {a} {n} [more |new |]{things}"
    "[.| as a gift.| by post.]",
)
LOSE = Wordings(
    "[Then |Later |After that |Next |In the afternoon |The next day |Soon |]{a} "
    "[sells|loses|gives away|uses|drops|breaks|hands out|throws away|lends] {n} [of them|{things}|of the {things}]"
    "[.| to {b}.| at the market.| at school.| on the way.]",
    "[Then |Later |After that |Next |]{b} [takes|buys|borrows|gets|steals] {n} [of the {things}|{things}] from {a}"
    "[.| for a party.| in the evening.]",
)
TIMES = Wordings(
    "[Then |Later |After that |Next |Soon |By luck |In a year |]the number of {things} [that {a} has |of {a} |]"
    "[becomes|grows to|rises to|is now|turns into] {n} times [as large|as big|what it was|as many|the old number].",
    "[Then |Later |After that |Next |]{a} [fills|packs|makes|ends up with] {n} [boxes|bags|baskets|crates|piles] "
    "[with that many|of that size|like this one], so the number of {things} is multiplied by {n}.",
)
SHARE = Wordings(
    "[Then |Later |After that |Next |Soon |]{a} [shares|splits|divides|deals out] [the {things}|them|all {things}] "
    "[equally |evenly |fairly |]among {n} [friends|children|people|groups|boxes] and [keeps|looks at|counts] "
    "[one share|a single share|just one part].",
)
EACH = Wordings(
    "[At first |In the morning |Today |To begin with, |On Monday |]{a} "
    "[has|owns|buys|fills|carries|finds] {m} [boxes|bags|baskets|crates|packs|trays] "
    "[with|of|that hold|holding] {n} {things} [each|in each|in every one|apiece].",
    "[There are|We see] {m} [boxes|bags|baskets|crates|packs|trays] [in the house|in the shop|at home|in the yard] "
    "[of|that belongs to] {a}, [each with|every one with|and each holds|and each has] {n} {things}.",
)
ASK = Wordings(
    "How many {things} [does {a} have|are left for {a}|does {a} own|are there|does {a} count|does {a} hold] "
    "[now|in the end|at the end|after all this|then|in total|altogether|today]?",
    "[Tell me|Work out|Find|Say|Please find|Compute] how many {things} [{a} has|are there|{a} owns|{a} holds] "
    "[now|in the end|at the end|after all this|then|in total|altogether].",
)
NOISE = Wordings(
    "[{a}|{b}] also [has|owns|likes|sees|counts] {n} {others}[.| at home.| in the garden.| but that does not matter.]",
    "[Nearby|Next door|Across the street] there are {n} {others}[.| too.| as well.]",
    "[{a}|{b}] is {n} years old[.| today.| this year.]",
)
BARE = Wordings(
    "[What is|What's|Compute|Work out|Calculate|Find|Tell me|Please compute|Can you work out|Give me|Solve|Evaluate|How much is] "
    "[|the value of |the result of |the sum ]{expression}[?|.| please.|, step by step.]",
)
QUICK = Wordings(
    "[Answer at once|In your head|Without any steps|No working|Just the result|Straight away|Directly|Quickly]"
    "[:|, please:| now:|, tell me:] [what is|compute|work out|calculate|find|give me|how much is] {expression}[?|.|, please.| in all?]",
)

_SENTENCES = {"+": GAIN, "-": LOSE, "*": TIMES, "/": SHARE}


def work(value: int, op: str, n: int) -> tuple[list[str], int]:
    """The written lines of one step, and its result. A product of longer factors is split by place."""
    if op == "+":
        return [f"{value} + {n} = {value + n}"], value + n
    if op == "-":
        return [f"{value} - {n} = {value - n}"], value - n
    if op == "/":
        return [f"{value} / {n} = {value // n}"], value // n
    if n < 10 and value < 100 or n < 10 and value % 10 == 0:
        return [f"{value} * {n} = {value * n}"], value * n
    if n < 10:  # split the longer factor
        parts = [d * 10**p for p, d in enumerate(map(int, reversed(str(value)))) if d]
        lines = [f"{part} * {n} = {part * n}" for part in reversed(parts)]
        products = [part * n for part in reversed(parts)]
    else:
        parts = [d * 10**p for p, d in enumerate(map(int, reversed(str(n)))) if d]
        products = [value * part for part in reversed(parts)]
        lines = [f"{value} * {part} = {product}" for part, product in zip(reversed(parts), products)]
    total = products[0]
    for product in products[1:]:
        lines.append(f"{total} + {product} = {total + product}")
        total += product
    return lines, total


def _steps(rng, level: int) -> list[tuple[str, int]]:
    """A start value (op '') and operations that keep the value positive and exact."""
    top = {1: 20, 2: 99, 3: 60, 4: 99, 5: 200, 6: 400, 9: 400, 10: 400}[level]
    count = {1: 1, 2: 2, 3: 3, 4: 2, 5: 5, 6: 8, 9: 12, 10: 10}[level]
    value = rng.randint(3, top)
    if level == 4:
        value = rng.randint(11, 99)
    steps = [("", value)]
    product_at = rng.randrange(count) if level == 3 else -1
    for i in range(count):
        op = rng.choice("+-")
        if i == product_at:
            op = "*"
        elif level == 4:
            op = "*" if i == 0 else op
        elif level >= 5:
            op = rng.choice("++--**/")
        n = rng.randint(2, max(3, top))
        if op == "*":
            n = rng.randint(11, 99) if level == 4 or (level >= 5 and value < 400 and rng.random() < 0.5) else rng.randint(2, 9)
            if value * n > 99999:
                op, n = "-", rng.randint(2, value - 1)
        elif op == "/":
            divisors = [d for d in range(2, 13) if value % d == 0 and value // d > 1]
            op, n = ("/", rng.choice(divisors)) if divisors else ("+", n)
        if op == "-":
            if value < 4:
                op = "+"
            else:
                n = rng.randint(2, min(max(3, value - 1), max(99, top)) if value > 3 else 2)
                n = min(n, value - 1)
        steps.append((op, n))
        value = {"+": value + n, "-": value - n, "*": value * n, "/": value // n}[op]
    return steps


def _quick_steps(rng, level: int) -> list[tuple[str, int]]:
    """A sum or product to be answered at once; its value is positive."""
    if level == 8:
        return [("", rng.randint(11, 99)), ("*", rng.randint(11, 99))]
    if rng.random() < 0.5:
        first, digit = rng.randint(11, 99), rng.randint(2, 9)
        op = rng.choice("+-")
        return [("", first), ("*", digit), (op, rng.randint(2, 99) if op == "+" else rng.randint(2, min(99, first * digit - 1)))]
    value = rng.randint(11, 99)
    steps = [("", value)]
    for _ in range(3):
        op = rng.choice("+-") if value > 12 else "+"
        n = rng.randint(11, 99) if op == "+" else rng.randint(11, min(99, value - 1))
        steps.append((op, n))
        value += n if op == "+" else -n
    return steps


def _quick(rng, level: int, unseen: bool) -> Example:
    steps = _quick_steps(rng, level)
    value = steps[0][1]
    for op, n in steps[1:]:
        value = {"+": value + n, "-": value - n, "*": value * n}[op]
    question = QUICK.pick(rng, unseen, expression=_expression(steps, rng.choice(["signs", "signs", "words", "tight", "x"])))
    return Example("arithmetic", level, [user(question), assistant(f"The answer is {value}.")], "number", value, facts={"steps": steps})


def make(rng, level: int, unseen: bool) -> Example:
    if level in AT_ONCE:
        return _quick(rng, level, unseen)
    steps = _steps(rng, level)
    lines, value = [], steps[0][1]
    for op, n in steps[1:]:
        more, value = work(value, op, n)
        lines += more
    solution = "\n".join(lines) + f"\nThe answer is {value}."
    if rng.random() < 0.15:
        question = _bare(rng, steps, unseen)
    else:
        question = _story(rng, level, steps, unseen)
    facts = {"steps": steps}
    return Example("arithmetic", level, [user(question), assistant(solution)], "number", value, facts=facts)


_SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


def _expression(steps, form: str) -> str:
    expression = str(steps[0][1])
    for i, (op, n) in enumerate(steps[1:]):
        if i and op in "*/":
            expression = f"({expression})"
        sign = {"words": _SPOKEN[op], "x": "x" if op == "*" else op}.get(form, op)
        expression += f"{sign}{n}" if form == "tight" else f" {sign} {n}"
    return expression


def _bare(rng, steps, unseen: bool) -> str:
    """The expression alone, in one of the ways people write it."""
    expression = _expression(steps, rng.choice(["signs", "signs", "words", "tight", "x"]))
    if rng.random() < 0.15:
        return expression + rng.choice(["", " =", "?", " = ?"])
    return BARE.pick(rng, unseen, expression=expression)


def _story(rng, level: int, steps, unseen: bool) -> str:
    a, b = entities.persons.several(rng, unseen, 2)
    things, others = entities.things.several(rng, unseen, 2)
    names = {"a": a, "b": b, "things": things, "others": others}
    if len(steps) > 1 and steps[1][0] == "*" and rng.random() < 0.7:
        sentences = [EACH.pick(rng, unseen, n=steps[0][1], m=steps[1][1], **names)]
        rest = steps[2:]
    else:
        sentences = [START.pick(rng, unseen, n=steps[0][1], **names)]
        rest = steps[1:]
    for op, n in rest:
        sentences.append(_SENTENCES[op].pick(rng, unseen, n=n, **names))
    if level >= 2 and rng.random() < 0.2:
        noise = NOISE.pick(rng, unseen, n=rng.randint(2, 60), **names)
        sentences.insert(rng.randint(1, len(sentences)), noise)
    return " ".join(sentences + [ASK.pick(rng, unseen, **names)])
