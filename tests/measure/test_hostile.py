"""The command against server processes that do harm: it ends, it tells, it keeps secrets, and nothing is false."""

import asyncio
import base64
import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostile_server import writings

from glmplan.measure import ladder
from glmplan.measure.client import Client, Endpoint
from glmplan.measure.overhead import null_server_process
from glmplan.measure.redaction import Outside

CLI = [sys.executable, "-c", "from glmplan.cli import main; main()", "validate"]
KEY = "sk-proj-A1b2C3d4/E5f6+G7h8i9J0"
#: what hangs takes longer, on however busy a machine [s]
HANGS = 300


@contextmanager
def hostile(habit):
    words = [sys.executable, str(Path(__file__).with_name("hostile_server.py")), habit]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    late = threading.Timer(HANGS, process.kill)  # a server that says nothing must not be waited for
    late.start()
    try:
        url = process.stdout.readline().strip()
        late.cancel()
        assert url, "the hostile server did not start"
        yield url
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def started(url, out, *more, key=KEY):
    own = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    words = [*CLI, "--url", url, "--out", str(out), "--users", "1,2", "--input", "16", "--output", "4", *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, **pipes, env=own | ({"OPENAI_API_KEY": key} if key else {}))


def ended(process):
    """What it wrote; one that hangs is killed, and that is a failure."""
    try:
        return process.communicate(timeout=HANGS)
    finally:
        process.kill()


def validated(url, out, *more, key=KEY):
    """Exit code, and everything that was written: streams and files."""
    process = started(url, out, *more, key=key)
    said, complained = ended(process)
    files = [one.read_bytes() for one in sorted(out.rglob("*")) if one.is_file()] if out.exists() else []
    return process.returncode, said.decode(), complained.decode(), b"\n".join([said, complained, *files]).decode()


def outcomes(out):
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [line["outcome"] for line in lines if line["kind"] == "request"]


def parts(secret, length=8):
    return {secret[place : place + length].lower() for place in range(len(secret) - length + 1)}


QUICK = "--requests", "8", "--timeout", "20", "--stall", "5", "--model", "m"


@pytest.mark.parametrize("login", [False, True])
def test_a_server_that_echoes_the_key_gets_it_into_no_file_and_no_stream(tmp_path, login):
    with hostile("echo") as url:
        given = url.replace("//", f"//somebody:{KEY.replace('/', '%2F').replace('+', '%2B')}@") if login else url
        more = "--requests", "24", "--max-errors", "1", "--timeout", "20", "--model", "m", "--stall", "5"
        code, _, complained, everything = validated(given, tmp_path / "run", *more, key=None if login else KEY)
    assert "Traceback" not in complained and (tmp_path / "run" / "record.json").exists()
    assert {"rejected", "done"} <= set(outcomes(tmp_path / "run"))
    squeezed = re.sub(r"[^a-z0-9/+%=]", "", everything.lower())
    for text in (everything.lower(), squeezed):
        for writing in writings(KEY):
            assert not [part for part in parts(writing, 12) if part in text], writing
        assert not [part for part in parts(KEY) if part in text]
    # half of the answers are faults, which --max-errors 1 allows; the other half are figures
    assert code == 0


@pytest.mark.parametrize("key", ["sk-bad-\rcarriage-return", "schlüssel-der-nicht-geht", "sk-two\nlines-of-key"])
def test_a_key_that_no_header_can_carry_is_told_without_showing_it(tmp_path, key):
    with hostile("") as url:
        code, said, complained, everything = validated(url, tmp_path / "run", *QUICK, key=key)
    assert code == 2 and "OPENAI_API_KEY" in complained and "Traceback" not in complained and not said
    assert not [part for part in parts(key, 6) if part in everything.lower()]


@pytest.mark.parametrize("url", ["htp://somebody:hunter22-secret@host/v1", "http://somebody:hunter22-secret@[::1/v1"])
def test_an_address_that_is_none_is_told_without_its_password(tmp_path, url):
    code, _, complained, everything = validated(url, tmp_path / "run", *QUICK)
    assert code == 2 and "--url" in complained and "hunter22" not in everything and "Traceback" not in complained


@pytest.mark.parametrize(
    ("habit", "meant"),
    # pages are left out, and the ladder is climbed; where none comes, or no first answer, nothing is there to climb
    [("endless-models", 0), ("endless-metrics", 0), ("bomb", 0), ("drip", 2), ("endless-first", 2)],
)
def test_before_the_ladder_nothing_is_endless(tmp_path, habit, meant):
    begin = time.monotonic()
    with hostile(habit) as url:
        process = started(url, tmp_path / "run", *QUICK)
        _, complained = ended(process)
    assert process.returncode == meant, complained.decode()
    assert b"Traceback" not in complained and time.monotonic() - begin < HANGS / 2
    said = {"endless-first": b"goes on", "drip": b"answers nothing: no whole page within 10 s\n"}.get(habit, b"")
    assert said in complained


def test_ctrl_c_before_the_ladder_ends_it_and_keeps_a_record(tmp_path):
    with hostile("drip") as url:
        process = started(url, tmp_path / "run", *QUICK)
        deadline = time.monotonic() + HANGS
        while not (tmp_path / "run" / "journal.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, complained = ended(process)
    assert process.returncode == 130 and b"Traceback" not in complained
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["stopped"] == "ended by the user" and record["steps"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_ladder_writes_the_record_as_ctrl_c_does(tmp_path, number):
    with hostile("slow-endless") as url:
        process = started(url, tmp_path / "run", "--seconds-per-step", "60", "--model", "m")
        deadline = time.monotonic() + HANGS
        journal = tmp_path / "run" / "journal.jsonl"
        while time.monotonic() < deadline and not (journal.exists() and b'"facts"' in journal.read_bytes()):
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(number)
        _, complained = ended(process)
    assert process.returncode == 128 + number, complained.decode()
    assert json.loads((tmp_path / "run" / "record.json").read_text())["stopped"] == "ended by the user"
    written = {file.name for file in (tmp_path / "run").iterdir()}
    assert written == {"journal.jsonl", "record.json", "report.html", "runs.csv"}


@pytest.mark.parametrize("load", [["--requests", "6"], ["--traffic", "poisson:2/s", "--rates", "2"]])
@pytest.mark.parametrize("habit", ["slow-endless", "endless", "pings"])
def test_endless_answers_end_with_the_step_and_are_faults(tmp_path, habit, load):
    with hostile(habit) as url:
        more = *load, "--longest", "2", "--seconds-per-step", "1", "--model", "m"
        code, _, complained, _ = validated(url, tmp_path / "run", *more)
    found = set(outcomes(tmp_path / "run"))
    assert code == 1 and "Traceback" not in complained
    # whole answers of no end, comments that keep a stream alive; more than four times the tokens asked for
    assert found == {"unfinished"} if habit != "endless" else found <= {"malformed", "unfinished"}


def test_pages_and_chunks_that_make_no_sense_are_counted_and_the_ladder_goes_on(tmp_path):
    with hostile("odd") as url:
        more = "--requests", "24", "--max-errors", "1", "--timeout", "20", "--model", "m"
        code, _, complained, everything = validated(url, tmp_path / "run", *more)
    assert "Traceback" not in complained and "NaN" not in everything and "Infinity" not in everything
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert [step["level"] for step in record["steps"]] == [1, 2] and record["facts"]["layout"] == {}
    found = outcomes(tmp_path / "run")
    assert {"done", "malformed"} <= set(found) and "unforeseen" not in found
    assert '"throttled"' in everything
    assert all(sum(step["outcomes"].values()) == 24 for step in record["steps"])
    # every twelfth answer tells of a prompt that cannot be, so neither step gives a figure: nothing was measured
    assert all("prompt tokens where 16 were sent" in step["unusable"] for step in record["steps"])
    assert code == 1, complained


@pytest.mark.parametrize(("habit", "why"), [("lies", "1,000,000 prompt tokens"), ("doubles", "chunks with text")])
def test_counts_that_cannot_be_make_the_row_unusable_with_the_reason(tmp_path, habit, why):
    with hostile(habit) as url:
        code, said, _, _ = validated(url, tmp_path / "run", *QUICK)
    rows = list(csv.DictReader((tmp_path / "run" / "runs.csv").open()))
    assert code == 1 and why in " ".join(said.split()) and len(rows) == 2
    for row in rows:
        assert why in row["unusable"]
        assert not [
            name for name, cell in row.items() if cell and ("per_s" in name or name.startswith(("ttft", "tpot")))
        ]


def test_streams_cut_within_an_event_are_lost_and_the_rest_is_measured(tmp_path):
    """A cut event was called malformed, as if the server spoke another protocol."""
    with hostile("cut") as url:
        more = "--requests", "24", "--max-errors", "1", "--timeout", "20", "--model", "m"
        code, said, complained, _ = validated(url, tmp_path / "run", *more)
    assert "Traceback" not in complained and code == 0, complained
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert [step["outcomes"] for step in record["steps"]] == [{"done": 12, "lost": 12}] * 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    lost = [line for line in lines if line.get("outcome") == "lost"]
    assert len(lost) == 24 and all(line["ttft"] > 0 and not line["detail"].endswith(": ") for line in lost)
    assert any("within an event" in line["detail"] for line in lost)
    rows = list(csv.DictReader((tmp_path / "run" / "runs.csv").open()))
    assert len(rows) == 2 and all("12 lost" in row["notes"] and row["e2e_mean_ms"] for row in rows)
    assert all(float(row["num_requests"]) == 12 for row in rows)


def test_a_page_of_a_proxy_is_malformed_and_not_empty(tmp_path):
    with hostile("html") as url:
        code, _, _, _ = validated(url, tmp_path / "run", *QUICK)
    assert code == 1 and set(outcomes(tmp_path / "run")) == {"malformed"}


def test_a_key_is_not_taken_to_where_a_server_points(tmp_path):
    with hostile("") as other, hostile(f"elsewhere={other.removesuffix('/v1')}") as url:
        code, _, complained, everything = validated(url, tmp_path / "run", *QUICK)
    assert code == 1 and set(outcomes(tmp_path / "run")) == {"rejected"}, complained
    assert "Traceback" not in complained and not [part for part in parts(KEY) if part in everything.lower()]


def test_words_of_a_server_are_neither_markup_nor_escape_sequences(tmp_path):
    with hostile("markup") as url:
        code, said, complained, everything = validated(url, tmp_path / "run", *QUICK)
    assert code == 0 and "Traceback" not in complained
    assert "m[/red]" in said and ":smile:" in said
    assert "\x1b" not in everything and "\x07" not in everything and "\u202e" not in everything


def test_two_runs_do_not_write_one_folder(tmp_path):
    with hostile("slow-endless") as url:
        first = started(url, tmp_path / "run", "--seconds-per-step", "60", "--model", "m")
        deadline = time.monotonic() + HANGS
        journal = tmp_path / "run" / "journal.jsonl"
        while not (journal.exists() and '"begin"' in journal.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        code, _, complained, _ = validated(url, tmp_path / "run", *QUICK, "--resume")
        first.kill()
        first.communicate(timeout=HANGS)
    assert code == 2 and "another run" in complained
    # a lock of a run that was killed holds nobody up
    with hostile("") as url:
        code, _, complained, _ = validated(url, tmp_path / "run", *QUICK, "--resume")
    assert code == 2 and "differs" in complained


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="nowhere to fail to write")
def test_files_that_could_not_be_written_are_no_success(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "report.html").mkdir()  # a folder stands where the report should go
    with hostile("") as url:
        code, _, complained, _ = validated(url, out, *QUICK)
    assert code == 1 and "report.html" in complained and (out / "record.json").exists()


@pytest.mark.parametrize("login", ["user:pAssw0rdX", "user:pAssw0rdXY", "user:pAssw0rdXYZ"])
def test_a_login_in_base64_leaves_no_letter_behind(login):
    said = Outside([login]).clean(f"rejected: Basic {base64.b64encode(login.encode()).decode()} of nobody")
    assert said == "rejected: Basic *** of nobody"


SILENT = """import socket, sys, time
socket.getaddrinfo = lambda *words, **named: time.sleep(600)
from glmplan.cli import main
main(sys.argv[1:])
"""


def test_ctrl_c_does_not_wait_for_a_silent_name_server(tmp_path):
    words = ["validate", "llama-3.1-8b", "--url", "http://a.example:1/v1", "--on", "1xh100-sxm", "--users", "1"]
    command = [sys.executable, "-c", SILENT, *words, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + HANGS
    while not (tmp_path / "run" / "journal.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, complained = ended(process)
    assert process.returncode == 130, complained.decode()
    assert json.loads((tmp_path / "run" / "record.json").read_text())["stopped"] == "ended by the user"


@pytest.mark.parametrize("content", ["", '{"kind": "no', '{"kind": "note", "text": "x"}\n'])
@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_journal_of_a_run_that_was_killed_before_it_measured_is_begun_anew(tmp_path, content, resume):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text(content)
    with hostile("refusing") as url:
        process = started(url, tmp_path / "run", *QUICK, *resume)
        _, complained = ended(process)
    assert b"journal" not in complained and b"holds a run" not in complained, complained.decode()


LOADED = """import sys, glmplan.cli.validate as command
climb, modules = command._climb, set()
def noted(*words):
    found = climb(*words)
    modules.update(sys.modules)
    return found
command._climb = noted
try:
    from glmplan.cli import main
    main(sys.argv[1:])
finally:
    sys.stderr.write(f"loaded at the end: {sorted(set(sys.modules) - modules)}")
"""


def test_a_signal_waits_for_no_imports_before_the_files_are_written(tmp_path):
    """The plots of a report took more than a second of CPU to import: ten seconds on a busy machine."""
    with hostile("") as url:
        words = ["validate", "--url", url, "--out", str(tmp_path / "run"), "--users", "1,2", "--input", "16"]
        command = [sys.executable, "-c", LOADED, *words, "--output", "4", *QUICK]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _, complained = ended(process)
    assert process.returncode == 0 and "<svg" in (tmp_path / "run" / "report.html").read_text()
    late = complained.decode().partition("loaded at the end: ")[2]
    assert late and not re.search("altair|vl_convert|jsonschema|glmplan.prediction", late)


def test_a_signal_does_not_wait_for_a_page_that_does_not_come():
    async def hold():
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, stop.set)
        client = Client(Endpoint("http://127.0.0.1:9/v1", "m"))
        return await ladder._unless(stop, asyncio.sleep(10 * HANGS, {"requests": 1.0}), client, 0.05)

    assert asyncio.run(hold()) is None


def test_modules_in_the_folder_of_the_user_are_never_run(tmp_path, monkeypatch):
    """The null server was started with `-m`, which looks for `http` in the current folder first."""
    monkeypatch.chdir(tmp_path)
    for name in ("http", "json", "asyncio", "ssl"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\nraise SystemExit(1)\n")

    async def started():
        async with null_server_process() as url:
            return url

    assert asyncio.run(started()).startswith("http://127.0.0.1:")
    assert not (tmp_path / "ran").exists()
