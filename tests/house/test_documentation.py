"""Pages are true: their commands run, their links lead somewhere, generated pages are fresh, every command is named."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.model import Checkpoint, ModelSpec, Published
from glmplan.cli import COMMANDS
from glmplan.costs.points import Layout, StepPoints
from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.record import Run
from glmplan.prediction.load import Load

ROOT = Path(__file__).resolve().parents[2]
#: fragments of the changelog: they become part of it with the next release and are no pages
CHANGES = ROOT / "docs/changes"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent != CHANGES),
]
#: a block marked ```console is run line by line: `$ ` starts a command, what follows is its output (not compared)
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
#: done by the tests themselves, or by whoever runs them
NOT_HERE = {"make", "git", "cd", "pip", "python"}


def commands():
    seen = set()
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ").split("  #")[0].strip()
                if line.startswith("$ ") and command.split()[0] not in NOT_HERE and command not in seen:
                    seen.add(command)
                    yield pytest.param(command, id=f"{page.name}: {command[:70]}")


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_of_the_pages_runs(command, tmp_path):
    words = shlex.split(command)
    assert words[0] == "glmplan", "blocks marked console hold glmplan commands"
    code = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
    # the pages speak of a checkout; what a command writes goes to a scratch folder
    for folder in ("calibration", "hardware_db", "model_specs", "tests", "docs"):
        os.symlink(ROOT / folder, tmp_path / folder)
    done = subprocess.run(
        [sys.executable, "-c", code, *words[1:]], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_opens_with_the_two_commands_and_shows_what_they_print():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert 0 < text.index("make demo") < text.index("make test") < 10_000
    assert "glmplan fit glm-5.1-nvfp4 --on 6xrtx-pro-6000-ws" in text


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert all(re.search(rf"^make {target}\b", script, re.MULTILINE) for target in ("test", "site", "pythons"))
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_every_link_inside_the_pages_leads_to_a_file():
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_every_page_can_be_reached_from_the_index():
    reached, waiting = set(), [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [(page.parent / target).resolve() for target in LINK.findall(page.read_text(encoding="utf-8"))]
    # a fragment of the changelog is a page of its own until the release
    pages = [page for page in PAGES if page.parent not in (ROOT, ROOT / "docs/changes")]
    assert not [str(page.relative_to(ROOT)) for page in pages if page not in reached]


def test_the_index_names_each_page_once():
    linked = LINK.findall((ROOT / "docs/index.md").read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(set(linked))


def test_generated_pages_are_fresh():
    done = subprocess.run([sys.executable, "tools/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_is_in_the_reference_with_a_line_of_help():
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    for name, (_, line) in COMMANDS.items():
        assert f"## `glmplan {name}" in page
        assert line.endswith(".") and len(line) > 15


def test_the_changelog_has_a_dated_section_for_the_version_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dates = dict(re.findall(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", text, re.MULTILINE))
    assert project["project"]["version"] in dates
    assert list(dates.values()) == sorted(dates.values(), reverse=True)
    # where towncrier puts the next release
    assert project["tool"]["towncrier"]["start_string"] in text


def test_a_change_is_one_sentence_of_a_known_kind():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    kinds = {kind["directory"] for kind in project["tool"]["towncrier"]["type"]}
    wrong = []
    for path in sorted(CHANGES.iterdir()):
        if path.name == project["tool"]["towncrier"]["ignore"][0]:
            continue
        text = path.read_text(encoding="utf-8").strip()
        named = re.fullmatch(rf"[a-z0-9-]+\.(?:{'|'.join(kinds)})\.md", path.name)
        # a sentence ends once, with its full stop
        if not named or not text.endswith(".") or re.search(r"[.!?] +[A-Z`]|\n", text):
            wrong.append(path.name)
    assert not wrong, f"name.kind.md with one sentence; kinds: {', '.join(sorted(kinds))}"


def test_the_glossary_is_sorted_and_names_each_quantity_once():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    for table in re.findall(r"^\| name \|.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
        names = [row.split("|")[1].strip().strip("`") for row in table.splitlines()[2:]]
        assert names == sorted(names, key=str.lower)
        assert len(set(names)) == len(names)


def test_the_units_of_the_columns_of_a_run_are_those_of_the_glossary():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    units = {name: told for name, told in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)}
    for name, column in COLUMNS.items():
        told = units[name if name in units else re.sub(r"(_mean|_p50|_p99)?_ms$", "", name)].split(", ")
        assert {"tok/s": "token/s"}.get(column.unit, column.unit) in told, name


def test_every_column_and_every_field_that_people_write_or_read_is_in_the_glossary():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    # names whose meaning is their word: what every record may carry
    plain = {
        "name",
        "extra_note",
        "full_name",
        "title",
        "aliases",
        "alias_notes",
        "source",
        "sources",
        "note",
        "kind",
        "vendor",
    }
    plain |= {"family", "hugging_face", "repository", "unknown", "assumptions", "default", "published", "checkpoints"}
    unit = re.compile(r"(_mean|_p50|_p99)?_(ms|tokens|gib)$|_(note|notes|id|link|given)$")
    missing = []
    for record in (Accelerator, Host, ModelSpec, Checkpoint, Published):
        for field in record.model_fields:
            if field not in known | plain and unit.sub("", field) not in known | plain:
                missing.append(f"{record.__name__}.{field}")
    known |= plain
    missing += [f"a column of a run: {name}" for name in COLUMNS if known.isdisjoint((name, unit.sub("", name)))]
    for record in (Layout, StepPoints, Load, Run):
        for field in fields(record):
            if field.name not in known | plain and unit.sub("", field.name) not in known | plain:
                missing.append(f"{record.__name__}.{field.name}")
    assert not missing, "\n".join(["", *missing])
