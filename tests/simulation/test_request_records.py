"""Records of requests: every number stands in its own column."""

from __future__ import annotations

import os
import signal

import pytest

from glmplan.simulation.statistics import interrupts_held, request_columns
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


def test_an_interrupt_waits_until_what_was_counted_is_written():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("written")
    assert done == ["written"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
