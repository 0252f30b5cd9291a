"""Break one formula at a time and see whether the tests near it notice: `make mutate`.

python tools/mutate.py [WORD ...] [--jobs N] [--changed [REVISION]] [--minutes N]
python tools/mutate.py --branches [WORD ...]

With `--changed` only formulas run whose file or tests differ from a revision of Git, by default from where the branch
left main, on main itself from the commit before. With `--minutes` those come first, the others follow while there
is time, and the rest is reported as left out. `--branches` breaks nothing: it lists branches of formulas that no
reviewed value takes (tools/branches.py).

The formulas and the tests near them stand in tools/mutations.toml; words choose those whose name holds one. The
package is copied for every mutant, the checkout is never touched. Exits with 1 if a mutant survives, if a text is not
found exactly once, or if a test fails on the formulas as they are.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
#: what the copied package and its tests read and nobody changes
_READ = ("hardware_db", "model_specs", "calibration", "docs", "pyproject.toml")
#: exit codes of pytest: all passed, and a test failed; others (no test, no import) say nothing of a formula
_PASSED, _FAILED = 0, 1
#: a test failed on the mutant; none did; one fails on the formulas as they are
_CAUGHT, _SURVIVED, _UNFIT = "caught", "SURVIVED", "UNFIT"
#: longer than the slowest nearest tests by far: a mutant may run for ever [s]
_PATIENCE = 900.0


@dataclass(frozen=True)
class Mutation:
    """A formula, how it is broken, and the names of the test files that should notice."""

    name: str
    find: str
    broken: str
    tests: tuple[str, ...]

    def source(self, root: Path) -> Path:
        """The one file that holds the text once; ValueError if there is none or more."""
        held = [(path, path.read_text(encoding="utf-8").count(self.find)) for path in (root / "glmplan").rglob("*.py")]
        places = [path for path, count in held for _ in range(count)]
        if len(places) != 1:
            raise ValueError(f"{self.name}: stands {len(places)} times in the package: {self.find.strip()}")
        return places[0]

    def nearest(self, root: Path) -> list[str]:
        """The test files; ValueError if a name is not that of exactly one."""
        found = {name: list((root / "tests").rglob(name)) for name in self.tests}
        if wrong := [name for name, paths in found.items() if len(paths) != 1] or (["no test"] if not found else []):
            raise ValueError(f"{self.name}: not the name of one test file: {', '.join(wrong)}")
        return [str(paths[0].relative_to(root)) for paths in found.values()]


def mutations() -> list[Mutation]:
    """All of tools/mutations.toml."""
    rows = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text(encoding="utf-8"))["mutation"]
    return [Mutation(row["name"], row["find"], row["broken"], tuple(row["tests"])) for row in rows]


def copy_of(root: Path, folder: Path) -> Path:
    """A checkout to break: package and tests copied, data linked."""
    for name in ("glmplan", "tests"):
        # the house rules of this folder are of the whole checkout, and compiled files may be those of other sources
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_data"))
    for name in _READ:
        (folder / name).symlink_to(root / name)
    return folder


def run(folder: Path, tests: list[str]) -> tuple[int | None, str]:
    """Run tests in a copy; the exit code (None if it took too long), and what failed first, or the last line."""
    # the report of what failed is read from a file: lines of a terminal are cut to its width, which tests may set
    report = folder / "report.xml"
    quiet = ("-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", f"--junit-xml={report}")
    command = [sys.executable, "-m", "pytest", "-x", *quiet, *tests]
    # the copy before an installed package; one thread, because mutants use the cores
    environment = {**os.environ, "PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"not done after {_PATIENCE:.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()] or done.stderr.splitlines() or [""]
    return done.returncode, first_failure(report) or lines[-1]


def first_failure(report: Path) -> str:
    """The first test that failed and why, ``test - reason``, from a report in JUnit's format; else nothing."""
    if not report.exists():
        return ""
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                return f"{case.get('name')} - {' '.join(found.get('message', '').split())}"
    return ""


def judge(mutation: Mutation) -> tuple[bool, str]:
    """Whether a test caught a mutant, and which one or why not."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as made:
        folder = copy_of(ROOT, Path(made))
        source = mutation.source(folder)
        text = source.read_text(encoding="utf-8").replace(mutation.find, mutation.broken)
        source.write_text(text, encoding="utf-8")
        code, said = run(folder, mutation.nearest(folder))
    test, _, reason = said.partition(" - ")
    # a mutant that cannot run at all has shown nothing
    caught = code == _FAILED and reason.lower().startswith("assert")
    return caught, test if caught else said


def unbroken(chosen: list[Mutation]) -> str:
    """What fails although nothing is broken; empty if nothing does."""
    with tempfile.TemporaryDirectory(prefix="unbroken-") as made:
        folder = copy_of(ROOT, Path(made))
        code, said = run(folder, sorted({test for one in chosen for test in one.nearest(folder)}))
    return "" if code == _PASSED else said


def _git(*words: str) -> str | None:
    """Return what Git says; None where it fails or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def changed_since(revision: str) -> set[str] | None:
    """Return the files that differ from a revision; None if Git does not know it."""
    said = _git("diff", "--name-only", revision)
    return None if said is None else set(said.splitlines())


def base() -> str:
    """Return the commit where this branch left main; on main itself the commit before (of a merge: main before it)."""
    head = (_git("rev-parse", "HEAD") or "").strip()
    for main_branch in ("origin/HEAD", "origin/main", "main"):
        common = (_git("merge-base", main_branch, "HEAD") or "").strip()
        if common and common != head:
            return common
    return "HEAD~1"


def in_order(chosen: list[Mutation], changed: set[str] | None) -> tuple[list[Mutation], list[Mutation]]:
    """Return the mutations near changed files, all if the files are unknown, and the others.

    The others are shuffled by the commit, so that a time limit leaves out others each time, and the same ones when a
    run is repeated.
    """
    if changed is None:
        return chosen, []
    near = [
        one
        for one in chosen
        if changed.intersection([one.source(ROOT).relative_to(ROOT).as_posix(), *one.nearest(ROOT)])
    ]
    commit = _git("rev-parse", "HEAD") or ""
    rest = sorted(
        (one for one in chosen if one not in near), key=lambda one: zlib.crc32(f"{commit}{one.name}".encode())
    )
    return near, rest


def main(arguments: list[str]) -> int:
    """Run the chosen mutants in parallel and print what caught each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of names; all if left out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--changed", metavar="REVISION", nargs="?", const="", help="only formulas near files that differ from it"
    )
    parser.add_argument("--minutes", type=float, help="begin no other mutant after that time")
    parser.add_argument("--branches", action="store_true", help="list branches of formulas without a reviewed value")
    options = parser.parse_args(arguments)
    if options.branches:
        import branches

        return branches.main(options.words)
    chosen = [one for one in mutations() if not options.words or any(word in one.name for word in options.words)]
    try:
        for one in chosen:
            one.source(ROOT)
            one.nearest(ROOT)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not chosen:
        print("no mutation has such a name", file=sys.stderr)
        return 1
    revision = base() if options.changed == "" else options.changed
    near, rest = in_order(chosen, changed_since(revision) if revision else None)
    chosen = near + rest if options.minutes is not None else near
    if revision:
        print(f"{len(near)} formulas of the list are near files that differ from {revision}", flush=True)
    if not chosen:
        return 0
    return judged(chosen, options.jobs, options.minutes)


def judged(chosen: list[Mutation], jobs: int, minutes: float | None = None) -> int:
    """Judge mutants in parallel, the first ones first, and print each; 1 if one survives or its tests fail without it.

    Tests run unbroken before the first of their mutants, so that a time limit is not spent on tests of mutants that are
    left out.
    """
    end = math.inf if minutes is None else time.monotonic() + 60.0 * minutes
    unfit: dict[tuple[str, ...], str] = {}
    looking: defaultdict[tuple[str, ...], Lock] = defaultdict(Lock)

    def outcome(one: Mutation) -> tuple[str, str] | None:
        if time.monotonic() >= end:
            return None
        with looking[one.tests]:
            if one.tests not in unfit:
                unfit[one.tests] = unbroken([one])
        if unfit[one.tests]:
            return _UNFIT, unfit[one.tests]
        caught, said = judge(one)
        return _CAUGHT if caught else _SURVIVED, said

    bad = left_out = 0
    with ThreadPoolExecutor(max_workers=max(jobs, 1)) as pool:
        running = {pool.submit(outcome, one): one for one in chosen}
        try:
            for number, done in enumerate(as_completed(running), start=1):
                if (result := done.result()) is None:
                    left_out += 1
                    continue
                bad += result[0] != _CAUGHT
                print(f"{number:3}/{len(chosen)}  {result[0]:8}  {running[done].name}: {result[1]}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    tried = len(chosen) - left_out
    print(f"{tried - bad} of {tried} caught" + (f", {left_out} left out for time" if left_out else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
