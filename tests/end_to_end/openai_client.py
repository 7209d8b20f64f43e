"""Drives a real server with the `openai` package: what a user's program would do.

Usage: openai_client.py TESSERA MODEL_DIR
Starts `TESSERA serve` on a free port, and ends with status 0 if everything held.
"""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import openai


class Server:
    """A `tessera serve` process; its log is kept for failures."""

    def __init__(self, tessera, model, *flags):
        command = [tessera, "serve", "--model", model, "--served-model-name", "toy", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.port = None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"serving toy at http://127\.0\.0\.1:(\d+)/v1", line):
                self.port = int(found[1])
                break
        if self.port is None:
            raise SystemExit("the server did not start:\n" + "".join(self.log))
        self.reader = threading.Thread(target=self.log.extend, args=(self.process.stderr,), daemon=True)
        self.reader.start()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.reader.join(timeout=10)
        return status


def streamed(client, messages, **options):
    """One streamed answer: its text, its usage and how many chunks carried text."""
    text, chunks, usage, reasons = "", 0, None, []
    stream = client.chat.completions.create(
        model="toy", messages=messages, stream=True, stream_options={"include_usage": True}, temperature=0, **options
    )
    for chunk in stream:
        if chunk.usage is not None:
            usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta.content:
                text += choice.delta.content
                chunks += 1
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert len(reasons) == 1, reasons
    return text, usage, chunks, reasons[0]


def check(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, timeout=120)

    assert [model.id for model in client.models.list()] == ["toy"]
    precision = json.loads(server.get("/v1/models"))["data"][0]["precision"]
    assert precision["prefill"]["kv"] == "bf16" and precision["decode"]["kv"] == "fp8_e4m3", precision

    # Two turns; the first is long enough to fill whole pages, which the second must find in the cache.
    messages = [
        {"role": "system", "content": "You are a careful assistant who answers questions about places. " * 8},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    text, usage, chunks, reason = streamed(client, messages, max_tokens=40)
    print("first turn:", repr(text), usage)
    assert "Paris" in text and reason in ("stop", "length")
    assert chunks > 1, "the answer was not streamed"
    assert usage.completion_tokens >= 2 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And of Italy?"}]
    second, usage, _, _ = streamed(client, messages, max_tokens=40)
    print("second turn:", repr(second), usage)
    assert usage.prompt_tokens_details.cached_tokens >= 64, usage
    assert second

    # Streamed and whole answers agree, log-probabilities come along, and the same seed draws the same tokens.
    whole = client.chat.completions.create(
        model="toy", messages=messages[:2], temperature=0, max_tokens=40, logprobs=True, top_logprobs=3
    )
    assert whole.choices[0].message.content == text
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)
    drawn = [
        client.completions.create(model="toy", prompt="Once upon a time", max_tokens=12, seed=7, n=2, temperature=1.0)
        for _ in range(2)
    ]
    assert [c.text for c in drawn[0].choices] == [c.text for c in drawn[1].choices]
    assert drawn[0].choices[0].text != drawn[0].choices[1].text

    stopped = client.chat.completions.create(model="toy", messages=messages[:2], temperature=0, max_tokens=40, stop="Paris")
    assert "Paris" not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop"

    # Errors arrive as the client's own exceptions, and the server lives on.
    for options, kind in (
        ({"model": "other"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"max_tokens": 10**7}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 20000}]}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(**({"model": "toy", "messages": messages[:2]} | options))
            raise AssertionError(f"{options} was accepted")
        except kind as error:
            print("refused:", error.body["message"][:100])

    # A client that leaves in mid-stream frees its pages.
    stream = client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "Count to a thousand."}], stream=True, max_tokens=2000,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model="toy", messages=messages[:2], temperature=0, max_tokens=5).choices
    for _ in range(200):
        if 'tessera_sequences_live{model_name="toy"} 0' in server.get("/metrics"):
            break
        threading.Event().wait(0.05)
    else:
        raise AssertionError("the sequence of a client that left is still live")
    assert json.loads(server.get("/health"))["status"] == "ok"


def main():
    server = Server(sys.argv[1], sys.argv[2])
    try:
        check(server)
    except BaseException:
        server.process.kill()
        print("".join(server.log), file=sys.stderr)
        raise
    status = server.stop()
    assert status == 0, f"SIGTERM: exit status {status}"
    print("openai client: all held")


if __name__ == "__main__":
    main()
