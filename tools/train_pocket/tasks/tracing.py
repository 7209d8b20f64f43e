"""Small Python programs to trace, levels 1 to 6, answered line by line and with the printed value.

1: one variable, one to three assignments; 2: two variables; 3: a for loop; 4: a loop with a condition; 5: a function
called in a loop, or two nested loops; 6: a program of level 1 to 3 answered at once, without a trace. A line of the
trace is what changed, `x = 3 + 4 = 7`, and where there are two variables, how both then stand.

Dense training says more about two variables: a line names its operands before their values, `x = y + 4 = 3 + 4 = 7`,
which makes one lookup at a time of two, and many questions are asked about one program's variables.
"""

import keyword

from example import Example, assistant, user
from wording import Wordings, is_unseen

LEVELS = (1, 2, 3, 4, 5, 6)
AT_ONCE = 6
BEYOND = (7,)  # never trained: level 4 with eight to ten rounds and larger numbers
NAMES = [a + b for a in "abcdefghkmnpqrstuvwxyz" for b in ["", "1", "2", "a", "o", "um", "ot", "ix"]]
NAMES = [name for name in NAMES if not keyword.iskeyword(name)] + list("abcdefghkmnpqrstuvwxyz") * 6
FUNCTIONS = ["func", "work", "next_one", "step", "next_value", "calc", "fn", "act", "mix", "apply", "move", "turn"]

ASK = Wordings(
    "[What|Which value|Which number] does this [program|code|script|piece of code|Python program] [print|output|write|show]"
    "[?|? Trace it.|? Show each step.|? Go step by step.|? Work it out.]\n{code}",
    "[Trace|Run|Execute|Follow|Step through|Simulate] [this|the following|the next] [program|code|script|Python program]"
    "[.| and say what it prints.| by hand.| and give the output.| step by step.]\n{code}",
)

ASK_QUICK = Wordings(
    "[Answer at once|In your head|Without any steps|No trace|Just the result|Straight away|Directly|Quickly][:|, please:| now:|, tell me:] "
    "[what|which value|which number] does this [program|code|script|piece of code|Python program] [print|output|write|show]?\n{code}",
)

ASK_AGAIN = Wordings(
    "[And|Now|Next|Then|Also|And now] [what does|which value does|which number does] print({what}) [show|write|give|output]"
    "[?| at the end?| after that?| there?| instead?]",
)
MOST_AGAIN = 8


def _name(rng, unseen: bool, taken: set[str]) -> str:
    while True:
        name = rng.choice(NAMES)
        if name not in taken and name != "i" and name != "j" and is_unseen("variable " + name) == unseen:
            taken.add(name)
            return name


class _Program:
    """Source lines, the trace, and the variables as they stand."""

    def __init__(self, named: bool):
        self.named = named  # whether a line of two variables says its operands' names
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
        names = f"{left} {op} {right} = " if self.named and len(self.vars) > 1 else ""
        self.trace.append(f"{name} = {names}{a} {op} {b} = {value}")
        self.vars[name] = value

    def stand(self) -> None:
        self.trace[-1] += " (" + ", ".join(f"{name} = {value}" for name, value in self.vars.items()) + ")"


def make(rng, level: int, unseen: bool, dense: bool = False) -> Example:
    program, taken = _Program(dense), set()
    first = _name(rng, unseen, taken)
    if dense and level == 2 and rng.random() < 0.5:
        _constants(rng, program, first, unseen, taken)
        return _asked_again(rng, program, level, unseen)
    kind = rng.choice((1, 2, 3)) if level == AT_ONCE else level
    {1: _straight, 2: _two, 3: _loop, 4: _branch, 5: _nested, 7: _long_branch}[kind](rng, program, first, unseen, taken)
    if dense and level == 2 and rng.random() < 0.6:
        return _asked_again(rng, program, level, unseen)
    shown = rng.choice(list(program.vars)) if kind == 2 else first
    program.code.append(f"print({shown})")
    answer = program.vars[shown]
    code = "\n".join(program.code)
    text = (ASK_QUICK if level == AT_ONCE else ASK).pick(rng, unseen, code=code)
    trace = [] if level == AT_ONCE else program.trace
    reply = "\n".join([*trace, f"It prints {answer}."])
    return Example("tracing", level, [user(text), assistant(reply)], "trace", str(answer), facts={"code": code})


def _asked_again(rng, program: _Program, level: int, unseen: bool) -> Example:
    """A program with its trace, then many questions about how its variables stand, alone and in sums."""
    names = list(program.vars)
    asked = [rng.choice(names)]
    for _ in range(rng.randint(2, MOST_AGAIN)):
        pair = rng.sample(names, 2)
        asked.append(rng.choice(names) if rng.random() < 0.6 else f"{pair[0]} {rng.choice('+-')} {pair[1]}")
    code = "\n".join([*program.code, f"print({asked[0]})"])
    text, said, values, messages = ASK.pick(rng, unseen, code=code), [*program.trace], [], []
    for i, what in enumerate(asked):
        left, *rest = what.split()
        value = program.vars[left]
        if rest:
            a, b = value, program.vars[rest[1]]
            value = a + b if rest[0] == "+" else a - b
            said.append(f"{what} = {a} {rest[0]} {b} = {value}")
        values.append(value)
        text = ASK_AGAIN.pick(rng, unseen, what=what) if i else text
        messages += [user(text), assistant("\n".join([*said, f"It prints {value}."]))]
        said = []
    return Example("tracing", level, messages, "open", str(values[0]), facts={"code": code, "asked": list(zip(asked, values))})


def _constants(rng, p: _Program, x: str, unseen: bool, taken: set[str]) -> None:
    """Two to six variables; a later line may set one of them again."""
    names = [x] + [_name(rng, unseen, taken) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 5)))]
    for name in names:
        p.set_constant(name, rng.randint(1, 30))
    for _ in range(rng.randint(0, 2)):
        p.set_constant(rng.choice(names), rng.randint(1, 30))


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
