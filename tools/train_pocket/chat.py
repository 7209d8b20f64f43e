"""Kimi K2's chat format: conversations to text segments, and special tokens by name.

Only rendering produces special tokens; text from a conversation never turns into one.
"""

import json

# Offsets from the first special id, as in Kimi K2's vocabulary of 163,584 ranks and 256 special ids.
SPECIALS = {
    "[BOS]": 0,
    "[EOS]": 1,
    "<|im_end|>": 2,
    "<|im_user|>": 3,
    "<|im_assistant|>": 4,
    "<|start_header_id|>": 6,
    "<|end_header_id|>": 7,
    "[EOT]": 9,
    "<|im_system|>": 10,
    "<|tool_calls_section_begin|>": 11,
    "<|tool_calls_section_end|>": 12,
    "<|tool_call_begin|>": 13,
    "<|tool_call_argument_begin|>": 14,
    "<|tool_call_end|>": 15,
    "<|im_middle|>": 17,
    "<think>": 22,
    "</think>": 23,
    "[UNK]": 30,
    "[PAD]": 31,
}
N_SPECIAL = 32

DEFAULT_SYSTEM = "You are tessera-pocket, a small assistant."
KIMI_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."

# Loss weights: what the assistant says counts fully; the rest only keeps the language in shape.
ANSWER, PROMPT = 10, 1

Segment = tuple[str, bool, int]  # text, is it one special token, loss weight


def declare(tools: list[dict]) -> str:
    return json.dumps(tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _turn(role_token: str, name: str, body: list[Segment], weight: int) -> list[Segment]:
    return [(role_token, True, 0), (name, False, 0), ("<|im_middle|>", True, 0), *body, ("<|im_end|>", True, weight)]


def _assistant_body(message: dict) -> list[Segment]:
    body: list[Segment] = [(message["content"], False, ANSWER)] if message["content"] else []
    made = message.get("tool_calls")
    if not made:
        return body
    body.append(("<|tool_calls_section_begin|>", True, ANSWER))
    for call in made:
        body += [
            ("<|tool_call_begin|>", True, ANSWER),
            (call["id"], False, ANSWER),
            ("<|tool_call_argument_begin|>", True, ANSWER),
            (json.dumps(call["arguments"], ensure_ascii=False), False, ANSWER),
            ("<|tool_call_end|>", True, ANSWER),
        ]
    body.append(("<|tool_calls_section_end|>", True, ANSWER))
    return body


def render_message(message: dict) -> list[Segment]:
    role, content = message["role"], message["content"]
    if role == "assistant":
        return _turn("<|im_assistant|>", "assistant", _assistant_body(message), ANSWER)
    if role == "user":
        return _turn("<|im_user|>", "user", [(content, False, PROMPT)], 0)
    if role == "tool":
        body = f"## Return of {message['tool_call_id']}\n{content}"
        return _turn("<|im_system|>", message.get("name") or "tool", [(body, False, PROMPT)], 0)
    return _turn("<|im_system|>", role, [(content, False, 0)], 0)


def render(messages: list[dict], tools: list[dict], system: str | None = DEFAULT_SYSTEM) -> list[Segment]:
    """The whole conversation. `system` is the text used when no system message leads; None leaves it out."""
    segments: list[Segment] = []
    if tools:
        segments += _turn("<|im_system|>", "tool_declare", [(declare(tools), False, 0)], 0)
    if system is not None and messages[0]["role"] != "system":
        segments += render_message({"role": "system", "content": system})
    for message in messages:
        segments += render_message(message)
    return segments


GENERATION_PROMPT: list[Segment] = [
    ("<|im_assistant|>", True, 0),
    ("assistant", False, 0),
    ("<|im_middle|>", True, 0),
]
