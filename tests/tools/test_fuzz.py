"""Broken files: a short run of the fuzzer, and the faults that it cannot reach: pipes, devices, sizes, names."""

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from glmplan.catalog.files import parse_json, read_bytes, read_log, read_packed, text_lines
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.models.gguf import read_gguf
from glmplan.io.models.resolve import resolve_model
from glmplan.io.models.safetensors_header import read_safetensors
from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.importers import import_file, import_text, record
from glmplan.io.runs.table import read_runs
from glmplan.units import finite_number, parse_quantity, whole_number

TOOLS = Path(__file__).parents[2] / "tools"


def test_a_thousand_broken_files_raise_nothing_foreign():
    words = [sys.executable, str(TOOLS / "fuzz.py"), "--mutants", "1000", "--seed", "20261122"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=TOOLS.parent,
                          env=os.environ | {"PYTHONPATH": str(TOOLS.parent)})  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    "read", [read_bytes, read_log, read_runs, import_file, read_safetensors, lambda p: list(text_lines(p))]
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, read):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/stdin"), tmp_path):
        with pytest.raises(SpecError, match="no regular file|is a folder|holds no safetensors"):
            read(path)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "/nowhere/at/all", "~nobody-of-this-name/x.json"])
def test_names_that_no_file_can_have_are_refused(name):
    for read in (read_bytes, read_runs, import_file, resolve_model):
        with pytest.raises(SpecError):
            read(name)


def test_a_file_is_as_large_as_what_is_read_of_it(tmp_path):
    big = tmp_path / "big.json"
    big.touch()
    os.truncate(big, 3 << 30)
    for read in (read_bytes, read_log, import_file, read_runs, lambda path: resolve_model(str(path))):
        with pytest.raises(SpecError, match="MiB, the most that is read"):
            read(big)


def test_a_small_file_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path):
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(140 << 20), 1))
    with pytest.raises(SpecError, match="unpacks to more than 128 MiB"):
        read_packed(bomb)
    (tmp_path / "two.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read_packed(tmp_path / "two.gz") == b"one two"


@pytest.mark.parametrize(
    "content",
    [b"\x1f\x8b", b"\x1f\x8b\x08" + bytes(20), gzip.compress(b"whole" * 99, mtime=0)[:-9]],
    ids=["head only", "no stream", "cut"],
)
def test_a_broken_gzip_file_is_refused(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(SpecError, match="copy it again"):
        read_packed(tmp_path / "a.gz")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "deep"),
        ("[" * 70 + "]" * 70, "deep"),
        ('{"a":' * 100_000, "deep"),
        ("9" * 5000, "digits"),
        ('{"a": ' + "9" * 30 + "}", "digits"),
        (b'"\xff"', "UTF-8"),
        ("{", "JSON"),
    ],
)
def test_json_that_no_tool_writes_is_refused(text, why):
    with pytest.raises(SpecError, match=why):
        parse_json(text, file="a.json")


def test_json_of_real_tools_is_read():
    assert parse_json(b'\xef\xbb\xbf{"a": [1.5, 12345678901234567890, "\\ud83d\\ude00", "\\ud83d"]}') == {
        "a": [1.5, 12345678901234567890, "\U0001f600", "\ufffd"]
    }
    assert parse_json("0." + "3" * 40) == pytest.approx(1 / 3)


@pytest.mark.parametrize("digits", ["\u0661\u0662", "\u0967", "\uff11\uff12", "1\u0660"])
def test_digits_of_other_scripts_are_no_numbers(tmp_path, digits):
    for read in (lambda: whole_number(digits, "--users"), lambda: finite_number(digits, "--rate"),
                 lambda: parse_quantity(f"{digits} GiB", "bytes")):  # fmt: skip
        with pytest.raises(SpecError):
            read()
    with pytest.raises(ValueError, match="not a number"):
        COLUMNS["tp"].number(digits)
    log = tmp_path / "a.log"
    log.write_text(f"tokens {digits}")
    assert not any(letter.isdecimal() and not letter.isascii() for letter in read_log(log))


def gguf(*parts):
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + b"".join(parts)


def text(words):
    return struct.pack("<Q", len(words)) + words


@pytest.mark.parametrize(
    "content",
    [
        gguf(text(b"a"), struct.pack("<IIQ", 9, 4, 2**60)),
        gguf(text(b"a"), struct.pack("<IIQ", 9, 8, 2**60)),
        gguf(text(b"a"), struct.pack("<IIQ", 9, 9, 1) * 1000),
        gguf(struct.pack("<Q", 2**63)),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(b"t") + struct.pack("<I", 2**31),
    ],
)
def test_counts_that_a_gguf_file_cannot_hold_are_refused_at_once(tmp_path, content):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(SpecError, match="is not a GGUF file"):
        read_gguf(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([[0, 12], [6, 18]], "lies over"),
        ([[0.0, 12.0], [12, 24]], "whole offsets"),
        ([[0, 12], [12, "24"]], "whole offsets"),
        ([[0, 12], [True, 13]], "whole offsets"),
        ([[-12, 0], [12, 24]], "offsets"),
        ([[0, 12], None], "whole offsets"),
    ],
)
def test_offsets_that_cannot_be_are_refused(tmp_path, offsets, why):
    entries = {
        name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": o} for name, o in zip("ab", offsets, strict=True)
    }
    header = json.dumps(entries).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    with pytest.raises(SpecError, match=why):
        read_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("row", ["-1", "inf", "-inf", "nan", "1e400", "0"])
@pytest.mark.parametrize("column", ["concurrency", "output_tokens_per_s", "tp"])
def test_rates_and_counts_that_cannot_be_are_refused(tmp_path, row, column):
    table = tmp_path / "runs.csv"
    table.write_text(f"id,model,accelerator,{column}\na,glm-5.1,b200-sxm,{row}\n")
    found = read_runs(table)[0]
    rate_of_zero = row == "0" and column == "output_tokens_per_s"
    assert rate_of_zero or found.error and column in found.error


def test_a_long_file_is_gone_through_once_for_the_names_of_all_its_rows():
    line = '{"n_kv": 64, "pp": 32, "tg": 32, "pl": 2, "t_pp": 0.1, "t_tg": 0.4}\n'
    before = record._digest.cache_info().misses
    rows = import_text(line * 1000).rows
    assert len({row["id"] for row in rows}) == 2000
    assert record._digest.cache_info().misses == before + 1


def test_no_error_shows_a_whole_file():
    with pytest.raises(GlmplanError) as error:
        finite_number("x" * 1_000_000, "--rate")
    assert len(str(error.value)) < 1000
