"""Names, things and values that tasks are about, drawn from lists and from syllables.

A checksum decides which entities are unseen: of every list the words with the smallest ones, at least three and at
least one in eight, and of made-up words those that `wording.is_unseen` names. Training never draws them, from any
list. Made-up words keep the model from relying on closed lists: what it must learn is to copy.
"""

import zlib

from wording import is_unseen

PERSONS = """Ana Ben Cara Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Nico Olga Paul Rosa Sam Tina Udo Vera Will Yara
Zoe Adam Bella Carl Dora Emil Fay Greg Hana Ivan Jane Kurt Lily Mark Nina Omar Pia Quinn Ruth Seth Tara Uma Vic Wendy
Yuri Zack Alice Boris Clara David Erika Frank Grace Henry Irene James Karen Louis Maria Noah Oscar Petra Ralf Susan
Tom Ursula Victor Walter Xenia Yvonne Anton Berta Cyril Diana Ethan Flora Georg Helen Isaac Julia Kevin Laura Martin
Nora Oliver Paula Robert Sarah Theo Viola Amir Chen Divya Emeka Farah Goro Hiro Indira Jamal Kofi Lena Mei Nadia Okoro
Priya Ravi Sanjay Tariq Usha Wei Yusuf Zainab Alba Bruno Carmen Diego Elena Felipe Gloria Hector Ines Jorge Lucia Mateo
Noemi Pablo Raul Sofia Tomas Valeria Arne Birgit Dagmar Eskil Freya Gunnar Hilde Ingrid Jonas Kirsten Lars Marit Nils
Ragna Sven Tove Ulf Astrid Bjorn Olaf Signe""".split()

THINGS = """apples pears plums lemons oranges bananas cherries grapes melons peaches figs dates nuts carrots onions
potatoes tomatoes beans peppers pumpkins eggs loaves cakes cookies pies rolls sweets pens pencils books papers cards
stamps coins keys boxes bags baskets bottles cups plates bowls spoons forks knives chairs tables lamps clocks maps
pictures balls kites dolls drums bells flags ribbons buttons beads shells stones bricks planks nails screws ropes
tickets letters parcels shirts socks hats gloves scarves shoes coats belts rings flowers roses tulips seeds trees
ducks hens goats sheep horses cows rabbits fish birds bees candles matches brushes combs mirrors pillows blankets
towels buckets shovels hammers saws ladders wheels tyres bikes boats trains cars toys blocks puzzles games photos
notes files disks cables bulbs magnets""".split()

CITIES = """Oslo Rome Paris Lima Cairo Delhi Tokyo Seoul Quito Bern Prague Vienna Madrid Lisbon Dublin London Berlin
Munich Hamburg Warsaw Athens Sofia Riga Minsk Kyiv Tunis Accra Lagos Nairobi Dakar Perth Sydney Boston Dallas Denver
Miami Austin Toronto Havana Bogota Caracas Santiago Hanoi Manila Jakarta Dubai Doha Muscat Baku Tbilisi Geneva Zurich
Milan Turin Naples Porto Seville Lyon Nice Ghent Bruges Malmo Bergen Turku Tallinn Vilnius Krakow Gdansk Split Zagreb
Osaka Kyoto Busan Taipei Macau Phuket Galway Leeds York Bath Cork Cardiff""".split()

COLOURS = """red blue green yellow white black brown grey pink purple orange gold silver violet teal navy ivory amber
crimson olive""".split()
ANIMALS = """cat dog horse parrot rabbit turtle goat sheep duck goose pony hamster lizard snake frog owl crow mouse
donkey camel fox swan""".split()
FOODS = """bread rice soup pasta cheese salad pizza cake stew porridge noodles beans curry fish pie toast honey yogurt
dumplings pancakes""".split()
JOBS = """baker doctor farmer teacher painter driver nurse pilot tailor writer singer lawyer judge sailor cook miner
guard clerk smith dentist""".split()
INSTRUMENTS = """piano violin guitar flute drum harp trumpet cello organ banjo horn oboe tuba lute viola
clarinet""".split()
SPORTS = """tennis chess football rugby golf hockey boxing rowing judo cricket skiing sailing fencing running
swimming cycling""".split()

_LISTS = [PERSONS, THINGS, CITIES, COLOURS, ANIMALS, FOODS, JOBS, INSTRUMENTS, SPORTS]
UNSEEN_WORDS = {
    word for words in _LISTS for word in sorted(words, key=lambda w: zlib.crc32(w.encode()))[: max(3, len(words) // 8)]
}

_ONSETS = "b c d f g h j k l m n p r s t v w z br dr st tr pl gr sh ch th kl sn fr".split()
_VOWELS = "a e i o u a e i o u ai ea oo ou".split()
_CODAS = ["", "", "", "", "n", "r", "l", "s", "m", "k", "t", "x"]


def made_up_word(rng, unseen: bool, plural: bool = False) -> str:
    while True:
        count = 2 if rng.random() < 0.7 else 3
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))
        if plural:
            word = word.rstrip("sx") + "s"
        if is_unseen(word) == unseen:
            return word


class Pool:
    """Entities of one sort: a list, topped up with made-up words at the given rate."""

    def __init__(self, words: list[str], made_up: float, capital: bool = False, plural: bool = False):
        self.lists = {flag: [w for w in words if (w in UNSEEN_WORDS) == flag] for flag in (False, True)}
        self.made_up, self.capital, self.plural = made_up, capital, plural

    def one(self, rng, unseen: bool) -> str:
        if rng.random() >= self.made_up:
            return rng.choice(self.lists[unseen])
        word = made_up_word(rng, unseen, self.plural)
        return word.capitalize() if self.capital else word

    def several(self, rng, unseen: bool, count: int) -> list[str]:
        """`count` different entities."""
        found: dict[str, None] = {}
        while len(found) < count:
            # Short unseen lists run dry: made-up words fill up.
            if len(found) + 1 >= len(self.lists[unseen]):
                word = made_up_word(rng, unseen, self.plural)
                found[word.capitalize() if self.capital else word] = None
            else:
                found[self.one(rng, unseen)] = None
        return list(found)


persons = Pool([name for name in PERSONS if name not in CITIES], 0.4, capital=True)
things = Pool(THINGS, 0.2, plural=True)
cities = Pool(CITIES, 0.35, capital=True)
colours = Pool(COLOURS, 0.1)
animals = Pool(ANIMALS, 0.1)
foods = Pool(FOODS, 0.1)
jobs = Pool(JOBS, 0.1)
instruments = Pool(INSTRUMENTS, 0.1)
sports = Pool(SPORTS, 0.1)


def digits(rng, low: int = 3, high: int = 6) -> str:
    count = rng.randint(low, high)
    return str(rng.randint(1, 9)) + "".join(rng.choice("0123456789") for _ in range(count - 1))


def identifier(rng) -> str:
    """A short code such as K381 or QX-27: values that cannot be guessed."""
    letters = "".join(rng.choice("ABCDEFGHKLMNPQRSTVWXZ") for _ in range(rng.randint(1, 2)))
    return letters + rng.choice(["", "-"]) + digits(rng, 2, 4)
