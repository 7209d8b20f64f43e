#!/usr/bin/env python3
"""Writes tests/goldens/evaluation: what lm-evaluation-harness makes of the public tasks' data.

Prompts and continuations are rendered by the harness's own task definitions over the project's data, choices are judged
by its process_results, answers by its filters and metric, texts by its detokenizer and windows. The letters of MMLU-Pro
in the looser reading are taken by Python's re with the patterns of the data set's authors.

    oracles-venv/bin/pip install -r tools/oracles/requirements-evaluation.txt
    oracles-venv/bin/python tools/oracles/make_evaluation_goldens.py
"""

import gzip
import json
import pathlib
import random
import re
import string

import datasets
import lm_eval.tasks
import yaml
from lm_eval import utils
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.filters.extraction import RegexFilter
from lm_eval.tasks.mmlu_pro import utils as mmlu_pro_utils
from lm_eval.tasks.wikitext import preprocess_wikitext
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "data/evaluation"
OUT = ROOT / "tests/goldens/evaluation"
HARNESS = pathlib.Path(lm_eval.tasks.__file__).parent
EVERY = {"mmlu": 23, "mmlu-pro": 11, "gsm8k": 61, "arc-easy": 61, "arc-challenge": 37}


def read(name):
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def write(name, records):
    text = "".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
    print(f"{name}: {len(records)} lines")


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


class Loader(yaml.SafeLoader):
    """The harness's files name functions by !function, which the callers below put in themselves."""


Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


def definition(path):
    config = yaml.load((HARNESS / path).read_text(), Loader)
    for key in ("include", "dataset_path", "dataset_name", "tag", "process_docs", "task_alias", "group"):
        config.pop(key, None)
    return config


def task(config, **splits):
    """A task of the harness over records of ours, in the harness's field names."""
    config = dict(config)
    data = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
    config["custom_dataset"] = lambda **_: data
    return ConfigurableTask(config=config)


def golden_of(made, doc, shots):
    context = made.fewshot_context(doc, shots)
    request = made.construct_requests(doc, context)
    continuations = [r.args[1] for r in request] if isinstance(request, list) else []
    assert not isinstance(request, list) or all(r.args[0] == context for r in request)
    return context, continuations


def prompts():
    goldens = []

    def add(name, index, question, made, doc, shots):
        context, continuations = golden_of(made, doc, shots)
        golden = {"task": name, "line": index, "id": question, "bytes": len(context.encode("utf-8")),
                  "digest": fnv(context), "continuations": continuations}
        if index == 0:
            golden["context"] = context
        goldens.append(golden)

    # MMLU: a task of the harness for each subject.
    test, dev = read("mmlu_test"), read("mmlu_dev")
    mmlu = definition("mmlu/default/_default_template_yaml")
    made = {}
    for index in range(0, len(test), EVERY["mmlu"]):
        subject = test[index]["subject"]
        if subject not in made:
            own = definition(f"mmlu/default/mmlu_{subject}.yaml")
            made[subject] = task({**mmlu, **own}, test=[r for r in test if r["subject"] == subject],
                                 dev=[r for r in dev if r["subject"] == subject])
        add("mmlu", index, f"{subject}/{test[index]['index']}", made[subject], test[index], 5)

    # MMLU-Pro: likewise for each category, with the functions that its file names.
    def upstream(record):
        return {"question": record["question"], "options": record["choices"], "category": record["category"],
                "answer": string.ascii_uppercase[record["answer"]], "cot_content": record.get("solution", "")}

    sample, validation = read("mmlu_pro_sample"), read("mmlu_pro_dev")
    config = definition("mmlu_pro/_default_template_yaml")
    config["doc_to_text"] = mmlu_pro_utils.doc_to_text
    config["fewshot_config"] = {"sampler": "first_n", "doc_to_text": mmlu_pro_utils.fewshot_to_text,
                                "doc_to_target": mmlu_pro_utils.fewshot_to_target}
    made = {}
    for index in range(0, len(sample), EVERY["mmlu-pro"]):
        category = sample[index]["category"]
        if category not in made:
            own = definition(f"mmlu_pro/mmlu_pro_{category.replace(' ', '_')}.yaml")
            made[category] = task({**config, **own},
                                  test=[upstream(r) for r in sample if r["category"] == category],
                                  validation=[upstream(r) for r in validation if r["category"] == category])
        add("mmlu-pro", index, str(sample[index]["question_id"]), made[category], upstream(sample[index]), 5)

    # GSM8K: the harness draws its examples; ours are the first.
    def upstream_gsm8k(record):
        return {"question": record["question"], "answer": record["solution"] + "\n#### " + record["answer"]}

    questions, examples = read("gsm8k_test"), read("gsm8k_fewshot")
    config = {**definition("gsm8k/gsm8k.yaml"), "fewshot_config": {"sampler": "first_n"}}
    gsm8k = task(config, test=[upstream_gsm8k(r) for r in questions], train=[upstream_gsm8k(r) for r in examples])
    for index in range(0, len(questions), EVERY["gsm8k"]):
        add("gsm8k", index, str(index), gsm8k, upstream_gsm8k(questions[index]), 5)

    # ARC.
    for name in ("arc-easy", "arc-challenge"):
        records = read(name.replace("-", "_") + "_test")
        docs = [{"question": r["question"],
                 "choices": {"text": r["choices"], "label": list(string.ascii_uppercase[:len(r["choices"])])},
                 "answerKey": string.ascii_uppercase[r["answer"]]} for r in records]
        arc = task({**definition("arc/arc_easy.yaml"), "training_split": None, "validation_split": None}, test=docs)
        for index in range(0, len(records), EVERY[name]):
            add(name, index, records[index]["id"], arc, docs[index], 0)
    write("prompts", goldens)


def choices(random_):
    """Made-up likelihoods, judged by ARC's definition: acc and acc_norm of each right answer."""
    arc = definition("arc/arc_easy.yaml")
    arc = {**arc, "training_split": None, "validation_split": None}
    goldens = []
    texts = ["days", "Planetary years will become longer.", "naïve façade", "水", "水と火と土", "a", "0.5 °C", "grün"]
    for _ in range(300):
        chosen = random_.sample(texts, random_.randint(2, 5))
        logprobs = [round(-random_.random() * 12, random_.choice([0, 1, 6])) for _ in chosen]
        gold = random_.randrange(len(chosen))
        doc = {"question": "?", "choices": {"text": chosen, "label": list("ABCDE"[:len(chosen)])},
               "answerKey": "ABCDE"[gold]}
        made = task(arc, test=[doc]) if not goldens else made
        result = made.process_results(doc, [(value, False) for value in logprobs])
        goldens.append({"choices": chosen, "logprobs": logprobs, "right": gold, "acc": result["acc"],
                        "acc_norm": result["acc_norm"]})
    write("choices", goldens)


NUMBERS = ["18", "-3", "1,234", "$5.50", "1,000,000.", "0", "7.", "$", ".", ",", "-", "--4", "- 4", "3.14", "½", "٣", "12",
           "$ 12", "1e5", "4/5", "18%", "18.00", "$1,8", "18$", "#18", "5-3"]
LETTERS = list("ABCDEFGHIJKLZ") + ["a", "(", ")", "(A)", "(B", "C)", "I", "ÀA", "Aé", "A_", "_B", "A1", "“C”", "D.", "水E",
                                   "F水", "G\u0301", "\u0301H", "((A)", "²C"]


def answers(random_):
    """Texts put together of parts that the patterns look at, and some as models write them."""
    strict = RegexFilter(regex_pattern="#### (\\-?[0-9\\.\\,]+)")
    flexible = RegexFilter(regex_pattern="(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    letter = RegexFilter(regex_pattern=r"answer is \(?([ABCDEFGHIJ])\)?")
    ignored = dict(ignore_case=True, ignore_punctuation=False, regexes_to_ignore=[",", "\\$", "(?s).*#### ", "\\.$"])

    def of(filter_, text):
        return filter_.apply([[text]], [{}])[0][0]

    def right(predicted, gold):
        return bool(exact_match_hf_evaluate([predicted], [gold], **ignored)["exact_match"])

    goldens = []
    texts = [" Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\nShe makes 9 * 2 = $<<9*2=18>>18.\n#### 18",
             "#### ", "####18", "##### 5", "#### -", "#### -7.", "#### 1\n#### 2", "", "The answer is 42.", "I don't know"]
    for _ in range(1500):
        parts = [random_.choice(["#### ", "####", "#", " ", "\n", "The answer is ", "=", "x", "\u00a0", "-"])
                 if random_.random() < 0.5 else random_.choice(NUMBERS) for _ in range(random_.randint(1, 9))]
        texts.append("".join(parts))
    for text in texts:
        gold = random_.choice(["18", "-3", "1234", "5.50", "1,234", "7", of(flexible, text), of(strict, text)])
        if gold == "[invalid]":
            gold = "12"
        found = (of(strict, text), of(flexible, text))
        goldens.append({"text": text, "strict": found[0], "flexible": found[1], "right": gold,
                        "strict_right": right(found[0], gold), "flexible_right": right(found[1], gold)})
    write("numbers", goldens)

    def authors(text):
        for pattern, flags in ((r"answer is \(?([A-J])\)?", 0), (r".*[aA]nswer:\s*([A-J])", 0),
                               (r"\b[A-J]\b(?!.*\b[A-J]\b)", re.DOTALL)):
            match = re.search(pattern, text, flags)
            if match:
                return match.group(match.lastindex or 0)
        return ""

    goldens = []
    texts = ["", "The answer is (C).", "the answer is C", "Answer: B", "The answer is: (D)", "I think A and B. Answer:\n\n C"]
    for _ in range(1500):
        parts = [random_.choice(["answer is ", "Answer:", "answer:", "nswer:", " ", "\n", "\u00a0", ". ", "the answer is",
                                 "answer is (", "x", "-"])
                 if random_.random() < 0.55 else random_.choice(LETTERS) for _ in range(random_.randint(1, 10))]
        texts.append("".join(parts))
    for text in texts:
        goldens.append({"text": text, "exact": of(letter, text), "flexible": authors(text)})
    write("letters", goldens)


def windows(random_):
    goldens = []
    for _ in range(200):
        length, window = random_.randint(0, 60), random_.randint(1, 25)
        made = [utils.make_disjoint_window(pair) for pair in utils.get_rolling_token_windows(
            token_list=list(range(100, 100 + length)), prefix_token=7, max_seq_len=window, context_len=1)]
        goldens.append({"length": length, "window": window, "windows": made})
    write("windows", goldens)


def document_pages(text):
    """As the document-level edition of WikiText, which the harness reads, is made of the raw one."""
    pages, lines = [], []
    for line in text.split("\n"):
        bare = line.replace("= = =", "===").replace("= =", "==").strip()
        if bare.startswith("= ") and bare.endswith(" ="):
            if "\n".join(lines).strip():
                pages.append("\n".join(lines))
            lines = []
        lines.append(line)
    return pages + ["\n".join(lines)]


def wikitext(random_):
    goldens = []
    (record,) = read("wikitext2_test")
    for page in document_pages(record["text"]):
        goldens.append(of_page(page, digest=True))
    parts = ["( ", " )", "(", ")", "[ ", " ]", "{", " }", '"', ' "', "' ", " '", "s '", " 's", " @-@ ", " @,@ ", " @.@ ", " : ",
             " ; ", " . ", " ! ", " ? ", " , ", "= = = =", "= = =", "= =", " \u00b0 ", " \n", "\n ", " N ", "/' 5/", "/' 12/",
             "/' ", "word", "\u00a0", "\u3000", "naïve", "\x1c", "  ", "x", "\n\n", "=", "\u0085", "\u200b"]
    for _ in range(600):
        page = "".join(random_.choice(parts) for _ in range(random_.randint(1, 25)))
        goldens.append(of_page(page, digest=False))
    write("wikitext", goldens)


def of_page(page, digest):
    text = preprocess_wikitext.wikitext_detokenizer({"page": page})
    result = preprocess_wikitext.process_results({"page": page}, (-1.0,))
    golden = {"words": result["word_perplexity"][1], "bytes": result["byte_perplexity"][1]}
    return golden | ({"digest": fnv(text)} if digest else {"page": page, "text": text})


def pairs(random_):
    """How the harness cuts a context and a continuation into SmolLM2's tokens."""
    tokenizer = Tokenizer.from_file(str(ROOT / "tests/goldens/tokenizer/smollm2/tokenizer.json"))

    class Model(TemplateLM):
        eot_token_id, backend = 0, "causal"

        def tok_encode(self, text, add_special_tokens=None, **_):
            return tokenizer.encode(text).ids

        def _loglikelihood_tokens(self, requests, **_): ...
        def loglikelihood_rolling(self, requests, **_): ...
        def generate_until(self, requests, **_): ...

    model, goldens = Model(), []
    ends = ["Answer:", "Answer: ", "x  ", "end.\n", "the", "100", "a \t\n ", "quoi\u00a0", "2+2=", "\u3000水 "]
    continuations = [" A", " Planetary days will become shorter.", "B", " 4", "ly", "\n\nNo", " naïve", "  two", "水", " (C)"]
    words = ["Question: Which one is it?\n", "def f(x):\n    return x\n", "Le café est fermé. ", "12345 ", "A. one\nB. two\n"]
    for _ in range(300):
        context = "".join(random_.choices(words, k=random_.randint(0, 4))) + random_.choice(ends)
        continuation = random_.choice(continuations)
        first, second = model._encode_pair(context, continuation)
        goldens.append({"context": context, "continuation": continuation, "context_ids": first, "continuation_ids": second})
    write("pairs", [g for g in goldens if g["context_ids"] and g["continuation_ids"]])


def main():
    random_ = random.Random(20261130)
    prompts()
    choices(random_)
    answers(random_)
    windows(random_)
    wikitext(random_)
    pairs(random_)


if __name__ == "__main__":
    main()
