"""Mutation check of the page checks: removes or weakens each of their comparisons in turn, and shows that a test fails.

Usage: check_mutants.py instrument SOURCE_DIR OUT_DIR    write the instrumented sources
       check_mutants.py run PROGRAMS_DIR [NUMBER...]      run the tests against every mutant, or against those only
       check_mutants.py list                              what each number is

Each mutated source is compiled once, from a copy in which every mutated place asks which mutant the process is
(chosen_mutant.h); the programs are the ordinary tests, linked with these copies. Mutant 0 is the real code, and passes.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

import mutants

# The programs, cheapest first, and what of them can notice; a mutant is tried against all until one fails. Not the
# comparison with a model: it draws other operations every time, and what it alone would notice needs a test of its own.
PROGRAMS = {
    "kv_cache": "-KvCacheModel*:PageTable*",
    "conformance": "*VerifyPages*:*CheckDigests*:*DigestTokens*:*DigestPages*",
    "kv_transfer": "-*Threads*",
    "serving": "*DeviceFailure*",
    "corruption": "*",
}
# Which program is tried first.
FIRST = {
    mutants.VERIFY: "conformance",
    mutants.PAGES: "conformance",
    mutants.DIGESTS: "conformance",
    mutants.STEP: "corruption",
    mutants.LOOP: "corruption",
    mutants.ENDS: "corruption",
    mutants.INTEGRITY: "corruption",
    mutants.SEQUENCE_PAGES: "corruption",
    mutants.MOVES: "corruption",
    mutants.HANDOFF: "kv_transfer",
    mutants.RECEIVER: "kv_transfer",
    mutants.SENDER: "kv_transfer",
    mutants.WIRE: "kv_transfer",
    mutants.STORER: "kv_transfer",
    mutants.GATHERER: "kv_transfer",
}
# A mutant that hangs is caught, too.
TIMEOUT_S = 120


class Mutant:
    def __init__(self, number, site, becomes):
        self.number, self.site, self.becomes = number, site, becomes

    def describe(self):
        piece = re.search("«(.*)»", self.site.text, re.DOTALL).group(1)
        return f"{self.number} {self.site.file}: {piece} -> {self.becomes or 'nothing'}"


def all_mutants():
    numbered = []
    for site in mutants.SITES:
        for becomes in site.becomes:
            numbered.append(Mutant(len(numbered) + 1, site, becomes))
    return numbered


def locate(site, source):
    """Where the site's piece lies in the source."""
    before, piece, after = re.fullmatch("(.*)«(.*)»(.*)", site.text, re.DOTALL).groups()

    def pattern(text):
        return r"\s*".join(re.escape(word) for word in re.findall(r"\w+|[^\w\s]", text))

    found = list(re.finditer(rf"{pattern(before)}\s*({pattern(piece)})\s*{pattern(after)}", source))
    if len(found) != 1:
        raise SystemExit(f"{site.file}: '{site.text}' occurs {len(found)} times; expected once")
    return found[0].span(1)


def mutated(piece, choices):
    """The piece with every mutant of its site as a choice at run time."""
    if piece.endswith(";"):
        text = f"{{ {piece} }}"
        for mutant in choices:
            text = f"if (::tessera::mutation::is({mutant.number})) {{ {mutant.becomes} }} else {text}"
        return text
    text = f"({piece})"
    for mutant in choices:
        text = f"(::tessera::mutation::is({mutant.number}) ? ({mutant.becomes}) : {text})"
    return text


def instrument(source_dir, out_dir):
    by_file = {}
    for mutant in all_mutants():
        by_file.setdefault(mutant.site.file, {}).setdefault(mutant.site, []).append(mutant)
    for file, sites in by_file.items():
        source = (source_dir / file).read_text()
        places = sorted((locate(site, source), choices) for site, choices in sites.items())
        for ((_, end), _), ((start, _), _) in zip(places, places[1:]):
            if start < end:
                raise SystemExit(f"{file}: two sites overlap at '{source[start:end]}'")
        for (start, end), choices in reversed(places):
            source = source[:start] + mutated(source[start:end], choices) + source[end:]
        out = out_dir / file
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text('#include "tests/mutation/chosen_mutant.h"\n' + source)


def fails(programs_dir, program, number):
    """Whether the program notices the mutant; with which test."""
    command = [programs_dir / f"mutation_{program}_test", f"--gtest_filter={PROGRAMS[program]}", "--gtest_fail_fast",
               "--gtest_brief=1"]
    environment = {**os.environ, "TESSERA_MUTANT": str(number)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                              timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "it hung"
    if done.returncode == 0:
        ran = re.search(r"(\d+) tests? from", done.stdout)
        return None if ran and int(ran.group(1)) > 0 else "no test ran"
    failed = re.search(r"\[  FAILED  \] (\S+)", done.stdout)
    return failed.group(1).rstrip(",") if failed else f"it ended with status {done.returncode}"


def judge(programs_dir, mutant):
    first = FIRST.get(mutant.site.file, "kv_cache")
    for program in sorted(PROGRAMS, key=lambda name: name != first):
        if test := fails(programs_dir, program, mutant.number):
            return f"{program}: {test}"
    return None


def run(programs_dir, numbers):
    begin = time.monotonic()
    workers = os.cpu_count() or 1
    chosen = [mutant for mutant in all_mutants() if not numbers or mutant.number in numbers]
    failed = False
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for program, test in zip(PROGRAMS, pool.map(lambda name: fails(programs_dir, name, 0), PROGRAMS)):
            if test is not None:
                print(f"without a mutant {program} fails: {test}")
                failed = True
        if failed:
            raise SystemExit(1)
        caught = equivalent = 0
        for mutant, by in zip(chosen, pool.map(lambda one: judge(programs_dir, one), chosen)):
            if by is None and mutant.site.equivalent:
                equivalent += 1
                print(f"equivalent {mutant.describe()}: {mutant.site.equivalent}")
            elif by is None:
                failed = True
                print(f"SURVIVED {mutant.describe()}")
            elif mutant.site.equivalent:
                failed = True
                print(f"not equivalent after all: {mutant.describe()}, caught by {by}")
            else:
                caught += 1
                print(f"caught {mutant.describe()}, by {by}")
    print(f"took {time.monotonic() - begin:.0f} s on {workers} processors")
    print(f"{len(chosen) - equivalent} mutants, {caught} caught" + (f"; {equivalent} equivalent" if equivalent else ""))
    return failed


def main():
    match sys.argv[1:]:
        case ["instrument", source_dir, out_dir]:
            instrument(pathlib.Path(source_dir), pathlib.Path(out_dir))
        case ["run", programs_dir, *numbers]:
            raise SystemExit(run(pathlib.Path(programs_dir), {int(number) for number in numbers}))
        case ["list"]:
            print("\n".join(mutant.describe() for mutant in all_mutants()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
