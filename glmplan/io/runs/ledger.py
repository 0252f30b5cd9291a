"""Load the shipped measurements of `calibration/measurements`.

Runs, campaigns, machines, held-out groups.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator, split_count
from glmplan.catalog.entries.hosts import host_aliases, host_names, implied_host, load_host
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.entries.names import accelerator_name
from glmplan.catalog.files import data_folder, plain_name, read_entries, read_rows, read_toml
from glmplan.costs.blocks.stack import routed_blocks
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.io.models.resolve import resolve_model
from glmplan.io.runs.record import Run, Runs
from glmplan.io.runs.table import read_runs
from glmplan.units import Tokens

if TYPE_CHECKING:
    from glmplan.catalog.schema.host import Host

__all__ = [
    "Acceptance",
    "campaigns",
    "day_of",
    "described_hosts",
    "group_key",
    "held_out",
    "host_of_row",
    "is_held_out",
    "known_names",
    "load_acceptance",
    "load_measurements",
    "repeats",
    "split_held_out",
    "with_known_names",
]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Cited mean number of tokens of a speculative step for each request."""

    run: str | None  # id of the run that shows it; None: stated by a page
    model: str
    method: str  # draft method; like engine and text empty when not stated
    engine: str
    text: str  # kind of text
    draft_tokens: int | None  # draft passes of a step
    verify_tokens: int | None  # verified tokens of a step
    concurrency: float | None  # requests in flight
    acceptance_length: Tokens  # mean of a step
    basis: str  # derivation of the length
    source: str


@cache
def campaigns() -> dict[str, dict[str, Any]]:
    """Return `calibration/sources.toml`: campaign → origin, method, traps.

    Examples
    --------
    >>> campaigns()["inferencex"]["rows"]
    1487
    """
    return read_toml(data_folder("calibration") / "sources.toml")


@cache
def _load() -> tuple[Run, ...]:
    folder, sources = data_folder("calibration") / "measurements", campaigns()
    runs = []
    for file in sorted({entry["file"] for entry in sources.values()}):
        for run in read_runs(folder / file):
            entry = sources.get(run.campaign or "")
            if entry is None:
                raise SpecError("has no entry in sources.toml", file=file, field=run.id, value=run.campaign)
            trust = run.trust or entry["trust"]
            source = run.source or entry["address"]
            if run.source and not run.source.startswith("http") and entry["address"].startswith("http"):
                source = f"{entry['address']}/{run.source}"
            runs.append(replace(run, trust=trust, source=source))
    return tuple(runs)


def load_measurements() -> list[Run]:
    """Return every run with the trust and source of its campaign.

    Examples
    --------
    >>> len(load_measurements())
    14620
    """
    return list(_load())


_DAY = re.compile(r"\d{4}-\d{2}(?:-\d{2})?")


def day_of(run: Run) -> str:
    """Return the day of a run: ``2026-04-01`` or ``2026-04``.

    The row counts before its campaign. The last one where a campaign names several; empty where no month is known.

    Examples
    --------
    >>> day_of(Run("a", "glm-5", "b200-sxm", measured_on="2026-03-12")), day_of(Run("a", "glm-5", "b200-sxm"))
    ('2026-03-12', '')
    """
    entry = campaigns().get(run.campaign or "", {})
    said = _DAY.findall(run.measured_on or "") or _DAY.findall(str(entry.get("measured", "")))
    return max(said, default="")


def load_acceptance() -> list[Acceptance]:
    """Return every cited acceptance length of speculative decoding.

    Examples
    --------
    >>> sorted({row.method for row in load_acceptance()})
    ['', 'eagle3', 'mtp']
    """
    path = data_folder("calibration") / "measurements" / "acceptance.csv"
    return [
        Acceptance(
            run=row["run"] or None,
            model=row["model"],
            method=row["method"],
            engine=row["engine"],
            text=row["text"],
            draft_tokens=int(row["draft_tokens"]) if row["draft_tokens"] else None,
            verify_tokens=int(row["verify_tokens"]) if row["verify_tokens"] else None,
            concurrency=float(row["concurrency"]) if row["concurrency"] else None,
            acceptance_length=float(row["acceptance_length"]),
            basis=row["basis"],
            source=row["source"],
        )
        for row in read_rows(path)
    ]


#: models of equal shapes under whose names the same runs were published
_SAME_SHAPES = {"deepseek-r1": "deepseek-v3"}


def repeats(runs: Iterable[Run]) -> dict[str, str]:
    """Return repeated run → first run.

    Values and conditions are the same, so the run is no new evidence. Several values count as the same within 0.2 %
    (rounding), a single one only when equal. DeepSeek-R1 and -V3 have equal shapes and share runs. Keep a run and its
    repetitions in one fold of a cross-validation.

    Examples
    --------
    >>> twice = repeats(load_measurements())  # MLPerf's 99 and 99.9 rows, DeepSeek-R1 and -V3, carried twice
    >>> 400 < len(twice) < 600
    True
    """
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if run.observed:
            key = (_SAME_SHAPES.get(run.model, run.model), run.accelerator, run.accelerator_count, run.engine,
                   run.weights, run.tp, run.dp, run.ep, run.phase, run.protocol, run.concurrency, run.input_tokens,
                   run.output_tokens, run.context_depth, run.speculation, tuple(sorted(run.observed)))  # fmt: skip
            groups[key].append(run)
    result: dict[str, str] = {}
    for group in groups.values():
        firsts: list[Run] = []
        for run in group:
            slack = 0.002 if len(run.observed) > 1 else 0.0
            same = (f.id for f in firsts if all(abs(run.observed[n] - x) <= slack * x for n, x in f.observed.items()))
            first = next(same, None)
            if first is None:
                firsts.append(run)
            else:
                result[run.id] = first
    return result


#: conditions of a machine that a table may state besides its name
_CONDITIONS = ("p2p", "nccl_graph")


@cache
def described_hosts() -> dict[str, dict[str, Any]]:
    """Return text of column `host` → its entry in `calibration/hosts.toml`.

    Examples
    --------
    >>> described_hosts()["dual Turin, NCCL graph XML"]["host"]
    'turin-2s-direct-8-tuned'
    """
    file = data_folder("calibration") / "hosts.toml"
    result: dict[str, dict[str, Any]] = {}
    for entry in read_toml(file)["hosts"]:
        for text in entry["names"]:
            if text in result:
                raise SpecError("stands in two entries", file=file, field="names", value=text)
            result[text] = entry
    return result


@cache
def _words() -> tuple[dict[str, Any], ...]:
    """Return the entries with a pattern, for texts that name no machine."""
    file = data_folder("calibration") / "hosts.toml"
    return read_entries(file, "words", {"pattern", "why", *_CONDITIONS})


def host_of_row(text: str | None, accelerator: str, count: int) -> tuple[Host, str]:
    """Return the machine of a row, and the assumptions about it as text.

    `text`: the column `host`, a catalogue name or alias, a TOML file, or text of `described_hosts`. `count`:
    accelerators of the row. The assumptions are empty if there are none beyond those of a plan for as many
    accelerators.

    Examples
    --------
    >>> host_of_row("hgx-b200-8", "b200-sxm", 8)[0].name
    'hgx-b200-8'
    >>> host, assumed = host_of_row("a machine of mine", "rtx-pro-6000-ws", 4)
    >>> host.name, assumed
    ('4xrtx-pro-6000-ws', "host 'a machine of mine' as 4xrtx-pro-6000-ws")
    """
    own = accelerator.endswith(".toml") or (text or "").endswith(".toml")
    find = _find.__wrapped__ if own else _find  # a file may change
    return find(text or "", accelerator, count)


@lru_cache(maxsize=4096)
def _find(text: str, accelerator: str, count: int) -> tuple[Host, str]:
    entry = described_hosts().get(text, {})
    known = text.endswith(".toml") or plain_name(text) in host_names() or plain_name(text) in host_aliases()
    name = entry.get("host") or (text if known else "")
    host = load_host(name) if name else implied_host(load_accelerator(accelerator), count)
    said = [entry] if known or entry else [word for word in _words() if re.search(word["pattern"], text)]
    told = {field: item[field] for item in said for field in _CONDITIONS if field in item}
    if told:
        host = host.model_copy(update={"conditions": host.conditions.model_copy(update=told)})
    return host, "" if known or entry or not text else f"host {text!r} as {host.name}"


_BITS = re.compile(r"\d+")


@cache
def _rule() -> dict[str, Any]:
    return read_toml(data_folder("calibration") / "holdout.toml")


@cache
def _part_names() -> dict[str, str]:
    return {part: entry["name"] for entry in _rule()["parts"] for part in entry["holds"]}


@lru_cache(maxsize=1024)
def _shape(name: str) -> str:
    try:
        model = load_model(name)
    except GlmplanError:
        return name
    experts = next((f" e{routed_block.experts}k{routed_block.topk}" for routed_block in routed_blocks(model)), "")
    return f"{model.hidden}x{len(model.layer_names)}{experts}"


@lru_cache(maxsize=1024)
def _default_format(name: str, engine: str) -> str:
    try:
        return checkpoint_for(load_model(name), engine=engine).name
    except GlmplanError:
        return "unsaid"


@lru_cache(maxsize=4096)
def _key(engine: str, part: str, model: str, weights: str | None) -> str:
    form = weights or _default_format(model, engine)
    bits = _BITS.search(form)
    return f"{engine}|{_part_names().get(part, part)}|{_shape(model)}|{bits[0] if bits else form}"


def group_key(run: Run) -> str:
    """Return the group of a run.

    Engine, accelerator, model shape and bits of the format.

    Examples
    --------
    >>> group_key(Run("a", "deepseek-r1", "b200-sxm", engine="vllm", weights="nvfp4"))
    'vllm|b200-sxm|7168x61 e256k8|4'
    >>> one, two = Run("b", "glm-5", "rtx-pro-6000-ws"), Run("c", "glm-5.1", "rtx-pro-6000-server", engine="vllm")
    >>> group_key(one) == group_key(two)
    True
    """
    return _key(run.engine or _rule()["engine_unsaid"], run.accelerator, run.model, run.weights)


@lru_cache(maxsize=4096)
def is_held_out(group: str) -> bool:
    """Return True if `calibration/holdout.toml` holds a group out.

    The rule was fixed before the newest rows were opened. It uses names of tables and shapes of the catalogue alone, so
    that later rows are assigned without a choice.

    Examples
    --------
    >>> sum(is_held_out(str(number)) for number in range(1000))
    212
    """
    rule = _rule()
    digest = hashlib.sha256(f"{rule['salt']}|{group}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % int(rule["of"]) == int(rule["remainder"])


def held_out(runs: Iterable[Run]) -> frozenset[str]:
    """Return the ids of the held-out runs of a table."""
    return frozenset(run.id for run in runs if is_held_out(group_key(run)))


def split_held_out(runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
    """Return rows to fit, and rows held out, both in their order.

    This is the only place of the split.
    """
    seen: list[Run] = []
    out: list[Run] = []
    for run in runs:
        (out if is_held_out(group_key(run)) else seen).append(run)
    return seen, out


def known_names(run: Run) -> Run:
    """Return a row with its names read as `glmplan fit` reads them.

    Only names whose spelling the catalogue lacks change. ``name-format`` names a model and its weights,
    ``NxACCELERATOR`` an accelerator and its number, a repository or a catalogue name in `checkpoint` the weights. Cells
    of separate columns and unknown names stay unchanged.

    Examples
    --------
    >>> found = known_names(Run("a", "glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine="vllm"))
    >>> found.model, found.weights, found.accelerator, found.accelerator_count
    ('glm-5.1', 'nvfp4', 'rtx-pro-6000-ws', 6)
    """
    if run.model not in model_names():
        try:
            choice = resolve_model(run.model)
        except GlmplanError:
            choice = None
        if choice is not None:
            stated = choice.checkpoint.name if choice.stated else None
            run = replace(run, model=choice.model.name, weights=run.weights or stated)
    if run.weights is None and run.weights_bits is None and run.checkpoint and run.model in model_names():
        run = replace(run, weights=_published_as(run.model, run.checkpoint))
    if run.accelerator not in accelerator_names():
        try:
            count, part = split_count(run.accelerator)
        except GlmplanError:
            return run
        part = accelerator_name(part)
        if part in accelerator_names() and part != run.accelerator:
            run = replace(run, accelerator=part, accelerator_count=run.accelerator_count or count)
    return run


def with_known_names(table: Runs) -> Runs:
    """Return the rows with known names, and warnings.

    One for each checkpoint that is assumed.
    """
    rows = tuple(known_names(run) for run in table)
    taken: dict[str, list[str]] = defaultdict(list)
    for run in rows:
        if run.weights is not None or run.weights_bits is not None:
            continue
        try:
            name = checkpoint_for(resolve_model(run.model).model, None, engine=run.engine or None).name
        except GlmplanError:
            continue
        unknown = f" and its checkpoint {run.checkpoint!r} is not in the catalogue" if run.checkpoint else ""
        taken[f"{unknown}: taken as {run.model} {name}"].append(run.id)
    said = [
        f"the column weights is empty in {_rows(names)}{what}, the model's default" for what, names in taken.items()
    ]
    return replace(table, runs=rows, warnings=(*table.warnings, *said))


def _published_as(model: str, checkpoint: str) -> str | None:
    """Return the catalogue's name of the weights in a repository, or None."""
    given = checkpoint.lower()
    for item in load_model(model).checkpoints:
        if given in (item.name.lower(), (item.repository or "").lower()):
            return item.name
    return None


def _rows(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"row {shown}" if len(names) == 1 else f"{len(names)} rows ({shown})"
