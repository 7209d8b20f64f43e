"""tools/evaluation_data/subset.py: what it takes of full data sets, by the rules that data/evaluation/README.md states."""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(sys.argv.pop())


def write(folder, name, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-8")))


def read(folder, name):
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


class Subset(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.full = pathlib.Path(self.folder.name) / "full"
        self.out = pathlib.Path(self.folder.name) / "out"
        self.full.mkdir()
        for name in ("arc_challenge_test", "arc_easy_test", "bfcl_single_turn", "gsm8k_fewshot", "gsm8k_test",
                     "humaneval", "mmlu_dev", "mmlu_pro_dev"):
            write(self.full, name, [{"of": name, "text": "\u00e9 \u2028 x"}])
        write(self.full, "mmlu_test", [{"subject": s, "question": f"{s} {i}"} for s, n in (("a", 100), ("b", 47))
                                       for i in range(n)])
        write(self.full, "mmlu_pro_sample", [{"question_id": i} for i in range(9)])
        self.articles = [f" = Article {i} = \n \n = = Part = = \n text {i} \n " for i in range(12)]
        write(self.full, "wikitext2_test", [{"name": "x", "text": " \n" + "\n".join(self.articles)}])
        write(self.full, "moby_dick", [{"chapter": i} for i in range(1, 137)])

    def tearDown(self):
        self.folder.cleanup()

    def run_tool(self):
        return subprocess.run([sys.executable, TOOL, "--full", self.full, "--out", self.out], capture_output=True,
                              text=True, check=False)

    def test_rules(self):
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertEqual(read(self.out, "arc_easy_test"), read(self.full, "arc_easy_test"))
        mmlu = read(self.out, "mmlu_test")
        self.assertEqual([q["index"] for q in mmlu if q["subject"] == "a"], list(range(0, 100, 5)))
        self.assertEqual([q["index"] for q in mmlu if q["subject"] == "b"], [i * 47 // 20 for i in range(20)])
        self.assertTrue(all(q["question"] == f"{q['subject']} {q['index']}" for q in mmlu))
        self.assertEqual([q["question_id"] for q in read(self.out, "mmlu_pro_sample")], [0, 2, 4, 6, 8])
        (text,) = read(self.out, "wikitext2_test")
        self.assertEqual(text["text"], " \n" + "\n".join(self.articles[:10]))
        self.assertEqual([c["chapter"] for c in read(self.out, "moby_dick")], list(range(1, 17)))

    def test_same_bytes_again(self):
        self.run_tool()
        first = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.run_tool()
        self.assertEqual(first, {path.name: path.read_bytes() for path in self.out.iterdir()})
        self.assertEqual(len(first), 12)
        # No name and no time in the header of a packed file.
        self.assertTrue(all(data[3] == 0 and data[4:8] == bytes(4) for data in first.values()))

    def test_missing_file_is_named(self):
        (self.full / "humaneval.jsonl.gz").unlink()
        result = self.run_tool()
        self.assertEqual(result.returncode, 1)
        self.assertIn("humaneval.jsonl.gz", result.stderr)
        self.assertFalse(list(self.out.glob("*.gz")))


if __name__ == "__main__":
    unittest.main()
