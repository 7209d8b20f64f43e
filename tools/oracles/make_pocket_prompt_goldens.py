#!/usr/bin/env python3
"""Write tests/goldens/quality/pocket_prompts.jsonl.gz: how tools/train_pocket puts held-out questions to the model.

For questions of every level, split and length: the prompt's tokens as chat.py and tokenizer.py make them, and those of
the right answer where the data have it (of an episode: the last turn's prompt and answer).
"""

import gzip
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train_pocket"))
import chat  # noqa: E402
from tasks import retrieval  # noqa: E402
from tokenizer import Tokenizer  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "quality" / "pocket_prompts.jsonl.gz"
MODEL = ROOT / "models" / "tessera-pocket"
TASKS = ["arithmetic", "choice", "retrieval", "tools", "episodes", "tracing", "functions"]


def messages_of(question: dict) -> list[dict]:
    if "filler" not in question:
        return question["messages"]
    haystack = {"start": question["filler_start"], "count": question["filler_count"], "inserts": question["inserts"]}
    text = retrieval.expand(haystack, retrieval.fillers(question["split"] == "unseen"))
    return [{"role": "user", "content": f"{question['before']}\n{text}\n{question['after']}"}]


def answer_of(question: dict, messages: list[dict]) -> dict | None:
    if question["scoring"] == "episode":
        return messages[-1]
    if question["scoring"] in ("choice", "text"):
        return {"role": "assistant", "content": question["answer"]}
    if question["scoring"] == "calls":
        calls = [{"id": f"functions.{n}:{i}", "name": n, "arguments": a} for i, (n, a) in enumerate(question["answer"])]
        return {"role": "assistant", "content": "", "tool_calls": calls}
    return None


def main() -> None:
    tokenizer = Tokenizer.load(MODEL)
    encode = lambda segments: tokenizer.encode_segments(segments)[0]  # noqa: E731
    lines = []
    for task in TASKS:
        seen: dict[str, int] = {}
        with gzip.open(MODEL / "tasks" / f"pocket-{task}.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                question = json.loads(line)
                cell = question["id"].rsplit("/", 1)[0]
                seen[cell] = seen.get(cell, 0) + 1
                if seen[cell] > (1 if question.get("length", 0) > 512 else 3):
                    continue
                messages = messages_of(question)
                answer = answer_of(question, messages)
                asked = messages[:-1] if question["scoring"] == "episode" else messages
                made = {"id": question["id"], "prompt": encode(chat.render(asked, question.get("tools", [])) + chat.GENERATION_PROMPT)}
                if answer is not None:
                    body = chat.render_message(answer)[3:-1]  # without the role's marks and the end of the turn
                    made["answer"] = encode(body)
                lines.append(made)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with open(OUT, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(text.encode())
    print(f"{len(lines)} questions, {sum(len(line['prompt']) for line in lines)} tokens")


if __name__ == "__main__":
    main()
