"""The ladder on servers that behave, on servers that do not, and on a server that dies."""

import asyncio
import gc
import json
import os
import re
from pathlib import Path

import pytest
from faulty_servers import HANGS, HEAD, WHOLE, event, once, read_request, server, token, usage

from glmplan.errors import NoServer, SpecError
from glmplan.measure.client import Client, Endpoint, Patience
from glmplan.measure.guard import Guard, Limits
from glmplan.measure.journal import Journal
from glmplan.measure.ladder import (
    LadderPlan,
    StepResult,
    _done_before,
    _tell_from_counters,
    climb,
    named_endpoint,
    record_csv,
    record_json,
    record_rows,
)
from glmplan.measure.load import Arrival, Lengths, Loader
from glmplan.measure.overhead import NullServer, Overhead, measure_overhead
from glmplan.measure.prompts import PromptMaker, prepare_prompts
from glmplan.measure.server_facts import ServerFacts, changed, parse_metrics, read_server

#: a busy machine must not make a fault of an answer
QUICK = Patience(connect=HANGS, first_token=HANGS, stall=HANGS, throttle=0.5, throttled=1)
#: steps this short differ in throughput by chance alone
CALM = Limits(falling=0.0)
MAKER = PromptMaker(("a", "b"), 1, 0, "test")


def run(coroutine):
    async def bounded():
        return await asyncio.wait_for(coroutine, HANGS)

    return asyncio.run(bounded())


def offer(url, action, *, journal=None, limits=None, lengths=None, patience=QUICK, stop_when=None, maker=MAKER):
    """Let a loader do something against a server; returns what it measured and its guard."""

    async def offered():
        stop, guard = asyncio.Event(), Guard(limits)
        async with Client(Endpoint(url, "m"), patience) as client:
            loader = Loader(
                client, maker, lengths or Lengths(4, 3), guard=guard, journal=journal or Journal(None), stop=stop
            )
            stopping = asyncio.create_task(once(stop_when, stop.set)) if stop_when else None
            measured = await action(loader)
            if stopping:
                await stopping
            await loader.leave()
            return measured, guard

    return offered()


async def against(behave, action, **options):
    async with server(behave) as url:
        return await offer(url, action, **options)


def test_a_number_of_requests_is_sent_and_all_of_them_count():
    async def asked():
        async with NullServer(pace=0.005) as null:
            measured, guard = await offer(null.url, lambda loader: loader.requests(4, count=20))
            return measured, guard, null.requests

    measured, guard, seen = run(asked())
    assert seen == 20 == measured.tally.done and not guard.reason
    assert measured.output_rate == pytest.approx(60 / measured.wall)
    assert 1 < measured.mean_running <= 4.01


def test_a_steady_load_counts_only_after_it_is_steady():
    async def asked():
        async with NullServer(pace=0.01, first=0.02) as null:
            return await offer(null.url, lambda loader: loader.until_steady(4, seconds=1.0, longest=HANGS))

    measured, _ = run(asked())
    assert measured.steady and measured.wall >= 0.9 and measured.tally.done >= 3
    # Little's law: users over the time of a request, 3 tokens each; of each user one request at either edge of the
    # window may be left out, which weighs the more the fewer a busy machine lets through
    e2e = measured.tally.figures()["e2e_mean_ms"] / 1e3
    assert measured.output_rate == pytest.approx(4 * 3 / e2e, rel=0.2 + 2 * 4 / measured.tally.done)
    assert measured.tally.done <= measured.everything.done


def test_first_answers_of_a_steady_step_are_cut_to_different_lengths_and_do_not_count(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")

    async def asked():
        async with NullServer(pace=0.01) as null:
            steady = lambda loader: loader.until_steady(4, seconds=1.0, longest=HANGS)  # noqa: E731
            return await offer(null.url, steady, journal=journal, lengths=Lengths(4, 8))

    measured, _ = run(asked())
    journal.sync()
    lines = [line for line in Journal.read(tmp_path / "journal.jsonl") if line.get("outcome") == "done"]
    lengths = [line["out"] for line in sorted(lines, key=lambda line: line["start"])]
    assert sorted(lengths[:4]) == [2, 4, 6, 8] and set(lengths[4:]) == {8}
    assert measured.tally.done >= 3 and measured.tally.output_tokens == 8 * measured.tally.done


def test_a_step_without_steady_state_ends_at_its_limit_and_says_so():
    async def asked():
        async with NullServer(pace=0.4) as null:
            return await offer(null.url, lambda loader: loader.until_steady(2, seconds=0.5, longest=1.5))

    measured, _ = run(asked())
    assert not measured.steady


def test_requests_of_an_open_loop_are_sent_on_time():
    schedule = [Arrival(0.02 * n, 4, 3) for n in range(25)]

    async def asked():
        async with NullServer(pace=0.05) as null:
            return await offer(null.url, lambda loader: loader.arrivals(schedule))

    measured, _ = run(asked())
    assert measured.tally.done == 25 and measured.wall >= 24 * 0.02
    assert measured.mean_running > 1  # they overlap, for nobody waits for an answer


def test_ctrl_c_keeps_what_was_measured():
    async def asked():
        async with NullServer(pace=0.02) as null:
            return await offer(null.url, lambda loader: loader.requests(2, count=100_000),
                               stop_when=lambda: null.requests >= 12)  # fmt: skip

    measured, _ = run(asked())
    assert measured.tally.done > 3 and measured.everything.outcomes["cancelled"] <= 2


def test_a_server_that_dies_stops_the_load_and_loses_nothing(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")

    async def dying():
        async with NullServer(pace=0.01) as null:
            dies = asyncio.create_task(once(lambda: null.requests >= 20, lambda: _kill(null)))
            found = await offer(null.url, lambda loader: loader.requests(4, count=10_000), journal=journal)
            await dies
            return found

    def _kill(null):
        null._server.close()
        for writer in list(null._open):
            writer.transport.abort()

    measured, guard = run(dying())
    journal.close()
    assert "gone" in guard.reason and measured.tally.done > 0 and measured.everything.faults >= 5
    lines = Journal.read(tmp_path / "j.jsonl")
    assert len(lines) == sum(measured.everything.outcomes.values())


def test_an_error_that_nobody_foresaw_is_counted_and_the_load_goes_on(tmp_path):
    class Breaks:
        made = 0

        def make(self, *words, **more):
            Breaks.made += 1
            if Breaks.made == 3:
                raise ZeroDivisionError("nobody thought of this")
            return MAKER.make(*words, **more)

    journal = Journal(tmp_path / "j.jsonl")

    async def asked():
        async with NullServer() as null:
            return await offer(null.url, lambda loader: loader.requests(2, count=12), journal=journal, maker=Breaks())

    measured, guard = run(asked())
    journal.close()
    assert measured.everything.outcomes == {"done": 11, "unforeseen": 1} and not guard.reason
    (line,) = (line for line in Journal.read(tmp_path / "j.jsonl") if line["outcome"] == "unforeseen")
    assert line["detail"] == "ZeroDivisionError: nobody thought of this"


def test_a_server_that_refuses_is_not_hammered():
    seen = []

    async def refuses(reader, writer, number):
        seen.append(number)
        await read_request(reader)
        writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    measured, guard = run(against(refuses, lambda loader: loader.requests(2, count=1000)))
    assert guard.reason and len(seen) < 30 and measured.everything.outcomes["failed"] == len(seen)


def test_every_fault_of_a_mixed_server_is_counted():
    bad = {
        3: HEAD + token(),
        5: b"HTTP/1.1 400 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        7: HEAD + event(b"{broken"),
        9: b"HTTP/1.1 429 X\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    }

    async def mixed(reader, writer, number):
        await read_request(reader)
        writer.write(bad.get(number, HEAD + WHOLE))
        await writer.drain()

    limits = Limits(error_rate=1.0)
    measured, _ = run(against(mixed, lambda loader: loader.requests(1, count=30), limits=limits))
    counts = measured.everything.outcomes
    assert sum(counts.values()) == 30
    assert (counts["lost"], counts["rejected"], counts["malformed"], counts["done"]) == (1, 1, 1, 27)
    assert measured.everything.throttled == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell its memory in /proc")
def test_ten_thousand_requests_leave_memory_flat():
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects())

    async def asked():
        async with NullServer() as null:

            async def both(loader):
                await loader.requests(16, count=1000)
                before = resident()
                done = await loader.requests(16, count=10_000)
                return done, [after - was for after, was in zip(resident(), before, strict=True)]

            return await offer(null.url, both, lengths=Lengths(4, 2))

    (measured, grown), guard = run(asked())
    assert measured.tally.done == 10_000 and not guard.reason
    pages, objects = grown
    assert objects < 10_000  # nothing is kept of a request but its sums
    assert pages < 100_000_000  # the allocator keeps free pages of whatever ran before in this process


def test_the_client_adds_little_and_says_how_much():
    found = run(measure_overhead(8, tokens=10, pace=0.01))
    assert found.faults == 0 and found.tpot >= 0 and found.ttft > 0 and found.cpu > 0
    assert Overhead(1, 0.01, 0.0, 0.1, 0).share(0.0, 0.0) == 0.0


def llm(pages_class=dict, **more):
    """A small server with the pages of an engine; `more` replaces pages."""
    pages = pages_class(
        {
            "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096, "root": "org/M"}]},
            "/metrics": 'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\nvllm:num_preemptions_total 7\n',
            "/version": {"version": "0.20.0"},
            **more,
        }
    )

    async def behave(reader, writer, number):
        head, content = await read_request(reader)
        method, path = head.split()[:2]
        page = pages.get(path.decode())
        if method == b"POST" and path.endswith(b"completions"):
            asked = json.loads(content)
            count = asked["max_tokens"]
            words = len(re.findall(r"\S+", str(asked.get("prompt") or asked["messages"][0]["content"]))) + 3
            text = token() * (count - 1) + token("x", "length", **usage(words, count)) + event(b"[DONE]")
            writer.write(HEAD + text)
        elif page is None:
            writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            body = (page if isinstance(page, str) else json.dumps(page)).encode()
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    return behave


async def told(behave, **endpoint):
    async with server(behave) as url, Client(Endpoint(url, "m", **endpoint), QUICK) as client:
        return await read_server(client)


def test_vllm_tells_its_pool_and_its_counters():
    facts = run(told(llm()))
    assert (facts.engine, facts.version, facts.model) == ("vllm", "0.20.0", "org/M")
    assert (facts.kv_tokens, facts.max_context) == (16000, 4096)
    assert facts.gauges["running"] == 5 and facts.gauges["preemptions"] == 7


def test_sglang_tells_its_layout_and_pool():
    pages = {
        "/v1/models": {"data": [{"id": "m", "owned_by": "sglang"}]},
        "/get_server_info": {
            "max_total_num_tokens": 314304,
            "tp_size": 8,
            "max_running_requests": 64,
            "version": "0.5",
        },
        "/metrics": "sglang:num_running_reqs 4.0\nsglang:spec_accept_length 2.5\n",
        "/version": None,
    }
    facts = run(told(llm(**pages)))
    assert (facts.engine, facts.version, facts.kv_tokens, facts.max_sequences) == ("sglang", "0.5", 314304, 64)
    assert facts.layout == {"tp": 8} and facts.gauges["acceptance_length"] == 2.5


@pytest.mark.parametrize("page", ["not json", "[1, 2]", {"data": "x"}, {"data": [1]}, "null"])
def test_odd_pages_are_no_facts_and_no_crash(page):
    facts = run(
        told(llm(**{"/v1/models": page, "/metrics": "garbage {{{\n", "/props": page, "/get_server_info": page}))
    )
    assert facts.models == () and facts.gauges == {}


def test_counters_of_speculation_and_of_the_prefix_cache_go_into_the_step():
    readings = iter(range(100))

    def page():
        n = next(readings)
        return (
            f"vllm:spec_decode_num_drafts_total {10 * n}\nvllm:spec_decode_num_accepted_tokens_total {15 * n}\n"
            f"vllm:prefix_cache_queries_total {100 * n}\nvllm:prefix_cache_hits_total {40 * n}\n"
        )

    class Pages(dict):
        def get(self, path, default=None):
            return page() if path == "/metrics" else super().get(path, default)

    async def asked():
        async with server(llm(pages_class=Pages)) as url:
            plan = LadderPlan(Lengths(8, 2), users=(1,), requests=3)
            return await climb(Endpoint(url, "m"), plan, journal=Journal(None), stop=asyncio.Event(), limits=CALM)

    (step,) = run(asked()).steps
    assert step.figures["acceptance_length"] == 2.5
    assert any("40%" in note and "prefix cache" in note for note in step.notes)


def test_where_no_server_answers_it_says_so():
    async def asked():
        async with Client(Endpoint("http://127.0.0.1:9/v1", "m"), QUICK) as client:
            return await read_server(client)

    with pytest.raises(NoServer, match="answers nothing"):
        run(asked())


def test_a_model_that_is_not_served_is_refused_with_what_is():
    facts = ServerFacts(models=("glm-5", "other"))
    with pytest.raises(SpecError, match="glm-5"):
        named_endpoint(Endpoint("http://127.0.0.1/v1", "glm-4"), facts)
    with pytest.raises(SpecError):
        named_endpoint(Endpoint("http://127.0.0.1/v1", ""), facts)
    assert named_endpoint(Endpoint("http://127.0.0.1/v1", ""), ServerFacts(models=("a",))).model == "a"


def test_metrics_with_labels_and_exponents_are_parsed():
    text = '# HELP x y\nx{a="1,2",b="q\\"r"} 1.5e+03\ny NaN\nz 1 1700000000\nbroken\n'
    assert [(name, value) for name, _, value in parse_metrics(text) if value == value] == [("x", 1500.0), ("z", 1.0)]


def test_prompts_get_their_exact_length_from_usage_alone():
    async def asked():
        async with server(llm()) as url, Client(Endpoint(url, "m"), QUICK) as client:
            maker = await prepare_prompts(client)
            import random

            sent = await client.send(maker.make(50, random.Random(1)), 2)
            return maker, sent

    maker, sent = run(asked())
    assert maker.method == "measured" and maker.frame == 3
    assert sent.input_tokens == 50


def test_shared_beginnings_are_shared_and_the_rest_is_not():
    import random

    maker = PromptMaker(tuple("abcdefgh"), 1, 2, "test")
    one, two = (maker.make(100, random.Random(seed), shared=40) for seed in (1, 2))
    assert one.split()[:38] == two.split()[:38] and one.split()[38:] != two.split()[38:]
    assert len(one.split()) == 98


def test_a_server_that_rejects_ignore_eos_is_asked_without_it():
    plain = llm()

    async def strict(reader, writer, number):
        class Again:
            async def readuntil(self, mark):
                return head

            async def readexactly(self, count):
                return content

        head, content = await read_request(reader)
        if b"ignore_eos" in content:
            writer.write(b"HTTP/1.1 400 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
            await writer.drain()
        else:
            await plain(Again(), writer, number)

    async def asked():
        async with server(strict) as url:
            plan = LadderPlan(Lengths(8, 2), users=(1,), requests=3)
            return await climb(
                Endpoint(url, "m"), plan, journal=Journal(None), stop=asyncio.Event(), patience=QUICK, limits=CALM
            )

    record = run(asked())
    assert not record.endpoint.ignore_eos and record.steps[0].figures["num_requests"] == 3


async def ladder(tmp_path, url, plan, **options):
    journal = Journal(tmp_path / "journal.jsonl")
    try:
        return await climb(
            Endpoint(url, "m"), plan, journal=journal, stop=asyncio.Event(), patience=QUICK, limits=CALM, **options
        )
    finally:
        journal.close()


def test_a_ladder_keeps_each_step_and_resumes_after_a_crash(tmp_path):
    plan = LadderPlan(Lengths(8, 2), users=(1, 2, 4), requests=6)

    async def asked(earlier=()):
        async with server(llm(), limit=2**20) as url:
            return url, await ladder(tmp_path, url, plan, earlier=earlier)

    url, record = run(asked())
    assert [step.level for step in record.steps] == [1, 2, 4] and all(step.complete for step in record.steps)
    lines = Journal.read(tmp_path / "journal.jsonl")
    assert sum(line["kind"] == "step" for line in lines) == 3
    # a crash in the third step: its line is missing
    cut = [line for line in lines if not (line["kind"] == "step" and line["level"] == 4)]
    cut[0]["settings"]["url"] = None

    async def again():
        async with server(llm()) as other:
            cut[0]["settings"]["url"] = other
            return await ladder(tmp_path, other, plan, earlier=cut)

    resumed = run(again())
    assert [step.level for step in resumed.steps] == [1, 2, 4]
    assert resumed.steps[0].figures == record.steps[0].figures


def test_another_run_is_not_resumed(tmp_path):
    plan = LadderPlan(Lengths(8, 2), users=(1,), requests=2)
    earlier = [{"kind": "begin", "settings": {"url": "http://elsewhere/v1"}}]

    async def asked():
        async with server(llm()) as url:
            return await ladder(tmp_path, url, plan, earlier=earlier)

    with pytest.raises(SpecError, match="elsewhere"):
        run(asked())


def test_the_record_becomes_rows_of_the_measurement_tables(tmp_path, monkeypatch):
    from glmplan.io.runs.table import read_runs

    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-to-be-seen")

    async def asked():
        async with server(llm()) as url:
            return await ladder(tmp_path, url, LadderPlan(Lengths(8, 3), users=(1, 2), requests=5))

    record = run(asked())
    facts = {"model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "tp": 8}
    rows = record_rows(record, facts)
    assert [row["concurrency"] for row in rows] == [1, 2] and rows[0]["engine"] == "vllm"
    assert rows[0]["output_tokens"] == 3 and rows[0]["input_tokens"] == 8 and rows[0]["kv_pool_tokens"] == 16000
    (tmp_path / "runs.csv").write_text(record_csv(record, facts))
    runs = read_runs(tmp_path / "runs.csv")
    assert [one.error for one in runs] == [None, None] and runs[1].concurrency == 2
    everything = record_json(record) + record_csv(record) + (tmp_path / "journal.jsonl").read_text()
    assert "sk-not" not in everything


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_does_not_stop_a_ladder_and_is_counted():
    async def asked():
        async with server(llm()) as url:
            plan = LadderPlan(Lengths(8, 2), users=(1, 2), requests=5)
            journal = Journal(Path("/dev/full"))
            found = await climb(
                Endpoint(url, "m"), plan, journal=journal, stop=asyncio.Event(), patience=QUICK, limits=CALM
            )
            return found, journal

    record, journal = run(asked())
    assert [step.outcomes for step in record.steps] == [{"done": 5}, {"done": 5}]
    assert record.journal_faults > 10 and journal.unwritten > 10


STEP = {"kind": "step", "level": 1, "figures": {}, "outcomes": {"done": 3}, "errors": {"x": None}, "complete": True}


@pytest.mark.parametrize(
    "lines",
    [
        [{"kind": "begin"}],
        [{"kind": "begin", "settings": [1]}],
        *([{"kind": "begin", "settings": {"url": "u"}}, STEP | wrong] for wrong in (
            {"level": "x"}, {"level": True}, {"figures": "x"}, {"figures": {"a": [1]}}, {"outcomes": {"bogus": 1}},
            {"notes": 5}, {"notes": [5]}, {"cards": [1]}, {"cards": {"throttled_share": {"hot": "x"}}}, {"unusable": 5},
        )),
    ],
)  # fmt: skip
def test_a_journal_that_no_run_wrote_is_refused(lines):
    assert _done_before([{"kind": "begin", "settings": {"url": "u"}}, STEP], {"url": "u"})[0].faults == 0
    with pytest.raises(SpecError):
        _done_before(lines, {"url": "u"})


@pytest.mark.parametrize(
    ("gained", "length", "noted"),
    [
        ({"drafts": 10, "draft_tokens": 30, "accepted_tokens": 20}, 3.0, False),
        ({"drafts": 10, "draft_tokens": 30, "accepted_tokens": 31}, None, True),
        ({"drafts": 10, "accepted_tokens": 9e13}, None, True),
        ({"acceptance_length": 2.5}, 2.5, False),
        ({"acceptance_length": 9e14}, None, True),
    ],
)
def test_counters_of_speculation_that_cannot_be_are_no_figure(gained, length, noted):
    step = StepResult(1, server=gained)
    _tell_from_counters(step)
    assert step.figures.get("acceptance_length") == length
    assert bool(step.notes) is noted


def test_a_counter_that_fell_gained_nothing():
    assert changed({"accepted_tokens": 5, "running": 3}, {"accepted_tokens": 4, "running": 1}) == {"running": 1}


@pytest.mark.parametrize(("bundled", "noted"), [(1, None), (2, "2.00 tokens in a chunk")])
def test_reasoning_that_is_not_streamed_is_no_speculation(bundled, noted):
    """Half of the tokens are reasoning: the stream has a chunk for each `bundled` of the others."""

    async def thinking(reader, writer, number):
        head, content = await read_request(reader)
        if not content:
            writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        tokens = json.loads(content)["max_tokens"]
        used = usage(len(json.loads(content)["prompt"].split()), tokens)
        used["usage"]["completion_tokens_details"] = {"reasoning_tokens": tokens // 2}
        writer.write(HEAD)
        for _ in range(tokens // 2 // bundled - 1):
            writer.write(token())
            await asyncio.sleep(0.002)
        writer.write(token("x", "length", **used) + event(b"[DONE]"))
        await writer.drain()

    async def asked():
        async with server(thinking) as url:
            plan = LadderPlan(Lengths(8, 40), users=(1,), requests=3)
            return await climb(
                Endpoint(url, "m"), plan, journal=Journal(None), stop=asyncio.Event(), patience=QUICK, limits=CALM
            )

    [step] = run(asked()).steps
    assert any("50% of the output tokens are reasoning" in note for note in step.notes)
    assert [note.partition(":")[0] for note in step.notes if "chunk" in note] == [noted] * bool(noted)


def test_answers_that_come_whole_tell_no_times_of_tokens():
    async def gathered(reader, writer, number):
        head, content = await read_request(reader)
        if not content:
            writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        tokens = json.loads(content)["max_tokens"]
        words = len(json.loads(content)["prompt"].split())
        whole = token() * (tokens - 1) + token("x", "length", **usage(words, tokens)) + event(b"[DONE]")
        writer.write(HEAD + whole)
        await writer.drain()

    async def asked():
        async with server(gathered) as url:
            plan = LadderPlan(Lengths(8, 8), users=(1,), requests=5)
            return await climb(
                Endpoint(url, "m"), plan, journal=Journal(None), stop=asyncio.Event(), patience=QUICK, limits=CALM
            )

    step = run(asked()).steps[0]
    assert step.figures["e2e_mean_ms"] > 0 and not step.unusable
    assert not [name for name in (*step.figures, *step.errors) if name.startswith(("ttft", "tpot", "itl"))]
    assert any("came whole" in note for note in step.notes)
