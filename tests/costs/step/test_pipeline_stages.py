"""Pipeline stages hand over the hidden states of a micro-batch: how late, and how many bytes."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import uniform_checkpoint
from glmplan.costs.network.links import LayoutLinks, link_for_group
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import step_work

LAYERS, HIDDEN, LINE = 32, 4096, 63e9
CARD = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
SWITCHED = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9")


def on(part: Part, machine: str) -> StepWork:
    """A step whose groups all cross the link between two of a machine's accelerators."""
    link = link_for_group(load_machine(machine), 2)
    return StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, LayoutLinks(link, link, link, link))


PCIE = on(CARD, "4xrtx-pro-6000-ws")
NVLINK = on(SWITCHED, "hgx-h100-8")


def work(what: StepWork, *, requests: float = 1.0, prompt: float = 0.0, **layout: int):
    points = StepPoints(*(np.array([one]) for one in (requests, 1000.0, prompt, prompt / 2)))
    return {name: float(column[0]) for name, column in step_work(what, layout=Layout(**layout), points=points).items()}


@pytest.mark.parametrize("what", [PCIE, NVLINK], ids=["pcie", "nvlink"])
def test_each_stage_but_the_last_hands_over_once_and_as_late_as_a_small_message(what):
    late = [work(what, pp=stages)["collective"] for stages in (1, 2, 4)]
    assert late[0] == 0.0
    assert late[2] == pytest.approx(3 * late[1])
    # a send is one trip to a neighbour; the smallest all-reduce of two is one there and one back, or one there at once
    reduce = work(what, tp=2)["collective"] / (2 * LAYERS)
    assert 0.5 * reduce <= late[1] <= reduce
    # no message between two cards takes less than a microsecond: a PCIe read alone takes about as long
    assert late[1] > 1e-6


def test_a_hand_over_moves_the_hidden_states_of_the_micro_batch():
    # 8 requests and 1,000 prompt tokens over two stages: 4 and 500 tokens in each micro-batch, BF16
    found = work(PCIE, requests=8.0, prompt=1000.0, pp=2)
    least = (4 + 500) * HIDDEN * 2 / LINE
    assert least < found["collective_bytes"] < 1.5 * least
    twice = work(PCIE, requests=16.0, prompt=2000.0, pp=2)["collective_bytes"]
    assert twice == pytest.approx(2 * found["collective_bytes"], rel=0.03)
    assert work(PCIE, requests=8.0, pp=1)["collective_bytes"] == 0.0
