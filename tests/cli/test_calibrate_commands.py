"""`glmplan calibrate --from`, `glmplan backtest` and `glmplan reproduce` from the shell."""

from __future__ import annotations

import csv
import json

import pytest

from glmplan.catalog.files import data_folder
from glmplan.cli import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(list(words))
    said = capsys.readouterr()
    return end.value.code or 0, said.out, said.err


@pytest.fixture
def my_runs(tmp_path):
    """The 1- and 8-user rows of the six-card report, and one with a slipped decimal point."""
    path = data_folder("calibration") / "measurements" / "field-reports-glm.csv"
    with open(path, newline="") as stream:
        rows = list(csv.DictReader(stream))
    mine = [dict(row) for row in rows if row["id"] in ("fr-001-c1", "fr-001-c8")]
    wrong = {**mine[0], "id": "slipped", "output_tokens_per_s": "330", "output_tokens_per_s_per_request": "333"}
    file = tmp_path / "my-runs.csv"
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows([*mine, wrong])
    return file


def test_a_site_is_calibrated_saved_and_applied(my_runs, tmp_path, capsys):
    site = tmp_path / "site.toml"
    code, out, err = run(capsys, "calibrate", "--from", str(my_runs), "--save", str(site))
    assert code == 0
    assert "2 runs used, 1 not used" in out
    assert "slipped" in err and "faster than the memory bandwidth" in err
    assert site.exists()
    squares = {}
    for name, more in (("apart", ()), ("site", ("--calibration", str(site)))):
        squares[name] = 0.0
        for row in ("fr-001-c1", "fr-001-c8"):
            code, out, _ = run(capsys, "reproduce", row, *more, "--json")
            assert code == 0
            content = json.loads(out)
            [figure] = content["figures"]
            squares[name] += figure["difference"] ** 2
    assert content["basis"] == "measured at this site in this configuration"
    # one user was slower, eight were as fast as predicted: a site meets both in the middle
    assert squares["site"] < squares["apart"], squares


def test_backtest_prints_and_writes_the_page(small_fit, tmp_path, capsys):
    _, folder, _ = small_fit
    page = tmp_path / "accuracy.md"
    code, out, _ = run(capsys, "backtest", "--fit", str(folder), "--page", str(page))
    assert code == 0
    assert "Worst groups" in out
    assert page.read_text().startswith("# Accuracy of glmplan")


@pytest.mark.parametrize("form", ["json", "csv", "md"])
def test_backtest_speaks_other_forms(small_fit, capsys, form):
    code, out, _ = run(capsys, "backtest", "--fit", str(small_fit[1]), "--format", form)
    assert code == 0
    assert out.startswith({"json": "{", "csv": "left_out,", "md": "# Accuracy of"}[form])


def test_an_unknown_run_names_the_nearest(capsys):
    code, _, err = run(capsys, "reproduce", "fr-001-c9")
    assert code == 2
    assert "fr-001-c" in err


def test_missing_kernel_tables_are_one_line(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    code, out, err = run(capsys, "calibrate", "kernels")
    assert code == 2 and not out
    assert err.startswith("glmplan: the kernel tables are missing: pip install 'glmplan[kernels]'")
    assert err.count("\n") == 1
