"""Multiple choice over generated facts, levels 1 to 6.

1: two facts, two options; 2: four facts, four options; 3: four people with two facts each; 4: the reverse question
(who?) or the largest and smallest of four numbers; 5: two hops through a best friend; 6: as 2, answered with the
option's letter, which is a hop more. Up to level 5 the options are words, judged by the likelihood of each. A share
of the training examples asks for the reason first.
"""

import entities
from example import Example, assistant, user
from wording import Wordings

LEVELS = (1, 2, 3, 4, 5, 6)
BEYOND = (7,)  # never trained: as 2, with sixteen people
LETTERS = "ABCD"
FORMS, FORM_SHARES = ("word", "letter", "reason"), (0.4, 0.35, 0.25)
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


def make(rng, level: int, unseen: bool, plain: bool = False) -> Example:
    """`plain` makes the tested form: a word of the options, or on level 6 a letter, with no reason."""
    facts, question, options, right, reason = _build(rng, 2 if level == 6 else level, unseen)
    rng.shuffle(facts)
    letter = LETTERS[options.index(right)]
    text = rng.choice(["\n", " "]).join(facts) + "\n" + question + "\n"
    recheck = {"facts": facts, "options": options, "right": right}
    form = ("letter" if level == 6 else "word") if plain else rng.choices(FORMS, FORM_SHARES)[0]
    if form == "word":
        text += rng.choice(WORD_LISTS)(options) + "\n" + OPEN.pick(rng, unseen)
        return Example("choice", level, [user(text), assistant(right)], "choice", right, facts=recheck)
    mark = rng.choice(["{}. {}", "{}) {}", "({}) {}", "{}: {}"])
    text += "\n".join(mark.format(LETTERS[i], option) for i, option in enumerate(options)) + "\n"
    recheck["letters"] = LETTERS[: len(options)]
    if form == "reason":
        text += REASON.pick(rng, unseen)
        reply = f"{reason}\nThe answer is {letter}."
    else:
        text += CLOSING.pick(rng, unseen)
        reply = letter
    return Example("choice", level, [user(text), assistant(reply)], "choice", letter, facts=recheck)


def _build(rng, level: int, unseen: bool):
    """Facts, the question, the options, the right option, and the reason in words."""
    count = {1: 2, 7: 16}.get(level, 4)
    people = entities.persons.several(rng, unseen, 2 * count if level == 5 else count)
    names = rng.sample(sorted(RELATIONS), 2)
    if level == 4 and rng.random() < 0.5:
        ages = rng.sample(range(8, 90), count)
        facts = [AGE.pick(rng, unseen, a=p, v=v) for p, v in zip(people, ages)]
        oldest = rng.random() < 0.5
        right_age = (max if oldest else min)(ages)
        right = people[ages.index(right_age)]
        question = (OLDEST if oldest else YOUNGEST).pick(rng, unseen)
        listed = ", ".join(f"{p} {v}" for p, v in zip(people, ages))
        return facts, question, rng.sample(people, count), right, f"{listed}. {right_age} is {right}."
    told, asked, pool, say, reverse = RELATIONS[names[0]]
    if level <= 3 or level == 7:
        values = pool.several(rng, unseen, count)
        facts = [told.pick(rng, unseen, a=p, v=v) for p, v in zip(people, values)]
        if level == 3:
            told2, _, pool2, _, _ = RELATIONS[names[1]]
            values2 = pool2.several(rng, unseen, count)
            facts += [told2.pick(rng, unseen, a=p, v=v) for p, v in zip(people, values2)]
        who = rng.randrange(count)
        question = asked.pick(rng, unseen, a=people[who])
        options = rng.sample(values, count)
        if count > 4:
            others = [value for value in options if value != values[who]]
            options = rng.sample([values[who], *others[:3]], 4)
        return facts, question, options, values[who], say.format(a=people[who], v=values[who])
    if level == 5:
        askers, friends = people[:3], people[3:6]
        values = pool.several(rng, unseen, 4)
        facts = [FRIEND.pick(rng, unseen, a=p, b=q) for p, q in zip(askers, friends)]
        facts += [told.pick(rng, unseen, a=q, v=v) for q, v in zip(friends, values)]
        who = rng.randrange(3)
        question = asked.pick(rng, unseen, a=f"the best friend of {askers[who]}")
        reason = f"The best friend of {askers[who]} is {friends[who]}. " + say.format(a=friends[who], v=values[who])
        return facts, question, rng.sample(values, 4), values[who], reason
    values = pool.several(rng, unseen, count)
    facts = [told.pick(rng, unseen, a=p, v=v) for p, v in zip(people, values)]
    who = rng.randrange(count)
    question = reverse.pick(rng, unseen, v=values[who])
    return facts, question, rng.sample(people, count), people[who], say.format(a=people[who], v=values[who])
