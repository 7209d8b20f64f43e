"""Tool episodes: several calls, each waiting for the result before it; up to 5 the level is the number of calls.

A chain hands a value of one result to the next call; a collection asks for several things one by one and reports
the largest. Levels 6 and 7 are collections of three and four calls that report the total at once, of two-digit and of
three-digit numbers; level 9 is one of five things in six calls. Errors come back at times (at level 9 always) and must be
answered: a busy service by the same call again, a misspelt name by the corrected one, a refusal by telling the user. One
wrong turn fails the whole episode.
"""

import json

import entities
from example import Example, assistant, calls, result, user
from wording import Wordings, is_unseen

LEVELS = (1, 2, 3, 4, 5, 6, 7)
TOTALS = {6: (3, 99), 7: (4, 999)}  # calls, largest amount
BEYOND = (8, 9)  # never trained: eight calls; six calls, one of which fails and is made again
FAILING = {9: 6}  # level to calls: a collection in which an error always comes back

LINKS = """customer order invoice parcel truck driver garage city account card branch manager team project folder
document author book shelf library ticket event room guard key door building street shop owner""".split()
MEASURES = "price weight size age score speed height distance cost stock".split()

CHAIN = Wordings(
    "[|Please |Kindly |Can you |Could you |Would you |I want you to |I need you to |Now |Hello, please ]"
    "[find|look up|tell me|get|fetch|say] the {goal} [of|for|that belongs to] {path}"
    "[.|, please.|, thanks.| now.| for me.| step by step.]",
)
COLLECT = Wordings(
    "[|Please |Kindly |Can you |Could you |I want you to |I need you to |Now |Hello, ]"
    "[find|look up|check|get|fetch] the {what} of {items}[, and say|, then say|, then tell me|, and tell me] which is "
    "[the largest|the highest|the greatest|the biggest|the top one][.|, please.|, thanks.| in the end.]",
)
TOTAL = Wordings(
    "[|Please |Kindly |Can you |Could you |I want you to |I need you to |Now |Hello, ]"
    "[find|look up|check|get|fetch] the {what} of {items}[, and say|, then say|, then tell me|, and tell me] "
    "[the total|the sum|the sum of all|what they come to|how much that is in all][.|, please.|, thanks.| in the end.]",
)
OF_PATH = Wordings(
    "the [|right |one |first ]{inner} [of|for|belonging to|that belongs to|with|used by|held by|known for|near|from|"
    "behind|next to|linked to|assigned to|under|listed with] {outer}",
)


def _declare(name: str, parameter: str) -> dict:
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]},
        },
    }


def _links(rng, unseen: bool, count: int) -> list[str]:
    """A chain of nouns; its first pair decides whether it is an unseen one."""
    while True:
        links = rng.sample(LINKS, count)
        if is_unseen("-".join(links[:2])) == unseen:
            return links


class _Episode:
    """Collects turns and keeps the running number of calls."""

    def __init__(self, request: str):
        self.messages, self.made = [user(request)], 0

    def call(self, name: str, arguments: dict, outcome: dict) -> None:
        turn = calls((name, arguments), first=self.made)
        self.messages += [turn, result(turn["tool_calls"][0]["id"], name, json.dumps(outcome, ensure_ascii=False))]
        self.made += 1


def _misspell(rng, word: str) -> str:
    at = rng.randrange(1, len(word))
    return word[:at] + rng.choice("aeiou") + word[at:]


def make(rng, level: int, unseen: bool) -> Example:
    if level not in TOTALS and level not in FAILING and rng.random() < 0.6:
        return _chain(rng, level, unseen)
    return _collection(rng, level, unseen)


def _trouble(rng, calls_left: int) -> str:
    """Errors take one call of the level's number, so that levels stay comparable."""
    if calls_left < 2 or rng.random() >= 0.35:
        return ""
    return rng.choice(["busy", "spelling", "refused"])


def _chain(rng, level: int, unseen: bool) -> Example:
    trouble = _trouble(rng, level)
    hops = level - 1 if trouble in ("busy", "spelling") else level
    links = _links(rng, unseen, hops + 1)
    person = entities.persons.one(rng, unseen)
    path = f"the {links[0]} {person}"
    for link in links[1:-1]:
        path = OF_PATH.pick(rng, unseen, inner=link, outer=path)
        path = path[0].lower() + path[1:]
    goal = links[-1]
    given = _misspell(rng, person) if trouble == "spelling" else person
    said = path.replace(person, given)
    episode = _Episode(CHAIN.pick(rng, unseen, goal=goal, path=said))
    tools = [_declare(f"get_{new}", old) for old, new in zip(links, links[1:])]
    value = given
    wrong_at = rng.randrange(hops) if trouble in ("busy", "refused") else 0
    reply = ""
    for i in range(hops):
        name, parameter, new = f"get_{links[i + 1]}", links[i], links[i + 1]
        if trouble == "busy" and i == wrong_at:
            episode.call(name, {parameter: value}, {"error": "busy, try again"})
        elif trouble == "spelling" and i == 0:
            episode.call(name, {parameter: value}, {"error": f"unknown {parameter} {value}, did you mean {person}?"})
            value = person
        elif trouble == "refused" and i == wrong_at:
            episode.call(name, {parameter: value}, {"error": "not allowed"})
            reply = f"I am not allowed to look up the {new}."
            break
        outcome = entities.identifier(rng) if rng.random() < 0.7 else entities.made_up_word(rng, unseen).capitalize()
        episode.call(name, {parameter: value}, {new: outcome})
        value = outcome
    episode.messages.append(assistant(reply or f"The {goal} is {value}."))
    rng.shuffle(tools)
    return Example("episodes", level, episode.messages, "episode", None, tools, {"trouble": trouble, "hops": hops})


def _collection(rng, level: int, unseen: bool) -> Example:
    calls_made, largest = TOTALS.get(level, (FAILING.get(level, level), 999))
    trouble = rng.choice(["busy", "spelling"]) if level in FAILING else _trouble(rng, calls_made)
    if trouble == "refused":
        trouble = "busy"
    count = calls_made - 1 if trouble else calls_made
    items = entities.things.several(rng, unseen, count)
    while True:
        measure, parameter = rng.choice(MEASURES), rng.choice(["item", "name", "thing", "product", "article"])
        if is_unseen(f"{measure}-{parameter}") == unseen:
            break
    spelt = dict(zip(items, items))
    if trouble == "spelling":
        spelt[items[0]] = _misspell(rng, items[0])
    listed = [spelt[item] for item in items]
    said = listed[0] if count == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    episode = _Episode((TOTAL if level in TOTALS else COLLECT).pick(rng, unseen, what=measure, items=said))
    name = f"get_{measure}"
    amounts = rng.sample(range(2, largest), count)
    wrong_at = rng.randrange(count) if trouble == "busy" else 0
    for i, item in enumerate(items):
        if trouble == "busy" and i == wrong_at:
            episode.call(name, {parameter: item}, {"error": "busy, try again"})
        elif trouble == "spelling" and i == 0:
            hint = f"unknown {parameter} {spelt[item]}, did you mean {item}?"
            episode.call(name, {parameter: spelt[item]}, {"error": hint})
        episode.call(name, {parameter: item}, {measure: amounts[i]})
    best = items[amounts.index(max(amounts))]
    report = f"The total {measure} is {sum(amounts)}."
    if level not in TOTALS:
        report = f"The largest {measure} is {max(amounts)}, of {best}."
    episode.messages.append(assistant(report))
    other = rng.choice([m for m in MEASURES if m != measure])
    tools = [_declare(name, parameter)] + ([_declare(f"get_{other}", parameter)] if rng.random() < 0.5 else [])
    rng.shuffle(tools)
    facts = {"trouble": trouble, "amounts": dict(zip(items, amounts))}
    return Example("episodes", level, episode.messages, "episode", None, tools, facts)
