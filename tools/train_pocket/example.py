"""One generated example: a conversation, and what a scorer needs to judge a new answer to it."""

from dataclasses import dataclass, field


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def calls(*named: tuple[str, dict], first: int = 0) -> dict:
    """An assistant turn of tool calls; `first` is the conversation's running call number."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"functions.{name}:{first + i}", "name": name, "arguments": arguments}
            for i, (name, arguments) in enumerate(named)
        ],
    }


def result(call_id: str, name: str, content: str) -> dict:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


@dataclass
class Example:
    task: str
    level: int
    messages: list[dict]
    # How a new answer is judged: number, choice, text, calls, trace, code, episode or open (not judged).
    scoring: str
    answer: object = None
    tools: list[dict] = field(default_factory=list)
    # Facts for the tests that recompute the answer in another way, and for exports.
    facts: dict = field(default_factory=dict)
