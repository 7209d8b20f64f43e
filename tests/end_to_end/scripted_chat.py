"""What the `openai` client receives of reasoning and tool calls, streamed and not, from a model of every family that writes
what it is told to.

Usage: scripted_chat.py SCRIPTED_SERVER TESSERA
Then `tessera chat` with the same model.
"""

import json
import os
import pty
import random
import re
import subprocess
import sys
import tempfile

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "options": {"type": "object"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "ping.all-hosts"}},
]


def kimi_calls(calls):
    text = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>" if calls else ""


def glm_calls(newline):
    def write(calls):
        text = ""
        for name, arguments in calls:
            text += f"{newline}<tool_call>{name}{newline}"
            for key, value in arguments.items():
                value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                text += f"<arg_key>{key}</arg_key>{newline}<arg_value>{value}</arg_value>{newline}"
            text += "</tool_call>"
        return text

    return write


def hermes_calls(calls):
    return "".join(
        "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"
        for name, arguments in calls
    )


class Family:
    """How a family writes an answer; `think` has the reasoning and the content in it, None where there is no reasoning."""

    def __init__(self, calls, think, switch=None):
        self.calls, self.think, self.switch = calls, think, switch

    def write(self, reasoning, content, calls):
        text = self.think.format(reasoning, content) if self.think else content
        return text + (self.calls(calls) if self.calls else "")


FAMILIES = {
    "kimi_k2": Family(kimi_calls, None),
    "kimi_k2_thinking": Family(kimi_calls, "<think>{}</think>{}"),
    "kimi_k25": Family(kimi_calls, "{}</think>{}", "thinking"),
    "glm45": Family(glm_calls("\n"), "\n<think>{}</think>\n{}", "enable_thinking"),
    "glm47": Family(glm_calls(""), "{}</think>{}", "enable_thinking"),
    "qwen25": Family(hermes_calls, None),
    "qwen3": Family(hermes_calls, "<think>\n{}\n</think>\n\n{}", "enable_thinking"),
    "smollm2": Family(None, None),
}

NESTED = {"city": "Zürich", "days": 3, "exact": True, "tags": ["a", "ü\"\\"], "options": {"x": {"y": [1, 2.5, None]}, "z": "</b>"}}
CASES = {
    "two calls side by side": ("First this.", "I look.", [("get_weather", NESTED), ("get_weather", {"city": "001", "days": -4})]),
    "only calls": ("Both.", "", [("ping.all-hosts", {}), ("get_weather", {"city": "Bern"})]),
    "a call without arguments": ("Hm.", "One moment", [("ping.all-hosts", {})]),
    "plain text": ("No tool is needed.", "Nothing to do: 1 < 2, a <b> c, [x], {\"y\": 1}.\n\n- done", []),
    "beginnings of markers": ("a <", "<|tool_call <tool_cal <thin </arg_ <|im_e <", []),
    "non-ASCII": ("考えて🤔 …", "naïve 😀 日本語 👩‍👩‍👧‍👦 한글", [("get_weather", {"city": "東京 🗼", "tags": ["ß", "😀"]})]),
    "20 KB of arguments": ("Long.", "", [("get_weather", {"city": "x" * 20480 + "\n\"é", "days": 1})]),
}


class Seen:
    """An answer as a client puts it together."""

    def __init__(self, reasoning="", content="", finish_reason=None):
        self.reasoning, self.content, self.finish_reason = reasoning, content, finish_reason
        self.calls, self.ids = [], []

    def __eq__(self, other):
        return (self.reasoning, self.content, self.finish_reason, self.calls) == (
            other.reasoning, other.content, other.finish_reason, other.calls)

    def __repr__(self):
        return repr({k: str(v)[:600] for k, v in vars(self).items()})


def whole(client, **options):
    answer = client.chat.completions.create(model="toy", **options)
    choice = answer.choices[0]
    message = choice.message
    seen = Seen(getattr(message, "reasoning_content", None) or "", message.content or "", choice.finish_reason)
    for call in message.tool_calls or []:
        assert call.type == "function" and call.id
        seen.ids.append(call.id)
        seen.calls.append((call.function.name, call.function.arguments))
    assert message.content is not None or seen.calls
    return seen, answer


def streamed(client, **options):
    seen = Seen()
    for chunk in client.chat.completions.create(model="toy", stream=True, **options):
        assert chunk.usage is None and len(chunk.choices) == 1  # No usage chunk: nobody asked for it.
        choice = chunk.choices[0]
        assert seen.finish_reason is None, "a chunk after the last one"
        seen.finish_reason = choice.finish_reason
        seen.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        seen.content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            if call.index == len(seen.calls):
                assert call.id and call.type == "function"
                seen.ids.append(call.id)
                seen.calls.append((call.function.name, call.function.arguments))
            else:
                assert call.index == len(seen.calls) - 1 and call.id is None and call.function.name is None
                name, arguments = seen.calls[-1]
                seen.calls[-1] = (name, arguments + call.function.arguments)
    return seen


def messages_for(text):
    return [{"role": "user", "content": f"write \1{text}\2"}]


def both(client, text, **options):
    options = {"messages": messages_for(text), **options}
    seen, answer = whole(client, **options)
    in_parts = streamed(client, **options)
    assert in_parts == seen, (text[:300], seen, in_parts)
    assert len(set(seen.ids)) == len(seen.ids)
    return seen, answer


def check_cases(client, family, options):
    for name, (reasoning, content, calls) in CASES.items():
        if family.calls is None and calls:
            continue
        text = family.write(reasoning, content, calls)
        seen, answer = both(client, text, **options)
        expected = Seen(reasoning if family.think else "", content, "tool_calls" if calls else "stop")
        expected.calls = calls
        seen.calls = [(function, json.loads(arguments)) for function, arguments in seen.calls]
        assert seen == expected, (name, seen, expected)
        if not calls or len(text) > 4000:
            continue
        # Cut off inside the last call, and by a stop string at its name: said as it happened.
        tokens = answer.usage.completion_tokens
        cut, _ = both(client, text, max_tokens=tokens - 4, **options)
        assert cut.finish_reason == "length", (name, cut)
        stopped, _ = both(client, text, stop=calls[-1][0], **options)
        assert stopped.finish_reason == "stop" and len(stopped.calls) < len(calls), (name, stopped)


def check_history(client, family, options):
    """An answer goes back as the client's library gives it, and its calls are answered."""
    text = family.write("r", "c", [("get_weather", {"city": "x"}), ("ping.all-hosts", {})])
    _, answer = whole(client, messages=messages_for(text), **options)
    message = answer.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]}
        for call in message.tool_calls
    ]
    history = messages_for(text) + [message] + results + messages_for(family.write("again", "sunny", []))
    seen, _ = whole(client, messages=history, **options)
    assert seen.content == "sunny" and seen.finish_reason == "stop", seen


def check_look_alikes(client, family, options, random_numbers):
    """Pieces of text and markers in any order, markers also spelled in ordinary tokens: nothing leaks, however it comes."""
    markers = ["<think>", "</think>"] if family.think else []
    if family.calls is kimi_calls:
        markers += ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                    "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
    elif family.calls is not None:
        markers += ["<tool_call>", "</tool_call>"]
    for _ in range(8):
        pieces = random_numbers.choices(markers + ["text", " ", "\n", "<", "é", '{"name": "x"}', "functions.f:0"], k=10)
        text = "".join(random_numbers.choice(["", "\3"]) + piece for piece in pieces)
        seen, _ = both(client, text, **options)
        assert not any(marker in seen.content + seen.reasoning for marker in markers), (pieces, seen)


def check_family(name, family, port, random_numbers):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, timeout=60)
    options = {"tools": TOOLS, "tool_choice": "auto"} if family.calls else {}
    check_cases(client, family, options)
    check_look_alikes(client, family, options, random_numbers)
    if family.calls:
        check_history(client, family, options)
        none, _ = both(client, family.write("r", "c", [("ping.all-hosts", {})]), tools=TOOLS, tool_choice="none")
        assert not none.calls and none.finish_reason == "stop", none
        for refused in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            try:
                client.chat.completions.create(model="toy", messages=messages_for("x"), tools=TOOLS, tool_choice=refused)
                raise AssertionError(f"{name}: tool_choice {refused} was accepted")
            except openai.BadRequestError as error:
                assert "tool_choice" in error.body["message"]
    if family.switch:
        off, _ = both(client, "plain", extra_body={"chat_template_kwargs": {family.switch: False}})
        assert (off.reasoning, off.content) == ("", "plain"), off
    print(f"{name}: held")


def check_terminal(tessera, port):
    """The terminal: the answer alone on standard output with --once; calls readable, their results asked for; history."""
    family = FAMILIES["kimi_k25"]
    text = family.write("Let me think.", "I look.", [("get_weather", NESTED)])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(TOOLS, file)
        file.flush()

        def chat(*flags, text=""):
            command = [tessera, "chat", "--url", f"http://127.0.0.1:{port}", "--tools", file.name, *flags]
            return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)

        once = chat("--once", f"\1{text}\2")
        assert once.returncode == 0 and once.stderr == "Let me think.\n", once
        head, call = once.stdout.split("call get_weather\n")
        assert head == "I look.\n" and json.loads(call) == NESTED, once.stdout
        assert all(len(line) <= 80 for line in once.stdout.splitlines())
        plain = chat("--once", "\1Why?</think>Because.\2")
        assert (plain.stdout, plain.stderr) == ("Because.\n", "Why?\n"), plain
        # Dimmed where a person looks, and there alone.
        master, slave = pty.openpty()
        command = [tessera, "chat", "--url", f"http://127.0.0.1:{port}", "--once", "\1Why?</think>Because.\2"]
        dimmed = subprocess.run(command, stdout=subprocess.PIPE, stderr=slave, text=True, timeout=60)
        shown = os.read(master, 65536).decode()
        os.close(master)
        os.close(slave)
        assert dimmed.stdout == "Because.\n" and "\x1b[2m" in shown, (dimmed, shown)
        assert re.sub(r"\x1b\[[02]m", "", shown).strip() == "Why?", shown
        completed = chat("--completion", "--once", "\1as it is\2")
        assert completed.stdout == "as it is\n", completed
        lines = [f"\1{text}\2", "\1Good.</think>It rains.\2", "/think off", "\1At once.\2", "/think maybe", "/quit"]
        talk = chat(text="\n".join(lines) + "\n")
        assert talk.returncode == 0, talk
        for words in ("call get_weather", '"city": "Zürich"', "It rains.", "(it answers at once)", "At once.", "unknown command"):
            assert words in talk.stdout, (words, talk.stdout)
        command = [tessera, "chat", "--tools", "/no/such/file", "--once", "x"]
        bad = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert bad.returncode == 1 and "/no/such/file" in bad.stderr, bad
    print("terminal: held")


def main():
    random_numbers = random.Random(20261130)
    process = subprocess.Popen([sys.argv[1], *FAMILIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        ports = dict(process.stdout.readline().split() for _ in FAMILIES)
        for name, family in FAMILIES.items():
            check_family(name, family, ports[name], random_numbers)
        check_terminal(sys.argv[2], ports["kimi_k25"])
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
    print("scripted chat: all held")


if __name__ == "__main__":
    main()
