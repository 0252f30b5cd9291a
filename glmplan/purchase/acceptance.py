"""The acceptance test of a purchase: the ladder that `glmplan validate` climbs, and what must come out of it."""

from __future__ import annotations

import math
import shlex
from typing import Any

from glmplan.errors import SpecError
from glmplan.planner.launch import degrees_of, validate_command
from glmplan.purchase.size_answer import Option, Sized, figures_of, share_of, surely
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import counted_unit

__all__ = ["acceptance_test", "check_ladder"]

_PERCENT = {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def acceptance_test(option: Option, found: Sized) -> str:
    """Write the test that a seller has to pass, for the contract.

    Returns: A page in Markdown: machine, load, commands, thresholds, and what voids the test.

    Notes
    -----
    Thresholds are those of the promise at the load that is bought, not the prediction: a seller is not held to a model.
    What the prediction says stands beside them, so that a machine that passes narrowly is recognised.
    """
    asked, planned, traffic = found.asked, option.planned, found.asked.traffic
    check_ladder(traffic)
    each = share_of(traffic, option.machines).users or 0
    figures = figures_of(option, found)
    ladder = sorted({1, *(max(round(each * share), 1) for share in (0.25, 0.5, 1.0)), each})
    facts: dict[str, object] = {"weights": planned.asked.checkpoint.name, "engine": planned.asked.engine}
    if planned.asked.power_limit is not None:
        facts["power_limit_w"] = f"{planned.asked.power_limit:g}"
    command = validate_command(
        asked.spec.name,
        planned.asked.machine.text,
        {**facts, **degrees_of(planned.holding.terms)},
        users=ladder,
        lengths=(traffic.input, traffic.output),
        more=_told(option, found, each),
    )
    machines = f"The machine serves {counted_unit(each, 'users')}"
    if option.machines > 1:
        machines = f"Each of {option.machines} machines serves {each} of {counted_unit(traffic.users or each, 'users')}"
    lines = [
        f"# Acceptance test: {asked.spec.name} on {option.name}",
        "",
        f"{machines}, prompts of {traffic.input:,} and answers of {traffic.output:,} "
        f"tokens, weights {planned.asked.checkpoint.name}, engine {planned.asked.engine}, layout "
        f"{planned.holding.terms.name}, KV cache {planned.holding.terms.kv}.",
        "",
        "## Commands",
        "",
        "On the machine: the launch command that `glmplan fit` prints for this plan. Beside it:",
        "",
        f"    {command}",
        "",
        "It judges the promise at its last step and exits with 1 where it is not kept.",
        "",
        "## Pass",
        "",
        "| users | measured | at most | expected (90 %) |",
        "|---|---|---|---|",
        *(_threshold(one, each) for one in figures["slo"]),
        "",
        "All of them hold on every machine at the last step, without an error, a preemption or a thermal slow-down in "
        "the report of `glmplan validate`. Twice in a row, each into a folder of its own; a third run decides where "
        "they differ.",
        "",
        "## Fail",
        "",
        "Any threshold is missed. The promise was expected to hold with probability "
        f"{surely(option.sure.probability)}: a failure is first looked into with the report of `glmplan validate` "
        "(links, launch settings, power, heat), and stands if its causes are the machine's.",
        "",
    ]
    return "\n".join(lines)


def check_ladder(traffic: Traffic) -> None:
    """Refuse a load that `glmplan validate` does not climb: another load would be another promise."""
    if traffic.users is None or traffic.kind != "closed":
        raise SpecError("needs a load of users, as in --users 20", field="--acceptance-test", value=traffic.kind)
    for name in ("think", "input_cv", "output_cv", "lengths", "urgent", "patience"):
        if getattr(traffic, name):
            option = name.replace("_", "-")
            message = f"is a load that the client of validate does not make: leave --{option} out"
            raise SpecError(message, field="--acceptance-test", value=option)


def _told(option: Option, found: Sized, each: int) -> str:
    """Lengths, the promise, and how long a step takes in which the rarest of a promised percentile are ten.

    The counted time is steady: the burst in which all users start is not what is promised.
    """
    traffic, figures = found.asked.traffic, option.prediction.figures
    requests = max(10 / (1 - _PERCENT[_rarest(found.asked.slo)] / 100), 6 * each)
    answer = figures["ttft"].high + (traffic.output - 1) * (figures["tpot"].high if "tpot" in figures else 0.0)
    seconds = 10 * math.ceil(requests * answer / each / 10)
    words = [f"--seconds-per-step {seconds} --longest {3 * seconds + 300}"]
    words += [f"--jitter {traffic.jitter:g}"] if traffic.jitter else []
    words += [f"--shared-prefix {traffic.shared_prefix}"] if traffic.shared_prefix else []
    return " ".join([*words, "--slo", shlex.quote(", ".join(str(one) for one in parse_slo(found.asked.slo)))])


def _rarest(slo: str) -> str:
    return max((one.statistic for one in parse_slo(slo)), key=lambda name: _PERCENT[name])


def _threshold(one: dict[str, Any], users: int) -> str:
    what, bound = one["target"].split(" < ")
    said = "" if one["expected_ms"] is None else f"{one['expected_ms']:,.0f} ms"
    if one["expected_ms_high"] is not None:
        said += f" ({one['expected_ms_low']:,.0f} to {one['expected_ms_high']:,.0f})"
    return f"| {users} | {what} | {bound} | {said} |"
