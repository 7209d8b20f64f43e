"""Two lookups in a row, a primer for training only: from a person to the best friend, from there to what the friend has.

Each conversation tells two to six chains and asks about most of them, in one of these ways: with the friend written
before the value, which makes it two single lookups; the friend alone; the facts told again with what the friend has
added; the value at once, in a list of all or one by one. What is written in one way has to be found without writing in
the next. In a part of the conversations the last facts come first, so that a friend's fact, when it is read, can
already be joined with what the friend has; and a part links bare keys, where both lookups are a token each.
"""

import entities
from example import assistant, user
from tasks.choice import FRIEND, RELATIONS
from wording import Wordings

MOST_ASKED = 8
ASK_FRIEND = Wordings(
    "[Who is|Tell me who is|Say who is|Give me|Name|And who is|Find] the [best|old best] friend of {a}[?|.| please.| here?| then?]",
    "[Whom|Who] [does {a} have|did {a} choose|does {a} trust] as [best|a best|the best] friend[?| here?| then?]",
)
ASK_WRITTEN = Wordings(
    "[Name|Write|Say|Give|Tell me] [the friend|the best friend|who the friend is|who it is] [first|before you answer|on the way]"
    "[.| please.|, then answer.|, then the rest.]",
)
ASK_SHORT = Wordings(
    "[Answer|Reply|Respond|Just answer|Please answer] [at once|directly|with one word|with the word only|without the friend's name]"
    "[.| please.| now.| here.]",
)
ASK_EACH = Wordings(
    "[Give|Write|List|Show|Tell me|Find] [for each|for each of them|one by one|line by line|for all of these], "
    "[what the best friend has|what belongs to the best friend|the value of the best friend|what goes with the best friend]: {keys}[.|]",
)
ASK_EACH_WRITTEN = Wordings(
    "[Give|Write|List|Show|Tell me|Find] [for each|for each of them|one by one|line by line|for all of these], "
    "[the best friend and then what that friend has|the best friend and the friend's value|first the friend, then the value]: {keys}[.|]",
)
ASK_JOINED = Wordings(
    "[Tell|Say|Write|Repeat] [the friends|who the friends are|about the friends|all friends] [again|once more] "
    "[with|and add|together with] [what each has|what they have|their facts][.| please.]",
)
ASK_END = Wordings(
    "[What|Which value|Which entry] [is at the end from|comes two steps after|is reached from|comes second after] {k}[?| here?| then?| in the list?]",
)
LINKS = ["{k} -> {v}", "{k}: {v}", "{k} = {v}", "{k} to {v}", "{k} leads to {v}.", "{k} points to {v};"]


def make(rng, count: int, unseen: bool) -> list[dict]:
    return _links(rng, count, unseen) if rng.random() < 0.3 else _friends(rng, count, unseen)


def _people(rng, unseen: bool, count: int) -> list[str]:
    """Mostly names that are one token, since a bridge of one token is learned first."""
    listed = entities.persons.lists[unseen]
    if rng.random() < 0.65 and count <= len(listed):
        return rng.sample(listed, count)
    return entities.persons.several(rng, unseen, count)


def _ordered(rng, first: list[str], last: list[str]) -> list[str]:
    """Facts of the first lookup and of the last: the last in front, in any order, or behind."""
    pick = rng.random()
    if pick < 0.4:
        return rng.sample(last, len(last)) + rng.sample(first, len(first))
    if pick < 0.85:
        return rng.sample(first + last, len(first) + len(last))
    return rng.sample(first, len(first)) + rng.sample(last, len(last))


def _friends(rng, count: int, unseen: bool) -> list[dict]:
    told, asked, pool, say, _ = RELATIONS[rng.choice(sorted(RELATIONS))]
    people, values = _people(rng, unseen, 2 * count), pool.several(rng, unseen, count)
    chains = list(zip(people[:count], people[count:], values))
    facts = _ordered(rng, [FRIEND.pick(rng, unseen, a=a, b=b) for a, b, _ in chains],
                     [told.pick(rng, unseen, a=b, v=v) for _, b, v in chains])
    text = rng.choice(["\n", " "]).join(facts) + "\n"
    order = rng.sample(chains, min(count, MOST_ASKED))
    pick = rng.random()
    if pick < 0.1:
        joined = [f"The best friend of {a} is {b}. {say.format(a=b, v=v)}" for a, b, v in order]
        return [user(text + ASK_JOINED.pick(rng, unseen)), assistant("\n".join(joined))]
    keys = ", ".join(a for a, _, _ in order)
    if pick < 0.2:
        return [user(text + ASK_EACH_WRITTEN.pick(rng, unseen, keys=keys)),
                assistant("\n".join(f"{a}: {b}, {v}" for a, b, v in order))]
    if pick < 0.5:
        return [user(text + ASK_EACH.pick(rng, unseen, keys=keys)), assistant("\n".join(f"{a}: {v}" for a, b, v in order))]
    messages = []
    for a, b, v in order:
        way = rng.random()
        question = asked.pick(rng, unseen, a=f"the best friend of {a}")
        if way < 0.15:
            question, reply = ASK_FRIEND.pick(rng, unseen, a=a), b
        elif way < 0.3:
            question, reply = f"{question} {ASK_WRITTEN.pick(rng, unseen)}", rng.choice([f"{b}, {v}", f"The best friend of {a} is {b}. {say.format(a=b, v=v)}"])
        elif way < 0.4:
            question, reply = asked.pick(rng, unseen, a=b), v
        else:
            question, reply = f"{question} {ASK_SHORT.pick(rng, unseen)}" if way < 0.7 else question, v
        messages += [user(text + question), assistant(reply)]
        text = ""
    return messages


def _links(rng, count: int, unseen: bool) -> list[dict]:
    """Chains of bare keys: letters, numbers or names, each leading to the next."""
    kinds = rng.sample(["letters", "numbers", "people"], 2)
    drawn = {"letters": rng.sample("abcdefghijklmnopqrstuvwxyz", 2 * count), "people": _people(rng, unseen, 2 * count),
             "numbers": [str(n) for n in rng.sample(range(10, 100), 2 * count)]}
    first, second = drawn[kinds[0]][:count], drawn[kinds[rng.randrange(2)]][count:]
    last = entities.colours.several(rng, unseen, count) if rng.random() < 0.5 else entities.animals.several(rng, unseen, count)
    form, chains = rng.choice(LINKS), list(zip(first, second, last))
    lines = _ordered(rng, [form.format(k=a, v=b) for a, b, _ in chains], [form.format(k=b, v=c) for _, b, c in chains])
    text = rng.choice(["\n", " "]).join(lines) + "\n"
    order = rng.sample(chains, min(count, MOST_ASKED))
    pick = rng.random()
    if pick < 0.4:
        written = pick < 0.1
        asked = ("With what lies between: " if written else "The ends only: ") + ", ".join(a for a, _, _ in order)
        return [user(text + asked), assistant("\n".join(f"{a}: {b}, {c}" if written else f"{a}: {c}" for a, b, c in order))]
    messages = []
    for a, _, c in order:
        messages += [user(text + ASK_END.pick(rng, unseen, k=a)), assistant(c)]
        text = ""
    return messages
