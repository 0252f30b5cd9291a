"""The commands of docs/guide/updating.md, typed wrongly: the last line names what is wrong, without a traceback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmplan.io.runs.table import read_runs

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "calibration" / "measurements"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


@pytest.mark.parametrize(
    "words",
    [
        ("tools/recipes.py", "absent.csv"),
        ("tools/engine_flags.py", "vllm", "absent.whl"),
        ("tools/import_models.py", "absent"),
        ("tools/import_measurements.py", "absent"),
        ("tools/harvest_settings.py", "absent.csv"),
        ("-c", "from glmplan.cli import main; main()", "calibrate", "kernels", "--wheel", "absent.whl"),
    ],
)
def test_a_file_that_is_not_there_is_named_without_a_traceback(words):
    done = run(*words)
    assert done.returncode != 0
    assert "absent" in done.stderr and "Traceback" not in done.stderr


def test_a_table_of_another_form_is_refused_by_its_missing_columns(tmp_path):
    (tmp_path / "recipes.csv").write_text("checkpoint,flags\na/b,--tp 8\n", encoding="utf-8")
    done = run("tools/recipes.py", str(tmp_path / "recipes.csv"))
    assert done.returncode == 2
    assert "without the columns accelerator, date, engine" in done.stderr


def test_a_model_of_which_nothing_changed_keeps_its_file(tmp_path):
    from tests.io.models.configs import GLM_5_1

    (tmp_path / "zai-org--GLM-5.1_config.json").write_text(json.dumps(GLM_5_1), encoding="utf-8")
    file = ROOT / "model_specs" / "glm-5.1.toml"
    before = file.read_bytes()
    done = run("tools/import_models.py", str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (0, "glm-5.1: unchanged")
    assert file.read_bytes() == before


def test_a_folder_without_configs_and_a_config_that_is_refused_are_errors(tmp_path):
    done = run("tools/import_models.py", str(tmp_path))
    assert done.returncode == 2 and "no file named OWNER--NAME_config.json" in done.stderr
    (tmp_path / "zai-org--GLM-5.3_config.json").write_text("{")
    done = run("tools/import_models.py", str(tmp_path))
    assert done.returncode == 2 and "glm-5.3: " in done.stderr and "Traceback" not in done.stderr


def test_a_config_of_no_model_of_the_catalogue_is_named(tmp_path):
    (tmp_path / "nobody--Nothing-1B_config.json").write_text("{}")
    done = run("tools/import_models.py", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "nothing-1b: not in the catalogue, left out; name it to add it\n")


def test_the_shipped_tables_say_themselves_what_the_reader_sets_aside():
    # else reading a folder again would rewrite rows of which nothing changed
    silent = []
    for file in sorted(RUNS.glob("*.csv")):
        if "campaign" in file.read_text(encoding="utf-8").partition("\n")[0].split(","):
            silent += [run.id for run in read_runs(file) if run.withheld and not run.cells.get("withheld")]
    assert not silent


def test_a_table_of_results_read_again_writes_the_same_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("import_measurements", ROOT / "tools" / "import_measurements.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    given, written = tmp_path / "given", tmp_path / "written"
    given.mkdir()
    written.mkdir()
    file = "field-reports-glm.csv"
    (given / file).write_bytes((RUNS / file).read_bytes())
    monkeypatch.setattr(tool, "FOLDER", written)
    assert tool.main([str(given)]) == 0
    first = {path.name: path.read_bytes() for path in written.iterdir()}
    assert first[file] == (RUNS / file).read_bytes()
    assert "20 came, 0 went, 0 changed" in capsys.readouterr().out
    assert tool.main([str(given)]) == 0
    assert {path.name: path.read_bytes() for path in written.iterdir()} == first
    assert f"{file}: 20 rows, 0 came, 0 went, 0 changed" in capsys.readouterr().out


def test_what_the_command_wrote_is_not_read_again():
    before = {path: path.read_bytes() for path in RUNS.glob("*.csv")}
    done = run("tools/import_measurements.py", "calibration/measurements")
    assert done.returncode == 2 and "holds what this command writes" in done.stderr
    assert {path: path.read_bytes() for path in RUNS.glob("*.csv")} == before
