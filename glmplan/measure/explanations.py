"""Possible explanations of differences between measured and predicted metrics, ranked by evidence."""

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
    with
    its interval.
    """
    found: list[Cause] = []
    found += _from_client(record)
    found += _from_server(record, predicted_pool, speculative)
    found += _from_cards(record)
    found += _from_shape(compared)
    return sorted(found, key=lambda cause: -cause.weight)


def _from_client(record: LadderRecord) -> list[Cause]:
    found = []
    for step in record.steps:
        if step.faults:
            total = sum(step.outcomes.values())
            named = ", ".join(f"{count} {name}" for name, count in step.outcomes.items() if name != "done")
            found.append(
                Cause(
                    2.0 + step.faults / total,
                    "requests failed",
                    f"at {step.level:g}: {step.faults} of {total} ({named})",
                    "read the server's log; figures of a step with faults are of the requests that survived",
                )
            )
    last = record.steps[-1] if record.steps else None
    if record.overhead is not None and last is not None and last.figures.get("tpot_mean_ms"):
        share = record.overhead.share(last.figures.get("ttft_mean_ms", 0.0), last.figures["tpot_mean_ms"])
        if share > 0.05 or record.overhead.cpu > 0.8:
            found.append(
                Cause(
                    1.0 + share,
                    "the client is part of what was measured",
                    f"it adds up to {share:.0%} of a figure and keeps {record.overhead.cpu:.0%} of a core busy",
                    "run the client on another machine, or on cores that the server does not use",
                )
            )
    unsteady = [step.level for step in record.steps if not step.steady]
    if unsteady:
        found.append(
            Cause(
                0.6,
                "no steady state",
                f"the throughput still drifted at {', '.join(f'{level:g}' for level in unsteady)}",
                "give more time with --seconds-per-step; the longest answers must fit into a step several times",
            )
        )
    return found


def _from_server(record: LadderRecord, pool: tuple[float, float, float] | None, speculative: bool) -> list[Cause]:
    found = []
    facts = record.facts
    if facts.kv_tokens and pool and not pool[1] <= facts.kv_tokens <= pool[2]:
        found.append(
            Cause(
                1.5 + abs(facts.kv_tokens / max(pool[0], 1.0) - 1),
                "the KV pool is not the predicted one",
                f"the server has {facts.kv_tokens:,.0f} tokens, not {pool[0]:,.0f} ({pool[1]:,.0f} to {pool[2]:,.0f})",
                "compare memory utilisation, KV format and graph memory; import the startup log with `runs import`",
            )
        )
    for step in record.steps:
        gained = step.server
        if gained.get("preemptions", 0) > 0:
            found.append(
                Cause(
                    1.8,
                    "the server preempted requests",
                    f"{gained['preemptions']:g} times at {step.level:g}",
                    "fewer users, shorter requests, or a larger KV pool; preempted work is done twice",
                )
            )
            break
    for step in record.steps:
        limit = facts.max_sequences
        if limit and step.figures.get("concurrency", 0) > limit:
            found.append(
                Cause(
                    1.4,
                    "the server runs fewer requests at once than there are users",
                    f"{limit:g} sequences against {step.level:g} users: the rest waits and TTFT holds the wait",
                    "raise the limit (max-num-seqs, max-running-requests, parallel) or predict with it",
                )
            )
            break
    notes = [(step.level, note) for step in record.steps for note in step.notes]
    for mark, what, cure, weight in (
        ("prefix cache", "prompts came from the prefix cache", "unique prompts, or predict with that hit rate", 1.3),
        ("shorter than asked", "answers are shorter than predicted", "a server that takes ignore_eos", 1.2),
        ("usage", "tokens could not be counted by usage", "a server that sends usage in the stream", 0.8),
    ):  # fmt: skip
        hit = next((f"at {level:g}: {note}" for level, note in notes if mark in note), None)
        if hit:
            found.append(Cause(weight, what, hit, cure))
    drafts = next((f"at {level:g}: {note}" for level, note in notes if "speculation" in note), None)
    if drafts and not speculative:
        cure = "predict with speculation, or serve without it"
        found.append(Cause(1.6, "the server drafts and the prediction does not", drafts, cure))
    return found


def _from_cards(record: LadderRecord) -> list[Cause]:
    found = []
    for step in record.steps:
        throttled = step.cards.get("throttled_share") or {}
        for words, share in throttled.items():
            if share > 0.2:
                found.append(
                    Cause(
                        1.2 + share,
                        f"accelerators clocked down: {words}",
                        f"in {share:.0%} of the samples at {step.level:g}",
                        "cooling and power limit; predict with the limit that is set",
                    )
                )
        if step.cards.get("xids"):
            found.append(
                Cause(
                    3.0,
                    "an accelerator reported errors",
                    f"Xid {step.cards['xids']} at {step.level:g}",
                    "look up the Xid; the run is no measurement",
                )
            )
        if throttled or step.cards.get("xids"):
            break
    return found


def _from_shape(compared: Sequence[Compared]) -> list[Cause]:
    """Return explanations by level: constant and growing differences differ."""
    series = {m: [c for c in compared if c.metric == m] for m in METRICS}
    tpot, ttft = series["tpot_mean_ms"], series["ttft_mean_ms"]
    found = []
    if tpot and abs(tpot[0].difference) > REPRODUCED:
        slow = "slower" if tpot[0].difference < 0 else "faster"
        found.append(
            Cause(
                0.5 + min(abs(tpot[0].difference), 0.5),
                f"every step of the engine is {slow} than predicted",
                f"TPOT differs by {tpot[0].difference:+.0%} already at {tpot[0].level:g}",
                "calibrate with two steps of this ladder (calibrate --from); check graphs, backends and weight format",
            )
        )
    if len(tpot) > 1 and abs(tpot[-1].difference - tpot[0].difference) > 0.15:
        found.append(
            Cause(
                0.5 + min(abs(tpot[-1].difference - tpot[0].difference), 0.5),
                "the cost of each further request differs",
                f"TPOT differs by {tpot[0].difference:+.0%} at {tpot[0].level:g} and "
                f"{tpot[-1].difference:+.0%} at {tpot[-1].level:g}",
                "communication between cards, experts hit by a batch, attention over long contexts, a cache for each "
                "slot in llama.cpp (cured by --kv-unified)",
            )
        )
    late = [c for c in ttft if abs(c.difference) > DIFFERENT]
    if late and (not tpot or abs(tpot[-1].difference) <= DIFFERENT):
        found.append(
            Cause(
                0.7,
                "prefill or the queue before it differs, decode does not",
                f"TTFT differs by {late[-1].difference:+.0%} at {late[-1].level:g}",
                "token budget of a step (max-num-batched-tokens, chunked-prefill-size, ubatch) and prefill speed",
            )
        )
    return found
