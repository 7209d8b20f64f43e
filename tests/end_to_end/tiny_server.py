"""The whole executable on a tiny random model, so that it also runs under the sanitizers: many clients, clients that leave,
drains and signals. Needs nothing but Python's standard library.

Usage: tiny_server.py TESSERA MAKE_TINY_MODEL
"""

import concurrent.futures
import json
import signal
import socket
import subprocess
import sys
import tempfile

from tiny_serving import Server, check_balance, whole

PROMPTS = [[(7 * i * j + 3 * j + i) % 250 + 3 for j in range(5 + 23 * i)] for i in range(16)]


def check_streams(tessera, model):
    """Concurrent answers equal solo ones, through pools too small for all; also when some clients leave."""
    flags = ["--prefill-pages", "64", "--decode-pages", "48", "--max-running-requests", "12"]
    flags += ["--on-integrity-error", "recompute", "--shared-prefix-cache"]
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
    assert "shared by everybody (--shared-prefix-cache); a failed page check: recompute" in log, log
    print(f"{len(together)} streams equal their solo answers, {preemptions:.0f} preemptions, {cancelled:.0f} clients left")


def check_digests(tessera, model):
    """The same answers at the levels with digests, whose checks and sweeps find nothing."""
    flags = ["--prefill-pages", "128", "--decode-pages", "128", "--max-running-requests", "12"]
    answers = {}
    for level in ("tags", "digest", "digest-step"):
        rate = [] if level == "tags" else ["--kv-sweep-pages-per-second", "4096"]
        server = Server(tessera, model, *flags, "--kv-integrity", level, *rate)
        answers[level] = []
        for prompts in (PROMPTS[::2], PROMPTS[6::-2]):  # The second time from the cache.
            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                answers[level] += pool.map(server.answer, prompts)
        engines = server.get("/get_server_info")["engines"]
        assert [engine["kv_integrity"] for engine in engines] == [level, level], engines
        check_balance(server)
        counted = {}
        for name, _, value in server.metrics():
            counted[name] = counted.get(name, 0) + value
        for failures in ("page_check_failures", "page_digest_failures", "page_audit_failures", "handoffs_failed"):
            assert counted[f"tessera_engine_{failures}_total"] == 0, (level, failures)
        assert counted["tessera_engine_prefix_cache_hits_total"] > 0
        swept = counted["tessera_engine_pages_swept_total"]
        assert (swept > 0) == (level != "tags"), (level, swept)
        server.process.send_signal(signal.SIGTERM)
        status, log = server.end()
        assert status == 0, log
    assert answers["digest"] == answers["tags"] and answers["digest-step"] == answers["tags"]
    print(f"{len(answers['tags'])} answers are the same at tags, digest and digest-step; {swept:.0f} pages swept")


def check_scores(tessera, model):
    """Log-probabilities of prompts: as clients that score choices ask for them, alone and together, in both roles."""
    scores = {}
    for role in ("split", "unified"):
        server = Server(tessera, model, "--role", role, "--prefill-pages", "64", "--decode-pages", "48")
        body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        whole = server.complete(body | {"prompt": PROMPTS, "max_tokens": 0})
        assert whole["usage"]["completion_tokens"] == 0, whole["usage"]
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            alone = list(pool.map(lambda prompt: server.complete(body | {"prompt": [prompt]})["choices"][0], PROMPTS))
        for prompt, one, other in zip(PROMPTS, whole["choices"], alone):
            numbers, best = one["logprobs"]["token_logprobs"], one["logprobs"]["top_logprobs"]
            assert len(numbers) == len(best) == len(prompt) and numbers[0] is None and best[0] is None
            # The same to the last digit, whoever else was asked for; and one more, which was drawn.
            assert other["logprobs"]["token_logprobs"][:-1] == numbers
            assert other["logprobs"]["top_logprobs"][:-1] == best
            drawn = other["logprobs"]["token_logprobs"][-1]
            assert drawn == max(other["logprobs"]["top_logprobs"][-1].values()), other["logprobs"]
            # The token's own number is always there, and no other is larger than the largest.
            assert all(number <= 0 and number in top.values() for number, top in zip(numbers[1:], best[1:]))
            # What comes later does not change it.
            half = server.complete(body | {"prompt": prompt[: len(prompt) // 2 + 1], "max_tokens": 0})["choices"][0]
            assert half["logprobs"]["token_logprobs"] == numbers[: len(prompt) // 2 + 1]
        scores[role] = [one["logprobs"] for one in whole["choices"]]
        server.process.send_signal(signal.SIGTERM)
        status, log = server.end()
        assert status == 0, log
    assert scores["split"] == scores["unified"]
    print(f"log-probabilities of {len(PROMPTS)} prompts are the same alone, together, cut short, split and unified")


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
        check_digests(tessera, model)
        check_scores(tessera, model)
        check_drains(tessera, model)
        check_chat_signals(tessera, model)
    print("all held")


main()
