"""Small Python functions to write against tests, levels 1 to 6.

1: one operation on a number; 2: two operations, or two arguments; 3: a condition, or a list reduced by a built-in;
4: a list built or counted by a loop with a condition. From the tests alone, without a description: 5: one operation;
6: two, or a reduction. The tests are in the prompt; an answer is right when it passes
them and a few that are kept back.
"""

from example import Example, assistant, user
from wording import Wordings, is_unseen

LEVELS = (1, 2, 3, 4, 5, 6)
_STEMS = """calc make get find do solve apply run fix turn shift scale fold pick mix build change compute give work
move form join cut set""".split()
_ENDS = "it value number result one all data item step total thing part".split()
NAMES = [f"{stem}_{end}" for stem in _STEMS for end in _ENDS]

ASK = Wordings(
    "[Write|Define|Give me|Please write|Create|Implement|I need|Make] a [|small |short |Python |simple ]function "
    "{signature} that {what}[.| and passes the tests.| for me.| in Python.]\n[Tests|Checks|Examples|It must pass]:\n{tests}",
    "[Complete|Implement|Fill in|Write down] {signature} so that it {what}[.| and passes the tests.| in Python.]\n"
    "[Tests|Checks|Examples|It must pass]:\n{tests}",
)

ASK_TESTS = Wordings(
    "[Write|Define|Give me|Please write|Create|Implement|I need|Make] a [|small |short |Python |simple ]function "
    "{signature} [that passes|so that it passes|to pass|for] [these tests|the tests below|the following tests|these examples|all of these]"
    "[.|:|, please.| in Python.]\n{tests}",
)


def make(rng, level: int, unseen: bool) -> Example:
    while True:
        name = rng.choice(NAMES)
        if is_unseen("function " + name) == unseen:
            break
    arguments, what, body, draw = {1: _one, 2: _two, 3: _three, 4: _four, 5: _one, 6: _hidden}[level](rng)
    source = f"def {name}({', '.join(arguments)}):\n{body}"
    scope: dict = {}
    exec(source, {"__builtins__": {"sum": sum, "max": max, "min": min, "len": len, "abs": abs, "sorted": sorted}}, scope)
    cases = []
    for _ in range(7):
        values = draw()
        spelled = ", ".join(repr(value) for value in values)
        cases.append(f"{name}({spelled}) == {scope[name](*values)!r}")
    ask = ASK if level < 5 else ASK_TESTS
    text = ask.pick(rng, unseen, signature=f"{name}({', '.join(arguments)})", what=what, tests="\n".join(cases[:3]))
    reply = f"```python\n{source}\n```"
    facts = {"source": source, "name": name, "tests": cases}
    return Example("functions", level, [user(text), assistant(reply)], "code", cases, facts=facts)


def _integers(rng, count: int, low: int = -20, high: int = 30):
    return lambda: [rng.randint(low, high) for _ in range(count)]


def _lists(rng):
    return lambda: [[rng.randint(-9, 20) for _ in range(rng.randint(3, 6))]]


_PHRASES = {
    "+": ["adds {n} to {x}", "returns {x} plus {n}", "increases {x} by {n}", "gives the sum of {x} and {n}"],
    "-": ["subtracts {n} from {x}", "returns {x} minus {n}", "lowers {x} by {n}", "takes {n} away from {x}"],
    "*": ["multiplies {x} by {n}", "returns {x} times {n}", "gives {n} times {x}", "gives the product of {x} and {n}"],
}


def _one(rng):
    x, op, n = rng.choice("xnvabk"), rng.choice("+-*"), rng.randint(2, 30)
    return [x], rng.choice(_PHRASES[op]).format(x=x, n=n), f"    return {x} {op} {n}", _integers(rng, 1)


def _two(rng):
    if rng.random() < 0.5:
        x = rng.choice("xnvabk")
        op, m, n = rng.choice("+-"), rng.randint(2, 9), rng.randint(1, 30)
        then = {"+": ["then adds {n}", "and adds {n}", "plus {n}"], "-": ["then subtracts {n}", "and takes away {n}"]}[op]
        what = f"multiplies {x} by {m} " + rng.choice(then).format(n=n)
        return [x], what, f"    return {x} * {m} {op} {n}", _integers(rng, 1)
    x, y = rng.sample("xnvabk", 2)
    op = rng.choice("+-*")
    return [x, y], rng.choice(_PHRASES[op]).format(x=x, n=y), f"    return {x} {op} {y}", _integers(rng, 2)


def _hidden(rng):
    """What three tests can tell: a product and a sum, or a list reduced."""
    if rng.random() < 0.5:
        x, op, m, n = rng.choice("xnvabk"), rng.choice("+-"), rng.randint(2, 9), rng.randint(1, 20)
        return [x], "", f"    return {x} * {m} {op} {n}", _integers(rng, 1, -9, 15)
    x, code = rng.choice("xnvabk"), rng.choice(list(_REDUCE))
    return [x], "", f"    return {code.format(x=x)}", _lists(rng)


_REDUCE = {
    "sum({x})": ["returns the sum of the list {x}", "adds up all numbers in {x}", "gives the total of {x}"],
    "max({x})": ["returns the largest number in {x}", "finds the maximum of the list {x}"],
    "min({x})": ["returns the smallest number in {x}", "finds the minimum of the list {x}"],
    "len({x})": ["returns how many items {x} has", "gives the length of the list {x}"],
    "{x}[0]": ["returns the first item of {x}", "gives the first entry of the list {x}"],
    "{x}[-1]": ["returns the last item of {x}", "gives the last entry of the list {x}"],
    "sorted({x})": ["returns {x} in rising order", "sorts the list {x}"],
    "{x}[::-1]": ["returns {x} in reverse order", "turns the list {x} around"],
}


def _three(rng):
    if rng.random() < 0.5:
        x = rng.choice("xnvabk")
        code = rng.choice(list(_REDUCE))
        extra = rng.randint(1, 9) if "sorted" not in code and "::" not in code and rng.random() < 0.4 else 0
        what = rng.choice(_REDUCE[code]).format(x=x) + (f", plus {extra}" if extra else "")
        return [x], what, f"    return {code.format(x=x)}" + (f" + {extra}" if extra else ""), _lists(rng)
    x, limit, a, b = rng.choice("xnvabk"), rng.randint(0, 20), rng.randint(2, 9), rng.randint(2, 9)
    compare, said = rng.choice([(">", "greater than"), ("<", "less than")])
    what = f"returns {x} plus {a} if {x} is {said} {limit}, otherwise {x} minus {b}"
    body = f"    if {x} {compare} {limit}:\n        return {x} + {a}\n    return {x} - {b}"
    return [x], what, body, _integers(rng, 1, -5, 30)


def _four(rng):
    x, limit, n = rng.choice("xnvabk"), rng.randint(0, 12), rng.randint(2, 9)
    test, said = rng.choice([
        ("i > {n}", "greater than {n}"), ("i < {n}", "less than {n}"), ("i % 2 == 0", "even"), ("i % 2 == 1", "odd"),
    ])
    test, said = test.format(n=limit), said.format(n=limit)
    op, word = rng.choice([("+", "plus"), ("*", "times"), ("-", "minus")])
    form = rng.randrange(4)
    if form == 0:
        return [x], f"returns the list of all items of {x} that are {said}", f"    return [i for i in {x} if {test}]", _lists(rng)
    if form == 1:
        return [x], f"counts the items of {x} that are {said}", f"    return len([i for i in {x} if {test}])", _lists(rng)
    if form == 2:
        return [x], f"adds up the items of {x} that are {said}", f"    return sum([i for i in {x} if {test}])", _lists(rng)
    what = f"returns a list with every item of {x} {word} {n}, for items that are {said}"
    return [x], what, f"    return [i {op} {n} for i in {x} if {test}]", _lists(rng)
