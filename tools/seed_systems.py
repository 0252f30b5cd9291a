"""Write the page of the seed systems.

Each deployment of the first field reports has a prediction, an upper bound and a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.files import data_folder
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.network.links import host_transfer_rate, links_of_layout
from glmplan.costs.offload.steps import HostedSteps, Offload
from glmplan.costs.offload.work import HostSide, Placement, offload_work
from glmplan.costs.points import StepPoints
from glmplan.errors import GlmplanError, UnknownFact
from glmplan.io.runs.ledger import host_of_row
from glmplan.io.runs.record import Run
from glmplan.io.runs.table import read_runs
from glmplan.planner.capacity import layout_name
from glmplan.planner.hazards import Hazard, PlanFacts, hazards_for, is_safe
from glmplan.prediction.deployment import Deployment, heads_of
from glmplan.prediction.from_row import RunCase, question_of
from glmplan.prediction.load import Load
from glmplan.prediction.predict import Figure, predict
from glmplan.prediction.step_models import step_model_of
from glmplan.prediction.table import RowPrediction, predict_runs
from glmplan.units import Bytes, Ratio, Tokens, TokensPerSecond

__all__ = [
    "SeedSystem",
    "bandwidth_bound",
    "claim_verdict",
    "crashed_system",
    "seed_systems",
    "seed_systems_page",
    "share_of_bytes",
]

_LEDGER = "calibration/measurements/field-reports-glm.csv"
#: the deployment that crashed (note of row fr-001-sglpeak): four of the six cards, 160 GB of experts in host memory
_CRASHED_HOST, _CRASHED_CARDS, _CRASHED_BYTES = "six-cards-and-display-gpu", (0, 1, 2, 3), 160e9
#: one article gives speeds for a service on this part, without a number of cards
_CLOUD = "fr-000-cloud"


@dataclass(frozen=True, slots=True)
class SeedSystem:
    """Deployment of the field reports.

    Attributes
    ----------
    id : str
        Row of the ledger.
    deployment : str
        Model, machine and layout as text.
    load : str
        Load as text.
    measured : float
        Reported throughput, [token/s]
    predicted : Figure or None
        Predicted throughput, [token/s]
    bound : float or None
        Upper bound from the memory bandwidth, [token/s]
    verdict : str
        Comparison of report and prediction.
    hazards : tuple of Hazard
        Hazards of the machine.
    basis : str
        Evidence of the prediction.
    """

    id: str
    deployment: str
    load: str
    measured: float
    predicted: Figure | None
    bound: float | None
    verdict: str
    hazards: tuple[Hazard, ...]
    basis: str


def bandwidth_bound(deployment: Deployment, *, requests: Ratio, context: Tokens) -> TokensPerSecond:
    """Return the throughput that no engine can exceed.

    Notes
    -----
    Every weight and cache byte of a step is read once. Every draft token is accepted. Collectives, launches and copies
    cost nothing.
    """
    one, tokens = np.ones(1), 1.0 + deployment.draft_tokens
    points = StepPoints(one * requests, one * context, one * 0.0, one * 0.0)
    work = offload_work(
        deployment.model, deployment.checkpoint, Placement(0.0), points, tokens_per_request=tokens, kv=deployment.kv
    )
    rate = deployment.count * deployment.accelerator.need("memory_bandwidth")
    seconds = (work.own_bytes + work.cache_bytes) / rate
    return float(requests * tokens / seconds[0])


def claim_verdict(
    measured: TokensPerSecond, predicted: Figure | None, bound: TokensPerSecond | None, hazards: tuple[Hazard, ...]
) -> str:
    """Return the verdict on a reported speed.

    Dangers come first, then the bound, then the prediction interval.
    """
    if not is_safe(hazards):
        worst = ", ".join(hazard.id for hazard in hazards if hazard.severity == "danger")
        return f"this would be unsafe: {worst}"
    if bound is not None and measured > bound:
        return "the claim is implausible: above the bound"
    if predicted is None:
        return "not predicted"
    if np.isnan(measured):
        return "no speed was reported"
    if predicted.low <= measured <= predicted.high:
        return "agrees: inside the interval"
    side, edge = ("above", predicted.high) if measured > predicted.high else ("below", predicted.low)
    off = abs(measured / edge - 1)
    words = f"{'less than 1%' if off < 0.005 else f'{off:.0%}'} {side} the interval"
    if side == "above" and bound is not None:
        words += f"; it would take {measured / bound:.0%} of the bandwidth bound"
    return words


def _words(question: RunCase) -> str:
    d = question.deployment
    version = f" {question.run.engine_version}" if question.run.engine_version else ""
    engine = f"{d.engine}{version}" if question.run.engine else "engine not stated"
    draft = f", {d.draft_tokens} drafted" if d.draft_tokens else ""
    layout = layout_name(d.tp, d.pp, d.dp, d.ep, d.dcp)
    return f"{d.model.name} {d.weights} on {d.count} × {d.accelerator.name}, {layout}, {engine}{draft}"


def _load(run: Run) -> str:
    users = f"{run.concurrency:.0f} user{'s' if run.concurrency != 1 else ''}" if run.concurrency else "load not stated"
    lengths = [f"{run.input_tokens:,.0f} in"] if run.input_tokens else []
    lengths += [f"{run.output_tokens:,.0f} out"] if run.output_tokens else []
    return ", ".join([users, *lengths, *(["decode"] if run.phase == "decode" else [])])


def _hazards(question: RunCase, answer: RowPrediction) -> tuple[Hazard, ...]:
    d, load = question.deployment, question.load
    try:
        host = load_machine(question.run.host or f"{d.count}x{d.accelerator.name}")
    except GlmplanError:
        host = load_machine(f"{d.count}x{d.accelerator.name}")
    pool = answer.figures.get("kv_pool_tokens")
    # tables of decoding give the same tokens as prompt and as context
    each = max(load.input_tokens, load.context) + load.output_tokens
    held = pool.value if pool else None
    facts = PlanFacts(
        members=tuple(range(min(d.count, host.accelerators_per_node))),
        tp=d.tp,
        users=round(min(load.concurrency, load.max_requests)),
        longest_tokens=each,
        longest_held=held,
        beside=None if held is None else held / each - 1.0,
    )
    return hazards_for(host, facts)


def _measured(run: Run) -> tuple[str, float]:
    for column in ("output_tokens_per_s", "output_tokens_per_s_per_request"):
        if column in run.observed:
            return column, run.observed[column]
    return "output_tokens_per_s", float("nan")


def _system(run: Run, answer: RowPrediction) -> SeedSystem:
    column, measured = _measured(run)
    try:
        question = question_of(run)
        bound = bandwidth_bound(question.deployment, requests=question.load.concurrency, context=question.load.context)
    except UnknownFact as error:
        return SeedSystem(run.id, f"{run.model} {run.weights} on {run.accelerator}", _load(run), measured, None, None,
                          f"unknown part: {error}", (), "")  # fmt: skip
    except GlmplanError as error:
        words = _cloud(run) if run.id == _CLOUD else str(error)
        return SeedSystem(run.id, f"{run.model} {run.weights} on {run.accelerator}", _load(run), measured, None, None,
                          words, (), "")  # fmt: skip
    if answer.error:
        verdict = f"not predicted: {answer.error}"
        return SeedSystem(run.id, _words(question), _load(run), measured, None, bound, verdict, (), "")
    predicted, hazards = answer.figures.get(column), _hazards(question, answer)
    basis = "; ".join(part for part in (answer.basis, answer.out_of_domain) if part)
    verdict = claim_verdict(measured, predicted, bound, hazards) + _on_fewer(question, measured)
    return SeedSystem(run.id, _words(question), _load(run), measured, predicted, bound, verdict, hazards, basis)


def _on_fewer(question: RunCase, measured: float) -> str:
    """Return a remark if the claim exceeds the bound of fewer cards.

    For a report without a layout, the largest tensor-parallel group that divides the heads is tested.
    """
    deployment, load = question.deployment, question.load
    heads = heads_of(deployment.model)
    cards = max(tp for tp in range(1, deployment.count + 1) if heads % tp == 0)
    if question.run.tp is not None or cards == deployment.count:
        return ""
    host, _ = host_of_row(question.run.host, question.run.accelerator, deployment.count)
    links = links_of_layout(host, tp=cards)
    bound = bandwidth_bound(deployment.with_layout(links, tp=cards), requests=load.concurrency, context=load.context)
    if measured <= bound:
        return ""
    return f"; implausible if it ran on {cards} cards, as no layout is stated: above their bound of {bound:.0f}"


def _cloud(run: Run) -> str:
    """Return the number of cards that the speed of a cloud service implies."""
    # INT4 for all weights is the smallest size of its "INT8 and INT4 mixed"
    cells = {**run.cells, "weights": "int4", "tp": "1", "accelerator_count": "1", "speculative": "none"}
    from glmplan.io.runs.table import run_from_row

    deployment = question_of(run_from_row(cells)).deployment
    one = bandwidth_bound(deployment, requests=1.0, context=0.0)
    every = StepPoints(np.zeros(1), np.zeros(1), np.full(1, 1e9), np.zeros(1))  # so many tokens visit all experts
    work = offload_work(deployment.model, deployment.checkpoint, Placement(0.0), every)
    cards = int(np.ceil(float(work.own_bytes[0]) / deployment.accelerator.need("memory")))
    speed = _measured(run)[1]
    return (
        f"cannot be judged: the number of cards is not stated. {cards} of them hold INT4 weights and allow at most "
        f"{cards * one:.0f} tok/s for one user without drafting; {speed:.0f} tok/s would take "
        f"{speed / (cards * one):.0%} of that, so it needs more cards or a draft model that is mostly right"
    )


def share_of_bytes(model: ModelSpec, checkpoint: Checkpoint, host_bytes: Bytes) -> Ratio:
    """Return the share of routed experts that `host_bytes` are.

    1 where all experts are less.
    """
    one = np.ones(1)
    every = offload_work(model, checkpoint, Placement(1.0), StepPoints(one, 0.0 * one, 0.0 * one, 0.0 * one))
    return min(host_bytes / max(float(every.held_bytes[0]), 1.0), 1.0)


def crashed_system() -> SeedSystem:
    """Return the deployment that froze its machine, with its hazards.

    Four cards streamed 160 GB of experts from host memory.
    """
    folder = data_folder("calibration") / "measurements"
    base = next(run for run in read_runs(folder / "field-reports-glm.csv") if run.id == "fr-001-sglpeak")
    host = load_machine(_CRASHED_HOST)
    links = links_of_layout(host, tp=len(_CRASHED_CARDS))
    deployment = replace(question_of(base).deployment.with_layout(links, tp=len(_CRASHED_CARDS)), engine="sglang")
    users = base.concurrency or 1.0
    share, cards = share_of_bytes(deployment.model, deployment.checkpoint, _CRASHED_BYTES), len(_CRASHED_CARDS)
    # the memory of this host is unknown: only its links count, which all streamed weights cross
    side = HostSide(float("inf"), link=cards * host_transfer_rate(host, count=cards))
    deployment = replace(deployment, offload=Offload(Placement(share, mode="stream"), side))
    found = predict(deployment, Load(users, 0.0, 0.0, context=512.0, phase="decode")).figures["output_rate"]
    one, steps = np.ones(1), step_model_of(deployment)
    assert isinstance(steps, HostedSteps)
    points = StepPoints(one * users, one * 512.0, one * 0.0, one * 0.0)
    held = float(steps.work(points).held_bytes[0])
    facts = PlanFacts(
        members=_CRASHED_CARDS, tp=cards, host_transfer=float(steps.link_rate(points)[0]) / cards, pinned=held,
        users=round(users),
    )  # fmt: skip
    hazards = hazards_for(host, facts)
    passed = cards * host_transfer_rate(host, members=_CRASHED_CARDS)
    return SeedSystem(
        "the run that crashed",
        f"{deployment.model.name} {deployment.weights} on {cards} × {deployment.accelerator.name}, TP{cards}, sglang, "
        f"{_CRASHED_BYTES / 1e9:.0f} GB of experts in pinned host memory",
        f"{users:.0f} users, decode",
        float("nan"),
        found,
        passed / held * users,
        claim_verdict(float("nan"), found, None, hazards),
        hazards,
        "offload model; all offloaded weights cross PCIe in each step; "
        f"{host.name}: the host's memory is not known; only its links count",
    )


def seed_systems() -> list[SeedSystem]:
    """Return all deployments of the field reports, then the crashed run."""
    runs = list(read_runs(data_folder("calibration") / "measurements" / "field-reports-glm.csv"))
    systems = [_system(run, answer) for run, answer in zip(runs, predict_runs(runs, measured=True), strict=True)]
    return [*systems, crashed_system()]


def _number(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def seed_systems_page() -> str:
    """Return the page `docs/seed-systems.md`.

    The same data and fits give the same text.
    """
    systems = seed_systems()
    lines = [
        "# The seed systems",
        "<!-- Written by `make docs`; do not edit. -->\n",
        f"Every deployment of the field reports on GLM-5.1 (`{_LEDGER}`), predicted with its 90 %",
        "interval beside what was reported, in tokens per second of all users together (of one user where the report",
        "gives only that). The bound is what the memory bandwidth of all cards allows when every byte is read once and",
        "nothing else takes time.",
        "Rows that the fit has seen agree more easily; the basis says so.",
        "",
        "| row | deployment | load | reported | predicted | interval | bound | verdict |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for one in systems:
        figure = one.predicted
        span = f"{_number(figure.low)}-{_number(figure.high)}" if figure else ""
        lines.append(
            f"| {one.id} | {one.deployment} | {one.load} | {_number(one.measured)} "
            f"| {_number(figure.value if figure else None)} | {span} | {_number(one.bound)} | {one.verdict} |"
        )
    lines += ["", "## What the predictions rest on", "", "| row | basis |", "|---|---|"]
    lines += [f"| {one.id} | {one.basis} |" for one in systems if one.basis]
    lines += ["", "## Hazards of these machines", "", "| rows | hazard | severity | numbers | what to change |",
              "|---|---|---|---|---|"]  # fmt: skip
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for one in systems:
        for hazard in one.hazards:
            sure = "" if hazard.certain else " (not ruled out)"
            rows.setdefault((hazard.id, hazard.severity + sure, hazard.numbers, hazard.change), []).append(one.id)
    lines += [f"| {', '.join(ids)} | {' | '.join(key)} |" for key, ids in rows.items()]
    return "\n".join(lines) + "\n"
