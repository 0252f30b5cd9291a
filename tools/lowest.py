"""Run the main commands with the lowest version of every dependency: `make lowest`.

python tools/lowest.py [--venv FOLDER]

Reads the lower bounds in pyproject.toml (the core and every extra for users), installs exactly those versions into an
environment of its own, and runs the commands there. Dependencies of dependencies are the newest that pip accepts, as in
a fresh installation. Exits with 1 if a bound cannot be installed or a command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
#: name, extras of it, and lower bound of a requirement; a marker may follow
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[\w,-]+\])?>=([0-9][0-9.]*)$")
#: extras whose bounds are not installed: tools for development, and the extra that names the others
_LEFT_OUT = ("dev", "all")
#: the slowest command takes a few seconds [s]
_PATIENCE = 120.0
_MODEL, _MACHINE = "llama-3.1-8b", "1xh100-sxm"
_PLAN = (_MODEL, "--on", _MACHINE)
_SLO = ("--slo", "ttft p95 < 2 s, tpot p95 < 40 ms")
_RUN = "id,model,accelerator,accelerator_count,engine,weights,phase,concurrency,input_tokens,output_tokens\n" \
       "one,llama-3.1-8b,h100-sxm,1,vllm,bf16,serving,8,1000,200\n"  # fmt: skip


def lowest(project: dict[str, Any]) -> dict[str, str]:
    """Return the lowest version of each dependency for users, by name; ValueError for one without a lower bound."""
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, str] = {}
    for group, requirements in groups.items():
        for requirement in requirements if group not in _LEFT_OUT else ():
            match = _REQUIREMENT.match(requirement.split(";")[0].strip())
            if not match:
                raise ValueError(f"has no lower bound of the form NAME>=VERSION: {requirement}")
            if found.setdefault(match[1], match[2]) != match[2]:
                raise ValueError(f"has two lower bounds: {match[1]}")
    return found


def python() -> str:
    """Return the interpreter of the lowest Python of the project, where there is one, else the running one."""
    named = shutil.which("python3.11")
    works = named and subprocess.run([named, "-c", ""], check=False, capture_output=True).returncode == 0
    return named if named and works else sys.executable


def install(venv: Path, pins: dict[str, str]) -> None:
    """Install the project with exactly these versions; nothing is done where they are installed."""
    stamp, text = venv / "lowest.txt", "".join(f"{name}=={version}\n" for name, version in pins.items())
    if stamp.exists() and stamp.read_text(encoding="utf-8") == text:
        return
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([python(), "-m", "venv", str(venv)], check=True)
    constraints = venv / "constraints.txt"
    constraints.write_text(text, encoding="utf-8")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--editable", ".[all]", "--constraint", str(constraints)], cwd=ROOT, check=True)
    stamp.write_text(text, encoding="utf-8")


def said(venv: Path, folder: Path, *words: str) -> str:
    """Return the output of a command; RuntimeError with the last line of its errors if it fails."""
    command = [str(venv / "bin" / "glmplan"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1])
    return done.stdout


def served(venv: Path, folder: Path) -> str:
    """Return the answer of the service to one question; RuntimeError if it does not start."""
    command = [str(venv / "bin" / "glmplan"), "serve", "--port", "0", "--workers", "1", "--quiet"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        line = service.stderr.readline()
        try:
            if not (match := re.search(r"http://[^/\s]+", line)):
                raise RuntimeError((line + service.stderr.read()).strip().splitlines()[-1])
            question = f"{match[0]}/v1/value?model={_MODEL}&on={_MACHINE}&get=verdict"
            with urlopen(question, timeout=_PATIENCE) as answer:
                return str(answer.read().decode())
        finally:
            service.send_signal(signal.SIGINT)


def checks(venv: Path, folder: Path) -> dict[str, Callable[[], bool]]:
    """Return what is run, by the words of the command: each returns whether its answer is one."""
    (folder / "runs.csv").write_text(_RUN, encoding="utf-8")
    json_too = ("--format", "json")

    def plain(*words: str) -> str:
        return said(venv, folder, *words)

    def wrote(name: str, start: bytes, *words: str) -> bool:
        plain(*words, name)
        return (folder / name).read_bytes().startswith(start)

    return {
        "fit": lambda: json.loads(plain("fit", *_PLAN, *json_too))["verdict"] == "fits",
        "fit --help": lambda: "--on" in plain("fit", "--help"),
        "models show": lambda: json.loads(plain("models", "show", _MODEL, *json_too))["parameters"]["total"] > 8e9,
        "predict": lambda: "tpot_mean_ms" in plain("predict", "--runs", "runs.csv"),
        "safe": lambda: "95 %" in plain("safe", *_PLAN, "--traffic", "closed", *_SLO),
        "simulate": lambda: "ttft" in plain("simulate", *_PLAN, "--traffic", "closed:4", "--requests", "50"),
        "size": lambda: "l40s" in plain("size", "--model", _MODEL, "--users", "4", *_SLO, "--only", "l40s"),
        "sweep to Parquet": lambda: wrote("table.parquet", b"PAR1", "sweep", "--model", _MODEL, "--on", _MACHINE,
                                          "--out"),
        "report as PDF": lambda: wrote("report.pdf", b"%PDF", "report", *_PLAN, "--out"),
        "sheet new": lambda: wrote("plan.xlsx", b"PK", "sheet", "new", "--model", _MODEL, "--on", _MACHINE),
        "serve": lambda: served(venv, folder) == "fits",
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Install, run every command and print one line for each; 1 if something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-lowest")
    venv = parser.parse_args(arguments).venv.resolve()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        install(venv, lowest(project))
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"lowest versions: {error}", file=sys.stderr)
        return 1
    failed = 0
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="lowest-") as made:
        for name, check in checks(venv, Path(made)).items():
            begun = time.monotonic()
            try:
                word = "works" if check() else "FAILS  its answer is not the expected one"
            except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                word = f"FAILS  {type(error).__name__}: {error}"
            failed += word != "works"
            print(f"{name:20} {time.monotonic() - begun:5.1f} s  {word}", flush=True)
    print(f"lowest versions: {failed} commands fail")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
