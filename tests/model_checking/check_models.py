#!/usr/bin/env python3
"""check_models.py MODEL: have spin prove MODEL.pml, and find the error in each of its mutants.

Each run of the model searches every state: no assertion may fail, nothing may end or go in circles where it must not, every
line must have been reached in some run, and every row of the model's table of transitions must have been taken. Then
each mutant, which lacks one precaution, is searched until an error is found; one without an error is a failure, because
then the model could not have noticed that the precaution is missing.

Needs spin and cc. Ends with 77, which ctest takes for skipped, where one of them is missing.
"""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

FOLDER = pathlib.Path(__file__).resolve().parent
JOBS = 2


@dataclasses.dataclass(frozen=True)
class Search:
    """What spin is asked: the model with some definitions, and what must hold of it."""

    defines: tuple = ()
    kind: str = "safety"  # "claim": its LTL property as well; "fair": that under weak fairness.


@dataclasses.dataclass(frozen=True)
class Model:
    files: tuple  # The model, and what it includes.
    runs: tuple
    mutants: dict  # MUTANT_x -> the search that must find it.
    transitions: int = 0  # Rows of its table, each said once ("taken: ...") when it is taken first.
    endless: bool = False  # Its processes never end.


SMALL = ("CHUNKS=1", "NO_QUEUE")
ONE_SIDED = ("ONE_SIDED", "SENDER_RESTARTS=1", *SMALL)
MODELS = {
    "page_life": Model(
        files=("page_life.pml", "page_pool.pml"),
        runs=(Search(kind="claim"),),
        mutants={
            name: Search()
            for name in (
                "AUDIT_TOO_EARLY CHECK_HIDES_FLIGHT COMMIT_EARLY FREE_IN_TRANSFER NO_CLEAN_UP NO_PIN "
                "RELEASE_UNCHECKED TAG_STAYS WORD_OVERTAKES"
            ).split()
        },
        transitions=32,
    ),
    "handoff": Model(
        files=("handoff.pml",),
        runs=(
            Search(("LOSSES=1", "CHUNKS=1"), "fair"),
            Search(("COPIES=1", "DAMAGES=1")),
            Search(("ONE_SIDED", "SENDER_RESTARTS=1")),
            Search(ONE_SIDED, "fair"),
            Search(("SENDER_RESTARTS=1", *SMALL)),
            Search(("RECEIVER_RESTARTS=1", *SMALL)),
        ),
        mutants={
            "COMMIT_EARLY": Search(),
            "NO_QUARANTINE": Search(("ONE_SIDED",)),
            "SENDS_AFTER_WORD": Search(("ONE_SIDED",)),
            "WORD_OVERTAKES": Search(("ONE_SIDED",)),
            "EARLIER_LIFE": Search(("ONE_SIDED", "SENDER_RESTARTS=1")),
            "ANY_SESSION": Search(("SENDER_RESTARTS=1", *SMALL)),
            "ABORT_ONCE": Search(("LOSSES=1", *SMALL), "fair"),
            "NO_DEADLINE": Search(("LOSSES=1", *SMALL), "fair"),
            "ACK_ONLY_KNOWN": Search(ONE_SIDED, "fair"),
        },
        endless=True,
    ),
}


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def search(model, wanted, folder, mutant=None):
    """Makes spin's search program in the folder and runs it. Returns what it printed."""
    folder.mkdir()
    defines = [f"-D{d}" for d in wanted.defines] + ([f"-DMUTANT_{mutant}"] if mutant else [])
    # In what must be reached, statements are not merged (-o3), so that each says whether it was.
    merging = [] if mutant else ["-o3"]
    status, text = run(["spin", *merging, *defines, "-a", str(FOLDER / f"{model}.pml")], folder)
    if status != 0:
        raise RuntimeError(f"spin: {text}")
    compiler = ["cc", "-w", "-DNFAIR=3", "-DMEMLIM=2000", "-o", "pan", "pan.c"]
    # Breadth first finds an error soonest, where it is one that a state shows.
    if wanted.kind == "safety":
        compiler += ["-DSAFETY", "-DNOCLAIM"] + (["-DBFS"] if mutant else [])
    compiler.append("-O1" if wanted.kind == "claim" else "-O0")
    status, text = run(compiler, folder)
    if status != 0:
        raise RuntimeError(f"cc: {text}")
    flags = {"safety": [], "claim": ["-a"], "fair": ["-a", "-f"]}[wanted.kind]
    _, text = run(["./pan", "-m1000000", "-w22", *flags], folder)
    return text


def proved(text, kind):
    """Why the search proved nothing, or None."""
    if not re.search(r"errors: 0\n", text) or "not completed" in text or "too small" in text or "pan: " not in text:
        return "errors, or no complete search"
    wanted = {"safety": r"invalid end states\s+\+", "claim": r"acceptance   cycles\s+\+", "fair": r"fairness enabled"}
    return None if re.search(wanted[kind], text) else "the property was not checked"


STATE = re.compile(r"^\tstate +(\d+) -\(.*\] \[.{5,8}\] \S*?(\w+\.pml:\d+) => ")
UNREACHED = re.compile(r"^\t\S+\.pml:\d+, state (\d+), ")


def lines_reached(folder, text, endless):
    """(all lines with a statement, those of them that were reached in at least one place where they stand)."""
    unreached = set()
    process = None
    for line in text.splitlines():
        if found := re.match(r"unreached in (?:proctype |)(\S+)", line):
            process = found[1]
        elif (found := UNREACHED.match(line)) and process is not None:
            unreached.add((process, int(found[1])))
    _, listing = run(["./pan", "-d"], folder)
    all_lines, reached = set(), set()
    for line in listing.splitlines():
        if found := re.match(r"(?:proctype |)(\S+)$", line):
            process = found[1]
        elif found := STATE.match(line):
            if process in ("all_ends", "all_end") or (endless and line.endswith("-end-")):
                continue
            all_lines.add(found[2])
            if (process, int(found[1])) not in unreached:
                reached.add(found[2])
    return all_lines, reached


def describe(text, seconds):
    states = re.search(r"(\d+) states, stored", text)
    depth = re.search(r"depth reached (\d+)", text)
    memory = re.search(r"([\d.]+)\s+total actual memory", text)
    return (
        f"{states[1] if states else '?'} states, depth {depth[1] if depth else '?'}, "
        f"{memory[1] if memory else '?'} MB, {seconds:.1f} s"
    )


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in MODELS:
        sys.exit(f"usage: check_models.py {'|'.join(MODELS)}")
    if shutil.which("spin") is None or shutil.which("cc") is None:
        print("spin or cc is not installed")
        sys.exit(77)
    name = sys.argv[1]
    model = MODELS[name]
    source = "".join((FOLDER / file).read_text() for file in model.files)
    failures = []
    if set(re.findall(r"\bMUTANT_([A-Z_]+)\b", source)) != set(model.mutants):
        failures.append("the model's mutants are not those that are searched")

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(JOBS) as pool:

        def timed(number, wanted, mutant=None):
            begin = time.monotonic()
            folder = pathlib.Path(scratch) / str(number)
            text = search(name, wanted, folder, mutant)
            return folder, text, describe(text, time.monotonic() - begin)

        runs = [(wanted, pool.submit(timed, n, wanted)) for n, wanted in enumerate(model.runs)]
        hunts = [(mutant, wanted.kind, pool.submit(timed, mutant, wanted, mutant))
                 for mutant, wanted in model.mutants.items()]
        all_lines, reached, taken = set(), set(), set()
        for wanted, future in runs:
            folder, text, summary = future.result()
            print(f"{name} {' '.join(wanted.defines)} ({wanted.kind}): {summary}")
            if (why := proved(text, wanted.kind)) is not None:
                failures.append(f"{wanted}: {why}\n{text[:3000]}")
                continue
            lines, hit = lines_reached(folder, text, model.endless)
            all_lines |= lines
            reached |= hit
            taken |= set(re.findall(r"^taken: .*$", text, re.MULTILINE))
        if not failures and len(all_lines) < 50:
            failures.append("the list of the model's statements was not understood")
        for line in sorted(all_lines - reached):
            failures.append(f"{line} was never reached")
        if len(taken) != model.transitions:
            failures.append(f"{len(taken)} of {model.transitions} transitions were taken")
        for mutant, kind, future in hunts:
            _, text, summary = future.result()
            error = re.search(r"^pan:1: (.*) \(at depth \d+\)", text, re.MULTILINE)
            print(f"{name} without a precaution, {mutant} ({kind}): {error[1] if error else 'NO ERROR'}; {summary}")
            if error is None:
                failures.append(f"MUTANT_{mutant} has no error that the model finds\n{text[:3000]}")

    for failure in failures:
        print(f"check_models: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
