#!/usr/bin/env python3
"""check_tidy.py BUILD_DIR: clang-tidy-19 with .clang-tidy over every source of BUILD_DIR's compile_commands.json below
tessera, apps and bench that is no test; exit status 1 when anything was found.

Most of clang-tidy's time goes into the headers that every file includes, so files that are compiled alike are looked at
together, as includes of one written file. Files whose names clash there, which is no fault, go to the next such file.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOGETHER_MAX = 16  # More would leave one core alone with the last group.
FAULT = re.compile(r"^(/[^:\n]+):\d+:\d+: (?:fatal )?error: ", re.MULTILINE)


def run(command, directory):
    """The output of a command, and whether it passed."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    return done.stdout + (done.stderr if done.returncode else ""), done.returncode == 0


def that_compile_together(path, sources, directory, flags):
    """Writes to the path a file of includes that compiles, and returns which sources it does not hold."""
    left = []
    while True:
        path.write_text("// NOLINTBEGIN(bugprone-suspicious-include)\n"
                        + "".join(f'#include "{source}"\n' for source in sources)
                        + "// NOLINTEND(bugprone-suspicious-include)\n")
        # A source that does not compile by itself is left for clang-tidy to report.
        if len(sources) == 1:
            return left
        output, passed = run(["clang++-19", "-fsyntax-only", "-ferror-limit=0", "-w", *flags, str(path)], directory)
        if passed:
            return left
        named = set(FAULT.findall(output))
        # The second of two clashing files is the one that is named. Where none is, or all are, one is looked at alone.
        clashing = [source for source in sources[1:] if source in named] or sources[1:]
        left += clashing
        sources = [source for source in sources if source not in clashing]


def tidy_group(name, sources, directory, flags, folder):
    """The faults of these sources, in as few runs as their names allow."""
    faults = []
    runs = 0
    while sources:
        group = folder / f"{name}_{runs}.cc"
        left = that_compile_together(group, sources, directory, flags)
        output, passed = run(["clang-tidy-19", "--quiet", f"--config-file={ROOT}/.clang-tidy",
                              "--header-filter=/(tessera|apps|bench)/.*\\.(h|cc)$", str(group), "--", *flags], directory)
        if not passed:
            faults.append(output)
        sources = left
        runs += 1
    return faults


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_tidy.py BUILD_DIR")
    build = pathlib.Path(sys.argv[1]).resolve()
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    wanted = re.compile(re.escape(str(ROOT)) + r"/(tessera|apps|bench)/.*(?<!_test)\.cc")
    groups = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        if not wanted.fullmatch(source):
            continue
        words = shlex.split(entry["command"])
        while not words[0].startswith("-"):  # The compiler, and ccache before it.
            words = words[1:]
        words = words[:words.index("-o")]
        # GCC's precompiled headers are nothing to clang, and their list would be read in each run.
        while "-include" in words:
            at = words.index("-include")
            del words[at:at + 2]
        flags = tuple(words)
        # What sets macros for its includes cannot be read together with anything.
        by_itself = source if re.search(r"^#define", pathlib.Path(source).read_text(), re.MULTILINE) else ""
        groups.setdefault((entry["directory"], flags, by_itself), []).append(source)

    jobs = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (directory, flags, _), sources in sorted(groups.items(), key=lambda group: -len(group[1])):
            sources = sorted(set(sources))
            parts = -(-len(sources) // TOGETHER_MAX)
            size = -(-len(sources) // parts)
            for begin in range(0, len(sources), size):
                jobs.append(pool.submit(tidy_group, f"group_{len(jobs)}", sources[begin:begin + size], directory, flags,
                                        folder))
    if not jobs:
        sys.exit(f"check_tidy: {build} compiles nothing of {ROOT}")
    faults = [fault for job in jobs for fault in job.result()]
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
