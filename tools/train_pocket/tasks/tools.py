"""Tool calls, levels 1 to 6.

1: one tool, one parameter; 2: one of three tools, two typed parameters; 3: one of four, three or four parameters of
which some are optional and unsaid; 4: two or three calls in one turn; 5: half of the requests cannot be served (no
tool fits, or a required value is missing), and saying so is the right answer; 6: as 2, with whole numbers said as a sum
or product whose value the call must hold at once.
"""

from example import Example, assistant, calls, result, user
from tasks.toolkit import KINDS, VERBS, Tool, draw_tool
from wording import Wordings

LEVELS = (1, 2, 3, 4, 5, 6)
BEYOND = (7,)  # never trained: one of eight tools, six parameters

REQUEST = Wordings(
    "[|Please |Kindly |Can you |Could you |Would you |I want you to |I need you to |You should |Now |Hello, please |"
    "Help me: |Next, ]{does} [the|a|my|this|that|our] {noun} {rest}[.|, please.|, thanks.| now.| for me.| today.]",
)
PAIR = Wordings(
    "[|Please |Kindly |Can you |Could you |Would you |I want you to |I need you to |Now |Hello, please ]"
    "{first}[, and | and |, and also |, and then |; also ]{second}[.|, please.|, thanks.| now.| for me.]",
)
MISSING = "I need a value for {}."
NO_TOOL = "None of my tools can do that."


def _mention(rng, tool: Tool, values: dict) -> str:
    spoken = [p for p in tool.parameters if p.name in values]
    rng.shuffle(spoken)
    phrases = [p.phrase(rng, values[p.name]) for p in spoken]
    return rng.choice([", ", " "]).join(phrases) if len(phrases) > 1 else "".join(phrases)


def _values(rng, tool: Tool, unseen: bool) -> dict:
    """Values in alphabetical order, as properties are declared; optional ones are given half the time."""
    ordered = sorted(tool.parameters, key=lambda p: p.name)
    return {p.name: p.value(rng, unseen) for p in ordered if p.name not in tool.optional or rng.random() < 0.5}


def _computed(rng) -> tuple[str, int]:
    """A number as it is said, and what it comes to."""
    form = rng.randrange(4)
    a, b = rng.randint(11, 99), rng.randint(2, 9)
    if form == 0:
        return f"{a} times {b}", a * b
    if form == 1:
        return f"twice {a}", 2 * a
    c, d = rng.randint(11, 99), rng.randint(11, 99)
    return (f"{a} plus {c}", a + c) if form == 2 else (f"{a} plus {c} plus {d}", a + c + d)


def make(rng, level: int, unseen: bool) -> Example:
    taken: set[str] = set()
    count = {1: 1, 2: 3, 3: 4, 4: rng.randint(1, 3), 5: rng.randint(1, 3), 6: 3, 7: 8}[level]
    tools = []
    for _ in range(count):
        if level == 1:
            kinds = [rng.choice(KINDS)]
        elif level == 3:
            kinds = rng.choices(KINDS, k=rng.randint(3, 4))
        elif level == 6:
            kinds = ["integer", rng.choice(KINDS)]
        elif level == 7:
            kinds = rng.choices(KINDS, k=6)
        else:
            kinds = rng.choices(KINDS, k=2 if level == 2 else rng.randint(1, 2))
        kinds = [kind if kinds[:i].count(kind) < 3 else "integer" for i, kind in enumerate(kinds)]
        optional = rng.randint(1, len(kinds) - 1) if level in (3, 7) else 0
        tools.append(draw_tool(rng, unseen, taken, kinds, optional))
    declared = [tool.declaration() for tool in tools]
    if level == 4:
        return _several(rng, unseen, tools, declared)
    tool = rng.choice(tools)
    values = _values(rng, tool, unseen)
    said = dict(values)
    if level == 6:
        for p in tool.parameters:
            if p.kind == "integer":
                said[p.name], values[p.name] = _computed(rng)
    trouble = level == 5 and rng.random() < 0.5
    reply = None
    if trouble and rng.random() < 0.5:
        gap = rng.choice(list(values))
        del said[gap]
        reply = MISSING.format(gap)
    elif trouble:
        tool = draw_tool(rng, unseen, taken, [p.kind for p in tool.parameters])
        said = _values(rng, tool, unseen)
        reply = NO_TOOL
    text = REQUEST.pick(rng, unseen, does=rng.choice(VERBS[tool.verb]), noun=tool.noun, rest=_mention(rng, tool, said))
    text = text.replace(" .", ".").replace(" ,", ",").replace("  ", " ")
    messages = [user(text)]
    if reply is not None:
        return Example("tools", level, messages + [assistant(reply)], "text", reply, declared)
    messages.append(calls((tool.name, values)))
    if not unseen and rng.random() < 0.4:
        messages += _afterwards(rng, tool.noun, messages[-1]["tool_calls"])
    return Example("tools", level, messages, "calls", [[tool.name, values]], declared)


def _afterwards(rng, noun: str, made: list[dict]) -> list[dict]:
    """The result comes back and is told; part of training only."""
    status = rng.choice(["done", "ready", "open", "closed", "free", "full", "late", "active", "pending"])
    last = made[-1]
    return [
        result(last["id"], last["name"], f'{{"status": "{status}"}}'),
        assistant(f"The {noun} is {status}."),
    ]


def _several(rng, unseen: bool, tools: list[Tool], declared: list[dict]) -> Example:
    count = 3 if rng.random() < 0.3 else 2
    named, clauses = [], []
    for i in range(count):
        tool = tools[i % len(tools)]
        values = _values(rng, tool, unseen)
        named.append((tool.name, values))
        does = rng.choice(VERBS[tool.verb])
        clauses.append(f"{does} the {tool.noun} {_mention(rng, tool, values)}")
    first = ", ".join(clauses[:-1])
    text = PAIR.pick(rng, unseen, first=first, second=clauses[-1])
    messages = [user(text), calls(*named)]
    return Example("tools", 4, messages, "calls", [[name, values] for name, values in named], declared)
