"""Generated tools: declarations in OpenAI's form, composed of a verb, a noun and typed parameters.

Unseen tools are (verb, noun) pairs and parameter sets that training never draws, over unseen entities.
"""

import entities
from wording import is_unseen

# The name in the tool, and what a user may say instead.
VERBS = {
    "get": "get,show me,fetch,tell me".split(","),
    "find": "find,look for,search for,track down".split(","),
    "book": "book,reserve,secure".split(","),
    "create": "create,make,set up,add".split(","),
    "cancel": "cancel,call off,drop".split(","),
    "send": "send,mail,forward".split(","),
    "update": "update,change,edit".split(","),
    "delete": "delete,remove,erase".split(","),
    "start": "start,launch,switch on,begin".split(","),
    "stop": "stop,halt,switch off,end".split(","),
    "check": "check,test,verify,inspect".split(","),
    "order": "order,buy,purchase".split(","),
    "print": "print,print out".split(","),
    "open": "open,unlock".split(","),
    "close": "close,shut,lock".split(","),
    "share": "share,publish".split(","),
}
NOUNS = """weather flight hotel table ticket invoice message meeting reminder route price stock parcel song lamp door
account report room taxi event note recipe map alarm battery camera channel contract course engine file folder form
garden heater image job key letter list loan machine menu model oven page photo plan playlist poll printer profile
queue record review screen sensor service shop shelf signal site survey task team timer train video window""".split()

UNITS = {
    "unit": ["celsius", "fahrenheit", "kelvin"],
    "size": ["small", "medium", "large"],
    "mode": ["fast", "slow", "quiet"],
    "format": ["pdf", "html", "text"],
    "level": ["low", "normal", "high"],
    "class": ["first", "second", "economy"],
    "order": ["rising", "falling"],
    "color": ["red", "green", "blue"],
}
STRINGS = {
    "city": entities.cities, "location": entities.cities, "destination": entities.cities,
    "person": entities.persons, "guest": entities.persons, "owner": entities.persons,
    "item": entities.things, "topic": entities.things, "label": entities.foods,
}
INTEGERS = "count guests days hours minutes quantity limit width weight volume floor seats".split()
FLAGS = "urgent private repeat notify silent gift".split()
CODES = "code reference number_id tag".split()

KINDS = ("string", "integer", "enum", "boolean", "code", "date")


class Parameter:
    """One parameter: name, JSON schema, a value for it, and a phrase that gives the value to the model."""

    def __init__(self, rng, kind: str, taken: set[str]):
        choices = {
            "string": list(STRINGS), "integer": INTEGERS, "enum": list(UNITS), "boolean": FLAGS,
            "code": CODES, "date": ["date", "day", "deadline"],
        }[kind]
        free = [name for name in choices if name not in taken]
        self.kind, self.name = kind, rng.choice(free)
        taken.add(self.name)
        self.schema = {"type": "string"}
        if kind == "integer":
            self.schema = {"type": "integer"}
        elif kind == "boolean":
            self.schema = {"type": "boolean"}
        elif kind == "enum":
            self.schema = {"type": "string", "enum": UNITS[self.name]}

    def value(self, rng, unseen: bool):
        if self.kind == "string":
            return STRINGS[self.name].one(rng, unseen)
        if self.kind == "integer":
            return rng.randint(1, 99)
        if self.kind == "enum":
            return rng.choice(UNITS[self.name])
        if self.kind == "boolean":
            return rng.random() < 0.5
        if self.kind == "code":
            return entities.identifier(rng)
        return f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"

    def phrase(self, rng, value) -> str:
        word = self.name.replace("_", " ")
        if self.kind == "boolean":
            said = rng.choice(["yes", "on", "true"]) if value else rng.choice(["no", "off", "false"])
            return rng.choice([f"with {word} set to {said}", f"{word}: {said}", f"and {word} {said}"])
        forms = [f"with {word} {value}", f"{word} {value}", f"{word}: {value}", f"where the {word} is {value}",
                 f"using {value} as {word}", f"and make the {word} {value}"]
        natural = {"city": "in {}", "location": "at {}", "destination": "to {}", "person": "for {}", "owner": "of {}",
                   "guest": "for {}", "item": "with {}", "topic": "about {}", "days": "for {} days",
                   "hours": "for {} hours", "minutes": "for {} minutes", "guests": "for {} guests",
                   "seats": "with {} seats", "date": "on {}", "deadline": "by {}", "unit": "in {}"}
        if self.name in natural:
            forms += [natural[self.name].format(value)] * 4
        return rng.choice(forms)


class Tool:
    def __init__(self, verb: str, noun: str, parameters: list[Parameter], optional: set[str], described: bool):
        self.verb, self.noun, self.parameters, self.optional = verb, noun, parameters, optional
        self.name = f"{verb}_{noun}"
        self.described = described

    def declaration(self) -> dict:
        required = [p.name for p in self.parameters if p.name not in self.optional]
        function = {
            "name": self.name,
            "parameters": {
                "type": "object",
                "properties": {p.name: dict(p.schema) for p in self.parameters},
                "required": required,
            },
        }
        if self.described:
            function["description"] = f"{self.verb.capitalize()} the {self.noun}."
        return {"type": "function", "function": function}


def draw_pair(rng, unseen: bool, taken: set[str]) -> tuple[str, str]:
    verbs = list(VERBS)
    while True:
        verb, noun = rng.choice(verbs), rng.choice(NOUNS)
        name = f"{verb}_{noun}"
        if is_unseen(name) == unseen and name not in taken:
            taken.add(name)
            return verb, noun


def draw_tool(rng, unseen: bool, taken: set[str], kinds: list[str], optional: int = 0) -> Tool:
    verb, noun = draw_pair(rng, unseen, taken)
    names: set[str] = set()
    parameters = [Parameter(rng, kind, names) for kind in kinds]
    free = {p.name for p in rng.sample(parameters, optional)} if optional else set()
    return Tool(verb, noun, parameters, free, rng.random() < 0.6)
