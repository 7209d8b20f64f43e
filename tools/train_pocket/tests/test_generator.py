"""The generator's answers, worked out a second time in another way."""

import contextlib
import io
import json
import random
import re

import pytest

import chat
import heldout
import score
import stream
from entities import UNSEEN_WORDS
from tasks import TASKS, arithmetic, chains, choice, dialogue, episodes, retrieval, talk, tracing
from wording import Wordings, expand, is_unseen

DRAWS = 150


def draws(task: str, count: int = DRAWS):
    module = TASKS[task]
    for level in module.LEVELS + getattr(module, "BEYOND", ()):
        for unseen in (False, True):
            rng = random.Random(f"test {task} {level} {unseen}")
            for _ in range(count):
                yield module.make(rng, level, unseen)


def test_arithmetic_steps_and_answers():
    for example in draws("arithmetic"):
        text = example.messages[-1]["content"]
        assert example.level not in arithmetic.AT_ONCE or "\n" not in text
        for line in text.splitlines()[:-1]:
            left, right = line.split(" = ")
            assert eval(left.replace("/", "//")) == int(right), line
        value = 0
        for op, n in example.facts["steps"]:
            if op == "/":
                assert value % n == 0
            value = eval(f"{value}{op.replace('/', '//')}{n}") if op else n
            assert value > 0
            assert str(n) in example.messages[0]["content"]
        assert value == example.answer and text.endswith(f"The answer is {value}.")


def _who_has(facts: list[str], name: str, options: list[str]) -> list[str]:
    words = lambda s: set(re.findall(r"[A-Za-z0-9]+", s))  # noqa: E731
    told = [fact for fact in facts if name in words(fact)]
    return [o for o in options if any(o in words(fact) for fact in told)]


def test_choice_options_follow_from_the_facts():
    for example in draws("choice"):
        facts, options, right = example.facts["facts"], example.facts["options"], example.facts["right"]
        assert len(set(options)) == len(options)
        question = example.messages[0]["content"]
        if example.level in (1, 2, 3, 6, 8):
            named = [n for n in set(re.findall(r"[A-Z][a-z]+", question)) if _who_has(facts, n, options)]
            assert any(_who_has(facts, n, options) == [right] for n in named), question
        elif example.level == 4 and any(re.search(r"\d", f) for f in facts):
            ages = {o: int(re.search(r"\d+", next(f for f in facts if re.search(rf"\b{o}\b", f))).group()) for o in options}
            assert right in (max(ages, key=ages.get), min(ages, key=ages.get))
        elif example.level == 9:
            # Of all, not only of those offered; and those offered are the nearest to it.
            age = lambda name: int(re.search(r"\d+", next(f for f in facts if re.search(rf"\b{name}\b", f))).group())  # noqa: E731
            ages, offered = sorted(int(re.search(r"\d+", fact).group()) for fact in facts), sorted(map(age, options))
            young = bool(re.search(r"\b(younge|lowest)", question))
            assert len(offered) == min(4, len(ages)) and offered == (ages[:4] if young else ages[-4:])
            assert age(right) == (ages[0] if young else ages[-1])
        elif example.level in choice.HOPS:
            # From the person asked about, friend by friend, to the one who alone holds the value.
            friends = [f for f in facts if "best friend" in f]
            assert not any(_who_has([f], right, [right]) for f in friends)
            holder = next(f for f in facts if f not in friends and _who_has([f], right, [right]))
            names = lambda s: set(re.findall(r"[A-Z][a-z]+", s)) - {"We", "It", "Everyone", "They", "In", "As"}  # noqa: E731
            asked = question[question.rindex("the best friend of ") :]
            reached = {re.search(r"[A-Z][a-z]+", asked).group()}
            for _ in range(choice.HOPS[example.level] - 1):
                told = next(f for f in friends if reached & names(f))
                reached = names(told) - reached
                friends.remove(told)
            assert reached & names(holder), question
        if "letters" in example.facts:
            assert re.search(rf"[( ]?{example.answer}[.):]+ {re.escape(right)}", question)
        else:
            assert example.answer == right and question.count(right) >= 2


def test_retrieval_has_its_value_once_and_rebuilds():
    for unseen in (False, True):
        for level in retrieval.LEVELS + retrieval.BEYOND:
            rng = random.Random(f"r {unseen} {level}")
            for length in (256, 1024, 4096):
                for _ in range(10):
                    example = retrieval.make(rng, level, unseen, length)
                    text, facts = example.messages[0]["content"], example.facts
                    assert any(example.answer.split(": ")[-1].lower() in needle.lower() for needle in facts["needles"])
                    body = retrieval.expand(facts["haystack"], retrieval.fillers(unseen))
                    assert text == f"{facts['before']}\n{body}\n{facts['after']}"
                    for needle in facts["needles"]:
                        assert needle in body
                    if level == 5:
                        numbers = {int(re.search(r"\d+", needle).group()): needle for needle in facts["needles"]}
                        assert example.answer.lower() in numbers[max(numbers)].lower()


def _said_values(text: str) -> list[int]:
    """What the sums, products and doubles in a request come to."""
    said = re.findall(r"\d+(?: (?:plus|times) \d+)+", text)
    values = [eval(s.replace("plus", "+").replace("times", "*")) for s in said]
    return values + [2 * int(n) for n in re.findall(r"[Tt]wice (\d+)", text)]


def test_tool_calls_satisfy_their_schemas():
    for example in draws("tools"):
        if example.scoring != "calls":
            continue
        turn = next(m for m in example.messages if m["role"] == "assistant")
        text = "".join(segment for segment, _, _ in chat.render_message(turn)[3:-1])
        assert score.valid_calls(text, example.tools), text
        assert score.calls(text, example.answer)
        spoken = example.messages[0]["content"]
        for _, arguments in example.answer:
            for value in arguments.values():
                computed = example.level == 6 and isinstance(value, int) and value in _said_values(spoken)
                assert isinstance(value, bool) or computed or str(value) in spoken


def test_episodes_use_only_what_they_were_told():
    for example in draws("episodes"):
        known, calls = example.messages[0]["content"], 0
        for message in example.messages[1:]:
            for call in message.get("tool_calls", []):
                assert call["id"].endswith(f":{calls}")
                calls += 1
                for value in call["arguments"].values():
                    assert str(value) in known
            known += message["content"]
        assert calls <= episodes.FAILING.get(example.level, example.level)
        if example.level in episodes.FAILING:
            assert calls == episodes.FAILING[example.level] and sum('{"error"' in m["content"] for m in example.messages) == 1
        results = [json.loads(m["content"]) for m in example.messages if m["role"] == "tool"]
        final = example.messages[-1]["content"]
        if "amounts" in example.facts:
            amounts = [v for r in results for v in r.values() if isinstance(v, int)]
            told = f"is {sum(amounts)}." if example.level in episodes.TOTALS else f"is {max(amounts)}, of"
            assert told in final
        elif example.facts["trouble"] != "refused":
            assert final.endswith(f"is {list(results[-1].values())[0]}.")


def test_traced_programs_print_their_answers():
    for example in draws("tracing"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(example.facts["code"], {})
        assert out.getvalue().strip() == example.answer
        assert example.level != tracing.AT_ONCE or "\n" not in example.messages[-1]["content"]
        assert score.trace(example.messages[-1]["content"], example.answer)


def test_dense_tracing_asks_about_what_the_program_leaves():
    rng = random.Random("dense tracing")
    for _ in range(DRAWS):
        example = tracing.make(rng, 2, False, dense=True)
        scope: dict = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(example.facts["code"], scope)
        replies = [m["content"] for m in example.messages if m["role"] == "assistant"]
        for line in replies[0].splitlines()[:-1]:
            equal = line.split(" (")[0].split(" = ")[2:]  # after names, whose values may have changed since
            assert all(eval(side) == int(equal[-1]) for side in equal), line
        asked = example.facts.get("asked", [])
        assert not asked or len(asked) == len(replies)
        for (what, value), reply in zip(asked, replies):
            assert eval(what, {}, scope) == value and reply.endswith(f"It prints {value}.")


def test_dense_recall_answers_stand_in_the_text():
    rng = random.Random("dense recall")
    for level in (1, 2, 3, 4):
        for _ in range(DRAWS):
            example = TASKS["recall"].make(rng, level, False, dense=True)
            text = example.messages[0]["content"]
            for reply in (m["content"] for m in example.messages if m["role"] == "assistant"):
                words = re.findall(r"[\w-]+", reply)
                assert words[-1] in text or words[-1].capitalize() in text


def _after(lines: list[str], key: str) -> list[str]:
    """What lines that name the key hold beside it, word by word."""
    return [w for line in lines if key in re.findall(r"\w+", line) for w in re.findall(r"\w+", line) if w != key]


def test_chains_end_where_two_lookups_lead():
    rng, seen = random.Random("chains"), 0
    for _ in range(6 * DRAWS):
        messages = chains.make(rng, rng.randint(1, 6), False)
        lines = re.split(r"\n|(?<=[.;]) |(?<=\d) (?=\w+ ->)", messages[0]["content"].rsplit("\n", 1)[0])
        for asked, reply in zip(messages[::2], messages[1::2]):
            key = re.search(r"best friend of (\w+)|after (\w+)|from (\w+)", asked["content"].rsplit("\n", 1)[-1])
            pairs = [line.split(": ") for line in reply["content"].split("\n")] if ": " in reply["content"] else []
            if not pairs and key and len(reply["content"].split()) == 1:
                pairs = [[next(group for group in key.groups() if group), reply["content"]]]
            for start, rest in pairs:
                value = rest.split(", ")[-1]
                bridges = _after(lines, start)
                assert value in bridges or any(value in _after(lines, bridge) for bridge in bridges), (messages, start)
                seen += 1
    assert seen > 10 * DRAWS


def test_talk_remembers_and_reckons():
    rng = random.Random("talk")
    for _ in range(4 * DRAWS):
        name, told = None, {}
        for asked, reply in talk.conversation(rng, False, dialogue.turn):
            if found := re.match(r"Hello, (\w+)!", reply):
                name = found.group(1)
                assert name.lower() in asked.lower()
            elif found := re.match(r"Your name is (\w+)\.", reply):
                assert found.group(1) == name
            elif found := re.match(r"I will remember it: (.+)\.", reply):
                assert found.group(1).lower() in asked.lower()
                told[found.group(1)] = asked
            elif found := re.match(r"Your (.+) is (.+)\.", reply):
                assert found.group(1) in told[found.group(2)].lower()
            elif found := re.match(r"The answer is (-?\d+)\.", reply):
                a, sign, b = re.search(r"(\d+) ?(\+|-|\*|plus|minus|times|x|and) ?(\d+)", asked).groups()
                sign = {"plus": "+", "and": "+", "minus": "-", "times": "*", "x": "*"}.get(sign, sign)
                assert eval(f"{a} {sign} {b}") == int(found.group(1)), asked


def test_a_mix_changes_only_what_it_names():
    plain = stream.shares(0.5, stream.Mix())
    assert abs(sum(plain.values()) - 1) < 1e-9 and all(abs(plain[name] - share) < 1e-9 for name, share in stream.SHARES.items())
    mixed = stream.shares(0.5, stream.Mix.parse("tracing=0.2", "", False))
    assert abs(sum(mixed.values()) - 1) < 1e-9 and mixed["tracing"] > 2 * plain["tracing"]
    assert abs(mixed["tools"] / mixed["choice"] - plain["tools"] / plain["choice"]) < 1e-9
    rng, often = random.Random("mix"), stream.Mix.parse("", "tracing/2=50", False)
    levels = [stream.level_of(rng, "tracing", 1.0, often) for _ in range(200)]
    assert levels.count(2) > 150 and set(levels) != {2}
    assert not any(stream.Mix().forms(task) for task in TASKS)
    assert stream.Mix.parse("", "", chains=True).forms("recall") == {"chains": True}
    with pytest.raises(ValueError):
        stream.Mix.parse("", "tracing/9=2", False)


def test_functions_pass_their_tests_and_wrong_ones_fail():
    for example in draws("functions", 60):
        assert score.code(example.messages[-1]["content"], example.answer)
        assert not score.code(f"```python\ndef {example.facts['name']}(*a):\n    return 'no'\n```", example.answer)


def test_code_scoring_refuses_what_could_harm():
    bad = ["import os", "def f(x):\n    return x.real", "def f(x):\n    while True:\n        pass",
           "def f(x):\n    return 9 ** 9 ** 9", "def f(x):\n    return f(x)", "def f(x):\n    return open('a')"]
    for source in bad:
        assert not score.code(f"```python\n{source}\n```", ["f(1) == 1"])


@pytest.mark.parametrize("task", list(TASKS))
def test_seen_examples_hold_no_unseen_entity(task):
    proper = {w for w in UNSEEN_WORDS if w[0].isupper()}
    rng = random.Random(f"seen {task}")
    for level in TASKS[task].LEVELS:
        for _ in range(80):
            forms = {form: rng.random() < 0.7 for form, tasks in stream.FORMS.items() if task in tasks}
            example = TASKS[task].make(rng, level, False, **forms)
            text = " ".join(m["content"] for m in example.messages)
            words = set(re.findall(r"[A-Za-z]+", text))
            assert not proper & words


def test_wordings_are_many_and_split():
    for task in [*TASKS.values(), chains, talk]:
        for value in vars(task).values():
            if isinstance(value, Wordings):
                assert len(value) >= 48
                assert not set(value.seen) & set(value.unseen)
                assert all(is_unseen(text) for text in value.unseen)
    assert expand("[a|b] [c|d]") == ["a c", "a d", "b c", "b d"]


def test_held_out_sets_are_recreated_from_their_names():
    for cell in heldout.cells()[::7]:
        assert heldout.exported(cell, 3) == heldout.exported(cell, 3)
        record = heldout.exported(cell, 0)
        json.dumps(record)
        if "messages" in record and record["scoring"] != "episode":
            assert record["messages"][-1]["role"] == "user"
