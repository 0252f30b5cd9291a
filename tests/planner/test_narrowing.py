"""The answer names the measurement that would narrow it, and the command that makes it."""

from __future__ import annotations

import json
import shlex

import pytest

from glmplan.calibrate.step.own_site import calibrate_site, write_site
from glmplan.io.runs.ledger import load_measurements
from glmplan.planner import fit_answer
from glmplan.planner.ranking import load_of, narrowing_words
from glmplan.prediction.evidence import narrowed
from glmplan.prediction.step_models import site_calibration
from glmplan.present.first_screen import MOST_LINES, first_screen
from glmplan.present.json_answers import fit_json
from glmplan.request.plan import PlanRequest


@pytest.mark.parametrize(
    ("model", "on"),
    [("gpt-oss-120b", "1xrtx-pro-6000-ws"), ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"), ("kimi-k3", "dgx-b200-8")],
)
def test_an_answer_that_was_not_measured_here_names_the_run_that_narrows_it(model, on):
    answer = fit_answer(PlanRequest(model, on))
    assert answer.knowledge not in ("site", "configuration")
    found = answer.narrowing
    assert found is not None and found.users in {one.users for one in found.figures}
    assert all(one.after <= one.before for one in found.figures)
    decode = next(one for one in found.figures if one.metric == "tpot")
    assert decode.after < 0.6 * decode.before
    for width in (60, 100, 140):
        lines = first_screen(answer, width).splitlines()
        assert len(lines) <= MOST_LINES
        (line,) = [one for one in lines if one.startswith("  benchmark  ")]
        assert line.split(None, 1)[1].startswith(narrowing_words(found)[:20])
    record = json.loads(fit_json(answer))["recommended_benchmark"]
    assert record["command"] == found.command and record["users"] == found.users
    assert all(1.0 < one["interval_factor_after"] <= one["interval_factor"] for one in record["metrics"])
    assert found.command.split()[2:3] == [answer.asked.model.name]


@pytest.mark.parametrize("users", ["1,8", "1,64"])
def test_the_run_that_is_named_leaves_the_least_open(users):
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", users=users))
    counts = (1, int(users.split(",")[1]))
    loads = [load_of(answer.asked, answer.deployment, answer.holding.pool, number, 1) for number in counts]
    left = [sum(half**2 for row in one for half in row.values()) for one in narrowed(answer.deployment, loads)]
    assert answer.narrowing.users == counts[left.index(min(left))]


def test_the_command_tells_the_layout_and_is_one_that_validate_takes():
    from glmplan.cli import validate
    from glmplan.measure.validation import deployment_facts, parse_users

    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    words = shlex.split(answer.narrowing.command)
    assert words[:2] == ["glmplan", "validate"] and validate.command is not None
    pairs = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    facts = deployment_facts(model=words[2], on=words[words.index("--on") + 1], plan=None, pairs=pairs)
    assert (facts["tp"], facts["pp"], facts["weights"], facts["engine"]) == ("2", "3", "nvfp4", "vllm")
    assert parse_users(words[words.index("--users") + 1]) == (answer.narrowing.users,)


def test_a_configuration_that_the_site_measured_names_none_and_one_that_others_did_names_one(tmp_path):
    words = PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine="vllm", engine_version="0.19.0", tp="2", pp="3")
    answer = fit_answer(words)
    assert answer.knowledge == "configuration" and "\n  benchmark  " in first_screen(answer)
    rows = [run for run in load_measurements() if run.id in ("fr-001-c1", "fr-001-c8")]
    with site_calibration(write_site(calibrate_site(rows), tmp_path / "site.toml")):
        answer = fit_answer(words)
    assert answer.knowledge == "site"
    assert answer.narrowing is None and "\n  benchmark  " not in first_screen(answer)
    assert json.loads(fit_json(answer))["recommended_benchmark"] is None
