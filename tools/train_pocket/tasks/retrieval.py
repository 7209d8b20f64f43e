"""Finding facts in long text, levels 1 to 5, at 256 to 4096 tokens and beyond.

1: one needle in filler; 2: four needles of one kind; 3: twelve; 4: two hops, from a person to a room to its code,
among four of each; 5: which of six needles has the largest number. Needles lie at random depths. The answer is the value alone, on level 4 with the room before it. A
quarter of the training examples of levels 2 and 3 are bare lists of keys and values.
"""

import entities
from example import Example, assistant, user
from wording import Wordings

LEVELS = (1, 2, 3, 4, 5)
BEYOND = (6,)  # never trained: 24 needles whose keys are a person and a place, each of them in several keys
LENGTHS = (256, 512, 1024, 2048, 4096)  # prompt tokens, about
FILLER_SENTENCES = 3000
# Prompt tokens per filler sentence and per needle, measured on the project's tokenizer; only lengths depend on them.
TOKENS_PER_FILLER, TOKENS_PER_NEEDLE, TOKENS_AROUND = 19.0, 19.0, 65.0

FILLER = Wordings(
    "[In the morning|At noon|In the evening|Last night|Long ago|One day|In spring|In winter|On Sunday|Every year] "
    "[the old|a young|the tall|a tired|the kind|a quiet|the busy|a happy|the poor|a clever] "
    "[farmer|teacher|sailor|baker|singer|clerk|guard|child|woman|man] "
    "[walked to|looked at|talked about|painted|dreamed of|waited near|sat beside|wrote about|passed|left] "
    "[the river|the bridge|the old house|the market|the garden|the church|the harbour|the forest|the mill|the road]"
    "[.| and smiled.| without a word.| in the rain.| for an hour.| as usual.| and went home.]",
)
NEEDLE = Wordings(
    "[Note that |Remember: |By the way, |Please note: |It is written that |Keep in mind that |]"
    "[the code|the number|the secret|the key|the password] [for|of|that belongs to|given to] {k} is {v}"
    "[.| today.| as agreed.| and nothing else.]",
    "[Note that |Remember: |By the way, |Please note: |It is written that |Keep in mind that |]"
    "{k} [has|uses|was given|needs] [the code|the number|the secret|the key|the password] {v}"
    "[.| today.| as agreed.| and nothing else.]",
)
ROOM = Wordings(
    "[Note that |Remember: |By the way, |Please note: |It is written that |Keep in mind that |]"
    "{a} [sleeps in|works in|waits in|stays in|can be found in|sits in] room {r}[.| today.| as agreed.| for now.]",
)
ROOM_CODE = Wordings(
    "[Note that |Remember: |By the way, |Please note: |It is written that |Keep in mind that |]"
    "[the code|the number|the key|the password] [for|of|to open] room {r} is {v}[.| today.| as agreed.| for now.]",
)
OPENING = Wordings(
    "[Read|Study|Look at|Here is|Go through|Take] [this|the following|the next|a] [text|story|page|passage|report]"
    "[ with care|, please| carefully|]. [A question follows|There is a question at the end|You will be asked about it|Then answer].",
)
QUESTION = Wordings(
    "[What is|Tell me|Find|Give me|Say|Please find|Look up|Repeat] "
    "[the code|the number|the secret|the key|the password] [for|of|that belongs to|given to] {k}[.|, please.| from the text.|?]",
    "[Which|What] [code|number|secret|key|password] [does {k} have|belongs to {k}|was given to {k}|does {k} use|goes with {k}]?",
)
ROOM_QUESTION = Wordings(
    "[What is|Tell me|Find|Give me|Say|Please find] [the code|the number|the key|the password] [for|of] the room "
    "[where {a} is|that {a} is in|in which we find {a}|of {a}|{a} stays in][.|, please.| from the text.|?]",
)
MOST_QUESTION = Wordings(
    "[Who|What|Tell me who|Say who|Find out who] [has|uses|was given|needs] [the largest|the highest|the greatest|the biggest] "
    "[code|number|secret|key|password][?|, please?| of all?| in the text?| in all?]",
)
LIST_QUESTION = Wordings(
    "[What|Which value|Which entry|What value|What entry] [is at|belongs to|stands beside|goes with|is listed for] {k}"
    "[?| in the list?| above?| there?]",
)

_fillers: dict[bool, list[str]] = {}


def fillers(unseen: bool) -> list[str]:
    """The fixed pool of filler sentences of each kind."""
    if unseen not in _fillers:
        pool = FILLER.unseen if unseen else FILLER.seen
        stride = max(1, len(pool) // FILLER_SENTENCES)
        # A multiplier that is coprime to any length mixes neighbours.
        mixed = [pool[(i * 7919) % len(pool)] for i in range(0, len(pool), stride)]
        _fillers[unseen] = list(dict.fromkeys(mixed))[:FILLER_SENTENCES]
    return _fillers[unseen]


def _key(rng, unseen: bool) -> str:
    pick = rng.random()
    if pick < 0.4:
        return entities.persons.one(rng, unseen)
    if pick < 0.7:
        return "the " + entities.made_up_word(rng, unseen)
    return entities.cities.one(rng, unseen)


def _value(rng, unseen: bool) -> str:
    pick = rng.random()
    if pick < 0.5:
        return entities.digits(rng, 4, 6)
    return entities.identifier(rng) if pick < 0.8 else entities.made_up_word(rng, unseen)


def _composite(rng, unseen: bool) -> list[str]:
    people, places = entities.persons.several(rng, unseen, 6), entities.cities.several(rng, unseen, 4)
    keys = [f"{person} of {place}" for person in people for place in places]
    rng.shuffle(keys)
    return keys


def _distinct(rng, draw, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def make(rng, level: int, unseen: bool, length: int = 0) -> Example:
    if not length and level in (2, 3) and rng.random() < 0.25:
        return _listing(rng, level, unseen)
    training = not length
    length = length or _training_length(rng)
    count = {1: 1, 2: 4, 3: 12, 4: 4, 5: 6, 6: 24}[level]
    if training and level == 5:  # one question a text, so mostly short ones, and fewer needles at times
        count = rng.randint(2, 6)
        length = rng.randint(100, 800) if rng.random() < 0.7 else length
    values = _distinct(rng, lambda: entities.digits(rng, 2, 3) if level == 5 else _value(rng, unseen), count)
    if level == 4:
        people = entities.persons.several(rng, unseen, count)
        rooms = _distinct(rng, lambda: entities.identifier(rng) if rng.random() < 0.5 else entities.digits(rng, 2, 3), count)
        needles = [ROOM.pick(rng, unseen, a=a, r=r) for a, r in zip(people, rooms)]
        needles += [ROOM_CODE.pick(rng, unseen, r=r, v=v) for r, v in zip(rooms, values)]
        question = ROOM_QUESTION.pick(rng, unseen, a=people[0])
        values = [f"Room {r}: {v}" for r, v in zip(rooms, values)]
    else:
        keys = _composite(rng, unseen) if level == 6 else _distinct(rng, lambda: _key(rng, unseen), count)
        needles = [NEEDLE.pick(rng, unseen, k=k, v=v) for k, v in zip(keys, values)]
        question = QUESTION.pick(rng, unseen, k=keys[0])
    if level == 5:
        question, values = MOST_QUESTION.pick(rng, unseen), [max(zip(keys, values), key=lambda pair: int(pair[1]))[0]]
    pool = fillers(unseen)
    filler_count = max(0, int((length - TOKENS_AROUND - TOKENS_PER_NEEDLE * len(needles)) / TOKENS_PER_FILLER))
    start = rng.randrange(len(pool))
    rng.shuffle(needles)  # equal places keep this order, which must not tell the needle that is asked for
    inserts = sorted(((rng.randint(0, filler_count), text) for text in needles), key=lambda pair: pair[0])
    opening = OPENING.pick(rng, unseen)
    haystack = {"start": start, "count": filler_count, "inserts": inserts}
    text = f"{opening}\n{expand(haystack, pool)}\n{question}"
    facts = {"haystack": haystack, "before": opening, "after": question, "needles": needles, "length": length}
    messages = [user(text), assistant(values[0])]
    if training and level != 5 and count > 1:  # more questions about the same text, for training only
        for i in range(1, min(count, 5)):
            if level == 4:
                more = ROOM_QUESTION.pick(rng, unseen, a=people[i])
            else:
                more = QUESTION.pick(rng, unseen, k=keys[i])
            messages += [user(more), assistant(values[i])]
    return Example("retrieval", level, messages, "text", values[0], facts=facts)


def expand(haystack: dict, pool: list[str]) -> str:
    """Consecutive filler sentences, around the end of the pool, with each insert before the sentence it numbers."""
    pieces, inserts = [], list(haystack["inserts"])
    for i in range(haystack["count"] + 1):
        while inserts and inserts[0][0] == i:
            pieces.append(inserts.pop(0)[1])
        if i < haystack["count"]:
            pieces.append(pool[(haystack["start"] + i) % len(pool)])
    return " ".join(pieces)


def _training_length(rng) -> int:
    """Short ones most often; one in fifty near the whole context."""
    pick = rng.random()
    if pick < 0.6:
        return rng.randint(100, 600)
    if pick < 0.9:
        return rng.randint(600, 2400)
    return rng.randint(2400, 4300) if pick < 0.98 else rng.randint(4300, 7600)


def _listing(rng, level: int, unseen: bool) -> Example:
    count = rng.randint(3, 8) if level == 2 else rng.randint(9, 40)
    keys = _distinct(rng, lambda: _key(rng, unseen).removeprefix("the "), count)
    values = _distinct(rng, lambda: _value(rng, unseen), count)
    lines = "\n".join(f"{k}: {v}" for k, v in zip(keys, values))
    messages, text = [], lines + "\n"
    for which in rng.sample(range(count), min(count, 6)):
        messages += [user(text + LIST_QUESTION.pick(rng, unseen, k=keys[which])), assistant(values[which])]
        text = ""
    return Example("retrieval", level, messages, "text", messages[1]["content"], facts={"list": dict(zip(keys, values))})
