"""Explain differences between measured and predicted metrics.

Explanations are ranked by evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glmplan.measure.ladder import LadderRecord
from glmplan.measure.predicted_steps import METRICS, Compared
from glmplan.prediction.reproduce import DIFFERENT, REPRODUCED

__all__ = ["Cause", "likely_causes"]


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible explanation."""

    weight: float  # rank only
    what: str
    evidence: str
    to_try: str  # test or remedy


def likely_causes(
    record: LadderRecord,
    compared: Sequence[Compared],
    *,
    predicted_pool: tuple[float, float, float] | None = None,
    speculative: bool = False,
) -> list[Cause]:
    """Return possible explanations, best first; empty without differences.

    Evidence is from server, GPUs, client and the shape of the differences over levels. `predicted_pool` is in tokens,
    with its interval.
    """
    causes: list[Cause] = []
    causes += _from_client(record)
    causes += _from_server(record, predicted_pool, speculative)
    causes += _from_cards(record)
    causes += _from_shape(compared)
    return sorted(causes, key=lambda cause: -cause.weight)


def _from_client(record: LadderRecord) -> list[Cause]:
    causes = []
    for step in record.steps:
        if step.faults:
            total = sum(step.outcomes.values())
            named = ", ".join(f"{count} {name}" for name, count in step.outcomes.items() if name != "done")
            causes.append(
                Cause(
                    2.0 + step.faults / total,
                    "requests failed",
                    f"at {step.level:g}: {step.faults} of {total} ({named})",
                    "read the server's log; metrics of a step with faults are those of its completed requests",
                )
            )
    last = record.steps[-1] if record.steps else None
    if record.overhead is not None and last is not None and last.figures.get("tpot_mean_ms"):
        share = record.overhead.share(last.figures.get("ttft_mean_ms", 0.0), last.figures["tpot_mean_ms"])
        if share > 0.05 or record.overhead.cpu > 0.8:
            causes.append(
                Cause(
                    1.0 + share,
                    "the client influences the measurement",
                    f"it adds up to {share:.0%} of a metric and keeps {record.overhead.cpu:.0%} of a core busy",
                    "run the client on another machine, or on cores that the server does not use",
                )
            )
    unsteady = [step.level for step in record.steps if not step.steady]
    if unsteady:
        causes.append(
            Cause(
                0.6,
                "no steady state was reached",
                f"the throughput still drifted at {', '.join(f'{level:g}' for level in unsteady)}",
                "raise --seconds-per-step to several times the duration of the longest answers",
            )
        )
    return causes


def _from_server(record: LadderRecord, pool: tuple[float, float, float] | None, speculative: bool) -> list[Cause]:
    causes = []
    facts = record.facts
    if facts.kv_tokens and pool and not pool[1] <= facts.kv_tokens <= pool[2]:
        causes.append(
            Cause(
                1.5 + abs(facts.kv_tokens / max(pool[0], 1.0) - 1),
                "the KV pool differs from the prediction",
                f"the server has {facts.kv_tokens:,.0f} tokens, not {pool[0]:,.0f} ({pool[1]:,.0f} to {pool[2]:,.0f})",
                "compare memory utilisation, KV format and graph memory; import the startup log with `runs import`",
            )
        )
    for step in record.steps:
        gained = step.server
        if gained.get("preemptions", 0) > 0:
            causes.append(
                Cause(
                    1.8,
                    "the server preempted requests",
                    f"{gained['preemptions']:g} times at {step.level:g}",
                    "lower the concurrency, shorten requests or enlarge the KV pool: preempted work is repeated",
                )
            )
            break
    for step in record.steps:
        limit = facts.max_sequences
        if limit and step.figures.get("concurrency", 0) > limit:
            causes.append(
                Cause(
                    1.4,
                    "the server runs fewer requests than the concurrency",
                    f"{limit:g} running requests for {step.level:g} users: the others queue, which adds to TTFT",
                    "raise the limit (max-num-seqs, max-running-requests, parallel) or predict with it",
                )
            )
            break
    notes = [(step.level, note) for step in record.steps for note in step.notes]
    for mark, what, cure, weight in (
        ("prefix cache", "prompts came from the prefix cache", "use unique prompts, or predict this hit rate", 1.3),
        ("shorter than asked", "answers are shorter than predicted", "use a server that accepts ignore_eos", 1.2),
        ("usage", "the server sent no usage to count tokens by", "use a server that sends usage in the stream", 0.8),
    ):  # fmt: skip
        hit = next((f"at {level:g}: {note}" for level, note in notes if mark in note), None)
        if hit:
            causes.append(Cause(weight, what, hit, cure))
    drafts = next((f"at {level:g}: {note}" for level, note in notes if "speculation" in note), None)
    if drafts and not speculative:
        cure = "predict with speculative decoding, or serve without it"
        causes.append(Cause(1.6, "the server uses speculative decoding, the prediction does not", drafts, cure))
    return causes


def _from_cards(record: LadderRecord) -> list[Cause]:
    causes = []
    for step in record.steps:
        throttled = step.cards.get("throttled_share") or {}
        for words, share in throttled.items():
            if share > 0.2:
                causes.append(
                    Cause(
                        1.2 + share,
                        f"accelerators lowered their clocks: {words}",
                        f"in {share:.0%} of the samples at {step.level:g}",
                        "cooling and power limit; predict with the limit that is set",
                    )
                )
        if step.cards.get("xids"):
            causes.append(
                Cause(
                    3.0,
                    "an accelerator reported errors",
                    f"Xid {step.cards['xids']} at {step.level:g}",
                    "look up the Xid and discard the run",
                )
            )
        if throttled or step.cards.get("xids"):
            break
    return causes


def _from_shape(compared: Sequence[Compared]) -> list[Cause]:
    """Return explanations by level: constant and growing differences differ."""
    series = {m: [c for c in compared if c.metric == m] for m in METRICS}
    tpot, ttft = series["tpot_mean_ms"], series["ttft_mean_ms"]
    causes = []
    if tpot and abs(tpot[0].difference) > REPRODUCED:
        slow = "slower" if tpot[0].difference < 0 else "faster"
        causes.append(
            Cause(
                0.5 + min(abs(tpot[0].difference), 0.5),
                f"every step of the engine is {slow} than predicted",
                f"TPOT differs by {tpot[0].difference:+.0%} already at {tpot[0].level:g}",
                "calibrate with two steps of this run (calibrate --from); check graphs, backends and weight format",
            )
        )
    if len(tpot) > 1 and abs(tpot[-1].difference - tpot[0].difference) > 0.15:
        causes.append(
            Cause(
                0.5 + min(abs(tpot[-1].difference - tpot[0].difference), 0.5),
                "TPOT grows differently with concurrency",
                f"TPOT differs by {tpot[0].difference:+.0%} at {tpot[0].level:g} and "
                f"{tpot[-1].difference:+.0%} at {tpot[-1].level:g}",
                "communication between GPUs, experts used by a batch, attention over long contexts, a cache for each "
                "slot in llama.cpp (avoided by --kv-unified)",
            )
        )
    late = [c for c in ttft if abs(c.difference) > DIFFERENT]
    if late and (not tpot or abs(tpot[-1].difference) <= DIFFERENT):
        causes.append(
            Cause(
                0.7,
                "prefill or the queue before it differs, decode does not",
                f"TTFT differs by {late[-1].difference:+.0%} at {late[-1].level:g}",
                "token budget of a step (max-num-batched-tokens, chunked-prefill-size, ubatch) and prefill speed",
            )
        )
    return causes
