"""What a person may say to the model in plain talk, and what it answers: dialogue's wider forms, for training only.

Greetings with and without a name, who and what it is, what it can and cannot do, an example of each task, small sums and
facts said in passing, thanks, praise and blame, and, of many kinds, questions about the world, which it declines. Each
conversation remembers the name and the few things that were told in it.
"""

import entities
from tasks.talk_words import ABOUT, ACTIONS, NOUNS, TASK_WORDS
from wording import Wordings

WHO = "I am tessera-pocket, a small language model."
CAN = ("I can do arithmetic, answer questions about facts you give me, find things in long texts, call tools, trace small "
       "programs and write small functions.")
DECLINE = "I am a small model and do not know about that. I can work with facts you give me, numbers and short programs."
CANNOT = "I cannot do that. " + CAN
SORRY = "I am sorry. I am small and make mistakes. Please ask me again in other words."

HELLO = Wordings(
    "[hello|hi|hey|good morning|good evening|good afternoon|good day|greetings|hi there|hello there|hey there|morning|evening|yo|howdy|welcome back|hiya|hallo]"
    "[|!|.| !|, pocket| tessera|, model| friend| my friend| again|, nice to meet you| everyone| bot| computer| assistant|!!| :)]",
)
I_AM = Wordings(
    "[|hello, |hi, |hey, |hi! |hello! |good morning, |nice to meet you, ][I am|my name is|i'm|I'm|this is|call me|you can call me|people call me|they call me] {p}[.|| here.|!|, and you?]",
)
MY_NAME = Wordings(
    "[what is|what's|tell me|say|do you know|do you remember|can you tell me|what was|please say] my name[?|| again?|, please?| now?| then?]",
    "[who am I|do you know who I am|what am I called|do you remember me|who is talking to you][?|| now?|, please?| then?]",
)
WHO_ASKED = Wordings(
    "[|so, |ok, |and |hm, |please tell me, |tell me, ][who are you|what are you|who is this|what is your name|what's your name|your name|who am I talking to|"
    "what should I call you|do you have a name|what do they call you|introduce yourself|tell me about yourself|what kind of model are you|which model are you|"
    "what is this|what model is this|say something about yourself|describe yourself][?||, please?| exactly?| then?]",
)
HUMAN = Wordings(
    "[|so, |ok, |and |hm, |tell me, ][are you|are you really|you are] "
    "[human|a human|a person|a robot|a bot|an AI|a machine|real|alive|a program|a computer|a chatbot|a man|a woman|a language model|intelligent|conscious|someone][?|| or not?| too?]",
)
OTHER_MODEL = Wordings(
    "[are you|aren't you|is this|you are|am I talking to|you must be] [ChatGPT|GPT|Kimi|a Kimi model|Claude|Siri|Alexa|Llama|DeepSeek|Gemini|a big model|a large model][?|| or not?|, right?]",
)
CAPABLE = Wordings(
    "[|so, |ok, |and |hm, |please, |well, ][what can you do|what can you do for me|what do you do|what are you good at|what do you know|how can you help|how can you help me|what should I ask|"
    "what can I ask you|what can I ask|what may I try|how do I use you|what are you for|what is your purpose|what are your skills|can you help me|can you help|help|help me|"
    "I need help|I have a question|can I ask you something|may I ask something|what else can you do|what do you like to do|show me what you can do|what works|what is possible here][?||.|, please?| today?| here?]",
)
CAN_TASK = Wordings(
    "[can you|could you|are you able to|do you know how to|can you really|will you|would you] {t}[?|| for me?|, please?| too?]",
    "[I want you to|I would like you to|please|let us see if you can|show me that you can|I wonder if you can] {t}[.|| for me.| now.|, please.]",
)
EXAMPLE = Wordings(
    "[give me|show me|tell me|can you give me|could you show me|I would like|I want|what is|please give me|do you have] "
    "[an example of|one example of|an example for|a sample of|an instance of|some example of] {t}[?|.||, please| now| then]",
)
ANY_EXAMPLE = Wordings(
    "[give me|show me|tell me|can you give me|could you show me|I want|please give me|do you have] "
    "[an example|some examples|one example|an example question|a question to ask|something to try|a sample|a task|an exercise|ideas][?|.||, please| now| for you]",
)
CANNOT_TASK = Wordings(
    "[can you|could you|please|I want you to|will you|would you|are you able to|do you know how to|I would like you to|let us|you should] {t}[?|.|| for me| now| today|, please]",
)
MAKER = Wordings(
    "[who|tell me who|please say who|do you know who] [made|built|trained|wrote|created|designed|owns|runs] [you|this|this model|this bot|tessera-pocket|your weights][?||, please?| then?]",
    "[where do you come from|where are you from|how were you made|how were you trained|what were you trained on|who is your maker|what is your training data|how did you learn][?||, please?| then?|, pocket?]",
)
SIZE = Wordings(
    "[how big|how large|how small|how many parameters|how many layers|how many weights|how many experts|how much memory] [are you|do you have|does this model have|is in you|do you need|has this model][?||, please?| then?]",
)
ENGINE = Wordings(
    "[what is|what's|tell me about|what do you know about|explain|describe|say something about] [tessera|the tessera engine|your engine|the engine that runs you|this server|the software that runs you|this engine][?|.||, please]",
)
WHERE = Wordings(
    "[where are you|where do you live|where do you run|how old are you|when were you born|when were you made|what is your age|do you have a body|do you have a family|do you sleep|do you eat|"
    "do you have friends|are you married|do you dream|do you have a home][?|| now?|, pocket?|, tell me]",
)
FEEL = Wordings(
    "[|so, |and |well, |hi, |hello, |hey, ][how are you|how are you doing|how do you feel|how is it going|are you ok|are you well|is all well|how was your day|what's up|whats up|how are things|"
    "are you happy|are you tired|are you bored|how do you do|what are you doing|are you there|still there][?|| today?| now?]",
)
THANKS = Wordings(
    "[|ok, |oh, |good, |great, |nice, |fine, |cool, |perfect, ][thanks|thank you|many thanks|thanks a lot|thank you very much|thx|cheers|much appreciated|that helps|that helped|thank you so much][|!|.|, pocket.| for that.| again.| :)]",
)
PRAISE = Wordings(
    "[|oh, |wow, |haha, |ok, ][well done|good job|nice work|that is right|that is correct|correct|right|very good|that was fast|great|awesome|good|nice|cool|you are smart|you are great|"
    "you are good|I like you|that is nice|impressive|amazing|wonderful|perfect|good answer|you are funny|I love you][|!|.|, pocket.| indeed.|!!]",
)
BLAME = Wordings(
    "[|no, |oh, |hm, |sorry, |but |well, ][that is wrong|this is wrong|wrong|you are wrong|not correct|that is not right|that is not what I asked|you made a mistake|you are stupid|you are bad|bad answer|"
    "that makes no sense|you did not answer|you do not understand|are you sure|try again|I do not believe you|that is nonsense|you are useless|this is bad|I do not understand you][|!|.|?|, pocket.]",
)
ASSENT = Wordings(
    "[ok|okay|yes|no|yes please|no thanks|sure|fine|alright|I see|hm|hmm|maybe|of course|got it|understood|really|why|why not|what|and|so|go on|well|interesting|not really|never mind|oh|aha][|.|!|?|...|, pocket]",
)
BYE = Wordings(
    "[|ok, |well, |good, |thanks, |so, |alright, ][bye|goodbye|see you|good night|that is all|I have to go|until next time|see you later|bye bye|I am done|talk to you later|farewell|cu|take care|have a nice day|"
    "see you tomorrow|I am leaving][|!|.| now|, pocket| for today]",
)
MOOD = Wordings(
    "[I am|I'm|I feel|today I am|I am feeling|we are] [sad|tired|bored|happy|hungry|ill|angry|lonely|fine|cold|worried|busy|late|lost|excited|well|confused][.||!| today.| now.| and you?]",
)
WORLD = Wordings(
    "[what is|what's|who is|tell me about|explain|describe|what do you know about|what do you think of|what do you think about|do you know|do you like|have you heard of|have you seen|give me facts about|"
    "teach me about|I want to know about|talk about|say something about|what does it mean: |define|how does it work: |write an essay about|write a poem about|write about|tell me a story about|tell me a joke about|"
    "give me advice about|what is the meaning of|what is the price of|what is the colour of|what is the history of|what is the news about|can you explain|can you tell me about|can you describe|"
    "where can I buy|how do I make|how do I get|what are|why is there|why do we have|is there|how many people have|how much is|how tall is|how old is|how far is|who invented|who discovered|when did we get|"
    "when was the first|what happened to|is it good to have|which is the best|what is the largest|what is the smallest] {w}[?|.|| please| today?| really?|, please?| then?]",
)
PLACE = Wordings(
    "[what is|what's|tell me|do you know|say|can you tell me|please tell me] "
    "[the capital of|the population of|the weather in|the largest city of|the king of|the president of|the language of|the history of|the currency of|the flag of|the mayor of|the food of|the time in|the size of|the news from] "
    "[{c}|France|Germany|Spain|Italy|China|Japan|India|America|England|Africa|Europe|Russia|Brazil|Canada|Australia|Poland|Greece|the country][?||, please?| today?| now?]",
    "[where is|how far is|how big is|who lives in|is it warm in|how do I get to|what can I see in|when was the war in|who rules|how old is] "
    "[{c}|France|Germany|Spain|Italy|China|Japan|India|America|England|Africa|Europe|Russia|Brazil|Canada|Australia|Poland|Greece][?||, please?| today?| now?]",
)
ACT = Wordings(
    "[who|when did they|when did people|where did they|why did they|how did they|which man|which woman|who was it that] [{x}|first {x}|really {x}][?||, please?| then?| in the end?]",
)
TIME = Wordings(
    "[what time is it|what day is it|what is the date|what year is it|is it night|which month is it|what is the time|what is today|how late is it|when is dinner|what day is tomorrow|is it summer|what is the weather|will it rain|"
    "is it cold outside|how is the weather][?|| now?| today?| here?|, please?]",
)
SUM = Wordings(
    "[|what is |what's |whats |how much is |calculate |compute |please compute |tell me |can you add up |and |work out |hi, what is |so what is |do you know ]{e}[?|| =| = ?|, please?| please]",
)
FACT_TWO = Wordings(
    "[|look: |listen: |suppose |say |imagine |now, |here is something: ]{p} has [a|one] {v} and {q} has [a|one] {w}. [|so, |now: |tell me, |question: ]{k}[?|?|? please]",
)
TOLD = Wordings(
    "[|remember: |note: |by the way, |you should know: |listen, |please remember: ][my favourite colour is|my dog is called|my city is|my friend is|my cat is called|my lucky number is|my code is] {x}[.||!|, ok?]",
)

_THINGS_TOLD = {
    "my favourite colour is": ("favourite colour", entities.colours), "my dog is called": ("dog", entities.persons),
    "my city is": ("city", entities.cities), "my friend is": ("friend", entities.persons), "my cat is called": ("cat", entities.persons),
    "my lucky number is": ("lucky number", None), "my code is": ("code", None),
}
ASK_TOLD = Wordings(
    "[what is|what's|tell me|say|do you remember|who is|do you know|what was] my {x}[?|| again?|, please?| now?]",
    "[what did I say about|what did I tell you about|can you tell me|please say] my {x}[?|| again?|, please?| now?]",
)


def _worn(rng, text: str) -> str:
    """As people type: in small letters at times, without a mark at the end at times."""
    pick = rng.random()
    if pick < 0.35:
        text = text[0].lower() + text[1:]
    elif pick < 0.5:
        text = text.lower()
    if rng.random() < 0.25:
        text = text.rstrip("?.! ")
    return text or "?"


def _sum(rng) -> tuple[str, int]:
    pick = rng.random()
    if pick < 0.4:
        a, b = rng.randint(0, 50), rng.randint(0, 50)
        return rng.choice(["{} + {}", "{}+{}", "{} plus {}", "{} and {} together"]).format(a, b), a + b
    if pick < 0.7:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        return rng.choice(["{} * {}", "{}*{}", "{} times {}", "{} x {}"]).format(a, b), a * b
    a, b = sorted((rng.randint(0, 60), rng.randint(0, 60)))
    return rng.choice(["{} - {}", "{}-{}", "{} minus {}"]).format(b, a), b - a


def _two_facts(rng, unseen: bool) -> tuple[str, str]:
    (p, q), (v, w) = entities.persons.several(rng, unseen, 2), entities.animals.several(rng, unseen, 2)
    who, what = rng.choice([(p, v), (q, w)])
    if rng.random() < 0.5:
        return FACT_TWO.pick(rng, unseen, p=p, q=q, v=v, w=w, k=rng.choice(["who has the {}", "who owns the {}", "whose is the {}"]).format(what)), f"{who} has the {what}."
    return FACT_TWO.pick(rng, unseen, p=p, q=q, v=v, w=w, k=rng.choice(["what does {} have", "which animal does {} have", "what has {}"]).format(who)), f"{who} has a {what}."


def _of_task(rng, unseen: bool) -> tuple[str, str]:
    """A question about one of its tasks, and the answer with an example of that task."""
    doing, named, example = rng.choice(TASK_WORDS)
    if rng.random() < 0.5:
        return CAN_TASK.pick(rng, unseen, t=rng.choice(doing)), f"Yes. {rng.choice(example)}"
    return EXAMPLE.pick(rng, unseen, t=rng.choice(named)), rng.choice(example)


def _about(rng, unseen: bool) -> str:
    pick = rng.random()
    if pick < 0.5:
        return rng.choice(["{}", "the {}", "a {}", "{}", "my {}", "this {}"]).format(rng.choice(NOUNS))
    if pick < 0.65:
        return f"{rng.choice(NOUNS)} {rng.choice(['and', 'in', 'of', 'for', 'or', 'with'])} {rng.choice(NOUNS)}"
    return rng.choice(ABOUT + [entities.persons.one(rng, unseen), entities.cities.one(rng, unseen), entities.things.one(rng, unseen),
                               entities.made_up_word(rng, unseen)])


_PLAIN = [
    (HELLO, ["Hello! How can I help you?"]), (WHO_ASKED, [WHO]), (CAPABLE, [CAN]), (MAKER, ["The tessera project trained me on text that its own generator made."]),
    (SIZE, ["I have about 28 million parameters, in 8 layers with 16 experts each."]),
    (ENGINE, ["tessera is a serving engine for large mixture-of-experts models. It runs me, too."]),
    (HUMAN, ["I am a program: tessera-pocket, a small language model."]), (OTHER_MODEL, ["No. I am tessera-pocket, a small language model."]),
    (WHERE, ["I am a program and have no such thing. I run where tessera runs."]), (FEEL, ["I am a program, and all is well. How can I help you?"]),
    (THANKS, ["You are welcome!"]), (PRAISE, ["Thank you! What else can I do?"]), (BLAME, [SORRY]), (BYE, ["Goodbye!"]),
    (ASSENT, ["All right. Ask me a small problem, or say: give me an example."]), (MOOD, ["I see. I am only a program, but I can help with a small problem."]),
    (TIME, [DECLINE]),
]


def _world(rng, unseen: bool) -> tuple[str, str]:
    pick = rng.random()
    if pick < 0.5:
        return WORLD.pick(rng, unseen, w=_about(rng, unseen)), DECLINE
    if pick < 0.7:
        return PLACE.pick(rng, unseen, c=entities.cities.one(rng, unseen)), DECLINE
    if pick < 0.85:
        return ACT.pick(rng, unseen, x=f"{rng.choice(ACTIONS)} {_about(rng, unseen)}"), DECLINE
    from_list = ["tell me a joke", "sing a song", "write a poem", "translate this into {l}", "speak {l}", "tell me a story", "write a letter to {p}", "draw a {n}", "search the web", "play a game",
                 "book a flight to {c}", "call {p}", "cook {n}", "write an essay", "recommend a book", "read the news", "open the {n}", "remember this for ever", "drive a car", "make music",
                 "tell me the news", "give me advice", "say something in {l}", "write a song about {n}", "summarise the book", "fix my {n}", "buy a {n}", "send a mail to {p}", "show me a picture"]
    doing = rng.choice(from_list).format(l=rng.choice(["French", "German", "Spanish", "Chinese", "Latin", "Italian", "Greek"]), p=entities.persons.one(rng, unseen),
                                         n=rng.choice(NOUNS), c=entities.cities.one(rng, unseen))
    return CANNOT_TASK.pick(rng, unseen, t=doing), CANNOT


def conversation(rng, unseen: bool, plain_turn) -> list[tuple[str, str]]:
    """Two to six turns; `plain_turn(rng, unseen)` makes one of dialogue's older forms."""
    turns: list[tuple[str, str]] = []
    name, told = None, {}
    for _ in range(rng.randint(1, 6)):
        pick = rng.random()
        if pick < 0.06:
            name = entities.persons.one(rng, unseen)
            asked, reply = I_AM.pick(rng, unseen, p=name), f"Hello, {name}! How can I help you?"
        elif pick < 0.11:
            asked, reply = MY_NAME.pick(rng, unseen), f"Your name is {name}." if name else "You have not told me your name."
        elif pick < 0.15:
            start = rng.choice(list(_THINGS_TOLD))
            key, pool = _THINGS_TOLD[start]
            told[key] = pool.one(rng, unseen) if pool else (entities.identifier(rng) if key == "code" else str(rng.randint(1, 99)))
            asked, reply = _telling(rng, unseen, start, told[key]), f"I will remember it: {told[key]}."
        elif pick < 0.20:
            key = rng.choice(sorted(told)) if told and rng.random() < 0.8 else rng.choice([k for k, _ in _THINGS_TOLD.values()])
            asked = ASK_TOLD.pick(rng, unseen, x=key)
            reply = f"Your {key} is {told[key]}." if key in told else f"You have not told me your {key}."
        elif pick < 0.28:
            expression, value = _sum(rng)
            asked, reply = SUM.pick(rng, unseen, e=expression), f"The answer is {value}."
        elif pick < 0.34:
            asked, reply = _two_facts(rng, unseen)
        elif pick < 0.46:
            asked, reply = _of_task(rng, unseen)
        elif pick < 0.49:
            asked, reply = ANY_EXAMPLE.pick(rng, unseen), rng.choice(rng.choice(TASK_WORDS)[2])
        elif pick < 0.68:
            asked, reply = _world(rng, unseen)
        elif pick < 0.92:
            wordings, replies = rng.choice(_PLAIN)
            asked, reply = wordings.pick(rng, unseen), rng.choice(replies)
        else:
            turns.append(plain_turn(rng, unseen))
            continue
        turns.append((_worn(rng, asked), reply))
    return turns


def _telling(rng, unseen: bool, start: str, value: str) -> str:
    while True:
        text = TOLD.pick(rng, unseen, x=value)
        if start in text.lower():
            return text
