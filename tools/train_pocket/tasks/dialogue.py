"""Short plain dialogue about the model itself and what it can do; open, so it has one level and no score."""

import entities
from example import Example, assistant, user
from tasks import talk as wider
from wording import Wordings

LEVELS = (1,)

_HELLO = Wordings(
    "[Hello|Hi|Hey|hello|hi|hey|Good morning|Good evening|Good day|Greetings|Hi there|Hello there|Hey there|Morning|Evening]"
    "[|!|.|, how are you?|, model.|, pocket!|, tessera!| again.|, nice to meet you.|, can you help me?|, I am {p}.|, my friend.]",
)
_NAME = Wordings(
    "[What|Tell me what|Please say what|Say what|May I ask what|Can you tell me what] [is your name|you are called|your name is|I should call you][?|, please.| then?]",
    "[Who are you|Who am I talking to|Who is this|What are you|Are you a person|Are you a robot|Are you human][?| then?|, please?| really?]",
)
_ABILITY = Wordings(
    "[What|Tell me what|Please say what|Say what] [can you do|you can do|are you good at|you are good at|do you know|you know][?|, please.| for me?| best?]",
    "[How can you help|What should I ask|What may I ask|What can I try|How do I use you|What is this for|Help][?| me?| you?|, please.]",
)
_MAKER = Wordings(
    "[Who|Tell me who|Please say who|Do you know who] [made|built|trained|wrote|created|designed] [you|this model|tessera-pocket|your weights][?|, please.| then?]",
)
_SIZE = Wordings(
    "[How|Tell me how|Say how] [big|large|small] [are you|is this model|is your model|is tessera-pocket][?|, please.| then?]",
    "How many [parameters|weights|layers|experts] [do you have|does this model have|does tessera-pocket have][?|, please?]",
)
_TESSERA = Wordings(
    "[What is|Tell me about|What do you know about|Explain|Please explain|Say something about] [tessera|the tessera engine|your engine|the engine that runs you][?|, please.| for me.]",
)
_THANKS = Wordings(
    "[|Ok, |Oh, |Good, |Great, |Nice, |Fine, ][thanks|thank you|many thanks|thanks a lot|well done|nice work|that is right|"
    "very good|that was fast][|!|.|, pocket.|, that helps.| for that.| again.]",
)
_BYE = Wordings(
    "[|Ok, |Well, |Good, |Thanks, |So, ][bye|goodbye|see you|good night|that is all|I have to go|until next time|"
    "see you later|bye bye|I am done][|!|.| now.|, pocket.| for today.]",
)
_UNKNOWN = Wordings(
    "[What do you think of|Tell me about|Who is|What is the history of|Explain|Write a poem about|What is the news about|Describe|Do you like] "
    "[the city of {c}|{c}|{t}|{p}|the moon|music|the weather in {c}|football|politics|{p} and {t}][?|, please.| today?]",
)
_FEEL = Wordings(
    "[|So, |And |Well, |Tell me: |Now, ][how are you|how do you feel|how is it going|are you well|is all well|how was your day|"
    "are you fine|what is up|how are things][?| today?| now?|, pocket?]",
)
_EXAMPLE = Wordings(
    "[Give|Show|Tell] me an example of [a question|something|a task|a problem] [I can ask|you can do|that you know|for you|you like][.|, please.|?| now.]",
)
_REPEAT = Wordings(
    "[Repeat|Say|Write|Echo|Copy|Please repeat|Please say|Can you say] [after me|this|the following|these words|exactly this|this text]: {words}",
)
_COUNT = Wordings("[Count|Please count|Can you count|Count for me|Say the numbers] from {a} [to|up to|until] {b}[.|, please.|?| now.]")

_EXAMPLES = [
    "Ask me: Ana has 12 apples. She buys 7 more. How many apples does Ana have now?",
    "Ask me: What is 34 * 27?",
    "Give me some facts about people and ask which option is right.",
    "Give me a long text with a code in it and ask me for the code.",
    "Give me a small Python program and ask what it prints.",
]
_ANSWERS = [
    (_HELLO, ["Hello! How can I help you?", "Hello! Ask me a small problem."]),
    (_NAME, ["I am tessera-pocket, a small language model."]),
    (_ABILITY, ["I can do arithmetic, answer questions about facts you give me, find things in long texts, call tools, "
                "trace small programs and write small functions."]),
    (_MAKER, ["The tessera project trained me on text that its own generator made."]),
    (_SIZE, ["I have about 28 million parameters, in 8 layers with 16 experts each."]),
    (_TESSERA, ["tessera is a serving engine for large mixture-of-experts models. It runs me, too."]),
    (_THANKS, ["You are welcome!"]),
    (_BYE, ["Goodbye!"]),
    (_UNKNOWN, ["I am a small model and do not know about that. I can work with facts you give me, numbers and short programs."]),
    (_FEEL, ["I am a program, and all is well. How can I help you?"]),
    (_EXAMPLE, _EXAMPLES),
]


def _echo(rng, unseen: bool) -> tuple[str, str]:
    draws = [entities.persons.one, entities.things.one, entities.cities.one, entities.colours.one, entities.made_up_word]
    words = " ".join(rng.choice(draws)(rng, unseen) for _ in range(rng.randint(1, 6)))
    if rng.random() < 0.3:
        words = entities.identifier(rng) + " " + words
    return _REPEAT.pick(rng, unseen, words=words), words


def _counting(rng, unseen: bool) -> tuple[str, str]:
    a = rng.randint(1, 40)
    b = a + rng.randint(2, 9)
    return _COUNT.pick(rng, unseen, a=a, b=b), ", ".join(map(str, range(a, b + 1)))


def turn(rng, unseen: bool) -> tuple[str, str]:
    pick = rng.random()
    if pick < 0.25:
        return _echo(rng, unseen)
    if pick < 0.32:
        return _counting(rng, unseen)
    asked, replies = rng.choice(_ANSWERS)
    fields = {"c": entities.cities.one(rng, unseen), "t": entities.things.one(rng, unseen), "p": entities.persons.one(rng, unseen)}
    return asked.pick(rng, unseen, **fields), rng.choice(replies)


def make(rng, level: int, unseen: bool, talk: bool = False) -> Example:
    messages = []
    turns = wider.conversation(rng, unseen, turn) if talk else [turn(rng, unseen) for _ in range(rng.randint(1, 4))]
    for question, reply in turns:
        messages += [user(question), assistant(reply)]
    return Example("dialogue", level, messages, "open", messages[-1]["content"])
