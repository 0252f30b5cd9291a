"""`glmplan hardware`: each word of it, run as a user would."""

import json
import subprocess
import sys

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.prices import load_prices


def glmplan(*words, code=0):
    command = [sys.executable, "-c", "import sys; from glmplan.cli import main; main(sys.argv[1:])", "hardware", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_list_names_parts_and_hosts():
    found = json.loads(glmplan("list", "--format", "json"))
    assert {"rtx-pro-6000-ws", "b200-sxm"} <= {row["name"] for row in found["accelerators"]}
    assert {"hgx-b200-8", "dgx-spark"} <= {row["name"] for row in found["hosts"]}


def test_the_list_fits_a_terminal():
    assert max(len(line) for line in glmplan("list").splitlines()) <= 100


@pytest.mark.parametrize("name", ["rtx-pro-6000-server", "asus-esc8000a-e13p", "6xrtx-pro-6000-ws", "nizwo-a1"])
def test_a_page_fits_a_terminal_and_names_its_source(name):
    page = glmplan("show", name)
    assert "source" in page
    assert max(len(line) for line in page.splitlines()[1:]) <= 100


def test_an_unknown_name_lists_the_nearest_and_exits_with_2():
    assert "hgx-b200-8" in glmplan("show", "hgx-b200-9", code=2)


def test_what_is_shown_as_toml_can_be_checked(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(glmplan("show", "hgx-b200-8", "--format", "toml"))
    assert "no mistakes found" in glmplan("check", str(file))


def test_a_wrong_file_is_named_with_the_field(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('title = "x"\nsource = "x"\n[[cards]]\naccelerator = "l40s"\nspeed = 3\n')
    assert "bad.toml: cards.0.speed" in glmplan("check", str(file), code=2)


def test_dumps_become_a_host_file(tmp_path):
    dump, out = tmp_path / "query.csv", tmp_path / "box.toml"
    dump.write_text(
        "index, name, pcie.link.gen.max, pcie.link.width.max\n0, NVIDIA L40S, 4, 16\n1, NVIDIA L40S, 4, 16\n"
    )
    assert glmplan("import", str(dump), "--out", str(out)).strip() == str(out)
    assert load_machine(out).accelerator_names == ("l40s", "l40s")


def test_this_machine_becomes_a_host_that_can_be_planned_on(tmp_path):
    out = tmp_path / "here.toml"
    glmplan("probe", "--out", str(out), "--seconds", "0.05")
    host = load_machine(out)
    part = load_accelerator(host.accelerator)
    assert part.memory > 2**28
    assert part.memory_bandwidth > 1e8


def test_a_plan_is_drawn(tmp_path):
    assert "stage 1, rank 0" in glmplan("draw", "wrx90-2-switches-8", "--tp", "4", "--pp", "2")
    picture = tmp_path / "host.svg"
    glmplan("draw", "hgx-b200-8", "--format", "svg", "--out", str(picture))
    assert picture.read_text().startswith("<svg")


def test_the_ending_of_a_drawing_says_its_format(tmp_path):
    vector, pixels = tmp_path / "host.svg", tmp_path / "host.png"
    glmplan("draw", "hgx-b200-8", "--out", str(vector))
    assert vector.read_text().startswith("<svg")
    glmplan("draw", "hgx-b200-8", "--format", "svg", "--out", str(pixels), code=2)
    assert not pixels.exists()


def test_prices_that_contradict_each_other_stand_side_by_side():
    text = glmplan("prices", "h200-sxm", "--today", "2026-11-22")
    assert "sources differ by a factor 2.8" in text.replace("\n  ", " ")
    assert "STALE" in text and "accelerator alone" in text
    rows = json.loads(glmplan("prices", "h200-sxm", "--today", "2026-11-22", "--format", "json"))
    published = [one for one in load_prices() if one.part == "h200-sxm"]
    assert sorted(row["price"] for row in rows) == sorted(one.price for one in published)
    assert all(row["source"] and row["date"] and row["currency"] and row["region"] for row in rows)
    assert {row["age"] for row in rows} == {"", "stale"}
    assert "see also the prices of h100" in glmplan("prices", "h100-sxm")
    assert "'h300' has no published price; nearest: h100" in glmplan("prices", "h300", code=2)
