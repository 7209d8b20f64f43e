#!/usr/bin/env python3
"""Compares the log-probabilities that a running server gives for prompts with those of transformers, on the CPU in FP32.

    compare_prompt_logprobs.py --model build/models/smollm2 --url http://127.0.0.1:8000/v1/completions \\
        --data data/evaluation

The texts are the first 600 characters of three chapters of Moby Dick, a piece of WikiText-2, a HumanEval solution, and a question
of MMLU with Chinese and an emoji before it. Prints the mean and the largest absolute difference for each text, and over all
tokens; ends with status 1 where the mean over all is above --limit. Needs tools/oracles/requirements.txt.
"""

import argparse
import gzip
import json
import pathlib
import sys
import urllib.request

import torch
import transformers


def records(data, name):
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def texts(data):
    chapters = records(data, "moby_dick")
    code = records(data, "humaneval")[2]
    yield from (chapter["text"][:600] for chapter in (chapters[0], chapters[len(chapters) // 2], chapters[-1]))
    yield records(data, "wikitext2_test")[0]["text"][2000:2900]
    yield code["prompt"] + code["canonical_solution"]
    yield "你好 🙂 " + records(data, "mmlu_test")[100]["question"]


def ask(url, ids):
    body = {"prompt": ids, "max_tokens": 0, "temperature": 0, "logprobs": 0, "echo": True}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--limit", type=float, default=0.02)
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    differences = []
    for text in texts(options.data):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            table = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        expected = [table[i, token].item() for i, token in enumerate(ids[1:])]
        actual = ask(options.url, ids)
        assert actual[0] is None and len(actual) == len(ids), "the server says nothing of some tokens"
        here = [abs(a - b) for a, b in zip(actual[1:], expected)]
        differences += here
        print(f"{len(ids)} tokens from {text[:30]!r}: mean {sum(here) / len(here):.5f}, largest {max(here):.4f}")
    mean = sum(differences) / len(differences)
    print(f"{len(differences)} log-probabilities: mean absolute difference {mean:.5f}, largest {max(differences):.4f}")
    return 0 if mean <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
