"""A second process for every other job: what comes of jobs does not tell who did them."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from glmplan.simulation.forked_worker import ForkedWorker, forked_worker

here = os.getpid()
copies = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only")


def where(_):
    return os.getpid()


@copies
def test_the_second_of_two_jobs_is_done_by_a_copy_that_is_gone_afterwards():
    two = ForkedWorker(where, copied=True)
    first, second = two.both(1, 2)
    assert first == here != second
    assert two.both(1, 2) == (first, second)
    two.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(second, os.WNOHANG)


def test_without_a_copy_one_process_does_both():
    with forked_worker(where, copied=False) as two:
        assert two.both(1, 2) == (here, here)


@copies
def test_a_copy_that_dies_is_not_missed():
    two = ForkedWorker(where, copied=True)
    _, copy = two.both(1, 2)
    os.kill(copy, signal.SIGKILL)
    assert two.both(1, 2) == (here, here)
    assert two.both(1, 2) == (here, here)
    two.close()


@copies
def test_what_goes_wrong_in_a_copy_goes_wrong_here():
    def picky(number):
        if number < 0:
            raise ValueError(f"{number} is too small in {'a copy' if os.getpid() != here else 'this process'}")
        return number

    with Beside_closed(picky) as two, pytest.raises(ValueError, match="-1 is too small in this process"):
        two.both(1, -1)


@copies
def test_what_cannot_be_sent_back_is_made_here():
    with Beside_closed(lambda number: lambda: number) as two:
        assert [one() for one in two.both(1, 2)] == [1, 2]


@copies
def test_a_copy_leaves_what_this_process_wrote_to_this_process(capfd):
    print("half a line", end="")
    with Beside_closed(where) as two:
        two.both(1, 2)
    sys.stdout.flush()
    assert capfd.readouterr().out == "half a line"


class Beside_closed(ForkedWorker):
    """A pair that is closed at the end of a block."""

    def __init__(self, work):
        super().__init__(work, copied=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
