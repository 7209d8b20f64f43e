#!/usr/bin/env python3
"""Write tests/goldens/chat/: what the models' own chat templates make of the conversations in chat_conversations.py.

The templates are not in this repository. --templates names a folder that has them, under the names in FORMATS, and the
two Python files with which Kimi's checkpoints prepare tools. They are run as transformers' apply_chat_template runs them,
which is the reference; what the text of a server's request goes through before that is done here, on its own:

- "developer" is spelled "system", but for Kimi, whose templates write the role as it is;
- content that came in parts is replaced by their texts in a row, but for templates that read parts themselves, which
  shows that they do the same;
- tools are JSON text, which is read as Python reads it;
- arguments are parsed where a template iterates over them or dumps them, and left as text where it prints text; for
  those that parse, no text is {};
- null contents become "" for templates that would print None or fail (see `null_is_empty`);
- for Kimi, ids not of the form functions.NAME:INDEX are replaced, in calls and in results that answer them (see
  `with_kimi_ids`), and a result without an id gets that of the one call that has no result;
- SmolLM2, which knows neither, is not asked about conversations with tools or calls.

literals.jsonl.gz says of each template which of the words it has by which tessera recognizes templates.
"""

import argparse
import copy
import dataclasses
import gzip
import importlib.util
import json
import pathlib
import re
import sys

from chat_conversations import CONVERSATIONS
from transformers.utils.chat_template_utils import render_jinja_template

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "chat"
POCKET = pathlib.Path(__file__).resolve().parents[2] / "models" / "tessera-pocket" / "chat_template.jinja"


@dataclasses.dataclass
class Format:
    template: str
    kimi_tools: str = ""           # "sorted": keys sorted; "typescript": also the declaration in TypeScript.
    parse_arguments: bool = False
    null_is_empty: bool = False
    reads_parts: bool = False
    has_tools: bool = True
    has_names: bool = True         # Otherwise conversations with names are left out.
    # Our options and the template's variables that say the same.
    options: tuple = ({},)


OFF = {"thinking": False}
KEEP = {"keep_reasoning": True}
NO_PROMPT = {"generation_prompt": False}
HIGH = {"reasoning_effort": "high"}
FORMATS = {
    "kimi_k2": Format("kimi-k2-instruct.jinja", reads_parts=True, kimi_tools="sorted", options=({}, NO_PROMPT)),
    "kimi_k2_pocket": Format(str(POCKET), kimi_tools="sorted", null_is_empty=True, has_names=False),
    "kimi_k2_thinking": Format("kimi-k2-thinking.jinja", reads_parts=True, kimi_tools="sorted", options=({}, NO_PROMPT)),
    "kimi_k2_thinking_first": Format("kimi-k2-thinking-first.jinja", reads_parts=True, kimi_tools="sorted"),
    "kimi_k25": Format("kimi-k2.5.jinja", reads_parts=True, kimi_tools="typescript", options=({}, OFF, NO_PROMPT)),
    "kimi_k26": Format("kimi-k2.6.jinja", reads_parts=True, kimi_tools="typescript", options=({}, OFF, KEEP, OFF | KEEP, NO_PROMPT)),
    "glm45": Format("glm-4.5.jinja", reads_parts=True, parse_arguments=True, null_is_empty=True, options=({}, OFF, NO_PROMPT)),
    "glm47": Format("glm-4.7.jinja", reads_parts=True, parse_arguments=True, null_is_empty=True, options=({}, OFF, KEEP, OFF | KEEP, NO_PROMPT)),
    "glm5": Format("glm-5.jinja", reads_parts=True, parse_arguments=True, null_is_empty=True, options=({}, OFF, KEEP)),
    "glm51": Format("glm-5.1.jinja", reads_parts=True, parse_arguments=True, null_is_empty=True, options=({}, OFF, KEEP, OFF | KEEP, NO_PROMPT)),
    "glm52": Format("glm-5.2.jinja", reads_parts=True, parse_arguments=True, null_is_empty=True,
                    options=({}, OFF, KEEP, HIGH, HIGH | KEEP, OFF | KEEP, NO_PROMPT)),
    "qwen25": Format("qwen2.5.jinja", parse_arguments=True, null_is_empty=True, options=({}, NO_PROMPT)),
    "qwen3": Format("qwen3.jinja", options=({}, OFF, NO_PROMPT)),
    "qwen3_instruct_2507": Format("qwen3-2507-instruct.jinja", options=({}, NO_PROMPT)),
    "qwen3_thinking_2507": Format("qwen3-2507-thinking.jinja", options=({}, NO_PROMPT)),
    "smollm2": Format("smollm2.jinja", null_is_empty=True, has_tools=False, options=({}, NO_PROMPT)),
}


def load_module(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def deep_sorted(value):
    if isinstance(value, dict):
        return {key: deep_sorted(value[key]) for key in sorted(value)}
    return [deep_sorted(item) for item in value] if isinstance(value, list) else value


def variables(options: dict, form: Format) -> dict:
    out = {"add_generation_prompt": options.get("generation_prompt", True)}
    if form.kimi_tools == "typescript":
        # The checkpoints' tokenizer always says both.
        return out | {"thinking": options.get("thinking", True), "preserve_thinking": options.get("keep_reasoning", False)}
    if "thinking" in options:
        out["enable_thinking"] = options["thinking"]
    if "keep_reasoning" in options:
        out["clear_thinking"] = not options["keep_reasoning"]
    if "reasoning_effort" in options:
        out["reasoning_effort"] = options["reasoning_effort"]
    return out


def is_kimi_id(call_id: str) -> bool:
    return bool(re.fullmatch(r"functions\..+:[0-9]+", call_id, re.DOTALL | re.ASCII))


def with_kimi_ids(messages: list) -> None:
    """Foreign ids become functions.NAME:INDEX: INDEX is the count of calls before, or the next that no other call has.

    Calls of one id in one message are answered in order; an id names the calls of the last message that has it.
    """
    all_ids = [call["id"] for message in messages for call in message.get("tool_calls") or []]
    used = {int(call_id.rsplit(":", 1)[1]) for call_id in all_ids if is_kimi_id(call_id)}
    waiting, last, count = [], {}, 0  # waiting: [client's id, written id] of calls without a result.
    for message in messages:
        calls = message.get("tool_calls") or []
        waiting = [pair for pair in waiting if pair[0] not in {call["id"] for call in calls}]
        for call in calls:
            client_id, name = call["id"], call["function"]["name"]
            if not is_kimi_id(client_id):
                index = next(i for i in range(count, count + len(used) + 1) if i not in used)
                used.add(index)
                call["id"] = f"functions.{name}:{index}"
            waiting.append([client_id, call["id"]])
            last[client_id] = call["id"]
            count += 1
        if message["role"] == "tool":
            client_id = message.pop("tool_call_id", "")
            named = [pair for pair in waiting if pair[0] == client_id]
            if not client_id and not named:
                assert len(waiting) == 1, "a result without an id answers no call"
                named = waiting
            message["tool_call_id"] = named[0][1] if named else last.get(client_id, client_id)
            if named:
                waiting.remove(named[0])


def prepared(messages: list, form: Format) -> list:
    messages = copy.deepcopy(messages)
    for message in messages:
        if message["role"] == "developer" and not form.kimi_tools:
            message["role"] = "system"
        # GLM's templates take the parts of a tool's message for results of several calls, which they print as dicts.
        reads_parts = form.reads_parts and (form.kimi_tools or message["role"] != "tool")
        if isinstance(message["content"], list) and not reads_parts:
            message["content"] = "".join(part["text"] for part in message["content"])
        if message["content"] is None and form.null_is_empty:
            message["content"] = ""
        for call in message.get("tool_calls") or []:
            if form.parse_arguments:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
    if form.kimi_tools:
        with_kimi_ids(messages)
    return messages


def rendered(form: Format, template: str, conversation: dict, options: dict, typescript) -> str:
    tools = [json.loads(tool) for tool in conversation.get("tools", [])] or None
    more = variables(options, form)
    if tools and form.kimi_tools:
        tools = deep_sorted(tools)
        if form.kimi_tools == "typescript":
            try:
                more["tools_ts_str"] = typescript.encode_tools_to_typescript_style(tools)
            except Exception as error:  # The checkpoints' tokenizer goes on without it, whatever it was.
                print(f"  as JSON: {error!r}", file=sys.stderr)
    texts, _ = render_jinja_template([prepared(conversation["messages"], form)], tools=tools, chat_template=template, **more)
    return texts[0]


def applies(form: Format, conversation: dict) -> bool:
    messages = conversation["messages"]
    if not form.has_names and any("name" in message for message in messages):
        return False
    return form.has_tools or not (conversation.get("tools") or any("tool_calls" in message for message in messages))


# The words by which tessera/text/chat_*.cc recognize templates.
LITERALS = [
    "<|im_middle|>", "You are Kimi, an AI assistant created by Moonshot AI.", "You are tessera-pocket, a small assistant.",
    "tools_ts_str", "thinking is false", "preserve_thinking", "preserve_thinking | default(false)", "# Tools", "<think></think>",
    "last_non_tool_call_assistant_msg", "break", "[gMASK]<sop>", "'low'", "Reasoning Effort: ", "thinking_indices",
    "clear_thinking", "/nothink", "<|im_start|>", "<args-json-object>", "<think>", "enable_thinking",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
]


def literals(name: str, template: str) -> dict:
    return {"format": name, "starts_with": next((words for words in LITERALS if template.startswith(words)), ""),
            "has": [words for words in LITERALS if words in template]}


def write(name: str, rows: list) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    (OUT / f"{name}.jsonl.gz").write_bytes(packed)
    print(f"{name}: {len(rows)} lines, {len(text.encode())} bytes, {len(packed)} packed", file=sys.stderr)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--templates", type=pathlib.Path, required=True)
    folder = arguments.parse_args().templates
    typescript = load_module(folder / "tool_declaration_ts.py")
    OUT.mkdir(parents=True, exist_ok=True)
    write("conversations", [{"name": name, **conversation} for name, conversation in CONVERSATIONS.items()])
    # "": K2's first template, which is to be refused.
    templates = {name: form.template for name, form in FORMATS.items()} | {"": "kimi-k2-0905.UNVERIFIED.jinja"}
    write("literals", [literals(name, (folder / template).read_text(encoding="utf-8")) for name, template in templates.items()])
    for name, form in FORMATS.items():
        template = (folder / form.template).read_text(encoding="utf-8")
        rows = []
        for title, conversation in CONVERSATIONS.items():
            if not applies(form, conversation):
                continue
            for options in form.options:
                try:
                    text = rendered(form, template, conversation, options, typescript)
                except Exception as error:
                    raise RuntimeError(f"{name}, {title}, {options}") from error
                rows.append({"conversation": title, "options": options, "text": text})
        write(name, rows)


if __name__ == "__main__":
    main()
