"""Backtest offloaded and unified-memory runs on held-out machines.

The topology ledgers are tested here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from glmplan.calibrate.links.fit import HeldOut, fitted_key, held_out_errors, predicted_seconds, predicted_transfer
from glmplan.calibrate.links.observations import (
    Observation,
    Transfer,
    all_reduce_observations,
    doubtful_observations,
    measured_transfers,
)
from glmplan.calibrate.offload import (
    hybrid_observations,
    hybrid_runs,
    left_out,
    left_out_parts,
    unified_rows,
    unified_runs,
)
from glmplan.costs.network.collectives import Protocol
from glmplan.costs.network.links import LinkFits, load_link_fits
from glmplan.costs.network.topology import measured_cost, named_conditions
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.record import Run
from glmplan.prediction.offloaded_rows import predict_hybrid
from glmplan.prediction.reproduce import relative_error
from glmplan.prediction.table import predict_runs
from glmplan.units import Ratio, TokensPerSecond

__all__ = [
    "HybridRow",
    "TopologyRow",
    "hybrid_backtest",
    "median_error",
    "offload_page",
    "topology_backtest",
    "topology_page",
]


_TABLE = {
    "output_tokens_per_s_per_request": "decode, one request",
    "output_tokens_per_s": "output, all requests",
    "prefill_tokens_per_s": "prefill",
}


@dataclass(frozen=True, slots=True)
class HybridRow:
    """One metric of a run and its prediction."""

    run: Run
    machine: str
    cpu: str
    what: str  # the metric
    kind: str  # decode or prefill
    measured: TokensPerSecond
    predicted: TokensPerSecond | None  # with constants fitted to other machines
    used: bool  # in the fit; others do not count in the medians
    why: str  # reason of a missing prediction, or unstated conditions

    @property
    def error(self) -> float | None:
        """Return predicted / measured - 1 [-]"""
        return None if self.predicted is None else float(relative_error(self.predicted, self.measured))


def hybrid_backtest() -> list[HybridRow]:
    """Return the predictions of all metrics of hybrid runs, in ledger order.

    Runs on unstated machines get the geometric middle of the known ones and do not count.
    """
    runs = hybrid_runs()
    observations, without = hybrid_observations(runs)
    errors = {
        (one.run.id, one.column): error
        for machines in left_out(observations).values()
        for rows in machines.values()
        for one, error in rows
    }
    of = {(one.run.id, one.column): one for one in observations}
    of_machine = {one.run.id for one in observations}
    results = []
    for run in runs:
        for column, what in _TABLE.items():
            if column not in run.observed:
                continue
            kind, measured = FIGURES[column].interval, run.observed[column]
            one = of.get((run.id, column))
            if one is not None:
                value = measured * float(np.exp(errors[run.id, column]))
                why = "" if one.fitted else run.unusable or "conditions not stated"
                results.append(
                    HybridRow(
                        run, one.case.system.title, one.case.system.cpu, what, kind, measured, value, one.fitted, why
                    )
                )
                continue
            answer = predict_runs([run], measured=True)[0]
            figure = answer.figures.get(column)
            if figure is None:
                why = answer.error or without[run.id]
                results.append(HybridRow(run, "", "", what, kind, measured, None, False, why))
                continue
            where = "" if run.id in of_machine else "not stated"
            results.append(HybridRow(run, where, "", what, kind, measured, figure.value, False, answer.out_of_domain))
        if not set(_TABLE) & set(run.observed):
            results.append(_first_token(run))
    return results


def _first_token(run: Run) -> HybridRow:
    """Return a TTFT-only run as prompt tokens per second of all requests."""
    prompt = (run.input_tokens or 0.0) * (run.concurrency or 1.0)
    measured = prompt / (run.observed["ttft_mean_ms"] / 1e3)
    predicted = prompt / predict_hybrid(run)[0].figures["ttft"].value
    what = "prompt tokens over mean TTFT"
    return HybridRow(run, "", "", what, "prefill", measured, predicted, False, "machine was fitted")


def _medians(rows: Iterable[HybridRow]) -> list[str]:
    lines = [
        "| | metrics | CPUs | median error | median of the CPUs' medians | within 25 % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    every = list(rows)
    for kind in ("decode", "prefill"):
        mine = [row for row in every if row.used and row.kind == kind]
        errors = [abs(row.error) for row in mine if row.error is not None]
        inside = sum(error <= 0.25 for error in errors) / len(errors)
        of: dict[str, list[float]] = {}
        for row in mine:
            of.setdefault(row.cpu, []).append(abs(row.error or 0.0))
        typical = median(median(found) for found in of.values())
        lines.append(f"| {kind} | {len(errors)} | {len(of)} | {median(errors):.0%} | {typical:.0%} | {inside:.0%} |")
    return lines


def _table(rows: Iterable[HybridRow]) -> list[str]:
    lines = ["| row | model | machine | scenario | metric | measured, token/s | predicted | error | |",
             "|---|---|---|---|---|---:|---:|---:|---|"]  # fmt: skip
    for row in rows:
        error = "" if row.error is None else f"{row.error:+.0%}"
        value = "" if row.predicted is None else f"{row.predicted:.3g}"
        prompt = f", {row.run.input_tokens:.0f} in" if row.run.input_tokens else ""
        lines.append(
            f"| {row.run.id} | {row.run.model} {row.run.weights or ''} | {row.machine} | {row.run.scenario}{prompt} "
            f"| {row.what} | {row.measured:g} | {value} | {error} | {row.why} |"
        )
    return lines


def _unified() -> list[str]:
    runs = unified_runs()
    rows = unified_rows(runs)
    runs_used = [row.run for row in rows]
    full = {answer.id: answer for answer in predict_runs(runs_used, measured=True)}
    lines = ["| accelerator | model | runs | by bytes, held out | step-time model |", "|---|---|---:|---:|---:|"]
    totals: dict[str, list[list[float]]] = {}
    for part, found in left_out_parts(rows).items():
        for model in sorted({row.model for row, _ in found}):
            mine = [(row, abs(float(np.expm1(error)))) for row, error in found if row.model == model]
            other = []
            for row, _ in mine:
                figure = full[row.run.id].figures.get("output_tokens_per_s_per_request")
                if figure is not None:
                    other.append(abs(figure.value / row.rate - 1.0))
            totals.setdefault(part, [[], []])
            totals[part][0] += [error for _, error in mine]
            totals[part][1] += other
            seen = f"{median(other):.0%}" if other else "no answer"
            lines.append(f"| {part} | {model} | {len(mine)} | {median(e for _, e in mine):.0%} | {seen} |")
    for part, (bytes_only, other) in totals.items():
        seen = f"{median(other):.0%}" if other else "no answer"
        lines.append(f"| {part} | all | {len(bytes_only)} | {median(bytes_only):.0%} | {seen} |")
    return lines


def offload_page() -> str:
    """Return the page `docs/offload-accuracy.md`, reproducible byte for byte."""
    rows = hybrid_backtest()
    ledger = [row for row in rows if row.run.campaign == "ktransformers-docs"]
    others = [row for row in rows if row.run.campaign != "ktransformers-docs"]
    return (
        "\n".join(
            [
                "# Accuracy with weights in host memory",
                "<!-- Written by `make docs`; do not edit. -->\n",
                "Each machine is predicted with constants fitted to machines with other CPUs",
                "(`glmplan.calibrate.offload`). The medians count metrics that the fit may use: stated machine, all",
                "experts active, known prompt length of a prefill rate. For a CPU that is the only one of its kind",
                "(AMX, plain llama.cpp), prefill is predicted from the prior alone.",
                "",
                *_medians(rows),
                "",
                "Known gaps: prompts of a few thousand tokens on AVX-512 kernels, whose speed differs five-fold",
                "between CPUs; llama.cpp on two sockets without its memory options; eight GPUs behind shared switches;",
                "the number of experts on the GPUs where a page does not state it.",
                "",
                "## The ktransformers rows",
                "",
                *_table(ledger),
                "",
                "## Other runs with experts in host memory",
                "",
                *_table(others),
                "",
                "## Machines with unified memory",
                "",
                "Single-user decode, median absolute error. By bytes: two constants, fitted to the other machines.",
                "Step-time model: the answer of `glmplan predict`, whose fit includes these runs; it has none without",
                "a published matrix rate.",
                "",
                *_unified(),
            ]
        )
        + "\n"
    )


_SHOTS = ("pcie", "one-shot", "direct")
#: goal of the median relative error [-]
GOAL = 0.15


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """One row of the topology ledgers and its prediction."""

    row: str
    group: str  # p2p, collapse, host-dma or all-reduce
    host: str
    what: str
    measured: float
    predicted: float
    unit: str  # GB/s or us
    error: float  # predicted / measured - 1
    source: str


def topology_backtest(fits: LinkFits | None = None) -> list[TopologyRow]:
    """Return the predictions of all rows with known transfers or group."""
    fits = fits or load_link_fits()
    rows = [_transfer_row(transfer, fits) for transfer in measured_transfers()]
    return [*rows, *_all_reduce_rows(all_reduce_observations(), fits)]


def _transfer_row(transfer: Transfer, fits: LinkFits) -> TopologyRow:
    row = transfer.row
    way = f" ({row['direction']})" if row["direction"] else ""
    predicted, measured = predicted_transfer(transfer, fits) / 1e9, transfer.measured / 1e9
    what, error = row["pattern"] + way, float(relative_error(predicted, measured))
    return TopologyRow(
        row["id"], row["kind"], transfer.host.name, what, measured, predicted, "GB/s", error, row["source"]
    )


def _all_reduce_rows(observations: Iterable[Observation], fits: LinkFits) -> list[TopologyRow]:
    results = []
    for one in observations:
        protocol = fits.protocol(*fitted_key(one))
        if protocol is not None:
            predicted, measured = _predicted_time(one, protocol, fits) * 1e6, one.seconds * 1e6
            what = f"{'/'.join(one.key)}, {one.ranks} ranks, {one.message:.0f} B"
            error = float(relative_error(predicted, measured))
            results.append(
                TopologyRow(one.row, "all-reduce", one.host, what, measured, predicted, "us", error, one.source)
            )
    return results


def _predicted_time(one: Observation, protocol: Protocol, fits: LinkFits) -> float:
    inner = fits.protocol("nvlink", "ring", "direct") if one.key[0] == "fabric" else None
    return float(predicted_seconds([one], protocol, shares=fits.scalars, inner=inner)[0])


def median_error(rows: Iterable[TopologyRow], group: str) -> Ratio:
    """Return the median absolute relative error of a group."""
    return median(abs(row.error) for row in rows if row.group == group)


def _held_out_lines() -> list[str]:
    """Return the table of held-out rows by group and algorithm."""
    by_machine, by_row = held_out_errors("machine"), held_out_errors("row")
    keys = sorted({one.key for one in by_machine if one.key is not None})
    wanted: list[tuple[str, Callable[[HeldOut], bool]]] = [
        (group, lambda one, group=group: one.group == group)  # type: ignore[misc]
        for group in ("p2p", "collapse", "host-dma", "all-reduce")
    ]
    wanted += [("/".join(key), lambda one, key=key: one.key == key) for key in keys]  # type: ignore[misc]
    lines = []
    for name, belongs in wanted:
        cells = []
        for held_out in (by_machine, by_row):
            errors = [one.error for one in held_out if belongs(one)]
            sizes = [abs(error) for error in errors if error is not None]
            cells += [f"{median(sizes):.1%}" if sizes else "-", f"{len(errors) - len(sizes)} of {len(errors)}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _doubtful_lines() -> list[str]:
    """Return errors of rows of doubtful group size, in both readings."""
    fits = load_link_fits()
    lines = [
        "One page gives all-reduces of four GPUs that no link of the machine explains: at 512 KiB a one-shot kernel",
        "took 128 us, while copies among the same four GPUs, 126 GB/s by the same page, take 50 us. Another page",
        "reprints part of the table. Read as eight GPUs, the one-shot kernel agrees with constants from three other",
        "machines: the label may be wrong. The ring agrees with neither reading. No fit uses these rows. The last",
        "column includes them in all one-shot kernels over PCIe with machines left out.",
        "",
        "| read as | one-shot, median error | ring, median error | all one-shot kernels, machine left out |",
        "|---|---|---|---|",
    ]
    for ranks in (4, 8):
        rows = _all_reduce_rows(doubtful_observations(ranks), fits)
        errors = [median(abs(row.error) for row in rows if f"/{way}/" in row.what) for way in ("one-shot", "ring")]
        held_out = held_out_errors("machine", doubtful_as=ranks)
        together = median(abs(one.error) for one in held_out if one.key == _SHOTS and one.error is not None)
        lines.append(f"| {ranks} GPUs | {errors[0]:.0%} | {errors[1]:.0%} | {together:.1%} |")
    return lines


def topology_page() -> str:
    """Return the topology accuracy page, reproducible byte for byte."""
    rows = topology_backtest()
    lines = [
        "# Accuracy of link speeds",
        "",
        "Generated from `calibration/measurements/pcie-topologies.csv` and `collectives.csv` by",
        "`make docs`. Goal: 15 % median in each group.",
        "",
        "| group | rows | median error | within 15 % | worst |",
        "|---|---|---|---|---|",
    ]
    for group in ("p2p", "collapse", "all-reduce", "host-dma"):
        mine = [abs(row.error) for row in rows if row.group == group]
        inside = sum(error <= GOAL for error in mine) / len(mine)
        lines.append(f"| {group} | {len(mine)} | {median(mine):.1%} | {inside:.0%} | {max(mine):.0%} |")
    lines += [
        "",
        "The constants were fitted to these rows: the table above tests the form of the model. Below, each row is",
        "predicted by constants fitted without it: without all rows of its machine (in any cabling), and without a",
        "random fifth of all rows. Rows that need a constant which only held-out rows show are not predicted.",
        "",
        "| group | machine left out | not predicted | random rows left out | not predicted |",
        "|---|---|---|---|---|",
        *_held_out_lines(),
        "",
        "## Rows outside of fits and scores",
        "",
        *_doubtful_lines(),
        "",
        "## Measured cost of named conditions",
        "",
        "| condition | measured | with | without | ratio |",
        "|---|---|---|---|---|",
    ]
    for condition in named_conditions():
        for cost in measured_cost(condition):
            figures = f"{cost.with_condition:g} {cost.unit} | {cost.without:g} {cost.unit} | {cost.ratio:.2f}"
            lines.append(f"| {condition.name} | {cost.what} | {figures} |")
    lines += [
        "",
        "## Rows with errors above 25 %",
        "",
        "Known gaps: reads from several switches into one, which exceed one uplink in some rows; reads in a full mesh;",
        "a limit of 56 GB/s on writes to host memory of one machine that its links do not explain; 16-card meshes.",
        "",
        "| row | machine | what | measured | predicted | error |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if abs(row.error) > 0.25:
            figures = f"{row.measured:.1f} {row.unit} | {row.predicted:.1f} {row.unit} | {row.error:+.0%}"
            lines.append(f"| {row.row} | {row.host} | {row.what} | {figures} |")
    return "\n".join(lines) + "\n"
