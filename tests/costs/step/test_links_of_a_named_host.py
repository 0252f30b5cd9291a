"""A step on a named host crosses that host's links, not those that its parts could have."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.costs.step.work import all_reduce_seconds
from glmplan.planner import read_words, solve
from glmplan.planner.ranking import deployment_of
from glmplan.request.plan import PlanRequest

#: one direction of 16 lanes of PCIe 5 [B/s]
LINE = 63.0e9
MESSAGE, RANKS = 100e6, 4.0


def host(folder, generation: int, lanes: int) -> str:
    """Four cards on root ports of their own, whose slots have some generation and lanes."""
    text = ['title = "four cards"', 'source = "example"', '[[sockets]]\nname = "cpu0"']
    for slot in range(4):
        text.append(f'[[roots]]\nname = "root{slot}"\nsocket = "cpu0"')
        text.append(f'[[cards]]\naccelerator = "rtx-pro-6000-ws"\nparent = "root{slot}"\n'
                    f"link = {{ generation = {generation}, lanes = {lanes} }}")  # fmt: skip
    text.append('[conditions]\np2p = "direct"')
    path = folder / f"gen{generation}x{lanes}.toml"
    path.write_text("\n".join(text), encoding="utf-8")
    return str(path)


def moved(on: str) -> float:
    """What the payload of an all-reduce takes in a step of a plan on a machine, [s]"""
    asked = read_words(PlanRequest("llama-3.1-70b", on, tp="4", pp="1"))
    structure = deployment_of(asked, solve(asked).best.terms).structure
    return float(all_reduce_seconds(structure, structure.link.tensor, np.array([MESSAGE]), np.array([RANKS]))[1][0])


def test_half_the_lanes_or_half_the_rate_take_twice_as_long(tmp_path):
    full = moved(host(tmp_path, 5, 16))
    for generation, lanes, share in ((5, 8, 2), (4, 16, 2), (4, 8, 4), (3, 16, 4)):
        assert moved(host(tmp_path, generation, lanes)) == pytest.approx(share * full, rel=0.02), (generation, lanes)


def test_a_ring_moves_its_payload_no_faster_than_the_line(tmp_path):
    least = 2 * (RANKS - 1) / RANKS * MESSAGE / LINE
    assert least < moved(host(tmp_path, 5, 16)) < 2 * least


def test_a_host_as_its_parts_could_have_is_the_number_of_its_parts(tmp_path):
    assert moved(host(tmp_path, 5, 16)) == pytest.approx(moved("4xrtx-pro-6000-ws"), rel=0.02)
