"""Well-formed files with wrong values: whole commands refuse them in one line, at once."""

import json
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from glmplan.cli import main
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.gguf import read_gguf_model

ROOT = Path(__file__).parents[2]
LSCPU = "CPU(s): 64\nCore(s) per socket: 16\nSocket(s): {}\nModel name: Example\n"
HOST = """name = "x"
title = "x"
source = "x"
nodes = {nodes}
[[cards]]
accelerator = "h100-sxm"
count = {count}
"""
TRACE = '{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [[1]]}\n'
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 10**24,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000,
}  # fmt: skip
FIT = ("fit", "llama-3.1-8b", "--on")
IMPORT = ("hardware", "import")
MAP = ("sheet", "check", "q.csv", "--map", "m.toml", "--model", "llama-3.1-8b")
CASES = {
    "no socket": ("l.txt", LSCPU.format(0), (*IMPORT, "l.txt", "--accelerator", "h100-sxm"), "Socket(s)"),
    "a million sockets": ("l.txt", LSCPU.format(10**6), (*IMPORT, "l.txt", "--accelerator", "h100-sxm"), "Socket(s)"),
    "sockets below none": ("l.txt", LSCPU.format(-1), (*IMPORT, "l.txt", "--accelerator", "h100-sxm"), "Socket(s)"),
    "a million cores": ("l.txt", LSCPU.format(1).replace("16", f"{10**6}"),
                        (*IMPORT, "l.txt", "--accelerator", "h100-sxm"), "Core(s) per socket"),
    "3,000 rows of users": ("x", "", (*FIT, "1xh100-sxm", "--users", ",".join(map(str, range(1, 3000)))), "--users"),
    "a million cards": ("h.toml", HOST.format(nodes=1, count=10**6), (*FIT, "h.toml"), "cards.0.count"),
    "a million nodes": ("h.toml", HOST.format(nodes=10**6, count=1), (*FIT, "h.toml"), "nodes"),
    "layers beyond any model": ("config.json", json.dumps(CONFIG), ("fit", "config.json", "--on", "1xh100-sxm"),
                                "num_hidden_layers"),
    "blocks that are lists": ("t.jsonl", TRACE, ("simulate", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic",
                                                 "trace:t.jsonl"), "line 1"),
    "a mapping without tables": ("m.toml", "columns = 3\n", MAP, "columns"),
    "a rate that is no number": ("m.toml", "[rates]\nEUR = nan\n", MAP, "rates.EUR"),
    "a header row in a list": ("m.toml", "header_row = [1]\n", MAP, "header_row"),
    "a column in a list": ("m.toml", "[columns]\nhardware = ['B']\n", MAP, "columns.hardware"),
    "blocks that are no list": ("t.jsonl", TRACE.replace("[[1]]", '{"a": 1}'), ("simulate", "llama-3.1-8b", "--on",
                                "1xh100-sxm", "--traffic", "trace:t.jsonl"), "line 1"),
    "a file's name too long": ("x", "", ("fit", "llama-3.1-8b", "--on", f"2x{'a' * 3000}.toml"), "too long"),
    "a report too long": ("x", "", ("report", f"{'a' * 3000}.json", "--out", "r.html"), "model"),
    "a length that is no number": ("x", "", ("simulate", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic",
                                            "sessions:4,input=abc"), "input"),
    "a release of 5,000 digits": ("x", "", (*FIT, "1xh100-sxm", "--engine-version", "9" * 5000), "digits"),
    "200,000 columns": ("w.csv", "Description," + "x," * 200_000 + "\nL40S\n",
                        ("sheet", "check", "w.csv", "--model", "llama-3.1-8b"), "16,384"),
    "a portfolio of numbers": ("p.toml", "classes = [3]\n", ("hybrid", "p.toml"), "p.toml"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_value_is_one_line_that_names_it(name, tmp_path, monkeypatch, capsys):
    file, content, words, named = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(content)
    Path("q.csv").write_text("Description,Quantity\nNVIDIA L40S,1\n")
    with pytest.raises(SystemExit) as end:
        main(list(words))
    said = capsys.readouterr().err
    assert end.value.code == 2 and named in said and said.count("\n") == 1


def test_a_stack_of_more_layers_than_any_model_has_is_refused_before_it_is_written_out():
    from glmplan.catalog.schema.model import MOST_LAYERS, expand_stack

    assert len(expand_stack(f"a*{MOST_LAYERS}")) == MOST_LAYERS
    with pytest.raises(ValueError, match="layers"):
        expand_stack(f"((a*1000)*1000)*{10**18}")


@pytest.mark.parametrize("name", ["../prices/api", "a" * 3000])
def test_a_name_in_a_file_is_never_a_path_of_our_data(name, tmp_path, monkeypatch, capsys):
    """Recipes are files named after models: a table of prices was read as one, and a long name raised `OSError`."""
    monkeypatch.chdir(tmp_path)
    whole = (ROOT / "model_specs" / "llama-3.1-8b.toml").read_text(encoding="utf-8")
    Path("m.toml").write_text(whole.replace('name = "llama-3.1-8b"', f'name = "{name}"', 1))
    with suppress(SystemExit):
        main([*["fit", "m.toml", "--on", "1xh100-sxm", "--users", "1"]])
    assert "FITS" in capsys.readouterr().out


def text(words):
    return struct.pack("<Q", len(words)) + words.encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.head_count_kv", struct.pack("<IIQ", 9, 5, 0)), ("block_count", struct.pack("<II", 4, 2**32 - 1))],
    ids=["an empty array", "blocks beyond any model"],
)
def test_gguf_metadata_of_no_model_is_refused(tmp_path, key, value):
    numbers = {"block_count": 2, "context_length": 512, "embedding_length": 64, "feed_forward_length": 128,
               "attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 320}  # fmt: skip
    entries = [text("general.architecture") + struct.pack("<I", 8) + text("gpt-oss")]
    entries += [text(f"gpt-oss.{name}") + (value if name == key else struct.pack("<II", 4, number))
                for name, number in numbers.items()]  # fmt: skip
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    with pytest.raises((SpecError, UnknownArchitecture)):
        read_gguf_model(tmp_path / "a.gguf")


def test_some_hundred_wrong_files_and_options_raise_nothing_foreign():
    words = [sys.executable, str(ROOT / "tools" / "fuzz_commands.py"), "--mutants", "250", "--seed", "20261127"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_recording_is_read_once_for_all_samples_of_an_answer(tmp_path, monkeypatch, capsys):
    """A file of 8 MB was read 21 times: 8 s of CPU for 20 requests."""
    from glmplan.simulation.traffic import conversations

    read, reader = [], conversations._dynamo
    monkeypatch.setattr(conversations, "_dynamo", lambda file: read.append(file) or reader(file))
    file = tmp_path / "t.jsonl"
    file.write_bytes((ROOT / "tests/data/traces/dynamo-request-trace.jsonl").read_bytes())
    with suppress(SystemExit):
        main(["simulate", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic", f"trace:{file}", "--requests", "5"])
    assert "ttft" in capsys.readouterr().out and 1 <= len(read) <= 2  # lengths, samples


@pytest.mark.parametrize("column", ["input_tokens", "output_tokens", "concurrency", "num_requests", "tp"])
def test_no_number_of_a_run_bounds_a_loop_unread(column):
    """A prompt of 10³⁰⁰ tokens took more than 4 s of CPU in `predict --runs`."""
    from glmplan.io.runs.columns import COLUMNS

    with pytest.raises(ValueError, match="larger than any"):
        COLUMNS[column].number("1e300")
