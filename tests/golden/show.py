"""The golden values beside today's: `python tests/golden/show.py [WORD ...] [--moved]`.

Asks every question of values.toml through the command line (in this process) and prints stored value, today's value,
tolerance and reference. It never writes: who changes a value changes values.toml by hand and says why.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import io
import json
import operator
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VALUES = Path(__file__).with_name("values.toml")
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the checkout that this file lies in, whatever is installed


@dataclass(frozen=True)
class Golden:
    """One reviewed value.

    Attributes
    ----------
    question : str
        Name of the question.
    kind : str
        ``words`` of a command, ``rows`` of measured runs that `predict` answers, or another name of `_KINDS`.
    ask : tuple of str
        The words, the rows, or host and what is asked of its links.
    path : str
        Where the value stands in the answer: ``users[users=32].tpot_mean_ms.value``.
    value, tolerance : float
        Stored value, and how far today's may be from it, relative; 0 means equal, [-]
    unit : str
        Of the value.
    reference : str
        Arithmetic or a measured figure that the stored value was checked with; empty if there is none.
    within : float
        How far the stored value may be from the reference, relative, [-]
    checked : str
        Where and how.
    wrong : str
        Why today's answer is known to be wrong; the stored value is then what it should be.
    """

    question: str
    kind: str
    ask: tuple[str, ...]
    path: str
    value: float
    tolerance: float
    unit: str
    reference: str
    within: float
    checked: str
    wrong: str

    @property
    def name(self) -> str:
        return f"{self.question}: {self.path}"

    @property
    def today(self) -> float:
        return float(_at(answer(self.kind, self.ask), self.path))

    @property
    def expected(self) -> float | None:
        return arithmetic(self.reference) if self.reference else None


def values() -> list[Golden]:
    """All of values.toml."""
    found = []
    for question in tomllib.loads(VALUES.read_text(encoding="utf-8"))["question"]:
        [kind] = {"words", *_KINDS} & set(question)
        asked = question[kind]
        ask = tuple(shlex.split(asked)) if kind == "words" else tuple(map(str, asked))
        for one in question["value"]:
            found.append(Golden(
                question["name"], kind, ask, one["path"], float(one["value"]), float(one["tolerance"]), one["unit"],
                one.get("reference", ""), float(one.get("within", 0.0)), one["checked"], one.get("known_wrong", ""),
            ))  # fmt: skip
    return found


def off(value: float, other: float) -> float:
    """How far a value is from another, relative to the other, [-]"""
    return (value - other) / abs(other) if other else float(value != other)


_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def arithmetic(text: str) -> float:
    """What an expression of numbers, + - * / // ** and brackets comes to; ValueError for anything else."""

    def of(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        raise ValueError(f"is not arithmetic: {text}")

    return float(of(ast.parse(text, mode="eval").body))


@cache
def answer(kind: str, ask: tuple[str, ...]) -> Any:
    """The answer to a question, asked once."""
    if kind != "words":
        return _KINDS[kind](ask)
    return json.loads(_said([*(word.replace("{here}", str(VALUES.parent)) for word in ask), "--format", "json"]))


def _said(words: list[str]) -> str:
    from glmplan.cli import main

    said, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint):
        try:
            main(words)
        except SystemExit as end:
            if end.code not in (0, None):
                raise RuntimeError(f"glmplan {shlex.join(words)}: {complaint.getvalue().strip()}") from None
    return said.getvalue()


def _predicted(rows: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Predict measured runs, by their id, by the command `predict`."""
    tables = []
    for path in sorted((ROOT / "calibration" / "measurements").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            tables += [row for row in csv.DictReader(file) if row.get("id") in rows]
    columns = list(dict.fromkeys(name for row in tables for name in row))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(tables)
        said = _said(["predict", "--runs", str(path)])
    return {row["id"]: row for row in csv.DictReader(io.StringIO(said))}


def _collective(ask: tuple[str, ...]) -> dict[str, float]:
    """Return all-reduces of a host, ranks and bytes: between its links, and in a step of a plan on it."""
    from glmplan.catalog.entries.hosts import load_machine
    from glmplan.costs.network.collectives import all_reduce_time
    from glmplan.costs.network.links import link_for_group
    from glmplan.costs.step.work import all_reduce_seconds
    from glmplan.planner import read_words, solve
    from glmplan.planner.ranking import deployment_of
    from glmplan.request.plan import PlanRequest

    host, ranks, message = ask
    bytes_, count = float(message), int(ranks)
    alone = all_reduce_time(message_bytes=bytes_, ranks=count, link=link_for_group(load_machine(host), count))
    asked = read_words(PlanRequest("llama-3.1-70b-fp8", host, tp=ranks, pp="1", dp="1"))
    structure = deployment_of(asked, solve(asked).best.terms).structure
    latency, payload = all_reduce_seconds(structure, structure.link.tensor, bytes_, float(count))
    return {"network_us": 1e6 * float(alone), "step_us": 1e6 * float(latency + payload)}


def _transfers(ask: tuple[str, ...]) -> dict[str, Any]:
    """Return the rates of simultaneous transfers of a host, ``0>4 host>1``, and the load of its fullest link.

    A third word is ``read`` (receivers pull), ``write`` (senders push) or ``acs`` (writes that switches send up).
    """
    from glmplan.catalog.entries.hosts import load_host
    from glmplan.costs.network.links import transfer_rate
    from glmplan.costs.network.topology import HOST, flow_rates, link_loads

    name, text, how = ask
    host = load_host(name)
    if how == "acs":
        switches = tuple(switch.model_copy(update={"acs_redirect": True}) for switch in host.switches)
        host = host.model_copy(update={"switches": switches})
    pairs = [pair.split(">") for pair in text.split()]
    flows = [(HOST if start == HOST else int(start), HOST if end == HOST else int(end)) for start, end in pairs]
    rates = flow_rates(host, flows, writes=how != "read")
    fullest = link_loads(host, flows, writes=how != "read")[0]
    cards = [(int(start), int(end)) for start, end in flows if HOST not in (start, end)]
    return {
        # what hand-overs between pipeline stages are computed with
        "line_gb_per_s": transfer_rate(host, cards)[0] / 1e9
        if cards and not (host.scale_up or host.nodes > 1)
        else None,
        "gb_per_s": float(rates.sum()) / 1e9,
        "slowest_gb_per_s": float(rates.min()) / 1e9,
        "fullest": {"flows": fullest.flows, "share": fullest.load / fullest.capacity},
    }


def _host_transfers(ask: tuple[str, ...]) -> dict[str, float]:
    """Return the rate of the slowest of simultaneous transfers between cards of a host, ``0 4``, and host memory."""
    from glmplan.catalog.entries.hosts import load_host
    from glmplan.costs.network.links import host_transfer_rate

    host, cards = ask
    return {"gb_per_s": host_transfer_rate(load_host(host), members=tuple(map(int, cards.split()))) / 1e9}


def _placement(ask: tuple[str, ...]) -> dict[str, Any]:
    """Return where the ranks of a layout go on a host, and the times of its groups and stages."""
    from glmplan.catalog.entries.hosts import load_host
    from glmplan.costs.network.topology import place, plan_loads

    host = load_host(ask[0])
    found = place(host, tp=int(ask[1]), pp=int(ask[2]))
    return {
        "all_reduce_us": 1e6 * found.score.all_reduce,
        "hand_over_us": 1e6 * found.score.hand_over,
        "gain": found.gain,
        "tried": found.tried,
        "stages": [list(stage) for stage in found.stages],
        "loads": {kind: loads[0].flows for kind, loads in plan_loads(host, found.stages).items()},
    }


_KINDS: dict[str, Callable[[tuple[str, ...]], Any]] = {
    "rows": _predicted,
    "collective": _collective,
    "transfers": _transfers,
    "host_transfers": _host_transfers,
    "placement": _placement,
}


def _at(found: Any, path: str) -> Any:
    for key in _keys(path):
        if found is None:
            raise KeyError(f"nothing is known at {path}")
        if isinstance(key, str):
            if key not in found:
                raise KeyError(f"no {key} in the answer at {path}; there is {', '.join(map(str, found))}")
            found = found[key]
        elif isinstance(key, int):
            found = found[key]
        else:
            [found] = [one for one in found if all(str(one[name]) == value for name, value in key.items())]
    return found


def _keys(path: str) -> Iterator[str | int | dict[str, str]]:
    for name, inside in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path):
        if name:
            yield name
        elif inside.isdigit():
            yield int(inside)
        else:
            yield dict(pair.split("=", 1) for pair in inside.split(","))


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a value moved further than its tolerance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of names; all if left out")
    parser.add_argument("--moved", action="store_true", help="only what moved further than its tolerance")
    options = parser.parse_args(arguments)
    moved = 0
    print(f"{'stored':>14} {'today':>14} {'moved':>9} {'allowed':>8} {'reference':>14} {'unit':<8} value")
    for one in values():
        if options.words and not any(word in one.name for word in options.words):
            continue
        try:
            today, complaint = one.today, ""
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            today, complaint = float("nan"), f"  no answer: {error}"
        far = off(today, one.value)
        out = not abs(far) <= one.tolerance
        moved += out and not one.wrong
        if options.moved and not out:
            continue
        mark = "" if not out else "  (known wrong)" if one.wrong else "  MOVED"
        expected = "" if one.expected is None else f"{one.expected:.7g}"
        print(f"{one.value:>14.7g} {today:>14.7g} {far:>+9.2%} {one.tolerance:>8.2%} {expected:>14} {one.unit:<8} "
              f"{one.name}{mark}{complaint}")  # fmt: skip
    print(f"{moved} moved")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
