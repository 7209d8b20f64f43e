#!/usr/bin/env python3
"""Runs lm-eval's own tasks on the project's evaluation data: over a running server, over transformers, or both.

The prompts, the choices and the rules are lm-eval's (its yaml files and task classes, as installed); only the records
come from here, as there are no data sets to download. The server is asked as lm-eval asks any completions server
(LocalCompletionsAPI: token ids, echo, logprobs), transformers runs on the CPU in FP32 (HFLM). For each question the sum of
the log-probabilities of every choice is written, by both; for each text that of the whole text.

    lm_eval_subset.py --data data/evaluation --model build/models/smollm2 --out scores.json \\
        --url http://127.0.0.1:8000/v1/completions --transformers --tasks arc_easy arc_challenge --limit 200

The result: {"lm_eval": version, "model": ..., "tasks": {TASK: {"fewshot": N, "items": [{"question": index of the record in
its file, "gold": index of a choice, "choices": [...], "sums": {"server": [...], "transformers": [...]}}], "agreement":
...}}}. Needs lm-eval 0.4.13 ("lm_eval[api,hf]") beside tools/oracles/requirements.txt; a GPU is not used.
"""

import argparse
import gzip
import json
import pathlib
import sys
import time

import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

TASKS = pathlib.Path(lm_eval.__file__).parent / "tasks"


def records(data, name):
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def spread(count, limit):
    """So many indices, evenly over the records."""
    return [i * count // limit for i in range(limit)] if limit < count else list(range(count))


def arc_doc(index, record):
    labels = [chr(ord("A") + i) for i in range(len(record["choices"]))]
    return {
        "index": index,
        "question": record["question"],
        "choices": {"text": record["choices"], "label": labels},
        "answerKey": labels[record["answer"]],
    }


class Rows(list):
    """A list with what lm-eval asks of a data set."""

    @property
    def features(self):
        return {name: None for name in self[0]}


def make_task(yaml, fewshot, splits):
    config = load_yaml(TASKS / yaml, resolve_func=True)
    for key in ("dataset_path", "dataset_name", "training_split", "validation_split"):
        config.pop(key, None)
    config["num_fewshot"] = fewshot
    config["custom_dataset"] = lambda **_: splits
    return ConfigurableTask(config=config)


def choice_tasks(name, data, limit, fewshot):
    """The task's parts (MMLU has one for each subject), each with its documents."""
    if name in ("arc_easy", "arc_challenge"):
        all_records = records(data, f"{name}_test")
        docs = [arc_doc(i, all_records[i]) for i in spread(len(all_records), limit)]
        if fewshot:
            raise SystemExit(f"{name}: there are no records for few-shot examples; expected --fewshot 0")
        yield make_task(f"arc/{name}.yaml", 0, {"test": Rows(docs)})
        return
    all_records = records(data, "mmlu_test")
    by_subject = {}
    for i in spread(len(all_records), limit):
        by_subject.setdefault(all_records[i]["subject"], []).append({"index": i} | all_records[i])
    for subject, docs in by_subject.items():
        dev = Rows(one for one in records(data, "mmlu_dev") if one["subject"] == subject)
        yield make_task(f"mmlu/default/mmlu_{subject}.yaml", fewshot, {"test": Rows(docs), "dev": dev})


def requests_of(task):
    task.build_all_requests(rank=0, world_size=1)
    return task.instances


def best(sums):
    return max(range(len(sums)), key=lambda i: sums[i])


def run_choices(name, models, options):
    items = []
    for task in choice_tasks(name, options.data, options.limit, options.fewshot):
        requests = requests_of(task)
        scores = {label: model.loglikelihood(requests, disable_tqdm=True) for label, model in models.items()}
        by_doc = {}
        for number, request in enumerate(requests):
            by_doc.setdefault(request.doc_id, []).append((request.idx, number))
        for numbers in by_doc.values():
            order = [number for _, number in sorted(numbers)]
            doc = requests[order[0]].doc
            items.append({
                "question": doc["index"],
                "gold": task.doc_to_target(doc),
                "choices": task.doc_to_choice(doc),
                "sums": {label: [values[i][0] for i in order] for label, values in scores.items()},
                "greedy": {label: [values[i][1] for i in order] for label, values in scores.items()},
            })
    result = {"fewshot": options.fewshot, "items": items, "accuracy": {}}
    for label in models:
        right = sum(best(item["sums"][label]) == item["gold"] for item in items)
        result["accuracy"][label] = right / len(items)
    if len(models) == 2:
        pairs = [(a, b) for item in items for a, b in zip(*item["sums"].values())]
        result["agreement"] = {
            "same_choice": sum(len({best(sums) for sums in item["sums"].values()}) == 1 for item in items) / len(items),
            "same_greedy": sum(len(set(map(tuple, item["greedy"].values()))) == 1 for item in items) / len(items),
            "mean_absolute_difference_of_sums": sum(abs(a - b) for a, b in pairs) / len(pairs),
            "largest_difference_of_sums": max(abs(a - b) for a, b in pairs),
        }
    return result


def run_wikitext(models, options):
    text = records(options.data, "wikitext2_test")[0]["text"]
    page = text.encode()[: options.wikitext_bytes].decode(errors="ignore")
    task = make_task("wikitext/wikitext.yaml", 0, {"test": Rows([{"page": page}])})
    requests = requests_of(task)
    item = {"bytes": len(page.encode()), "window": options.window, "sums": {}, "word_perplexity": {}}
    for label, model in models.items():
        score = model.loglikelihood_rolling(requests, disable_tqdm=True)[0]
        item["sums"][label] = score
        total, words = task.process_results(requests[0].doc, [score])["word_perplexity"]
        item["word_perplexity"][label] = 2.718281828459045 ** (-total / words)
    return {"fewshot": 0, "items": [item]}


def make_models(options):
    models = {}
    if options.url:
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        # It keeps two tokens of the window for itself in rolling, so that these are the windows of transformers.
        models["server"] = LocalCompletionsAPI(
            model=options.served_model, base_url=options.url, tokenizer=str(options.model), tokenizer_backend="huggingface",
            tokenized_requests=True, max_length=options.window + 2, batch_size=options.batch, timeout=3600)
    if options.transformers:
        from lm_eval.models.huggingface import HFLM

        models["transformers"] = HFLM(pretrained=str(options.model), device="cpu", dtype="float32", batch_size=options.batch,
                                      max_length=options.window)
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with the *.jsonl.gz")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the model's folder: tokenizer, and transformers")
    parser.add_argument("--url", help="of /v1/completions; without it no server is asked")
    parser.add_argument("--served-model", default="", help="the name that the server serves, if it should be sent")
    parser.add_argument("--transformers", action="store_true", help="run transformers too")
    parser.add_argument("--tasks", nargs="+", default=["arc_easy", "arc_challenge", "mmlu", "wikitext"],
                        choices=["arc_easy", "arc_challenge", "mmlu", "wikitext"])
    parser.add_argument("--limit", type=int, default=200, help="questions of each task, evenly over its records")
    parser.add_argument("--fewshot", type=int, default=0, help="examples before a question of mmlu")
    parser.add_argument("--wikitext-bytes", type=int, default=16384, help="of the beginning of the text")
    parser.add_argument("--window", type=int, default=1024, help="tokens of one window at most")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    models = make_models(options)
    if not models:
        raise SystemExit("nobody to ask; expected --url or --transformers")
    result = {"lm_eval": lm_eval.__version__, "model": options.model.name, "tasks": {}}
    for name in options.tasks:
        begin = time.time()
        done = run_wikitext(models, options) if name == "wikitext" else run_choices(name, models, options)
        result["tasks"][name] = done
        summary = {key: value for key, value in done.items() if key != "items"}
        if name == "wikitext":
            summary = done["items"][0]
        print(f"{name}: {len(done['items'])} items in {time.time() - begin:.0f} s: {json.dumps(summary)}", flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
