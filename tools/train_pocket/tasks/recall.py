"""Dense recall, a primer for training only: pairs of a key and a value, then many questions about them.

One question about one fact is a weak signal: with only those, a model of this size learned to find facts and never
to tell them apart by their keys. Here each conversation asks for many of its pairs, so that looking a value up by
its key pays at once. Levels: 2 or 3 pairs, 4 to 6, 7 to 12, 13 to 24. Its denser form asks in one direction throughout a
conversation, more often for the keys than the plain one, and follows friends, one lookup after the other; with chains,
three in five conversations are those of `chains.py`.
"""

import entities
from example import Example, assistant, user
from tasks import chains as two_lookups
from tasks.choice import FRIEND, LETTERS, RELATIONS
from wording import Wordings

LEVELS = (1, 2, 3, 4)
_COUNTS = {1: (2, 3), 2: (4, 6), 3: (7, 12), 4: (13, 24)}
MAX_QUESTIONS = 10
CHAINS_SHARE, CHAINS = 0.6, {1: (1, 2), 2: (2, 3), 3: (3, 4), 4: (3, 6)}

_PAIR_FORMS = ["{k}: {v}", "{k} = {v}", "{k} is {v}.", "{k} -> {v}", "{k} has {v}.", "{k}, {v};", "the {k} holds {v}.", "{k} got {v}."]
ASK_ALL = Wordings(
    "[Give|Write|List|Show|Tell me|Look up|Find] [the values|the entries|the partners|what belongs to them|the answers] "
    "[for|of|at] {keys}[.| please.| in this order.| line by line.]",
)
ASK_ALL_KEYS = Wordings(
    "[Give|Write|List|Show|Tell me|Look up|Find] [the keys|the names|the owners|who has them|what they belong to] "
    "[for|of|at] {values}[.| please.| in this order.| line by line.]",
)
ASK_COPY = Wordings(
    "[Write|Repeat|Copy|Show|Say|Give me] [the list|the lines|all of it|everything|the whole text] [again|once more|exactly|as it stands][.| please.| now.]",
)
ASK_ONE = Wordings(
    "[What is|Give|And|Now|Look up|What about|Find|Tell me] {k}[?|.| please.| now.| there?]",
    "[Which value|What] [belongs to|goes with|stands at|is listed for] {k}?",
)
ASK_KEY = Wordings(
    "[Who|Which one|Which key|Which entry] [has|holds|goes with|belongs to|stands at|got] {v}[?| there?| in the list?| above?]",
)
ASK_LETTER = Wordings("[Which letter|Which option|What letter|Where] [is|stands for|means|says|shows] {v}[?|, please?| here?| above?]")
ASK_OPTION = Wordings("[What|Which word|Which entry|What text] [is|stands at|is at|is under|belongs to] [option |letter |]{k}[?|, please?| here?]")


def _keys(rng, unseen: bool, count: int) -> list[str]:
    pick = rng.random()
    if pick < 0.35:
        return entities.persons.several(rng, unseen, count)
    if pick < 0.55:
        return rng.sample("abcdefghijklmnopqrstuvwxyz", count)
    if pick < 0.7:
        return [str(n) for n in rng.sample(range(10, 100), count)]
    pools = [entities.cities, entities.things, entities.animals, entities.colours]
    return rng.choice(pools).several(rng, unseen, count)


def _values(rng, unseen: bool, count: int) -> list[str]:
    pick = rng.random()
    if pick < 0.3:
        return [str(n) for n in rng.sample(range(1, 100), count)]
    if pick < 0.7:
        pool = rng.choice([entities.colours, entities.animals, entities.foods, entities.jobs, entities.cities])
        return pool.several(rng, unseen, count)
    found: dict[str, None] = {}
    while len(found) < count:
        found[entities.identifier(rng) if pick < 0.85 else entities.made_up_word(rng, unseen)] = None
    return list(found)


def make(rng, level: int, unseen: bool, dense: bool = False, chains: bool = False) -> Example:
    if chains and rng.random() < CHAINS_SHARE:
        messages = two_lookups.make(rng, rng.randint(*CHAINS[level]), unseen)
        return Example("recall", level, messages, "open", messages[-1]["content"])
    count = rng.randint(*_COUNTS[level])
    pick = rng.random()
    if dense and rng.random() < 0.25:
        messages = _friends(rng, min(count, 5), unseen)
    elif pick < 0.25:
        messages = _facts(rng, min(count, 8), unseen, dense)
    elif pick < 0.4:
        messages = _options(rng, min(max(count, 2), 4), unseen)
    else:
        messages = _pairs(rng, count, unseen, dense)
    return Example("recall", level, messages, "open", messages[-1]["content"])


def _for_keys(rng, dense: bool) -> float:
    """The share of a conversation's questions that give the value and ask for the key."""
    return rng.choice((0.0, 0.5, 1.0, 1.0)) if dense else 0.25


def _pairs(rng, count: int, unseen: bool, dense: bool) -> list[dict]:
    keys, values = _keys(rng, unseen, count), _values(rng, unseen, count)
    form = rng.choice(_PAIR_FORMS)
    lines = [form.format(k=k, v=v) for k, v in zip(keys, values)]
    text = rng.choice(["\n", " "]).join(lines) + "\n"
    order = rng.sample(range(count), min(count, MAX_QUESTIONS))
    pick = rng.random()
    if pick < 0.1:
        return [user(text + ASK_COPY.pick(rng, unseen)), assistant("\n".join(lines))]
    if dense and pick < 0.3:
        asked = ASK_ALL_KEYS.pick(rng, unseen, values=", ".join(values[i] for i in order))
        return [user(text + asked), assistant("\n".join(keys[i] for i in order))]
    if pick < 0.45:
        asked = ASK_ALL.pick(rng, unseen, keys=", ".join(keys[i] for i in order))
        with_keys = rng.random() < 0.6
        reply = "\n".join(f"{keys[i]}: {values[i]}" if with_keys else values[i] for i in order)
        return [user(text + asked), assistant(reply)]
    messages, for_keys = [], _for_keys(rng, dense)
    for i in order:
        if rng.random() < 1.0 - for_keys:
            asked, reply = ASK_ONE.pick(rng, unseen, k=keys[i]), values[i]
        else:
            asked, reply = ASK_KEY.pick(rng, unseen, v=values[i]), keys[i]
        messages += [user(text + asked), assistant(reply)]
        text = ""
    return messages


def _facts(rng, count: int, unseen: bool, dense: bool) -> list[dict]:
    """Facts as choice tells them; answers in words or, with options, in letters."""
    told, asked, pool, say, reverse = RELATIONS[rng.choice(sorted(RELATIONS))]
    people, values = entities.persons.several(rng, unseen, count), pool.several(rng, unseen, count)
    text = rng.choice(["\n", " "]).join(told.pick(rng, unseen, a=p, v=v) for p, v in zip(people, values)) + "\n"
    shown = rng.sample(values, min(4, count))
    mode = rng.choice(["word", "letter", "sentence"])
    if mode == "letter":
        mark = rng.choice(["{}. {}", "{}) {}", "({}) {}", "{}: {}"])
        text += "\n".join(mark.format(LETTERS[i], v) for i, v in enumerate(shown)) + "\n"
    messages, for_keys = [], _for_keys(rng, dense)
    for i in rng.sample(range(count), count):
        if mode == "letter":
            if values[i] not in shown:
                continue
            reply = LETTERS[shown.index(values[i])]
        else:
            reply = values[i] if mode == "word" else say.format(a=people[i], v=values[i])
        if mode == "word" and rng.random() < for_keys:
            question, reply = reverse.pick(rng, unseen, v=values[i]), people[i]
        else:
            question = asked.pick(rng, unseen, a=people[i])
        messages += [user(text + question), assistant(reply)]
        text = ""
    return messages


def _friends(rng, count: int, unseen: bool) -> list[dict]:
    """Facts of friends, asked for directly and through the friend, with what is found on the way or without it."""
    told, asked, pool, say, _ = RELATIONS[rng.choice(sorted(RELATIONS))]
    people, values = entities.persons.several(rng, unseen, 2 * count), pool.several(rng, unseen, count)
    pairs = list(zip(people[:count], people[count:], values))
    facts = [FRIEND.pick(rng, unseen, a=a, b=b) for a, b, _ in pairs] + [told.pick(rng, unseen, a=b, v=v) for _, b, v in pairs]
    text = rng.choice(["\n", " "]).join(rng.sample(facts, len(facts))) + "\n"
    on_the_way, messages = rng.random() < 0.3, []
    for a, b, v in rng.sample(pairs, count):
        through = rng.random() < 0.7
        reply = say.format(a=b, v=v) if on_the_way else v
        if on_the_way and through:
            reply = f"The best friend of {a} is {b}. {reply}"
        messages += [user(text + asked.pick(rng, unseen, a=f"the best friend of {a}" if through else b)), assistant(reply)]
        text = ""
    return messages


def _options(rng, count: int, unseen: bool) -> list[dict]:
    values = _values(rng, unseen, count)
    mark = rng.choice(["{}. {}", "{}) {}", "({}) {}", "{}: {}"])
    text = "\n".join(mark.format(LETTERS[i], v) for i, v in enumerate(values)) + "\n"
    messages = []
    for i in [rng.randrange(count) for _ in range(5)]:
        if rng.random() < 0.7:
            asked, reply = ASK_LETTER.pick(rng, unseen, v=values[i]), LETTERS[i]
        else:
            asked, reply = ASK_OPTION.pick(rng, unseen, k=LETTERS[i]), values[i]
        messages += [user(text + asked), assistant(reply)]
        text = ""
    return messages
