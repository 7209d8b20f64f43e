"""Multiple choice over generated facts, levels 1 to 7, and 8 and 9, which are never trained.

1: two facts, two options; 2: four facts, four options; 3: four people with two facts each; 4: the reverse question
(who?) or the largest and smallest of four numbers; 5: two hops through a best friend; 6: as 2, answered with the
option's letter, which is a hop more; 7: three hops, through the best friend of a best friend. But for level 6 the
options are words, judged by the likelihood of each. Training asks several questions about a scene, which may hold
fewer people than the level's, in each of the forms, a share of them with the reason first.
"""

import entities
from example import Example, assistant, user
from wording import Wordings

LEVELS = (1, 2, 3, 4, 5, 6, 7)
BEYOND = (8, 9)  # never trained: as 2, with sixteen people; the oldest or youngest of ten, among the four at that end
LETTERS = "ABCD"
HOPS = {5: 2, 7: 3}
MOST_QUESTIONS = 4
FORMS, WORD_SHARES, LETTER_SHARES = ("word", "letter", "reason"), (0.6, 0.25, 0.15), (0.15, 0.7, 0.15)
CHAIN_SHARES = (0.8, 0.05, 0.15)
WORD_LISTS = (
    lambda options: "Options: " + ", ".join(options) + ".",
    lambda options: "\n".join("- " + option for option in options),
    lambda options: "It is one of " + ", ".join(options[:-1]) + " and " + options[-1] + ".",
    lambda options: "Choices: " + " / ".join(options),
)

_LEAD = "[|We know that |It is said that |Everyone knows that |I heard that |They say that |In truth, |As we learned, ]"
_TAIL = "[.| these days.| now.| as always.| of course.]"


def _fact(verbs: str) -> Wordings:
    return Wordings(f"{_LEAD}{{a}} {verbs} {{v}}{_TAIL}")


def _question(*cores: str) -> Wordings:
    patterns = [f"[|Question: |Tell me: |Now, |So: |Here is the question: ]{core}?" for core in cores]
    patterns += [f"[Choose|Pick|Select|Mark|Find] the right [answer|option|letter|one]: {core}?" for core in cores]
    return Wordings(*patterns)


# Per relation: how a fact is told, how it is asked about, where its values come from, how a reason says it, and
# how the reverse is asked.
RELATIONS = {
    "colour": (
        _fact("[likes the colour|loves the colour|prefers the colour|paints everything|always wears|is fond of]"),
        _question("which colour [does {a} like|does {a} prefer|does {a} love|goes with {a}|is right for {a}]"),
        entities.colours, "{a} likes {v}.",
        _question("who [likes|loves|prefers|goes with|is fond of] {v}"),
    ),
    "city": (
        _fact("[lives in|comes from|was born in|works in|has a house in|moved to]"),
        _question("[in which|in what] city [does {a} live|is {a} at home|can we find {a}]", "where [does {a} live|is {a} from]"),
        entities.cities, "{a} lives in {v}.",
        _question("who [lives in|comes from|works in|can be found in|is at home in] {v}"),
    ),
    "animal": (
        _fact("[has a pet|owns a|keeps a|looks after a|feeds a|walks with a]"),
        _question("which animal [does {a} have|does {a} keep|does {a} own|belongs to {a}|lives with {a}]"),
        entities.animals, "{a} has a {v}.",
        _question("who [has|owns|keeps|feeds|lives with] [a|the] {v}"),
    ),
    "food": (
        _fact("[eats|cooks|always orders|likes to eat|makes|often has]"),
        _question("[which food|what] does {a} [eat|cook|order|make|like to eat]"),
        entities.foods, "{a} eats {v}.",
        _question("who [eats|cooks|orders|makes|likes to eat] {v}"),
    ),
    "job": (
        _fact("[works as a|is a|earns money as a|was trained as a|became a|has a job as a]"),
        _question("[what|which] [is the job of {a}|job does {a} have|work does {a} do|job did {a} learn]"),
        entities.jobs, "{a} is a {v}.",
        _question("who [is|works as|became|was trained as] [a|the] {v}"),
    ),
    "instrument": (
        _fact("[plays the|practises the|learns the|owns a|teaches the|sings with a]"),
        _question("which instrument does {a} [play|practise|learn|own|have]"),
        entities.instruments, "{a} plays the {v}.",
        _question("who [plays|practises|learns|owns|has] the {v}"),
    ),
    "sport": (
        _fact("[does|trains for|is good at|takes part in|watches|teaches]"),
        _question("which sport [does {a} do|does {a} train for|is {a} good at|does {a} like]"),
        entities.sports, "{a} does {v}.",
        _question("who [does|trains for|is good at|likes] {v}"),
    ),
}
FRIEND = Wordings(
    f"{_LEAD}the best friend of {{a}} is {{b}}{_TAIL}",
    f"{_LEAD}{{a}} [has|trusts|chose] {{b}} as [a|the|an old] best friend{_TAIL}",
)
AGE = Wordings(
    f"{_LEAD}{{a}} is {{v}} years old{_TAIL}",
    f"{_LEAD}{{a}} [turned|became|is now aged|reached the age of] {{v}}{_TAIL}",
)
OLDEST = _question("who is [the oldest|the oldest of all|older than the others|the one with the highest age]")
YOUNGEST = _question("who is [the youngest|the youngest of all|younger than the others|the one with the lowest age]")
CLOSING = Wordings(
    "[Answer|Reply|Respond|Answer me|Please answer|Please reply] with [the letter|one letter|just the letter|the letter only|a single letter]"
    "[.| please.| of the right option.| of your choice.| of the correct answer.]",
)
REASON = Wordings(
    "[Explain|Give the reason|Say why|Show your reason|Think first|Tell me why][, then| and then|; then] "
    "[give|say|name|write] the [letter|right letter|letter of the answer][.| please.]",
)
OPEN = Wordings(
    "[Answer|Reply|Respond|Answer me|Please answer|Please reply] with [one word|just the word|the word only|a single word|the answer only]"
    "[.| please.| from the facts.| as given.]",
)


# A question about a scene: its text, the options in order, the right one, and the reason in words.
Asked = tuple[str, list[str], str, str]


def make(rng, level: int, unseen: bool, plain: bool = False, chains: bool = False) -> Example:
    """`plain` makes the tested form: one question, answered by a word of the options, or on level 6 by a letter, with no
    reason. In training a scene may be smaller than its level's, and several questions are asked about it; with `chains`
    those through friends seldom ask for a letter, which is a lookup more."""
    facts, asked = _scene(rng, 2 if level == 6 else level, unseen, smaller=not plain)
    rng.shuffle(facts)
    shares = LETTER_SHARES if level == 6 else CHAIN_SHARES if chains and level in HOPS else WORD_SHARES
    asked = rng.sample(asked, 1 if plain else min(len(asked), rng.randint(1, MOST_QUESTIONS)))
    text = rng.choice(["\n", " "]).join(facts) + "\n"
    mark, words = rng.choice(["{}. {}", "{}) {}", "({}) {}", "{}: {}"]), rng.choice(WORD_LISTS)
    messages, recheck, answer = [], {"facts": facts}, None
    for question, options, right, reason in asked:
        form = ("letter" if level == 6 else "word") if plain else rng.choices(FORMS, shares)[0]
        letter = LETTERS[options.index(right)]
        text += question + "\n"
        if form == "word":
            text += words(options) + "\n" + OPEN.pick(rng, unseen)
            reply = right
        else:
            text += "\n".join(mark.format(LETTERS[i], option) for i, option in enumerate(options)) + "\n"
            text += (REASON if form == "reason" else CLOSING).pick(rng, unseen)
            reply = f"{reason}\nThe answer is {letter}." if form == "reason" else letter
        if answer is None:
            answer = right if form == "word" else letter
            recheck |= {"options": options, "right": right} | ({} if form == "word" else {"letters": LETTERS[: len(options)]})
        messages += [user(text), assistant(reply)]
        text = ""
    return Example("choice", level, messages, "choice", answer, facts=recheck)


def _scene(rng, level: int, unseen: bool, smaller: bool) -> tuple[list[str], list[Asked]]:
    """Facts, and all questions of the level about them."""
    if level in HOPS:
        return _friends(rng, HOPS[level], rng.randint(1, 3) if smaller else 3, unseen)
    count = {1: 2, 8: 16, 9: 10}.get(level, 4)
    if smaller and level > 1:
        count = rng.randint(2, count)
    people = entities.persons.several(rng, unseen, count)
    names = rng.sample(sorted(RELATIONS), 2)
    if level == 9 or level == 4 and rng.random() < 0.5:
        return _ages(rng, people, unseen)
    facts, asked = [], []
    for name in names[: 2 if level == 3 else 1]:
        told, question, pool, say, reverse = RELATIONS[name]
        values = pool.several(rng, unseen, count)
        facts += [told.pick(rng, unseen, a=p, v=v) for p, v in zip(people, values)]
        for p, v in zip(people, values):
            text = reverse.pick(rng, unseen, v=v) if level == 4 else question.pick(rng, unseen, a=p)
            right, others = (p, people) if level == 4 else (v, values)
            wrong = rng.sample([other for other in others if other != right], min(3, count - 1))
            asked.append((text, rng.sample([right, *wrong], len(wrong) + 1), right, say.format(a=p, v=v)))
    return facts, asked


def _ages(rng, people: list[str], unseen: bool) -> tuple[list[str], list[Asked]]:
    ages = rng.sample(range(8, 90), len(people))
    facts = [AGE.pick(rng, unseen, a=p, v=v) for p, v in zip(people, ages)]
    listed, asked = ", ".join(f"{p} {v}" for p, v in zip(people, ages)), []
    for question, extreme in ((OLDEST, max(ages)), (YOUNGEST, min(ages))):
        right = people[ages.index(extreme)]
        reason = f"{listed}. {extreme} is {right}."
        nearest = sorted(people, key=lambda person: abs(ages[people.index(person)] - extreme))[: len(LETTERS)]
        asked.append((question.pick(rng, unseen), rng.sample(nearest if len(people) > len(LETTERS) else people, len(nearest)), right, reason))
    return facts, asked


def _friends(rng, hops: int, count: int, unseen: bool) -> tuple[list[str], list[Asked]]:
    """Chains of best friends, `hops` facts long; only the last friend holds a value."""
    _, _, pool, say, _ = relation = RELATIONS[rng.choice(sorted(RELATIONS))]
    people = entities.persons.several(rng, unseen, hops * count)
    chains = [people[i * hops : (i + 1) * hops] for i in range(count)]
    values = pool.several(rng, unseen, count + 1)
    facts = [FRIEND.pick(rng, unseen, a=p, b=q) for chain in chains for p, q in zip(chain, chain[1:])]
    facts += [relation[0].pick(rng, unseen, a=chain[-1], v=v) for chain, v in zip(chains, values)]
    asked = []
    for chain, v in zip(chains, values):
        who = "the best friend of " * (hops - 1) + chain[0]
        reason = " ".join(f"The best friend of {p} is {q}." for p, q in zip(chain, chain[1:])) + " " + say.format(a=chain[-1], v=v)
        asked.append((relation[1].pick(rng, unseen, a=who), rng.sample(values, count + 1), v, reason))
    return facts, asked
