"""The log of a real llama.cpp server says of what each step consisted and how long it took."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
replay = pytest.importorskip("replay_traces")

#: of a run of 25 November 2026, cut down: a prompt, two prompts beside its decoding, two decoding steps, then nothing
LOG = """\
0.00.827.421 I srv  server_strea: conv_id= (empty=1)
0.00.829.310 I slot launch_slot_: id  6 | task 3 | processing task, is_child = 0
0.00.829.321 D srv  update_slots: posting NEXT_RESPONSE
0.00.829.329 I slot   operator(): id  6 | task 3 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 100
0.00.829.501 I srv  server_strea: conv_id= (empty=1)
0.00.964.630 I slot launch_slot_: id  5 | task 5 | processing task, is_child = 0
0.00.964.640 I slot launch_slot_: id  4 | task 2 | processing task, is_child = 0
0.00.964.650 D srv  update_slots: posting NEXT_RESPONSE
0.00.964.684 D slot handle_last_: id  6 | task 3 | slot decode token, id=262, n_ctx = 8192, n_tokens = 100
0.00.964.700 I slot   operator(): id  4 | task 2 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 700
0.00.965.509 I slot   operator(): id  5 | task 5 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 30
0.01.997.487 D srv  update_slots: posting NEXT_RESPONSE
0.01.997.526 D slot handle_last_: id  4 | task 2 | slot decode token, id=282, n_ctx = 8192, n_tokens = 700
0.01.997.540 D slot handle_last_: id  5 | task 5 | slot decode token, id=296, n_ctx = 8192, n_tokens = 30
0.01.997.553 D slot handle_last_: id  6 | task 3 | slot decode token, id=346, n_ctx = 8192, n_tokens = 101
0.02.012.844 D srv  update_slots: posting NEXT_RESPONSE
0.02.012.896 D slot handle_last_: id  5 | task 5 | slot decode token, id=321, n_ctx = 8192, n_tokens = 31
0.02.103.602 I srv  update_slots: all slots are idle
"""


def test_steps_are_read_with_what_each_held():
    steps = replay.steps_of_log(LOG)
    assert steps.rows == [
        (0, 0.0, 1, 100, 5000.0),
        (1, 100.0, 2, 730, 245450.0),
        (3, 277.0, 0, 0, 0),
        (1, 31.0, 0, 0, 0),
    ]
    assert np.allclose(steps.times, [0.135329, 1.032837, 0.015357, 0.090758])
    assert np.allclose(steps.waits, [0.0019])
    # slots that nobody used stand behind those that were
    assert steps.slots == [6, 5, 4, 0, 1, 2, 3, 7]


def test_a_prompt_beyond_a_step_goes_on_in_the_next():
    begins = (
        "0.00.%03d.000 I slot   operator(): id  %d | task 1 | new prompt, n_ctx_slot = 8192, task.n_tokens = 1500\n"
    )
    posting = "0.00.%03d.000 D srv  update_slots: posting NEXT_RESPONSE\n"
    text = posting % 100 + begins % (101, 2) + begins % (102, 0) + posting % 200 + posting % 300
    rows = replay.steps_of_log(text).rows
    assert [(row[2], row[3]) for row in rows] == [(2, replay.BATCH), (1, 3000 - replay.BATCH)]
    # slots are gone through by their number: the prompt in slot 2 is cut, and its rest attends what came before
    assert rows[1][4] == (replay.BATCH - 1500 + (3000 - replay.BATCH) / 2) * (3000 - replay.BATCH)


def test_a_step_time_that_is_affine_is_found_again():
    rng = np.random.default_rng(3)
    rows, times = [], []
    for _ in range(400):
        many, prompt = int(rng.integers(1, replay.SLOTS + 1)), int(rng.integers(0, 2)) * int(rng.integers(5, 500))
        context = float(rng.uniform(10, 900))
        rows.append((many, context, int(prompt > 0), prompt, prompt * prompt / 2))
        times.append(2e-3 * many + 5e-6 * many * context + (8e-3 if prompt else 0.0) + 1.2e-3 * prompt)
    fitted = replay.Steps(rows, times, [0.004], []).fitted()
    assert fitted.off.max() < 1e-3
    table = fitted.table()
    assert table.decode[3] == pytest.approx(6e-3 + 1.5e-5 * table.context, rel=1e-2)
    assert fitted.front_end == 0.004


def test_steps_that_chance_makes_slow_or_quick_take_together_what_they_took():
    rng = np.random.default_rng(5)
    many = rng.integers(1, replay.SLOTS + 1, 2000)
    times = 3e-3 * many * rng.lognormal(-0.5 * 0.3**2, 0.3, len(many))
    rows = [(int(one), 100.0, 0, 0, 0.0) for one in many]
    fitted = replay.Steps(rows, times.tolist(), [0.0], []).fitted()
    said = fitted.table().decode[many, 0] + (100.0 - fitted.table().context[0]) * fitted.terms[replay.SLOTS + many - 1]
    assert said.sum() == pytest.approx(times.sum(), rel=2e-3)


def test_the_simulated_server_begins_with_the_slots_of_the_real_one(tmp_path):
    terms = np.concatenate([np.full(replay.SLOTS, 0.01), np.zeros(replay.SLOTS), [0.0, 0.001, 0.0]])
    fitted = replay.Fitted(terms, 0.0, np.zeros(1))
    replay.write_trace(tmp_path / "trace.csv", [(0.0, 2000, 2), (0.0, 100, 1)])
    rest = list(range(2, replay.SLOTS))
    long_first = replay.replayed(tmp_path / "trace.csv", fitted, [0, 1, *rest])
    short_first = replay.replayed(tmp_path / "trace.csv", fitted, [1, 0, *rest])
    # 52 tokens of the short prompt beside the second token of the long one, or none
    assert long_first.tpot == pytest.approx(0.010 + 0.052)
    assert short_first.tpot == pytest.approx(0.010)
    assert long_first.ttft == pytest.approx((2.048 + 2.048 + 0.062) / 2)
