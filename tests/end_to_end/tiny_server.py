"""The whole executable on a tiny random model, so that it also runs under the sanitizers: many clients, clients that leave,
drains and signals. Needs nothing but Python's standard library.

Usage: tiny_server.py TESSERA MAKE_TINY_MODEL
"""

import atexit
import concurrent.futures
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROMPTS = [[(7 * i * j + 3 * j + i) % 250 + 3 for j in range(5 + 23 * i)] for i in range(16)]


class Server:
    def __init__(self, tessera, model, *flags):
        command = [tessera, "serve", "--model", model, "--served-model-name", "tiny", "--port", "0", "--page-size", "16", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # A check that fails leaves nothing running.
        self.log = []
        self.port = None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"serving tiny at http://127\.0\.0\.1:(\d+)/v1", line):
                self.port = int(found[1])
                break
        assert self.port, "the server did not start:\n" + "".join(self.log)
        self.reader = threading.Thread(target=self.log.extend, args=(self.process.stderr,), daemon=True)
        self.reader.start()

    def end(self):
        """The exit status, once the process has ended, and its log."""
        status = self.process.wait(timeout=120)
        self.reader.join(timeout=10)
        return status, "".join(self.log)

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return [(m[1], m[2] or "", float(m[3])) for m in re.finditer(r"^(\w[\w:]*)(\{.*\})? (\S+)$", text, re.M)]

    def stream(self, prompt, max_tokens):
        """The response of a streamed completion, its events not yet read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return connection, response

    def answer(self, prompt, max_tokens=48):
        """The text of a streamed completion."""
        return whole(self.stream(prompt, max_tokens)[1].read().decode())


def whole(events):
    assert events.endswith("data: [DONE]\n\n"), events[-300:]
    text, reason = "", None
    for event in events.split("\n\n")[:-2]:
        if event.startswith("data: "):
            choice = json.loads(event[6:])["choices"][0]
            text += choice["text"]
            reason = choice["finish_reason"] or reason
    assert reason == "length", events[-300:]
    return text


def check_balance(server):
    """Nothing is live, and every page is free or cached."""
    deadline = time.monotonic() + 20
    while True:
        metrics = server.metrics()
        pages = {}
        for name, labels, value in metrics:
            if name == "tessera_engine_pages":
                engine, state = re.search(r'engine="(\w+)"', labels)[1], re.search(r'state="(\w+)"', labels)[1]
                pages.setdefault(engine, {})[state] = value
        busy = [state for engine in pages.values() for state in engine if state not in ("free", "cached") and engine[state]]
        live = sum(value for name, _, value in metrics if name == "tessera_sequences_live")
        assert len(pages) == 2, pages
        if not busy and live == 0:
            return
        assert time.monotonic() < deadline, (pages, live)
        time.sleep(0.05)


def check_streams(tessera, model):
    """Concurrent answers equal solo ones, through pools too small for all; also when some clients leave."""
    flags = ["--prefill-pages", "64", "--decode-pages", "48", "--max-running-requests", "12"]
    server = Server(tessera, model, *flags)
    solo = [server.answer(prompt) for prompt in PROMPTS]
    with concurrent.futures.ThreadPoolExecutor(2 * len(PROMPTS)) as pool:
        together = list(pool.map(server.answer, PROMPTS + PROMPTS))
    assert together == solo + solo
    preemptions = sum(value for name, _, value in server.metrics() if name == "tessera_engine_preemptions_total")
    assert preemptions > 0
    check_balance(server)

    def leave(prompt):
        connection, response = server.stream(prompt, 350)
        response.read(1)
        connection.sock.shutdown(socket.SHUT_RDWR)
        response.close()
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(2 * len(PROMPTS)) as pool:
        left = [pool.submit(leave, prompt) for prompt in PROMPTS[::2]]
        stayed = list(pool.map(server.answer, PROMPTS))
        for future in left:
            future.result()
    assert stayed == solo
    check_balance(server)
    cancelled = sum(value for name, _, value in server.metrics() if name == "tessera_sequences_cancelled_total")
    assert cancelled > 0, server.metrics()
    server.process.send_signal(signal.SIGTERM)
    status, log = server.end()
    assert status == 0, log
    print(f"{len(together)} streams equal their solo answers, {preemptions:.0f} preemptions, {cancelled:.0f} clients left")


def check_drains(tessera, model):
    """SIGTERM lets an answer end; where the time is up its client is told so."""
    prompt = PROMPTS[3]
    server = Server(tessera, model, "--drain-seconds", "100")
    _, response = server.stream(prompt, 300)
    begin = response.read(1).decode()
    server.process.send_signal(signal.SIGTERM)
    whole(begin + response.read().decode())
    status, log = server.end()
    assert status == 0 and "draining: 1 sequences live" in log, log

    server = Server(tessera, model, "--drain-seconds", "0", "--max-running-requests", "1")
    streams = [server.stream(prompt, 1900) for _ in range(4)]
    begun = [response.read(1).decode() for _, response in streams]
    server.process.send_signal(signal.SIGTERM)
    ends = [begin + response.read().decode() for begin, (_, response) in zip(begun, streams)]
    cut = [events for events in ends if '"error"' in events]
    assert cut, "every answer was over before the signal"
    for events in cut:
        *tokens, error, done = events.rstrip("\n").split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "unavailable", error
        assert done == "data: [DONE]" and all('"finish_reason":null' in event for event in tokens), events[-600:]
    status, log = server.end()
    assert status == 0 and "drain timed out" in log, log
    print(f"an answer ended during the drain; {len(cut)} of {len(ends)} were cut off with an error")


def check_chat_signals(tessera, model):
    """At its prompt the chat ends like any other program of a terminal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [tessera, "serve", "--model", model, "--chat", "--port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "decode engine" in line:
                break
        # It asks for the server's health before it reads a line: an unknown command is answered once it reads.
        process.stdin.write("/nonsense\n")
        process.stdin.flush()
        assert "unknown command" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == -number, process.returncode


def main():
    tessera, make_tiny_model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as model:
        subprocess.run([make_tiny_model, model], check=True)
        check_streams(tessera, model)
        check_drains(tessera, model)
        check_chat_signals(tessera, model)
    print("all held")


main()
