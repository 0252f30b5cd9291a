"""Whatever a fit has learnt, a step moves no payload faster than its wire."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.models import load_model
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.model import PARAMETERS, GpuSteps
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.prediction.deployment import deploy
from glmplan.prediction.step_models import step_model_of, step_parameters

PAYLOAD = PARAMETERS.index("collective_bytes_slowdown")
MACHINES = ("4xrtx-pro-6000-ws", "8xrtx-pro-6000-ws", "workstation-2-switches-8", "quad-rtx-5090", "turin-2s-direct-8")


def deployed(machine: str, engine: str, model: str, weights: str, ranks: int):
    host = load_machine(machine)
    spec = load_model(model)
    from glmplan.catalog.entries.accelerators import load_accelerator

    return deploy(spec, checkpoint_for(spec, weights), load_accelerator(host.accelerator), engine=engine,
                  layout=Layout(tp=ranks), link=links_of_layout(host, tp=ranks))  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("engine, model, weights", [
    ("vllm", "kimi-k2.5", "int4"), ("sglang", "glm-4.7", "fp8"), ("sglang", "glm-5.1", "nvfp4"),
    ("vllm", "llama-3.1-8b", "bf16"),
])  # fmt: skip
def test_the_payload_of_a_prompt_takes_at_least_its_time_on_the_wire(machine, engine, model, weights):
    one = deployed(machine, engine, model, weights, 4)
    steps = step_model_of(one)
    assert isinstance(steps, GpuSteps)
    tokens = 4096.0
    times = steps.times(StepPoints(*(np.array([x]) for x in (0.0, 0.0, tokens, tokens / 2))))
    seconds = float(times.seconds[0] * times.shares[0, PAYLOAD])
    # two all-reduces a layer of the hidden states in BF16, (n - 1) / n of them sent twice by each rank
    least = 2 * len(one.model.layer_names) * 2 * 3 / 4 * tokens * one.model.hidden * 2 / one.link.tensor.bandwidth
    assert seconds >= 0.999 * least


def test_a_bound_by_the_wire_touches_nothing_else_and_no_link_inside_a_scale_up_domain():
    cards = deployed("4xrtx-pro-6000-ws", "vllm", "llama-3.1-8b", "bf16", 4)
    total = np.full(21, -3.0)
    bounded = step_parameters(cards, total)
    free = step_parameters(deployed("hgx-h100-8", "vllm", "llama-3.1-8b", "bf16", 4), total)
    assert np.exp(bounded[PAYLOAD]) == pytest.approx(cards.link.tensor.ring.efficiency)
    assert np.delete(bounded, PAYLOAD).tolist() == np.delete(free, PAYLOAD).tolist()
    assert free[PAYLOAD] == pytest.approx(-6.0)
