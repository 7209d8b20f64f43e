#!/usr/bin/env python3
"""Runs lm-eval's own tasks on the project's evaluation data: over a running server, over transformers, or both.

The prompts, the choices and the rules are lm-eval's (its yaml files and task classes, as installed); only the records
come from here, as there are no data sets to download. The server is asked as lm-eval asks any completions server
(LocalCompletionsAPI: token ids, echo, logprobs), transformers runs on the CPU in FP32 (HFLM). For each question the sum of
the log-probabilities of every choice is written, by both, and what lm-eval makes of them (acc, acc_norm); for each article
of WikiText the sum of the whole.

    lm_eval_subset.py --data data/evaluation --model build/models/smollm2 --out scores.json \\
        --url http://127.0.0.1:8000/v1/completions --transformers --tasks arc_easy arc_challenge --limit 200

The result: {"lm_eval": version, "model": ..., "tasks": {TASK: {"fewshot": N, "items": [{"question": index of the record in
its file, "id": its name in `tessera evaluate`, "gold": index of a choice, "choices": [...], "sums": {"server": [...],
"transformers": [...]}, "scores": {"server": {"acc": ...}, ...}}], "scores": means, "agreement": ...}}}. Needs lm-eval
0.4.13 ("lm_eval[api,hf]") beside tools/oracles/requirements.txt; a GPU is not used.

With journals of `tessera evaluate` only questions are asked that are in them too. With --compare nobody is asked: what was
written before is compared with the journals, question by question.

    lm_eval_subset.py --compare scores.json --journals evaluate.json.journal
"""

import argparse
import gzip
import json
import math
import pathlib
import sys
import time

import lm_eval
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
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
        "id": record["id"],
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


def choice_tasks(name, data, limit, fewshot, only):
    """The task's parts (MMLU has one for each subject), each with its documents; where `only` is given, those in it."""
    if name in ("arc_easy", "arc_challenge"):
        all_records = records(data, f"{name}_test")
        docs = [arc_doc(i, all_records[i]) for i in spread(len(all_records), limit)]
        docs = [doc for doc in docs if only is None or (name.replace("_", "-"), doc["id"]) in only]
        if fewshot:
            raise SystemExit(f"{name}: there are no records for few-shot examples; expected --fewshot 0")
        yield make_task(f"arc/{name}.yaml", 0, {"test": Rows(docs)})
        return
    all_records = records(data, "mmlu_test")
    by_subject = {}
    for i in spread(len(all_records), limit):
        record = all_records[i]
        doc = record | {"index": i, "id": f"{record['subject']}/{record['index']}"}
        if only is None or ("mmlu", doc["id"]) in only:
            by_subject.setdefault(record["subject"], []).append(doc)
    for subject, docs in by_subject.items():
        dev = Rows(one for one in records(data, "mmlu_dev") if one["subject"] == subject)
        yield make_task(f"mmlu/default/mmlu_{subject}.yaml", fewshot, {"test": Rows(docs), "dev": dev})


def requests_of(task):
    task.build_all_requests(rank=0, world_size=1)
    return task.instances


def best(sums):
    return max(range(len(sums)), key=lambda i: sums[i])


def scores_of(task, doc, answers):
    """What lm-eval makes of a question's answers."""
    made = task.process_results(doc, answers)
    return {name: float(made[name]) for name in ("acc", "acc_norm") if name in made}


def run_choices(name, models, options):
    items = []
    only = outcomes_of(options.journals) if options.journals else None
    for task in choice_tasks(name, options.data, options.limit, options.fewshot, only):
        requests = requests_of(task)
        scores = {label: model.loglikelihood(requests, disable_tqdm=True) for label, model in models.items()}
        by_doc = {}
        for number, request in enumerate(requests):
            by_doc.setdefault(request.doc_id, []).append((request.idx, number))
        for numbers in by_doc.values():
            order = [number for _, number in sorted(numbers)]
            doc = requests[order[0]].doc
            answers = {label: [values[i] for i in order] for label, values in scores.items()}
            items.append({
                "question": doc["index"],
                "id": doc["id"],
                "gold": task.doc_to_target(doc),
                "choices": task.doc_to_choice(doc),
                "sums": {label: [logprob for logprob, _ in values] for label, values in answers.items()},
                "greedy": {label: [greedy for _, greedy in values] for label, values in answers.items()},
                "scores": {label: scores_of(task, doc, values) for label, values in answers.items()},
            })
    result = {"fewshot": options.fewshot, "items": items, "scores": {}}
    for label in models:
        names = items[0]["scores"][label]
        result["scores"][label] = {n: sum(item["scores"][label][n] for item in items) / len(items) for n in names}
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
    from make_evaluation_goldens import document_pages

    pages = document_pages(records(options.data, "wikitext2_test")[0]["text"])
    numbers = spread(len(pages), options.wikitext_articles)
    pages = [pages[number] for number in numbers]
    task = make_task("wikitext/wikitext.yaml", 0, {"test": Rows([{"page": page} for page in pages])})
    requests = requests_of(task)
    items = [{"question": number, "words": 0, "bytes": 0, "sums": {}} for number in numbers]
    result = {"fewshot": 0, "window": options.window, "prefix": "line end" if options.prefix_line_end else "lm-eval's",
              "items": items, "scores": {}}
    for label, model in models.items():
        results = []
        for item, request, score in zip(items, requests, model.loglikelihood_rolling(requests, disable_tqdm=True)):
            made = task.process_results(request.doc, [score])
            item["sums"][label], item["words"] = made["word_perplexity"]
            item["bytes"] = made["byte_perplexity"][1]
            results.append(made)
        aggregations = {"word_perplexity": weighted_perplexity, "byte_perplexity": weighted_perplexity,
                        "bits_per_byte": bits_per_byte}
        result["scores"][label] = {name: total([made[name] for made in results]) for name, total in aggregations.items()}
    return result


def judged(item, label, metric):
    """What a metric takes the largest of: sums, or sums by characters."""
    lengths = [len(choice) if metric == "acc_norm" else 1 for choice in item["choices"]]
    return [total / length for total, length in zip(item["sums"][label], lengths)]


def outcomes_of(journals):
    """By task and question, what `tessera evaluate` has answered."""
    outcomes = {}
    for path in journals:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if "outcome" in entry:
                outcome = entry["outcome"]
                question = outcome["question"]
                outcomes[entry["task"], question.split(":")[0] if entry["task"] == "wikitext-2" else question] = outcome
    return outcomes


def compare(scores, journals):
    """Prints what `tessera evaluate` and each of lm-eval's answers have apart."""
    outcomes = outcomes_of(journals)
    for path in scores:
        for name, result in json.loads(path.read_text(encoding="utf-8"))["tasks"].items():
            if name == "wikitext":
                compare_texts(result, outcomes)
            else:
                compare_choices(name, result, outcomes)


def compare_texts(result, outcomes):
    own = [outcomes["wikitext-2", str(item["question"])]["scores"] for item in result["items"]]
    total = {key: sum(float(one[key]) for one in own) for key in ("logprob", "words", "bytes", "bits")}
    print(f"wikitext: {len(own)} articles, {total['words']:.0f} words, {total['bytes']:.0f} bytes, windows of "
          f"{result['window']} tokens; before the first token: {result['prefix']}")
    print(f"  evaluate: word_perplexity {math.exp(-total['logprob'] / total['words']):.6f} byte_perplexity "
          f"{math.exp(-total['logprob'] / total['bytes']):.8f} bits_per_byte {total['bits'] / total['bytes']:.8f}")
    for label, score in result["scores"].items():
        print(f"  {label}: " + " ".join(f"{key} {value:.8f}" for key, value in score.items()))
    for item, one in zip(result["items"], own):
        assert (float(one["words"]), float(one["bytes"])) == (item["words"], item["bytes"]), item
        apart = {label: value - float(one["logprob"]) for label, value in item["sums"].items()}
        print(f"  {item['question']}: {one['words']} words, {one['bytes']} bytes, evaluate {float(one['logprob']):.4f}, " +
              ", ".join(f"{label} {value:+.4f}" for label, value in apart.items()))


def compare_choices(name, result, outcomes):
    items, task = result["items"], name.replace("_", "-")
    own = [outcomes[task, item["id"]] for item in items]
    print(f"{name}: {len(items)} questions")
    first = "acc_norm" if name == "arc_challenge" else "acc"  # Of others the journal says right or wrong alone.
    labels = list(result["scores"])
    for metric in result["scores"][labels[0]]:
        right = {"evaluate": sum(float(one["scores"][metric]) for one in own)}
        right |= {label: sum(item["scores"][label][metric] for item in items) for label in labels}
        print(f"  {metric}: right " + ", ".join(f"{label} {value:.0f}" for label, value in right.items()))
        for item, one in zip(items, own):
            picks = {label: best(judged(item, label, metric)) for label in labels}
            apart = [label for label in labels if item["scores"][label][metric] != float(one["scores"][metric]) or
                     (metric == first and item["choices"][picks[label]].strip() != one["answer"].strip())]
            if not apart and len(set(picks.values())) == 1:
                continue
            answer = one["answer"] if metric == first else f"{metric} {one['scores'][metric]}"
            print(f"    {item['id']}: right {item['gold']}, evaluate {answer!r}, chosen {picks}, not as evaluate: {apart}")
            for label in labels:
                values = judged(item, label, metric)
                order = sorted(range(len(values)), key=lambda i: -values[i])
                print(f"      {label}: gap {values[order[0]] - values[order[1]]:.5f} of choices {order[:2]}: " +
                      " ".join(f"{value:.5f}" for value in values))
    if "agreement" in result:
        print(f"  {json.dumps(result['agreement'])}")


def make_models(options):
    models = {}
    prefix = None
    if options.prefix_line_end:
        from tokenizers import Tokenizer

        prefix = Tokenizer.from_file(str(options.model / "tokenizer.json")).encode("\n", add_special_tokens=False).ids[-1]
    if options.url:
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        # It keeps two tokens of the window for itself in rolling, so that these are the windows of transformers.
        models["server"] = LocalCompletionsAPI(
            model=options.served_model, base_url=options.url, tokenizer=str(options.model), tokenizer_backend="huggingface",
            tokenized_requests=True, max_length=options.window + 2, batch_size=options.batch, timeout=3600,
            custom_prefix_token_id=prefix)
    if options.transformers:
        from lm_eval.models.huggingface import HFLM

        models["transformers"] = HFLM(pretrained=str(options.model), device="cpu", dtype="float32", batch_size=options.batch,
                                      max_length=options.window, prefix_token_id=prefix)
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder with the *.jsonl.gz")
    parser.add_argument("--model", type=pathlib.Path, help="the model's folder: tokenizer, and transformers")
    parser.add_argument("--url", help="of /v1/completions; without it no server is asked")
    parser.add_argument("--served-model", default="", help="the name that the server serves, if it should be sent")
    parser.add_argument("--transformers", action="store_true", help="run transformers too")
    parser.add_argument("--tasks", nargs="+", default=["arc_easy", "arc_challenge", "mmlu", "wikitext"],
                        choices=["arc_easy", "arc_challenge", "mmlu", "wikitext"])
    parser.add_argument("--limit", type=int, default=200, help="questions of each task, evenly over its records; with --journals those of them that are there")
    parser.add_argument("--fewshot", type=int, default=0, help="examples before a question of mmlu")
    parser.add_argument("--wikitext-articles", type=int, default=2, help="so many, evenly over the text")
    parser.add_argument("--prefix-line-end", action="store_true",
                        help="before an article's first token stands a line end, as in `tessera evaluate`, not BOS or EOS")
    parser.add_argument("--window", type=int, default=1024, help="tokens of one window at most")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path, nargs="+", help="results of before, with --journals")
    parser.add_argument("--journals", type=pathlib.Path, nargs="+", help="of `tessera evaluate`")
    options = parser.parse_args()
    if options.compare:
        if not options.journals:
            raise SystemExit("nothing to compare with; expected --journals")
        compare(options.compare, options.journals)
        return
    if not (options.data and options.model and options.out):
        raise SystemExit("expected --data, --model and --out, or --compare and --journals")
    models = make_models(options)
    if not models:
        raise SystemExit("nobody to ask; expected --url or --transformers")
    result = {"lm_eval": lm_eval.__version__, "model": options.model.name, "tasks": {}}
    for name in options.tasks:
        begin = time.time()
        done = run_wikitext(models, options) if name == "wikitext" else run_choices(name, models, options)
        result["tasks"][name] = done
        summary = {key: value for key, value in done.items() if key != "items"}
        print(f"{name}: {len(done['items'])} items in {time.time() - begin:.0f} s: {json.dumps(summary)}", flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
