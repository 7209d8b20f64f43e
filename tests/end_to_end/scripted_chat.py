"""What the `openai` client receives of reasoning and tool calls, streamed and not, from a model of every family that writes
what it is told to.

Usage: scripted_chat.py SCRIPTED_SERVER TESSERA
Then `tessera chat` with the same model.
"""

import contextlib
import http.server
import json
import os
import pty
import random
import re
import subprocess
import sys
import tempfile
import termios
import threading
import time

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
    "kimi_k26": Family(kimi_calls, "{}</think>{}", "thinking"),
    "kimi_k27_code": Family(kimi_calls, "{}</think>{}"),
    "glm45": Family(glm_calls("\n"), "\n<think>{}</think>\n{}", "enable_thinking"),
    "glm47": Family(glm_calls(""), "{}</think>{}", "enable_thinking"),
    "glm5": Family(glm_calls(""), "{}</think>{}", "enable_thinking"),
    "glm51": Family(glm_calls(""), "{}</think>{}", "enable_thinking"),
    "glm52": Family(glm_calls(""), "{}</think>{}", "enable_thinking"),
    "qwen25": Family(hermes_calls, None),
    "qwen3": Family(hermes_calls, "<think>\n{}\n</think>\n\n{}", "enable_thinking"),
    "qwen3_instruct_2507": Family(hermes_calls, None),
    "qwen3_thinking_2507": Family(hermes_calls, "{}\n</think>\n\n{}"),
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

    def __init__(self, reasoning="", content=None, finish_reason=None):
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
    seen = Seen(getattr(message, "reasoning_content", None) or "", message.content, choice.finish_reason)
    for call in message.tool_calls or []:
        assert call.type == "function" and call.id
        seen.ids.append(call.id)
        seen.calls.append((call.function.name, call.function.arguments))
    assert (message.content is None) == (bool(seen.calls) and not seen.content), message
    return seen, answer


def streamed(client, **options):
    seen = Seen()
    for chunk in client.chat.completions.create(model="toy", stream=True, **options):
        assert chunk.usage is None and len(chunk.choices) == 1  # No usage chunk: nobody asked for it.
        choice = chunk.choices[0]
        assert seen.finish_reason is None, "a chunk after the last one"
        seen.finish_reason = choice.finish_reason
        seen.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        if choice.delta.content is not None:
            seen.content = (seen.content or "") + choice.delta.content
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
        content = content or (None if calls else "")
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


def of_client_helpers(client, text, options):
    """The same message as each way to ask gives it: the helpers add fields of their own."""
    asked = {"model": "toy", "messages": messages_for(text), **options}
    yield client.chat.completions.create(**asked).choices[0].message
    # parse() takes strict tools only, and reads their arguments.
    strict = [{"type": "function", "function": tool["function"] | {"strict": True}} for tool in options.get("tools", [])]
    yield client.chat.completions.parse(**asked | ({"tools": strict} if strict else {})).choices[0].message
    with client.chat.completions.stream(**asked) as stream:
        yield stream.get_final_completion().choices[0].message


def check_history(client, family, options):
    """An answer goes back as the client's library gives it, in every form that it has there, and its calls are answered."""
    for content, calls in (("c", [("get_weather", {"city": "x"}), ("ping.all-hosts", {})]), ("", [("ping.all-hosts", {})]),
                           ("c", []), ("", [])):
        calls = calls if family.calls else []
        text = family.write("r", content, calls)
        contents = set()
        for message in of_client_helpers(client, text, options):
            contents.add(message.content)
            results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or []]
            assert len(results) == len(calls), message
            for form in (message, message.model_dump(), message.to_dict()):
                history = messages_for(text) + [form] + results + messages_for(family.write("again", "sunny", []))
                seen, _ = whole(client, messages=history, **options)
                assert seen.content == "sunny" and seen.finish_reason == "stop", seen
        # One thing, whichever way it was asked for: no content where there are calls alone.
        assert contents == {content or (None if calls else "")}, (text, contents)


def check_tool_content_as_a_list_of_parts(client, family, options):
    text = family.write("r", "c", [("ping.all-hosts", {})])
    call = whole(client, messages=messages_for(text), **options)[1].choices[0].message
    parts = [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]
    usage = []
    for content in (parts, "sunny"):
        result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": content}
        history = messages_for(text) + [call, result] + messages_for(family.write("again", "sunny", []))
        seen, answer = whole(client, messages=history, **options)
        assert seen.content == "sunny" and seen.finish_reason == "stop", seen
        usage.append(answer.usage.prompt_tokens)
    assert usage[0] == usage[1], usage  # The model was shown the same.


def check_choices(client, family, options):
    """Several choices through the client's own accumulation of a stream."""
    text = family.write("r", "c", [("ping.all-hosts", {})] if family.calls else [])
    with client.chat.completions.stream(model="toy", messages=messages_for(text), n=3, **options) as stream:
        choices = stream.get_final_completion().choices
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert all(choice.message.content == "c" for choice in choices), choices


def check_look_alikes(client, family, options, random_numbers):
    """Pieces of text and markers in any order, markers also spelled in ordinary tokens: nothing leaks, however it comes.

    Of reasoning, only the tokens are markers once the answer has begun: what spells them is text about them.
    """
    thinks = ["<think>", "</think>"] if family.think else []
    markers = []
    if family.calls is kimi_calls:
        markers += ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                    "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
    elif family.calls is not None:
        markers += ["<tool_call>", "</tool_call>"]
    for _ in range(8):
        pieces = random_numbers.choices(thinks + markers + ["text", " ", "\n", "<", "é", '{"name": "x"}', "functions.f:0"], k=10)
        text = "".join(random_numbers.choice(["", "\3"]) + piece for piece in pieces)
        seen, _ = both(client, text, **options)
        shown = f"{seen.content} {seen.reasoning}"
        assert not any(marker in shown for marker in markers), (text, seen)
        assert all(shown.count(think) <= text.count("\3" + think) for think in thinks), (text, seen)


def check_family(name, family, port, random_numbers):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, timeout=60)
    options = {"tools": TOOLS, "tool_choice": "auto"} if family.calls else {}
    check_cases(client, family, options)
    check_look_alikes(client, family, options, random_numbers)
    check_history(client, family, options)
    check_choices(client, family, options)
    if family.calls:
        check_tool_content_as_a_list_of_parts(client, family, options)
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


def in_terminal(command, stream):
    """What a terminal is given in place of that stream of the command, and what a pipe is given in place of the other."""
    master, slave = pty.openpty()
    other = "stdout" if stream == "stderr" else "stderr"
    done = subprocess.run(command, stdin=subprocess.DEVNULL, **{stream: slave, other: subprocess.PIPE}, timeout=60)
    shown = os.read(master, 65536).decode()
    os.close(master)
    os.close(slave)
    return shown, getattr(done, other)


def typed_in_terminal(command, lines):
    """What a terminal shows in which a person types those lines, each at a prompt, and where the command then ends."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, os.environ | {"TERM": "dumb"})
    shown = b""
    for line in lines:
        since = b""
        while not since.endswith(b"> "):
            since += os.read(terminal, 65536)
        shown += since
        # It shows its prompt a moment before it takes the terminal over; what is typed until then is another's.
        while termios.tcgetattr(terminal)[3] & termios.ICANON:
            time.sleep(0.001)
        # The line editor takes control characters as they are after a ^V.
        os.write(terminal, re.sub("([\x01-\x1f])", "\x16\\1", line).encode() + b"\n")
    with contextlib.suppress(OSError):  # The end of the other side.
        while since := os.read(terminal, 65536):
            shown += since
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, shown
    return shown.decode()


@contextlib.contextmanager
def other_server(name, arguments):
    """The URL of a server that answers every question with one call, and is not ours."""
    delta = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": name, "arguments": arguments}}]}
    event = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def check_terminal(tessera, port):
    """The terminal: the answer alone on standard output with --once; calls readable, their results asked for; history."""
    family = FAMILIES["kimi_k25"]
    text = family.write("Let me think.", "I look.", [("get_weather", NESTED)])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(TOOLS, file)
        file.flush()

        def chat(*flags, text=""):
            url = [] if "--url" in flags else ["--url", f"http://127.0.0.1:{port}"]
            command = [tessera, "chat", *url, "--tools", file.name, *flags]
            return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)

        once = chat("--once", f"\1{text}\2")
        assert once.returncode == 0 and once.stderr == "Let me think.\n", once
        head, call = once.stdout.split("call get_weather\n")
        assert head == "I look.\n" and json.loads(call) == NESTED, once.stdout
        assert all(len(line) <= 80 for line in once.stdout.splitlines())
        plain = chat("--once", "\1Why?</think>Because.\2")
        assert (plain.stdout, plain.stderr) == ("Because.\n", "Why?\n"), plain
        # Dimmed where a person looks, and there alone; what the model wrote is obeyed by no terminal, and changed in no pipe.
        steering = "\x1b[31m \x7f \x9b31m \r"
        command = [tessera, "chat", "--url", f"http://127.0.0.1:{port}", "--once", f"\1Why{steering}?</think>Be{steering}cause.\2"]
        shown, dimmed = in_terminal(command, "stderr")
        assert dimmed == f"Be{steering}cause.\n".encode() and "\x1b[2m" in shown, (dimmed, shown)
        escaped = r"\u001b[31m \u007f \u009b31m \u000d"
        assert re.sub(r"\x1b\[[02]m", "", shown).strip() == f"Why{escaped}?", shown
        shown, reasoning = in_terminal(command, "stdout")
        assert shown.strip() == f"Be{escaped}cause." and reasoning == f"Why{steering}?\n".encode(), (shown, reasoning)
        # From another server a name may be anything, too; and numbers are shown as they were written.
        arguments = '{"a": [2.50, 12345678901234567890123, 1E2, {}, []], "b": "\x9b\x7f\\"{,"}'
        with other_server(f"f{steering}", arguments) as url:
            once = chat("--url", url, "--once", "x")
        assert once.stdout.startswith(f"call f{escaped}\n"), once
        for number in ("2.50,", "12345678901234567890123,", "1E2,", "{},", "[]\n"):
            assert number in once.stdout, once.stdout
        assert json.loads(once.stdout.split("\n", 1)[1]) == json.loads(arguments), once.stdout
        command = [tessera, "chat", "--url", f"http://127.0.0.1:{port}", "--completion", "--once", "\1as it is\2"]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert completed.stdout == "as it is\n", completed
        lines = [f"\1{text}\2", "\1Good.</think>It rains.\2", "/think off", "\1At once.\2", "/think maybe", "/quit"]
        talk = chat(text="\n".join(lines) + "\n")
        assert talk.returncode == 0, talk
        # The end of the input, or of the chat, is no result; and nobody is asked to make calls that were cut off.
        forever = family.write("", "I look.", [("get_weather", {})])
        for end in ("", "/quit\n"):
            ended = chat(text=f"\1{forever}\2\n{end}")
            assert ended.returncode == 0 and ended.stdout.count("call get_weather") == 1, ended
        cut = chat("--max-tokens", "40", text=f"\1</think>{kimi_calls([('get_weather', NESTED)])}\2\n\1</think>Next.\2\n")
        assert cut.returncode == 0 and 'ended with "length"' in cut.stdout and "Next." in cut.stdout, cut
        for flags in (["--tools", file.name], ["--system", "x"]):
            command = [tessera, "chat", "--completion", *flags, "--once", "x"]
            refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert refused.returncode != 0 and "excludes" in refused.stderr and flags[0] in refused.stderr, refused
        command = [tessera, "chat", "--completion", "--url", f"http://127.0.0.1:{port}"]
        heeds = subprocess.run(command, input="/think on\n/system x\n", capture_output=True, text=True, timeout=60)
        assert heeds.stdout.count("nothing here heeds") == 2, heeds
        for words in ("call get_weather", '"city": "Zürich"', "It rains.", "(it answers at once)", "At once.", "unknown command"):
            assert words in talk.stdout, (words, talk.stdout)
        command = [tessera, "chat", "--url", f"http://127.0.0.1:{port}", "--tools", file.name]
        shown = typed_in_terminal(command, [f"\1{text}\2", "\1Good.</think>Né 日本.\2", "/quit"])
        assert "\x1b[1mtessera> \x1b[0m" in shown and "\r\nNé 日本.\r\n" in shown, shown
        assert '    "city": "Zürich",\r\n' in shown and "result of get_weather> " in shown, shown
        command = [tessera, "chat", "--tools", "/no/such/file", "--once", "x"]
        bad = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert bad.returncode == 1 and "/no/such/file" in bad.stderr, bad
    print("terminal: held")


def main():
    random_numbers = random.Random(20261130)
    process = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        ports = dict(line.split() for line in iter(process.stdout.readline, "\n"))
        assert set(ports) == set(FAMILIES), set(ports) ^ set(FAMILIES)
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
