"""One verdict for every command: no danger is under a plan that fits, in text, JSON, safe, sweep and runners-up."""

from __future__ import annotations

import pytest

import glmplan
from glmplan.planner import fit_answer
from glmplan.planner.users import danger_under, verdict_under
from glmplan.present.json_answers import fit_record
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.sweep import swept
from glmplan.request.plan import PlanRequest

#: four cards of up to 575 W on one supply of 1,200 W
_HOST = """
title = "Four cards on a weak supply"
source = "an example"

[[sockets]]
name = "cpu0"
memory_size = "256 GB"

[[roots]]
name = "root0"
socket = "cpu0"

[[cards]]
accelerator = "{part}"
count = 4
parent = "root0"
link = {{ generation = 5, lanes = 16 }}

[power]
supply = "1200 W"
supplies = 1
"""


@pytest.fixture
def host(tmp_path):
    def write(part):
        file = tmp_path / f"weak-{part}.toml"
        file.write_text(_HOST.format(part=part), encoding="utf-8")
        return str(file)

    return write


@pytest.mark.parametrize("part", ["rtx-5090", "rtx-pro-6000-ws", "rtx-4090"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("model", ["qwen3-8b", "gpt-oss-20b"])
def test_a_danger_is_in_the_verdict_of_every_command(host, part, engine, model):
    words = {"engine": engine, "tp": 4, "input": 1000, "output": 200}
    answer = fit_answer(PlanRequest(model, host(part), users=(1,), **words), changes=False)
    danger = danger_under(answer.asked, answer.holding)
    assert danger is not None and [one for one in answer.warnings if one.severity == "danger"]
    assert answer.verdict == fit_record(answer)["verdict"] == verdict_under(answer.asked, answer.holding) == "tight"
    assert danger.title in answer.headline and danger.title in " ".join(answer.reasons)
    deployed = glmplan.deployment(model, host(part), **words)
    assert deployed.verdict == "tight"
    assert glmplan.safe(deployed, "tpot p95 < 1 s", most=4).load == 0
    rows = swept(read_sweep({"model": model, "on": host(part), "users": "1", **words})).to_frame()
    assert set(rows["verdict"]) == {"tight"} and all(danger.title in one for one in rows["reason"])


def test_layouts_beside_a_dangerous_one_are_no_better(host):
    answer = fit_answer(PlanRequest("qwen3-8b", host("rtx-5090"), users=(1,)), changes=False)
    whole = [one for one in answer.runners if one.accelerators == 4]
    assert answer.verdict == "tight" and whole and all(one.verdict != "fits" for one in whole)
