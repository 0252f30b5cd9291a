"""The client against servers that misbehave: nothing hangs, nothing raises, each fault has its name."""

import asyncio
import json
import ssl
import time
from dataclasses import replace

import pytest
import trustme
from faulty_servers import HANGS, HEAD, WHOLE, answering, event, read_request, server, token, usage

from glmplan.errors import SpecError
from glmplan.measure.client import (
    Client,
    Endpoint,
    EventParser,
    MalformedStream,
    Outcome,
    Patience,
    _retry_after,
)
from glmplan.measure.overhead import NullServer

#: for servers that answer: a busy machine must not make a fault of it, and whoever waits for them to end hangs
CALM = Patience(connect=4 * HANGS, first_token=4 * HANGS, stall=4 * HANGS, throttle=1.0, throttled=2)
#: the same with little patience for one thing
FIRST_SOON = replace(CALM, first_token=0.4)
NEXT_SOON = replace(CALM, stall=0.3)


def ask(behave, *, chat=False, patience=CALM, count=1, tokens=3, **options):
    """Send requests to a server one after another and return their records, within a bounded time."""

    async def run():
        async with server(behave, **options) as url, Client(Endpoint(url, "m", chat=chat), patience) as client:
            return [await client.send("a b c", tokens) for _ in range(count)]

    async def bounded():
        return await asyncio.wait_for(run(), HANGS)

    found = asyncio.run(bounded())
    return found[0] if count == 1 else found


def test_a_whole_answer_is_timed_and_counted():
    record = ask(answering(HEAD + token(), token(), token("x", "length", **usage()), event(b"[DONE]"), pause=0.05))
    assert record.outcome is Outcome.DONE and record.output_tokens == 3 and record.input_tokens == 8
    assert 0 < record.ttft < record.e2e and len(record.gaps) == 2
    assert record.tpot == pytest.approx((record.e2e - record.ttft) / 2)
    assert record.e2e == pytest.approx(record.ttft + sum(record.gaps))


@pytest.mark.parametrize(
    "ending",
    [
        token("x ", "length", **usage()) + event(b"[DONE]"),  # in the last choice, as llama.cpp does
        token("x ", "length") + event({"choices": [], **usage()}) + event(b"[DONE]"),  # in a chunk of its own: vLLM
        token("x ") + token("", "length", **usage()) + event(b"[DONE]"),  # with an empty last choice
        token("x ", "length", **usage()),  # no [DONE], as transformers does
        token("x ", "length", **usage())[:-2],  # not even the blank line
    ],
)
def test_usage_is_found_wherever_the_server_puts_it(ending):
    record = ask(answering(HEAD + token() * 2, ending))
    assert (record.outcome, record.output_tokens, record.counted_by) == (Outcome.DONE, 3, "usage")


def test_the_role_chunk_is_not_the_first_token():
    def chat(**delta):
        return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    role = chat(role="assistant", content=None)
    end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], **usage(answer=2)})
    record = ask(answering(HEAD + role, chat(content="a"), chat(reasoning_content="b") + end, pause=0.15), chat=True)
    assert record.outcome is Outcome.DONE and record.chunks == 2
    assert record.ttft > 0.14


def test_bytes_may_be_cut_anywhere():
    data = HEAD + WHOLE
    record = ask(answering(*(data[i : i + 7] for i in range(0, len(data), 7))))
    assert (record.outcome, record.output_tokens) == (Outcome.DONE, 3)


def test_without_usage_chunks_are_counted_and_it_says_so():
    record = ask(answering(HEAD + token() * 2 + token("x", "length") + event(b"[DONE]")))
    assert (record.outcome, record.output_tokens, record.counted_by) == (Outcome.DONE, 3, "chunks")


@pytest.mark.parametrize("wrong", [0, -4, 999, "three", 1])
def test_a_wrong_usage_is_not_believed(wrong):
    record = ask(answering(HEAD + token() * 2 + token("x", "length", **usage(answer=wrong)) + event(b"[DONE]")))
    assert (record.output_tokens, record.counted_by) == (3, "chunks, usage is wrong")


def test_several_tokens_in_a_chunk_are_counted_by_usage():
    record = ask(answering(HEAD + token() + token("x y z", "length", **usage(answer=6)) + event(b"[DONE]")), tokens=6)
    assert (record.chunks, record.output_tokens, record.counted_by) == (2, 6, "usage")


def test_a_server_killed_in_mid_stream_loses_the_request():
    async def killed(reader, writer, number):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        part = token()
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    record = ask(killed)
    assert record.outcome is Outcome.LOST and record.chunks == 1 and record.retries == 0 and record.detail


def test_a_stream_that_ends_before_its_answer_is_lost():
    assert ask(answering(HEAD + token() * 2)).outcome is Outcome.LOST


def test_a_refused_connection_is_told_at_once():
    async def run():
        async with server(answering(b"")) as url:
            pass
        async with Client(Endpoint(url, "m"), CALM) as client:
            return await client.send("a", 3)

    assert asyncio.run(asyncio.wait_for(run(), HANGS)).outcome is Outcome.REFUSED


def test_a_kept_connection_that_the_server_closed_is_tried_again():
    async def once(reader, writer, number):
        await read_request(reader)
        body = WHOLE
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        await writer.drain()
        # keep-alive was offered; the second request on this connection dies before the first byte
        await read_request(reader)
        writer.transport.abort()

    first, second = ask(once, count=2)
    assert (first.outcome, second.outcome) == (Outcome.DONE, Outcome.DONE)
    assert (first.retries, second.retries) == (0, 1)


def test_a_server_that_always_closes_is_lost_after_few_tries():
    seen = []

    async def closes(reader, writer, number):
        seen.append(number)
        await read_request(reader)

    record = ask(closes)
    assert record.outcome is Outcome.LOST and len(seen) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_throttled_request_waits_as_the_server_asks_and_succeeds(status):
    times = []

    async def busy(reader, writer, number):
        await read_request(reader)
        times.append(time.perf_counter())
        if number == 1:
            writer.write(f"HTTP/1.1 {status} X\r\nRetry-After: 0.3\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            writer.write(HEAD + WHOLE)
        await writer.drain()

    begin = time.perf_counter()
    record = ask(busy)
    assert record.outcome is Outcome.DONE and record.throttled == 1 and times[1] - times[0] >= 0.3
    # the wait is not the server's time to a first token
    assert time.perf_counter() - begin >= record.e2e + 0.3


def test_a_server_that_keeps_throttling_is_given_up_and_counted():
    always = answering(b"HTTP/1.1 429 X\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    record = ask(always)
    assert record.outcome is Outcome.THROTTLED and record.throttled == CALM.throttled + 1


def test_a_retry_after_beyond_patience_is_not_waited_for():
    far = answering(b"HTTP/1.1 503 X\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    record = ask(far)
    assert record.outcome is Outcome.THROTTLED and record.retries == 0


def test_a_trickle_of_bytes_does_not_keep_a_stream_alive():
    loris = answering(HEAD, *([b":"] * 200), pause=0.02)
    assert ask(loris, patience=FIRST_SOON).outcome is Outcome.LATE
    after_a_token = answering(HEAD + token(), *([b"d"] * 200), pause=0.02)
    assert ask(after_a_token, patience=NEXT_SOON).outcome is Outcome.STALLED


def test_comments_do_not_count_as_progress():
    pings = answering(HEAD + token(), *([b": ping\n\n"] * 200), pause=0.02)
    assert ask(pings, patience=NEXT_SOON).outcome is Outcome.STALLED


def test_a_silent_server_has_no_first_token_and_a_silent_stream_stalls():
    assert ask(answering(stay=HANGS), patience=FIRST_SOON).outcome is Outcome.LATE
    assert ask(answering(HEAD + token(), stay=HANGS), patience=NEXT_SOON).outcome is Outcome.STALLED


@pytest.mark.parametrize(
    "bad",
    [
        event(b"{not json"),
        event(b"[1, 2]"),
        event({"something": "else"}),
        b"<html>a proxy's page</html>\n",
        b"data: " + b"x" * (5 * 2**20),
    ],
)
def test_a_malformed_stream_is_told_as_such(bad):
    record = ask(answering(HEAD + token(), bad))
    assert record.outcome is Outcome.MALFORMED and record.chunks == 1


def test_bytes_that_are_no_http_are_no_token():
    assert ask(answering(b"SSH-2.0-OpenSSH_9\r\n\r\n")).outcome in (Outcome.MALFORMED, Outcome.LOST)


def test_an_error_inside_the_stream_fails_the_request():
    record = ask(answering(HEAD + token() + event({"error": {"message": "out of memory", "code": 500}})))
    assert record.outcome is Outcome.FAILED and "out of memory" in record.detail


@pytest.mark.parametrize(
    ("status", "outcome"), [(400, "rejected"), (404, "rejected"), (302, "rejected"), (500, "failed")]
)
def test_other_statuses_are_rejected_or_failed_with_the_servers_words(status, outcome):
    body = b'{"error": "why"}'
    head = f"HTTP/1.1 {status} X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    record = ask(answering(head + body))
    assert (record.outcome, record.status) == (outcome, status) and "why" in record.detail


def test_an_answer_without_a_token_is_empty():
    assert ask(answering(HEAD + token("", "stop") + event(b"[DONE]"))).outcome is Outcome.EMPTY


@pytest.fixture(scope="module")
def certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("other.example").configure_cert(context)
    return context


def test_a_certificate_nobody_trusts_is_a_tls_fault(certificate):
    record = ask(answering(HEAD + WHOLE), ssl=certificate)
    assert record.outcome is Outcome.TLS


def test_plain_http_where_tls_is_expected_is_a_tls_fault():
    async def refuses(reader, writer, number):
        # a greeting by TLS is no request and has no end
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async def run():
        plain = server(refuses)
        async with plain as url, Client(Endpoint(url.replace("http:", "https:"), "m"), CALM) as client:
            return await client.send("a", 3)

    assert asyncio.run(asyncio.wait_for(run(), HANGS)).outcome is Outcome.TLS


def test_the_key_goes_into_the_header_and_never_into_a_record(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("GLMPLAN_API_KEY", "secret-123")
    heads = []

    async def echo(reader, writer, number):
        head, _ = await read_request(reader)
        heads.append(head)
        body = b"bad key secret-123"
        writer.write(f"HTTP/1.1 401 X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    record = ask(echo)
    assert b"Bearer secret-123" in heads[0]
    assert "secret-123" not in repr(record) and "***" in record.detail


def test_the_body_asks_for_exact_lengths_and_usage():
    body = Endpoint("http://127.0.0.1/v1", "m", chat=True).body("hi", 5)
    assert body["max_tokens"] == 5 and body["ignore_eos"] and body["stream_options"] == {"include_usage": True}
    assert json.dumps(body) and body["messages"][0]["content"] == "hi"


def test_256_streams_at_once_all_end_well():
    async def run():
        async with NullServer(pace=0.02) as null, Client(Endpoint(null.url, "m"), CALM) as client:
            return await asyncio.gather(*(client.send("a b", 8) for _ in range(256)))

    records = asyncio.run(asyncio.wait_for(run(), HANGS))
    assert {record.outcome for record in records} == {Outcome.DONE}
    assert all(record.output_tokens == 8 and record.input_tokens == 2 for record in records)


def test_cookies_of_a_server_are_not_kept():
    heads = []

    async def baking(reader, writer, number):
        heads.append((await read_request(reader))[0])
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b; Path=/\r\n\r\n") + WHOLE)
        await writer.drain()

    async def run():
        async with server(baking) as url, Client(Endpoint(url, "m"), CALM) as client:
            return [await client.send("a", 3) for _ in range(2)]

    records = asyncio.run(asyncio.wait_for(run(), HANGS))
    assert [record.outcome for record in records] == [Outcome.DONE] * 2
    assert len(heads) == 2 and not any(b"cookie:" in head.lower() for head in heads)


def test_a_prompt_of_far_fewer_tokens_than_were_sent_is_doubted():
    async def run():
        async with (
            server(answering(HEAD + token() * 2 + token("x", "length", **usage(prompt=1)) + event(b"[DONE]"))) as url,
            Client(Endpoint(url, "m"), CALM) as client,
        ):
            return await client.send("a", 3, prompt_tokens=64)

    record = asyncio.run(asyncio.wait_for(run(), HANGS))
    assert record.doubt == "usage tells of 1 prompt tokens where 64 were sent" and record.input_tokens == 64


def test_what_is_no_http_is_malformed_and_not_a_server_that_is_gone():
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert ask(answering(switching)).outcome is Outcome.MALFORMED
    assert (
        ask(answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\nabc")).outcome is Outcome.MALFORMED
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "ht!tp://user:hidden-word@x"),
        ("HTTP_PROXY", "http://[::1"),
        ("ALL_PROXY", "socks5://user:hidden-word@127.0.0.1:1"),
        ("NO_PROXY", "[::"),
        ("SSL_CERT_FILE", "/nowhere/at/all"),
        ("SSL_CERT_FILE", __file__),
    ],
)
def test_surroundings_that_cannot_be_used_are_told_by_name_without_a_password(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SpecError, match=name) as told:
        Client(Endpoint("http://192.0.2.1/v1", "m"))
    assert "hidden-word" not in str(told.value)


def test_a_line_that_comes_byte_by_byte_is_joined_once():
    line = b'data: {"choices": []}'
    parser = EventParser()
    assert [data for byte in line + b"\n\n" for data in parser.feed(bytes([byte]))] == [line[6:]]
    for byte in line:
        assert list(parser.feed(bytes([byte]))) == []
    assert parser.rest() == [line[6:]]
    piece = b"x" * 2**16
    with pytest.raises(MalformedStream, match="one line is longer"):
        for _ in range(100):
            list(parser.feed(piece))


def test_reasoning_that_is_not_streamed_makes_no_token_faster():
    """90 of 100 tokens come before the first that is seen: 10 tokens, not 100, arrive in the rest of the time."""
    details = {"completion_tokens_details": {"reasoning_tokens": 90}}
    used = {"usage": {"prompt_tokens": 8, "completion_tokens": 100, **details}}
    end = event({"choices": [], **used}) + event(b"[DONE]")
    record = ask(answering(HEAD + token(), *[token()] * 8, token("x", "length"), end, pause=0.02), tokens=100)
    assert (record.output_tokens, record.hidden_tokens) == (100, 90)
    assert record.tpot == pytest.approx((record.e2e - record.ttft) / 9)


def test_streamed_reasoning_is_counted_as_tokens():
    def chat(**delta):
        return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    used = {"usage": {"prompt_tokens": 8, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}}}
    end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], **used})
    record = ask(answering(HEAD + chat(reasoning_content="a") + chat(content="b") + end), chat=True, tokens=4)
    assert (record.output_tokens, record.hidden_tokens) == (4, 0)


@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
@pytest.mark.parametrize("cut", [1, 2, 3, 1000])
def test_lines_may_end_in_any_way_and_a_stream_may_begin_with_a_mark(end, cut):
    data = b"\xef\xbb\xbfdata: one\n: comment\n\ndata: two\ndata: three\n\n".replace(b"\n", end)
    parser = EventParser()
    found = [event for at in range(0, len(data), cut) for event in parser.feed(data[at : at + cut])]
    assert found + parser.rest() == [b"one", b"two\nthree"]


def test_an_answer_that_the_server_ended_and_one_that_was_cut_by_length_differ():
    short = HEAD + token() + token("x", "stop", **usage(answer=2)) + event(b"[DONE]")
    assert ask(answering(short), tokens=9).stopped
    assert not ask(answering(HEAD + WHOLE)).stopped


def test_another_model_in_the_stream_is_noted():
    other = event({"model": "another", "choices": [{"text": "x", "finish_reason": "length"}], **usage(answer=1)})
    assert ask(answering(HEAD + other + event(b"[DONE]")), tokens=1).other_model == "another"


def test_a_date_to_come_back_is_taken_against_the_date_of_the_server():
    """The clock of this machine may be stepped at any time."""
    sent, later = "Fri, 27 Nov 2026 10:00:00 GMT", "Fri, 27 Nov 2026 10:00:07 GMT"
    assert _retry_after(later, sent) == 7.0
    assert _retry_after(later, None) == 1.0 and _retry_after("3") == 3.0
