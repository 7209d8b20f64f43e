"""Drives `tessera evaluate` on the bundled model: reports, journals that go on after a kill, servers elsewhere, and what it
says to wrong flags. Needs nothing but Python's standard library.

Usage: evaluate_command.py TESSERA POCKET_MODEL MAKE_TINY_MODEL
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import tiny_serving

TASKS = ["--task", "pocket-arithmetic,pocket-trace"]
QUESTIONS = TASKS + [word for level in range(1, 7) for word in ("--cell", f"{level}/unseen")]
PLANS = ["--plan", "bf16:role=unified,kv=bf16", "--plan", "split:decode-kv=fp8_e4m3"]


def run(command, status=0):
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == status, (command, result.returncode, result.stdout, result.stderr)
    return result


def refused(command, *words):
    """It ends before anything is loaded, and says why."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0 and not result.stdout, (command, result.stdout)
    assert "loading weights" not in result.stderr, result.stderr
    for word in words:
        assert word in result.stderr, (command, word, result.stderr)


def without_times(report):
    """A report without what may differ between two runs of one evaluation: when it was, and how it was typed."""
    report = json.loads(pathlib.Path(report).read_text())
    for place in (report, report.get("evaluation", {})):
        for name in ("date", "command"):
            place.pop(name, None)
    return report


def wait_for_lines(journal, count, process):
    while journal_lines(journal) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def journal_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_flags(tessera, model, folder):
    evaluate = [tessera, "evaluate"]
    names = run([*evaluate, "--list-tasks"]).stdout
    for name in ("pocket-arithmetic", "pocket-choice", "pocket-retrieval", "pocket-tools", "pocket-episodes", "pocket-trace"):
        assert f"\n{name}\n" in "\n" + names, names
    own = [*evaluate, "--model", model]
    refused(own, "no task", "--list-tasks")
    refused([*evaluate, *TASKS], "nothing to evaluate")
    refused([*own, "--task", "chess"], "task 'chess' is not known", "pocket-arithmetic")
    refused([*own, "--task", "pocket-trace", "--task", "pocket-trace"], "named twice")
    refused([*own, *TASKS, "--plan", "a:kv=int2"], "kv=int2", "bf16, fp8_e4m3, f32")
    refused([*own, *TASKS, "--plan", "a:colour=blue"], "colour")
    refused([*own, *TASKS, "--plan", "a", "--plan", "a"], "two plans are named 'a'")
    refused([*own, *TASKS, "--cell", "level 99"], "level 99")
    refused([*own, *TASKS, "--distances"], "--distances")
    refused([*own, *TASKS, "--resume"], "--journal")
    refused([*own, *TASKS, "--json", f"{folder}/nowhere/x.json"], "nowhere/x.json", "cannot be written")
    refused([*own, *TASKS, "--html", folder], "it is a folder")
    refused([*own, *TASKS, "--json", f"{folder}/x", "--html", f"{folder}/./x"], "--json and --html are one file")
    refused([*own, *TASKS, "--json", f"{folder}/x", "--journal", f"{folder}/x"], "--json and the journal are one file")
    refused([*own, *TASKS, "--json", f"{folder}/x", "--html", f"{folder}/x.journal"], "--html and the journal are one file")
    refused([*own, *TASKS, "--limit", "-1"], "--limit")
    refused([*own, *TASKS, "--resume", "--fresh", "--json", f"{folder}/x.json"], "--fresh")
    refused([*evaluate, *TASKS, "--model", folder], "config.json")
    refused([*own, *TASKS, "--url", "https://example.org"], "expected http://HOST:PORT")
    left = list(pathlib.Path(folder).iterdir())
    assert not left, left
    print("wrong flags are refused before anything is loaded")


def check_reports(tessera, model, folder):
    """Two plans: the reports are there, the same twice, and in the words of the journal."""
    reports = []
    for name, concurrency in (("first", "4"), ("second", "1")):
        report, page = folder / f"{name}.json", folder / f"{name}.html"
        done = run([tessera, "evaluate", "--model", model, *PLANS, *QUESTIONS, "--limit", "1", "--no-distances", "--json",
                    str(report), "--html", str(page), "--concurrency", concurrency])
        for plan in ("bf16", "split"):
            assert plan in done.stdout, done.stdout
            for task in ("pocket-arithmetic", "pocket-trace"):
                assert f"{plan}, {task}: " in done.stderr, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 120, done.stdout
        assert page.read_text().startswith("<!DOCTYPE html>") and "pocket-arithmetic" in page.read_text()
        reports.append(without_times(report))
        assert sorted(path.name for path in folder.glob(f"{name}*")) == [f"{name}.html", f"{name}.json",
                                                                        f"{name}.json.journal"]
    assert reports[0] == reports[1]
    journal = [json.loads(line) for line in (folder / "first.json.journal").read_text().splitlines()]
    answers = [line["outcome"] for line in journal if "outcome" in line]
    assert len(answers) == 24 and len(journal) == 1 + 2 + len(answers)
    right = sum(float(answer["scores"]["right"]) for answer in answers) / len(answers)
    assert right > 0.3, right  # A model that was trained for these tasks.
    precisions = {line["plan"]: line["respondent"]["precision"] for line in journal if "respondent" in line}
    phases = [phase.rpartition("/")[2] for plan in (0, 1) for phase in precisions[plan].split("; ")]
    assert phases == ["bf16", "bf16", "bf16", "fp8_e4m3"], precisions
    print(f"{len(answers)} answers, {right:.0%} right; the reports do not depend on how many are asked at once")
    return reports[0], len(journal)


def check_resume(tessera, model, folder, whole, lines):
    """Killed, or interrupted, it goes on where it was and says the same."""
    report = folder / "cut.json"
    journal = folder / "cut.json.journal"
    # One question at a time, and none of the ends near the first plan's: while the next plan's weights are loaded a signal
    # ends the program at once.
    command = [tessera, "evaluate", "--model", model, *PLANS, *QUESTIONS, "--limit", "1", "--no-distances", "--concurrency", "1",
               "--json", str(report)]
    for number, until in ((signal.SIGKILL, lines // 8), (signal.SIGINT, lines // 3), (signal.SIGTERM, 3 * lines // 4)):
        process = subprocess.Popen([*command, "--resume"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_for_lines(journal, until, process)
        process.send_signal(number)
        start = time.monotonic()
        out, log = process.communicate(timeout=120)
        assert not out and not report.exists()
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 1 and "interrupted" in log and "--resume" in log and str(journal) in log, log
            assert time.monotonic() - start < 30
        assert until <= journal_lines(journal) < lines, (number, until, journal_lines(journal), lines)
    kept = journal_lines(journal)
    refused(command, "it is there already", "--resume", "--fresh")
    other = [tessera, "evaluate", "--model", model, *PLANS, *QUESTIONS, "--limit", "2", "--no-distances", "--json", str(report)]
    refused([*other, "--resume"], "another evaluation", "limit: '1' in the journal, '2' now", "pocket-trace")
    with journal.open("ab") as file:
        file.write(b'{"plan":1,"task":"pocket-tr')  # As a kill in the middle of a line leaves it.
    done = run([*command, "--resume"])
    assert "from the journal" in done.stderr and without_times(report) == whole
    assert journal_lines(journal) == lines, (kept, journal_lines(journal), lines)
    again = run([*command, "--resume"])
    assert without_times(report) == whole and again.stdout == done.stdout
    print(f"killed and interrupted three times, it asked {lines - kept} of {lines} at the end and said the same")


def check_second_start(tessera, model, folder, whole):
    """One that is started while another writes the same files harms nothing, and one report that cannot be written does not
    keep the others back."""
    report, pages = folder / "twice.json", folder / "pages"
    journal = folder / "twice.json.journal"
    pages.mkdir()
    command = [tessera, "evaluate", "--model", model, *PLANS, *QUESTIONS, "--limit", "1", "--no-distances", "--json", str(report),
               "--html", str(pages / "twice.html")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_lines(journal, 3, process)
    refused([*command, "--resume"], "another evaluation is writing it")
    refused([*command, "--fresh"], "another evaluation is writing it")
    pages.rmdir()
    out, log = process.communicate(timeout=900)
    assert process.returncode == 1 and "twice.html: cannot be written" in log and "--resume" in log, log
    assert "pocket-arithmetic" in out and without_times(report) == whole
    pages.mkdir()
    run([*command, "--resume"])
    assert without_times(report) == whole and (pages / "twice.html").exists()
    assert sorted(path.name for path in folder.glob("twice*")) == ["twice.json", "twice.json.journal"]
    print("a second start is refused and harms nothing; a page that cannot be written keeps nothing back")


def check_distances(tessera, model, folder):
    """Killed in the second block of passages, it goes on with the same constants of a simulated format."""
    plans = [*PLANS, "--plan", "constants:kv-rounding=per-tensor"]
    reports = [folder / "near.json", folder / "cut-near.json"]
    questions = ["--task", "pocket-choice", "--cell", "1/unseen", "--cell", "2/unseen", "--limit", "18"]
    commands = [[tessera, "evaluate", "--model", model, *plans, *questions, "--quiet", "--json", str(report)]
                for report in reports]
    run(commands[0])
    whole = without_times(reports[0])
    summaries = [summary for task in whole["distances"] for summary in task["summaries"] if summary["cell"] is None]
    assert {summary["plan"] for summary in summaries} == {"split", "constants"} and len(summaries) == 2, summaries
    assert all(summary["kl"]["value"] > 0 for summary in summaries), summaries
    lines = [json.loads(line) for line in (folder / "near.json.journal").read_text().splitlines()]
    order = [line["plan"] for line in lines if "distances" in line]
    assert order == [1] * 32 + [2] * 32 + [1] * 4 + [2] * 4, order
    answers = len(lines) - len(order)
    journal = folder / "cut-near.json.journal"
    for until in (answers + 1, answers + 64):  # Before and after the constants were first made use of.
        process = subprocess.Popen([*commands[1], "--resume"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_for_lines(journal, until, process)
        process.kill()
        process.communicate()
        assert until <= journal_lines(journal) < len(lines), (until, journal_lines(journal), len(lines))
    left = len(lines) - journal_lines(journal)
    run([*commands[1], "--resume"])
    assert without_times(reports[1]) == whole
    print(f"killed with {left} of {len(order)} distances to come, it went on and said the same")


def check_servers(tessera, model, folder):
    """A server elsewhere gives what the same plan in this process gave; one that cannot chat says so."""
    server = tiny_serving.Server(tessera, model, "--role", "unified", "--kv-cache-dtype", "bf16", "--api-key", "abc")
    key = folder / "key"
    key.write_text("abc\n")
    report = folder / "url.json"
    run([tessera, "evaluate", "--plan", f"there:url=http://127.0.0.1:{server.port}/v1,api-key-file={key}", *QUESTIONS, "--limit",
         "1", "--json", str(report), "--quiet"])
    outcomes = [[line["outcome"] for line in map(json.loads, (folder / name).read_text().splitlines())
                 if "outcome" in line and line["plan"] == 0] for name in ("url.json.journal", "first.json.journal")]
    by_question = [sorted(ones, key=lambda one: one["question"]) for ones in outcomes]
    assert by_question[0] == by_question[1]
    denied = run([tessera, "evaluate", "--url", f"http://127.0.0.1:{server.port}", *QUESTIONS, "--limit", "1"], status=1)
    assert "401" in denied.stderr and "api-key-file" in denied.stderr, denied.stderr
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0
    gone = run([tessera, "evaluate", "--model", model, "--plan", f"gone:url=http://127.0.0.1:{server.port}", *TASKS], status=1)
    assert "plan 'gone': GET /v1/models at 127.0.0.1" in gone.stderr, gone.stderr
    print("a server elsewhere gave the same answers")


def check_tiny(tessera, make_tiny_model, folder):
    tiny = str(folder / "tiny")
    run([make_tiny_model, tiny])
    failed = run([tessera, "evaluate", "--model", tiny, *TASKS, "--json", str(folder / "tiny.json"), "--quiet"], status=1)
    assert "plan 'default': task pocket-arithmetic, question arithmetic/" in failed.stderr, failed.stderr
    assert "/v1/chat/completions: 400" in failed.stderr and "loading weights" not in failed.stderr, failed.stderr
    assert [path.name for path in folder.glob("tiny.json*")] == ["tiny.json.journal"]
    print("a model that cannot chat ends the evaluation with the request's name")


def main():
    tessera, model, make_tiny_model = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_flags(tessera, model, name)
        whole, lines = check_reports(tessera, model, folder)
        check_resume(tessera, model, folder, whole, lines)
        check_second_start(tessera, model, folder, whole)
        check_distances(tessera, model, folder)
        check_servers(tessera, model, folder)
        check_tiny(tessera, make_tiny_model, folder)


if __name__ == "__main__":
    main()
