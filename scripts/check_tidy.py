#!/usr/bin/env python3
"""check_tidy.py BUILD_DIR: clang-tidy-19 with .clang-tidy over every source of BUILD_DIR's compile_commands.json below
tessera, apps and bench that is no test; exit status 1 when anything was found.

Most of clang-tidy's time goes into the headers that every file includes, so the files of a folder are looked at together,
as includes of one written file. Where that does not compile, names clash, which is no fault: every file that an error names
is then looked at by itself, and the others once more without it.
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
TOGETHER_MAX = 8  # More would leave one core alone with the last group.
FAULT = re.compile(r"^(/[^:\n]+):\d+:\d+: (?:fatal )?error: ", re.MULTILINE)
HARD_ERROR = "[clang-diagnostic-error"


def tidy(source, directory, flags):
    """The output of clang-tidy for one file, and whether it passed."""
    command = ["clang-tidy-19", "--quiet", f"--config-file={ROOT}/.clang-tidy",
               "--header-filter=/(tessera|apps|bench)/.*\\.(h|cc)$", str(source), "--", *flags]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    return done.stdout + (done.stderr if done.returncode and not done.stdout else ""), done.returncode == 0


def tidy_group(name, sources, directory, flags, folder):
    """The faults of these sources: looked at together, then those that were named by themselves."""
    faults = []
    alone = sources if len(sources) == 1 else []
    together = [] if alone else sources
    while together:
        group = folder / f"{name}.cc"
        group.write_text("// NOLINTBEGIN(bugprone-suspicious-include)\n"
                         + "".join(f'#include "{source}"\n' for source in together)
                         + "// NOLINTEND(bugprone-suspicious-include)\n")
        output, passed = tidy(group, directory, flags)
        if passed:
            break
        if HARD_ERROR not in output:
            faults.append(output)
            break
        named = set(FAULT.findall(output))
        # An error that names none of them leaves no way but one by one.
        clashing = [source for source in together if source in named] or together
        alone = alone + clashing
        together = [source for source in together if source not in clashing]
    for source in alone:
        output, passed = tidy(source, directory, flags)
        if not passed:
            faults.append(output)
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
        flags = tuple(words[:words.index("-o")])
        # What sets macros for its includes cannot be read together with anything.
        by_itself = source if re.search(r"^#define", pathlib.Path(source).read_text(), re.MULTILINE) else ""
        groups.setdefault((os.path.dirname(source), entry["directory"], flags, by_itself), []).append(source)

    jobs = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, directory, flags, _), sources in sorted(groups.items(), key=lambda group: -len(group[1])):
            sources = sorted(set(sources))
            parts = -(-len(sources) // TOGETHER_MAX)
            for part in range(parts):
                jobs.append(pool.submit(tidy_group, f"group_{len(jobs)}", sources[part::parts], directory, flags, folder))
    if not jobs:
        sys.exit(f"check_tidy: {build} compiles nothing of {ROOT}")
    faults = [fault for job in jobs for fault in job.result()]
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
