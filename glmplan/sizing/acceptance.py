"""The acceptance test of a purchase: the ladder that `glmplan validate` climbs, and what must come out of it."""

from __future__ import annotations

from typing import Any

from glmplan.errors import SpecError
from glmplan.plan.validate_command import degrees_of, validate_command
from glmplan.serving.traffic.promises import parse_slo
from glmplan.sizing.size_answer import Option, Sized
from glmplan.sizing.size_figures import figures_of

__all__ = ["acceptance_test"]

_PERCENT = {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def acceptance_test(option: Option, found: Sized) -> str:
    """Write the test that a seller has to pass, for the contract.

    Parameters
    ----------
    option : Option
        What is bought.
    found : Sized
        The answer that it is from.

    Returns
    -------
    str
        A page in Markdown: machine, load, commands, thresholds, and what voids the test.

    Raises
    ------
    SpecError
        If the load is not of users: a ladder is climbed by users.

    Notes
    -----
    Thresholds are those of the promise at the load that is bought, not the prediction: a seller is not held to a model.
    What the prediction says stands beside them, so that a machine that passes narrowly is recognised.
    """
    asked = found.asked
    users = asked.traffic.users
    if users is None:
        raise SpecError("needs a load of users, as in --users 20", field="--acceptance-test")
    each = -(-users // option.machines)
    figures = figures_of(option, found)
    ladder = sorted({1, *(max(round(each * share), 1) for share in (0.25, 0.5, 1.0)), each})
    planned = option.planned
    # so many requests that the rarest of a promised percentile are ten
    requests = max(round(10 / (1 - _PERCENT[_rarest(asked.slo)] / 100)), 6 * each)
    facts: dict[str, object] = {"weights": planned.asked.checkpoint.name, "engine": planned.asked.engine}
    if planned.asked.power_limit is not None:
        facts["power_limit_w"] = f"{planned.asked.power_limit:g}"
    command = validate_command(
        asked.spec.name,
        planned.asked.machine.text,
        {**facts, **degrees_of(planned.holding.terms)},
        users=ladder,
        lengths=(asked.traffic.input, asked.traffic.output),
        more=f"--requests {requests}",
    )
    lines = [
        f"# Acceptance test: {asked.spec.name} on {option.name}",
        "",
        f"Each of {option.machines} machines serves {each} of {users} users, prompts of {asked.traffic.input:,} and "
        f"answers of {asked.traffic.output:,} tokens, weights {planned.asked.checkpoint.name}, engine "
        f"{planned.asked.engine}, layout {planned.holding.terms.name}, KV cache {planned.holding.terms.kv}.",
        "",
        "## Commands",
        "",
        "On the machine: the launch command that `glmplan fit` prints for this plan. Beside it:",
        "",
        f"    {command}",
        "",
        "## Pass",
        "",
        "| users | measured | at most | predicted (90 %) |",
        "|---|---|---|---|",
        *_thresholds(asked.slo, each, figures),
        "",
        "All of them hold on every machine at the last step, without an error, a preemption or a thermal slow-down in "
        "the report of `glmplan validate`. Twice in a row; a third run decides where they differ.",
        "",
        "## Fail",
        "",
        f"Any threshold is missed. The promise was expected to hold with probability {option.sure.probability:.2f}: a "
        "failure is first looked into with the report of `glmplan validate` (links, launch settings, power, heat), and "
        "stands if its causes are the machine's.",
        "",
    ]
    return "\n".join(lines)


def _rarest(slo: str) -> str:
    return max((one.statistic for one in parse_slo(slo)), key=lambda name: _PERCENT[name])


def _thresholds(slo: str, users: int, figures: dict[str, Any]) -> list[str]:
    rows = []
    for target in parse_slo(slo):
        value = figures.get(f"{target.metric}_mean_ms")
        low, high = (figures.get(f"{target.metric}_mean_ms_{end}") for end in ("low", "high"))
        said = "" if value is None else f"mean {value:,.0f} ms ({low:,.0f} to {high:,.0f})"
        rows.append(f"| {users} | {target.metric} {target.statistic} | {target.bound * 1000:g} ms | {said} |")
    return rows
