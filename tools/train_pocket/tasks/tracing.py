"""Small Python programs to trace, levels 1 to 5, answered line by line and with the printed value.

1: one variable, one to three assignments; 2: two variables; 3: a for loop; 4: a loop with a condition; 5: a function
called in a loop, or two nested loops. A line of the trace is what changed, `x = 3 + 4 = 7`, and where there are two
variables, how both then stand.
"""

import keyword

from example import Example, assistant, user
from wording import Wordings, is_unseen

LEVELS = (1, 2, 3, 4, 5)
BEYOND = (6,)  # never trained: level 4 with eight to ten rounds and larger numbers
NAMES = [a + b for a in "abcdefghkmnpqrstuvwxyz" for b in ["", "1", "2", "a", "o", "um", "ot", "ix"]]
NAMES = [name for name in NAMES if not keyword.iskeyword(name)] + list("abcdefghkmnpqrstuvwxyz") * 6
FUNCTIONS = ["func", "work", "next_one", "step", "next_value", "calc", "fn", "act", "mix", "apply", "move", "turn"]

ASK = Wordings(
    "[What|Which value|Which number] does this [program|code|script|piece of code|Python program] [print|output|write|show]"
    "[?|? Trace it.|? Show each step.|? Go step by step.|? Work it out.]\n{code}",
    "[Trace|Run|Execute|Follow|Step through|Simulate] [this|the following|the next] [program|code|script|Python program]"
    "[.| and say what it prints.| by hand.| and give the output.| step by step.]\n{code}",
)


def _name(rng, unseen: bool, taken: set[str]) -> str:
    while True:
        name = rng.choice(NAMES)
        if name not in taken and name != "i" and name != "j" and is_unseen("variable " + name) == unseen:
            taken.add(name)
            return name


class _Program:
    """Source lines, the trace, and the variables as they stand."""

    def __init__(self):
        self.code: list[str] = []
        self.trace: list[str] = []
        self.vars: dict[str, int] = {}

    def set_constant(self, name: str, value: int) -> None:
        self.code.append(f"{name} = {value}")
        self.trace.append(f"{name} = {value}")
        self.vars[name] = value

    def run(self, name: str, left: str, op: str, right: str, **extra: int) -> None:
        """Traces one `name = left op right`; operands are names or numbers."""
        scope = {**self.vars, **extra}
        a = scope[left] if left in scope else int(left)
        b = scope[right] if right in scope else int(right)
        value = {"+": a + b, "-": a - b, "*": a * b}[op]
        self.trace.append(f"{name} = {a} {op} {b} = {value}")
        self.vars[name] = value

    def stand(self) -> None:
        self.trace[-1] += " (" + ", ".join(f"{name} = {value}" for name, value in self.vars.items()) + ")"


def make(rng, level: int, unseen: bool) -> Example:
    program, taken = _Program(), set()
    first = _name(rng, unseen, taken)
    {1: _straight, 2: _two, 3: _loop, 4: _branch, 5: _nested, 6: _long_branch}[level](rng, program, first, unseen, taken)
    shown = rng.choice(list(program.vars)) if level == 2 else first
    program.code.append(f"print({shown})")
    answer = program.vars[shown]
    code = "\n".join(program.code)
    text = ASK.pick(rng, unseen, code=code)
    reply = "\n".join(program.trace) + f"\nIt prints {answer}."
    return Example("tracing", level, [user(text), assistant(reply)], "trace", str(answer), facts={"code": code})


def _op(rng, value: int) -> tuple[str, int]:
    """An operation that keeps numbers short."""
    if rng.random() < 0.25 and 0 < value < 100:
        return "*", rng.randint(2, 5)
    return rng.choice("+-"), rng.randint(1, 20)


def _straight(rng, p: _Program, x: str, unseen: bool, taken: set[str]) -> None:
    p.set_constant(x, rng.randint(1, 30))
    for _ in range(rng.randint(1, 3)):
        op, n = _op(rng, p.vars[x])
        p.code.append(f"{x} = {x} {op} {n}" if rng.random() < 0.6 else f"{x} {op}= {n}")
        p.run(x, x, op, str(n))


def _two(rng, p: _Program, x: str, unseen: bool, taken: set[str]) -> None:
    y = _name(rng, unseen, taken)
    p.set_constant(x, rng.randint(1, 30))
    p.set_constant(y, rng.randint(1, 30))
    for _ in range(rng.randint(2, 4)):
        target, other = (x, y) if rng.random() < 0.5 else (y, x)
        left = rng.choice([target, other])
        if rng.random() < 0.5:
            right = other if left == target else target
            op = rng.choice("+-") if max(abs(v) for v in p.vars.values()) > 12 else rng.choice("+-*")
        else:
            op, n = _op(rng, p.vars[left])
            right = str(n)
        p.code.append(f"{target} = {left} {op} {right}")
        p.run(target, left, op, right)
        p.stand()


def _loop(rng, p: _Program, x: str, unseen: bool, taken: set[str]) -> None:
    p.set_constant(x, rng.randint(0, 30))
    start, count = rng.randint(0, 4), rng.randint(2, 5)
    p.code.append(f"for i in range({start}, {start + count}):" if start else f"for i in range({count}):")
    uses_i = rng.random() < 0.6
    op, n = (rng.choice("+-"), 0) if uses_i else (rng.choice("+-"), rng.randint(1, 20))
    p.code.append(f"    {x} = {x} {op} {'i' if uses_i else n}")
    for i in range(start, start + count):
        p.trace.append(f"i = {i}")
        p.run(x, x, op, "i" if uses_i else str(n), i=i)


def _long_branch(rng, p: _Program, x: str, unseen: bool, taken: set[str]) -> None:
    _branch(rng, p, x, unseen, taken, rounds=(8, 10), top=60)


def _branch(rng, p: _Program, x: str, unseen: bool, taken: set[str], rounds=(3, 5), top: int = 15) -> None:
    p.set_constant(x, rng.randint(0, 40))
    count, limit = rng.randint(*rounds), rng.randint(5, 40)
    (op1, n1), (op2, n2) = (rng.choice("+-"), rng.randint(1, top)), (rng.choice("+-"), rng.randint(1, top))
    p.code += [f"for i in range({count}):", f"    if {x} > {limit}:", f"        {x} = {x} {op1} {n1}", "    else:",
               f"        {x} = {x} {op2} {n2}"]
    for i in range(count):
        p.trace.append(f"i = {i}")
        above = p.vars[x] > limit
        p.trace.append(f"{p.vars[x]} > {limit} is {above}")
        p.run(x, x, op1 if above else op2, str(n1 if above else n2))


def _nested(rng, p: _Program, x: str, unseen: bool, taken: set[str]) -> None:
    if rng.random() < 0.5:
        p.set_constant(x, rng.randint(0, 20))
        outer, inner = rng.randint(2, 3), rng.randint(2, 3)
        op = rng.choice("+-")
        used = rng.choice("ij")
        p.code += [f"for i in range({outer}):", f"    for j in range({inner}):", f"        {x} = {x} {op} {used}"]
        for i in range(outer):
            for j in range(inner):
                p.trace.append(f"i = {i}, j = {j}")
                p.run(x, x, op, used, i=i, j=j)
        return
    function = rng.choice(FUNCTIONS)
    argument = _name(rng, unseen, taken)
    op, n, m = rng.choice("+-"), rng.randint(1, 12), rng.randint(2, 3)
    p.code += [f"def {function}({argument}):", f"    return {argument} * {m} {op} {n}"]
    p.set_constant(x, rng.randint(1, 9))
    count = rng.randint(2, 3)
    p.code += [f"for i in range({count}):", f"    {x} = {function}({x})"]
    for i in range(count):
        value = p.vars[x]
        product = value * m
        after = product + n if op == "+" else product - n
        p.trace.append(f"i = {i}")
        p.trace.append(f"{x} = {value} * {m} {op} {n} = {product} {op} {n} = {after}")
        p.vars[x] = after
