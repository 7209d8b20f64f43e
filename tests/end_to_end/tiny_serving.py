"""A `tessera serve` of a tiny model as its clients and its operator see it. Needs nothing but Python's standard library."""

import atexit
import http.client
import json
import re
import subprocess
import threading
import time


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

    def get(self, path):
        """The JSON of a GET request's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    def stream(self, prompt, max_tokens):
        """The response of a streamed completion, its events not yet read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return connection, response

    def complete(self, body):
        """The answer to a completion that is not streamed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps({"model": "tiny"} | body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

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
