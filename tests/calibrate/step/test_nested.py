"""Rules go with the groups that led to them: what nobody has measured, nobody has looked up."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.calibrate.step.crossvalidate import (
    alone,
    cross_validate,
    exchanged,
    folds_of,
    rules_in_view,
    rules_lost,
    unseen,
)
from glmplan.calibrate.step.joint_fit import solve
from glmplan.calibrate.step.observations import build_design, design_unchecked
from glmplan.catalog.engines.kernels import kernel_rule
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.formats import WEIGHT_FORMATS
from glmplan.catalog.rule_provenance import FIELD
from glmplan.errors import UnknownName
from glmplan.io.runs.ledger import campaigns, group_key, is_held_out, load_measurements
from glmplan.prediction.from_row import question_of

GROUP = "sglang|b200-sxm|4096x60 e512k10|4"


@pytest.fixture(scope="module")
def runs():
    """A model that the launch script of its own was read for, and another one on the same engine and part."""
    models = ("qwen3.5-397b-a17b", "deepseek-r1", "deepseek-v3")
    return [run for run in load_measurements() if run.protocol == "inferencex" and run.engine == "sglang"
            and run.accelerator == "b200-sxm" and run.weights == "nvfp4" and run.model in models][::3]  # fmt: skip


def test_the_group_of_these_tests_is_one_that_may_be_looked_at():
    assert not is_held_out(GROUP)


def test_every_rule_says_what_was_in_view_when_it_was_written():
    known = {group_key(run) for run in load_measurements()} | set(campaigns())
    for entry in rules_in_view():
        assert FIELD in entry, entry
        assert set(entry[FIELD]) <= known, entry
        # one that was written with nothing in view has a source outside of the tables
        assert entry[FIELD] or "calibration/" not in entry["source"], entry


def test_a_rule_goes_only_when_all_that_led_to_it_does():
    mine = next(entry for entry in rules_in_view() if len(entry[FIELD]) == 2 and "|" in entry[FIELD][0])
    one, two = mine[FIELD]
    both = rules_lost(frozenset((one, two)))
    assert both > rules_lost(frozenset((one,))) + rules_lost(frozenset((two,)))


def test_a_name_that_stands_in_one_campaign_is_as_unknown_as_any_without_it():
    with pytest.raises(UnknownName, match="several kinds of accelerator"):
        load_accelerator("mixed")
    with exchanged(without=frozenset({"mlperf-inference-v5.1", "sglang-cookbook"})):
        with pytest.raises(UnknownName) as found:
            load_accelerator("mixed")
        assert "several kinds" not in str(found.value)


def test_what_was_looked_up_for_a_campaign_is_unknown_without_it_and_back_after():
    run = next(one for one in load_measurements() if one.protocol == "decode-grid" and not one.error)
    before = question_of(run)
    with exchanged(without=frozenset({"rtx6kpro-wiki-2026-05"})):
        without = question_of(run)
    assert before.campaign.label_share == 0.635 and "llm_decode_bench.py" in before.campaign.source
    assert without.campaign.label_share == 1.0
    assert question_of(run) == before


def test_what_a_launch_script_says_stays_when_the_group_is_left_out(runs):
    """The table of launches covers configurations that nobody measured alike."""
    run = next(one for one in runs if group_key(one) == GROUP)
    before = question_of(run)
    assert before.campaign.budget == 32768 and "qwen3.5_fp4_b200.sh" in before.campaign.source
    with exchanged(without=frozenset({GROUP})):
        assert question_of(run) == before


def test_a_kernel_that_was_looked_up_for_one_model_is_not_known_without_it():
    form = WEIGHT_FORMATS["int4-g32"]
    asked = ("vllm", "10", form, "experts", "flashinfer-int4")
    with_it = kernel_rule(*asked)
    with exchanged(without=frozenset({"vllm|b200-sxm|7168x61 e384k8|4"})):
        assert kernel_rule(*asked) != with_it
    assert kernel_rule(*asked) == with_it


def test_cross_validation_asks_without_the_rules_of_what_it_leaves_out(runs):
    design = build_design(runs)
    errors = cross_validate(design, "group", solve)
    names = np.array([group_key(case.run) for case in design.cases])
    fold = folds_of(design.cases, "group")
    out = np.flatnonzero(fold == fold[names == GROUP][0])
    seen = alone(design, np.flatnonzero(fold != fold[out[0]]))
    with exchanged(without=frozenset(names[out].tolist())):
        asked = design_unchecked([question_of(design.cases[place].run) for place in out])
    expected = unseen(seen, solve(seen), asked).residual
    rows = np.isin(design.observation_run, out)
    np.testing.assert_allclose(errors.residual[rows], expected, atol=1e-9)


def test_folds_in_processes_of_their_own_give_the_same_errors(runs):
    design = build_design([*runs[:6], *runs[-6:]])
    one, two = (cross_validate(design, "group", solve, processes=count) for count in (1, 2))
    np.testing.assert_allclose(one.residual, two.residual, atol=1e-9)
    assert (one.knowledge == two.knowledge).all()


def test_a_left_out_run_leaves_no_trace_in_its_fold(runs):
    design = build_design(runs[:12])
    part = alone(design, np.arange(4))
    assert {case.run.id for case in part.cases} == {case.run.id for case in design.cases[:4]}
    used = [set(part.keys[:, level]) for level in range(part.keys.shape[1])]
    assert [len(names) for names in part.key_names] == [len(one) for one in used]


def test_facts_that_a_source_states_leave_with_no_fold():
    """Leaving out all five groups of Llama-3.1-405B once asked MLPerf's rows with 512 tokens instead of 9,428."""
    run = next(one for one in load_measurements() if one.model == "llama-3.1-405b" and one.protocol == "mlperf-offline")
    before = question_of(run)
    groups = {group_key(one) for one in load_measurements() if one.model == "llama-3.1-405b"}
    with exchanged(without=frozenset(groups)):
        without = question_of(run)
    assert before.load.input_tokens == without.load.input_tokens == 9428.0
    assert before.load.max_requests == without.load.max_requests
