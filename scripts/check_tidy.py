#!/usr/bin/env python3
"""check_tidy.py BUILD_DIR [FILE...]: clang-tidy-19 with .clang-tidy over every source of BUILD_DIR's
compile_commands.json below tessera, apps and bench that is no test, or over the named files only; exit status 1 when
anything was found.

Most of clang-tidy's time goes into the headers that every file includes, so files are looked at together, as includes of
one written file. Files that declare the same names, which is no fault, come into different ones.
"""

import collections
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
OURS = "/(tessera|apps|bench)/.*\\.(h|cc)$"
# What a source alone declares at namespace level, as clang-format lays it out: types, constants and functions.
UNNAMED = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.MULTILINE | re.DOTALL)
DECLARED = re.compile(r"^(?:struct|class|enum class|enum|using) (\w+)|^\w.*?[ *&](\w+)(?: =|[({\[;])", re.MULTILINE)


def run(command, directory):
    """The output of a command, and whether it passed."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    return done.stdout + (done.stderr if done.returncode else ""), done.returncode == 0


def write_group(path, sources):
    path.write_text("// NOLINTBEGIN(bugprone-suspicious-include)\n"
                    + "".join(f'#include "{source}"\n' for source in sources)
                    + "// NOLINTEND(bugprone-suspicious-include)\n")


def that_compile_together(path, sources, directory, flags):
    """Writes to the path a file of includes that compiles, and returns which sources it does not hold."""
    left = []
    while True:
        write_group(path, sources)
        # A source that does not compile by itself, or not without a warning, is left for clang-tidy to report.
        if len(sources) == 1:
            return left
        output, passed = run(["clang++-19", "-fsyntax-only", "-ferror-limit=0", *flags, str(path)], directory)
        if passed:
            return left
        named = set(FAULT.findall(output))
        # The second of two clashing files is the one that is named. Where none is, or all are, one is looked at alone.
        clashing = [source for source in sources[1:] if source in named] or sources[1:]
        left += clashing
        sources = [source for source in sources if source not in clashing]


def tidy_group(name, sources, directory, flags, folder, reported):
    """The faults of these sources. A group whose names clash after all is divided, which costs its time again."""
    faults = []
    runs = 0
    divided = False
    while sources:
        group = folder / f"{name}_{runs}.cc"
        runs += 1
        left = []
        if divided:
            left = that_compile_together(group, sources, directory, flags)
        else:
            write_group(group, sources)
        output, passed = run(["clang-tidy-19", "--quiet", f"--config-file={ROOT}/.clang-tidy",
                              f"--header-filter={reported}", str(group), "--", *flags], directory)
        if not divided and len(sources) > 1 and "[clang-diagnostic-" in output:
            print(f"check_tidy: {group} holds clashing names and is divided", file=sys.stderr)
            divided = True
            continue
        if not passed:
            faults.append(output)
        sources = left
    return faults


def without_clashes(sources):
    """The sources in groups that declare no name twice."""
    groups = []
    wanted = -(-len(sources) // TOGETHER_MAX)
    size = -(-len(sources) // wanted)
    for source in sources:
        text = pathlib.Path(source).read_text()
        declarations = "".join(UNNAMED.findall(text) + re.findall(r"^int main\(", text, re.MULTILINE))
        names = {name for pair in DECLARED.findall(declarations) for name in pair if name}
        # The latest group that takes it: neighbours include the same headers.
        for group, taken in reversed(groups):
            if len(group) < size and not names & taken:
                break
        else:
            group, taken = [], set()
            groups.append((group, taken))
        group.append(source)
        taken |= names
    return [group for group, _ in groups]


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: check_tidy.py BUILD_DIR [FILE...]")
    build = pathlib.Path(sys.argv[1]).resolve()
    named = [os.path.abspath(file) for file in sys.argv[2:]]
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    wanted = re.compile(re.escape(str(ROOT)) + r"/(tessera|apps|bench)/.*(?<!_test)\.cc")
    paths = {}  # Macros and folders of includes, of all sources: these do no harm to one another.
    sources = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        if not wanted.fullmatch(source):
            continue
        words = shlex.split(entry["command"])
        while not words[0].startswith("-"):  # The compiler, and ccache before it.
            words = words[1:]
        words = words[:words.index("-o")]
        others = []
        while words:
            # GCC's precompiled headers are nothing to clang, and their list would be read in each run.
            if words[0] in ("-include", "-isystem"):
                if words[0] == "-isystem":
                    paths[tuple(words[:2])] = None
                words = words[2:]
                continue
            if words[0].startswith(("-D", "-I")):
                paths[tuple(words[:1])] = None
            elif words[0] != "-Winvalid-pch":
                others.append(words[0])
            words = words[1:]
        sources[source] = (entry["directory"], tuple(others))
    if not sources:
        sys.exit(f"check_tidy: {build} compiles nothing of {ROOT}")

    reported = OURS
    if named:
        # What no build compiles, as the canary, is read as most sources are.
        usual = collections.Counter(sources.values()).most_common(1)[0][0]
        sources = {source: sources.get(source, usual) for source in named}
        reported += "".join(f"|^{re.escape(source)}$" for source in named)
    alike = {}
    for source, flags in sorted(sources.items()):
        # What sets macros for its includes cannot be read together with anything.
        by_itself = source if re.search(r"^#define", pathlib.Path(source).read_text(), re.MULTILINE) else ""
        alike.setdefault((*flags, by_itself), []).append(source)
    jobs = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (directory, others, _), together in sorted(alike.items(), key=lambda one: -len(one[1])):
            flags = [word for path in paths for word in path] + list(others)
            for group in without_clashes(together):
                jobs.append(pool.submit(tidy_group, f"group_{len(jobs)}", group, directory, flags, folder, reported))
    faults = [fault for job in jobs for fault in job.result()]
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
