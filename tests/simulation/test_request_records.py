"""Records of requests: every number stands in its own column."""

from __future__ import annotations

from glmplan.simulation.statistics import request_columns
from glmplan.simulation.traffic.request import Request


def test_every_number_of_a_request_stands_in_its_column():
    request = Request(1, 2.0, 3, 4, session=5, turn=6)
    request.priority, request.replica, request.cached, request.preemptions = 7, 8, 9, 10
    request.started, request.first, request.finish = 11.0, 12.0, 13.0
    wanted = {
        "number": 1,
        "arrival": 2.0,
        "input_tokens": 3,
        "output_tokens": 4,
        "session": 5,
        "turn": 6,
        "priority": 7,
        "replica": 8,
        "cached": 9,
        "preemptions": 10,
        "started": 11.0,
        "first": 12.0,
        "finish": 13.0,
    }
    assert {name: column.tolist() for name, column in request_columns([request]).items()} == {
        name: [value] for name, value in wanted.items()
    }
