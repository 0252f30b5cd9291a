"""Where a load becomes steady, and what the statistics of its requests are."""

import json
import math
import statistics
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.errors import SpecError
from glmplan.measure.client import Outcome, RequestRecord
from glmplan.measure.guard import Guard, Limits
from glmplan.measure.journal import Journal
from glmplan.measure.load import Tally, TokenClock, batch_error, is_steady, mean_error, transient_end


def test_the_transient_of_a_ramp_up_is_cut_off():
    chance = np.random.default_rng(1)
    ramp = np.concatenate([np.linspace(0, 100, 20), 100 + chance.normal(0, 3, 80)])
    assert 10 <= transient_end(ramp.tolist()) <= 30 and is_steady(ramp.tolist())


def test_a_drift_is_never_steady():
    assert not is_steady(list(range(100)))
    assert not is_steady([100.0 * math.exp(-i / 60) for i in range(100)])


def test_few_observations_are_never_steady():
    assert not is_steady([5.0] * 15) and transient_end([5.0] * 10) == 0


@given(st.floats(1, 1e6), st.integers(40, 120))
def test_a_constant_rate_is_steady_from_the_start(rate, count):
    assert transient_end([rate] * count) == 0 and is_steady([rate] * count)


def test_tokens_before_the_step_do_not_count():
    clock = TokenClock(bin=0.5)
    clock.add(-0.1)
    clock.add(0.2)
    assert clock.rates(1.0) == [2.0, 0.0]


def done(start=0.0, ttft=0.1, gaps=(0.01,) * 9, **more):
    e2e = ttft + sum(gaps)
    return RequestRecord(start, Outcome.DONE, ttft, e2e, 8, len(gaps) + 1, len(gaps) + 1, gaps=list(gaps), **more)


def test_figures_are_those_of_vllm_bench_serve():
    tally = Tally()
    requests = [done(ttft=0.1 * n, gaps=[0.01 * n] * 9) for n in range(1, 101)]
    for one in requests:
        tally.add(one)
    figures = tally.figures()
    assert figures["ttft_mean_ms"] == pytest.approx(1e3 * statistics.fmean(r.ttft for r in requests))
    assert figures["ttft_p99_ms"] == pytest.approx(1e3 * np.percentile([r.ttft for r in requests], 99))
    assert figures["tpot_mean_ms"] == pytest.approx(1e3 * statistics.fmean((r.e2e - r.ttft) / 9 for r in requests))
    assert figures["itl_mean_ms"] == pytest.approx(figures["tpot_mean_ms"])
    gaps = [gap for r in requests for gap in r.gaps]
    assert figures["itl_p99_ms"] == pytest.approx(1e3 * np.percentile(gaps, 99), rel=0.02)
    assert figures["itl_p50_ms"] == pytest.approx(1e3 * np.percentile(gaps, 50), rel=0.03)


def test_faults_are_counted_and_their_times_are_not():
    tally = Tally()
    tally.add(done())
    for outcome in Outcome:
        tally.add(RequestRecord(0.0, outcome, ttft=9.0, e2e=99.0, output_tokens=50))
    assert tally.done == 2 and tally.faults == len(Outcome) - 2
    assert sum(tally.faults_by_name().values()) == 1 + len(Outcome)


def test_a_single_token_has_no_time_per_output_token():
    assert RequestRecord(0.0, Outcome.DONE, 0.1, 0.1, 8, 1).tpot is None


def test_ten_thousand_requests_take_flat_memory():
    tally = Tally()
    for _ in range(500):
        tally.add(done(gaps=[0.01] * 99))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10_000):
        tally.add(done(gaps=[0.01] * 99))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1_000_000  # four numbers for each request, and no list of gaps


def test_what_disturbs_neighbours_alike_widens_the_error():
    waves = [1.0] * 20 + [3.0] * 20 + [1.0] * 20 + [3.0] * 20 + [1.0] * 20
    assert batch_error(waves) > 3 * mean_error(waves)
    assert batch_error([1.0, 2.0]) == 0.0


def test_one_observation_has_no_error():
    assert mean_error([1.0]) == math.inf


def fault(outcome=Outcome.FAILED):
    return RequestRecord(0.0, outcome, detail="why")


def test_the_guard_lets_a_healthy_server_go_on():
    guard = Guard()
    assert all(guard.request(done()) for _ in range(1000)) and guard.step(100.0) and guard.step(90.0)


def test_the_guard_stops_at_too_many_errors():
    guard = Guard(Limits(error_rate=0.2, window=50))
    for number in range(100):
        if not guard.request(fault() if number % 4 == 0 else done()):
            break
    assert "failed" in guard.reason and number < 60


def test_rare_errors_do_not_stop_it():
    guard = Guard(Limits(error_rate=0.2, window=50))
    assert all(guard.request(fault() if number % 20 == 0 else done()) for number in range(400))


@pytest.mark.parametrize(
    ("outcome", "word"), [(Outcome.REFUSED, "gone"), (Outcome.LOST, "gone"), (Outcome.LATE, "timed out")]
)
def test_a_server_that_is_gone_or_hangs_stops_it_soon(outcome, word):
    guard = Guard()
    sent = 0
    while guard.request(fault(outcome)):
        sent += 1
    assert sent < 6 and word in guard.reason


def test_a_first_token_beyond_the_bound_stops_it():
    guard = Guard(Limits(ttft=1.0))
    assert all(guard.request(done(ttft=0.9)) for _ in range(50))
    for _ in range(50):
        guard.request(done(ttft=1.5))
    assert "TTFT" in guard.reason


def test_falling_throughput_and_heat_stop_it():
    guard = Guard()
    assert guard.step(100.0) and guard.step(120.0) and not guard.step(50.0)
    assert "falls" in guard.reason
    assert not Guard().temperature(99.0)


def test_what_the_user_cancels_is_no_fault():
    guard = Guard()
    assert all(guard.request(RequestRecord(0.0, Outcome.CANCELLED)) for _ in range(100))


def test_a_line_torn_by_a_crash_is_left_out_and_the_next_run_goes_on_behind_it(tmp_path):
    file = tmp_path / "deep" / "journal.jsonl"
    first = Journal(file)
    first.write("step", level=1)
    first.close()
    with open(file, "ab") as stream:
        stream.write(b'{"kind": "request", "sta')
    second = Journal(file)
    second.write("step", level=2)
    second.close()
    assert [line["level"] for line in Journal.read(file)] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"kind": "request", "sta', b'{"ki', b'{"kind": "re\0\0\0', b"\0" * 40])
def test_a_line_torn_by_each_of_two_crashes_is_left_out(tmp_path, torn):
    """The second one was refused, so a run that was killed twice could not go on."""
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b'{"kind": "begin"}\n' + torn + b'\n{"kind": "step", "level": 1}\n' + torn)
    assert [line["kind"] for line in Journal.read(file)] == ["begin", "step"]


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    file = tmp_path / "x"
    file.write_text("hello\nthere\n")
    with pytest.raises(SpecError, match="line 1"):
        Journal.read(file)
    with pytest.raises(SpecError, match="cannot be read"):
        Journal.read(tmp_path / "none")
    with pytest.raises(SpecError, match="cannot be written"):
        Journal(file / "below")


def test_on_a_full_disk_nothing_is_lost_and_every_fault_is_counted():
    from pathlib import Path

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    journal = Journal(full)
    for number in range(5):
        journal.write("request", number=number)
    journal.sync()
    assert journal.unwritten == 5 and journal.faults >= 5 and "space" in journal.last_fault
    journal.close()


@pytest.mark.parametrize(("flushes", "faults"), [(True, 1), (False, 0)])
def test_after_a_signal_a_journal_does_not_wait_for_the_disk(flushes, faults):
    """/dev/null takes lines and cannot be flushed, which counts as a fault."""
    from pathlib import Path

    journal = Journal(Path("/dev/null"))
    journal.flushes = flushes
    journal.write("end")
    journal.sync()
    assert journal.unwritten == 0 and journal.faults == faults


def test_lines_held_back_are_written_once_there_is_room(tmp_path, monkeypatch):
    import os

    journal = Journal(tmp_path / "j")
    real = os.write
    # room for a part of a line only: the real limit of a disk that fills up
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
    journal.write("a", value=1)
    assert journal.unwritten == 1 and (tmp_path / "j").read_bytes() == b""
    monkeypatch.undo()
    journal.write("b", value=2)
    journal.close()
    assert [json.loads(line)["kind"] for line in (tmp_path / "j").read_text().splitlines()] == ["a", "b"]
    assert journal.faults == 1
