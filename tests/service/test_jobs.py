"""Jobs keep their order, their answers and their hour, also when the service is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time

import httpx
import pytest

from glmplan.errors import SpecError
from glmplan.service.guard import Limits
from glmplan.service.jobs import STARTS, Busy, Job, JobFile, Jobs

SERVE = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
PLAN = {"model": "llama-3.1-8b", "on": "1xh100-sxm", "input": 64, "output": 8, "ranges": False}


class Answering:
    """A pool of one process whose answers are given by the test."""

    def __init__(self):
        self.asked, self.free = {}, asyncio.Semaphore(1)

    async def ask(self, ask, question, seconds, report, *, accepted):
        async with self.free:
            report(0, 0)
            self.asked[question["n"]] = future = asyncio.get_running_loop().create_future()
            return await future


def places(jobs, names):
    return [jobs.record(jobs.get(name))["place"] for name in names]


async def turn():
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.fixture
def limits(tmp_path):
    return Limits(job_file=str(tmp_path / "state" / "jobs.sqlite"))


def test_a_killed_service_finds_answers_and_waiting_jobs_again_in_their_order(limits):
    async def first():
        pool = Answering()
        jobs = Jobs(pool, limits)
        names = [jobs.begin("size", {"n": n}).name for n in range(4)]
        await turn()
        assert places(jobs, names) == [None, 1, 2, 3]
        pool.asked[0].set_result((200, b'{"a": 1}'))
        await turn()
        assert places(jobs, names) == [None, None, 1, 2]
        jobs.cancel(jobs.get(names[2]))
        jobs._file.close()  # nothing else is written: the process is gone
        return names

    async def second(names):
        pool = Answering()
        jobs = Jobs(pool, limits)
        jobs.resume()
        await turn()
        found = [jobs.get(name) for name in names]
        assert [job.state for job in found] == ["done", "running", "cancelled", "waiting"]
        assert found[0].answer == b'{"a": 1}' and found[1].starts == 2
        assert places(jobs, names) == [None, None, None, 1]
        assert jobs.begin("size", {"n": 9}).number > max(job.number for job in found)
        await jobs.close()

    asyncio.run(second(asyncio.run(first())))


def test_an_ordered_end_is_no_failed_start_and_a_job_that_kills_the_service_ends(limits):
    async def run(close):
        jobs = Jobs(Answering(), limits)
        jobs.resume()
        job = next(iter(jobs._jobs.values()), None) or jobs.begin("size", {"n": 0})
        await turn()
        state = job.state, job.starts
        await jobs.close() if close else jobs._file.close()
        return state

    for _ in range(2 * STARTS):
        assert asyncio.run(run(close=True)) == ("running", 1)
    states = [asyncio.run(run(close=False)) for _ in range(STARTS + 1)]
    assert states == [*(("running", n + 1) for n in range(STARTS)), ("failed", STARTS)]


def test_an_hour_is_an_hour_also_over_a_restart(limits):
    def written(age):
        with JobFile(limits.job_file) as file:
            clock = time.monotonic()
            file.put(Job("a", 1, "size", "{}", "done", begun=clock - age - 5.0, ended=clock - age, answer=b"{}"))

    async def found():
        jobs = Jobs(Answering(), limits)
        job = jobs.get("a")
        seconds = None if job is None else jobs.record(job)["seconds"]
        await jobs.close()
        return seconds

    written(limits.kept_seconds - 60.0)
    assert asyncio.run(found()) == pytest.approx(5.0, abs=0.01)
    written(limits.kept_seconds + 60.0)
    assert asyncio.run(found()) is None
    assert sqlite3.connect(limits.job_file).execute("SELECT count(*) FROM jobs").fetchone() == (0,)


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_a_wall_clock_that_is_set_deletes_no_answer_and_changes_no_time(limits, monkeypatch, step):
    async def found():
        pool = Answering()
        jobs = Jobs(pool, limits)
        job = jobs.begin("size", {"n": 0})
        await turn()
        pool.asked[0].set_result((200, b"{}"))
        await turn()
        wall = time.time
        monkeypatch.setattr("glmplan.service.jobs.time.time", lambda: wall() + step)
        kept = jobs.get(job.name)
        assert kept is job and kept.state == "done" and 0 <= jobs.record(job)["seconds"] < 60
        await jobs.close()
        # the hour is over if the wall clock is set forward by a day while the service is down
        again = Jobs(Answering(), limits)
        seen = again.get(job.name)
        await again.close()
        return seen

    seen = asyncio.run(found())
    assert (seen is not None) == (step < 0) and (seen is None or 0 <= seen.record()["seconds"] < 60)


def test_a_job_is_refused_before_it_is_accepted_and_no_answer_is_pushed_out(limits):
    async def run():
        pool = Answering()
        jobs = Jobs(pool, Limits(jobs=4, waiting=2))
        begun = [jobs.begin("size", {"n": n}) for n in range(2)]
        with pytest.raises(Busy):  # two wait
            jobs.begin("size", {"n": 2})
        await turn()
        begun += [jobs.begin("size", {"n": n}) for n in (2,)]
        for n, status in enumerate((200, 500, 422)):
            pool.asked[n].set_result((status, b"{}"))
            await turn()
        assert [job.state for job in begun] == ["done", "failed", "refused"]
        for n in range(3, 6):  # the first takes the free place, each other that of a job without an answer
            jobs.begin("size", {"n": n})
            await turn()
            pool.asked[n].set_result((200, b"{}"))
            await turn()
        assert [jobs.get(job.name) is not None for job in begun] == [True, False, False]
        with pytest.raises(Busy):
            jobs.begin("size", {"n": 6})
        kept = begun[0]
        later = next(job for job in jobs._jobs.values() if job is not kept)
        jobs.cancel(later)  # an answer that its owner deletes leaves a free place
        assert jobs.get(later.name) is None and jobs.get(kept.name) is kept
        jobs.begin("size", {"n": 6})
        await turn()
        pool.asked[6].set_result((200, b"{}"))
        await turn()
        begun[0].ended -= 3601.0
        assert jobs.get(begun[0].name) is None
        cancelled = jobs.begin("size", {"n": 7})
        jobs.cancel(cancelled)  # before its task ran
        await turn()
        assert cancelled.over and jobs.record(cancelled)["state"] == "cancelled"
        await jobs.close()

    asyncio.run(run())


def test_a_file_in_use_and_one_that_is_none_of_jobs_are_refused(limits, tmp_path):
    with JobFile(limits.job_file), pytest.raises(SpecError, match="another process"):
        JobFile(limits.job_file)
    assert stat.S_IMODE(os.stat(limits.job_file).st_mode) == 0o600
    other = tmp_path / "notes.txt"
    other.write_text("notes, " * 200)
    with pytest.raises(SpecError, match="not a database"):
        JobFile(str(other))
    assert other.read_text() == "notes, " * 200


def served(path):
    words = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--workers", "1", "--jobs", str(path), "--quiet"]
    service = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    found = re.search(r"http://\S+:\d+", service.stderr.readline())
    assert found, service.stderr.read()
    return service, httpx.Client(base_url=found[0], timeout=600, trust_env=False)


def ended(client, where):
    while (found := client.get(where).json())["state"] in ("waiting", "running"):
        time.sleep(0.05)
    return found["state"]


def test_after_a_kill_the_service_has_its_answers_and_goes_on_with_its_jobs(tmp_path):
    service, client = served(tmp_path / "jobs.sqlite")

    def begin(**more):
        begun = client.post("/v1/jobs", json={"ask": "simulate", "question": PLAN | more})
        assert begun.status_code == 202
        return begun.headers["location"]

    try:
        done = begin(traffic="closed:2", requests=10)
        assert ended(client, done) == "done"
        answer = client.get(f"{done}/answer").content
        long = begin(traffic="poisson:5/s", requests=50_000, output=2000)
        while client.get(long).json()["state"] == "waiting":
            time.sleep(0.05)
        waiting = [begin(traffic="closed:2", requests=10, seed=seed) for seed in (1, 2)]
        assert [client.get(one).json()["place"] for one in waiting] == [1, 2]
        service.send_signal(signal.SIGKILL)
        service.wait(60)
        client.close()
        service, client = served(tmp_path / "jobs.sqlite")
        assert client.get(f"{done}/answer").content == answer
        assert [client.get(one).json()["place"] for one in waiting] in ([1, 2], [2, 3])
        assert client.delete(long).json()["state"] == "cancelled"
        assert [ended(client, one) for one in waiting] == ["done", "done"]
    finally:
        client.close()
        service.terminate()
        service.wait(60)
