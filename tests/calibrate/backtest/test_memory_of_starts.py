"""Memory that engines logged at their start beside what is predicted for the same settings."""

from __future__ import annotations

import csv

import pytest
from start_up_errors import LoggedError, StartScores, score_starts

from glmplan.calibrate.memory import observations
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import data_folder
from glmplan.errors import SpecError
from glmplan.io.runs.importers.startup_logs import start_up_logs


def test_every_shipped_log_is_scored_or_says_why_not():
    starts, scores = start_up_logs(), score_starts()
    scored = {one.id for one in scores.errors}
    assert scored | set(scores.not_scored) == {one.id for one in starts}
    assert not scored & set(scores.not_scored)
    assert all(reason for reason in scores.not_scored.values())
    known = [one for one in starts if one.model is not None and not one.not_scored]
    assert scored == {one.id for one in known}
    for one in known:
        load_model(one.model)


def test_no_launch_counts_twice():
    # engine-logs.csv holds one of them, rounded, and says in start-up-logs.csv which it is
    pools = {
        (row.text["engine"], row.text["part"], row.number["tp"], row.number.get("pool_tokens"))
        for row in observations()
        if row.kind == "pool" and "pool_tokens" in row.number
    }
    seen = [(one.log.engine, one.accelerator, one.log.tp, one.log.kv_tokens) for one in start_up_logs()]
    assert not pools & set(seen)
    file = data_folder("calibration") / "memory" / "start-up-logs.csv"
    with open(file, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len({(row["source"], row["checkpoint"], row["pool_tokens"], row["weights_gib"]) for row in rows}) == len(
        rows
    )


def test_a_source_with_many_logs_has_one_vote():
    def error(name, origin, predicted, inside):
        return LoggedError(name, origin, "stock", "weights", 100.0, predicted, 99.0 if inside else 101.0, 200.0)

    many = [error(f"a{number}", "a", 110.0, True) for number in range(9)]
    found = StartScores((*many, error("b", "b", 100.0, False)), {}).score("weights")
    assert (found.logs, found.sources) == (10, 2)
    assert found.median == pytest.approx(0.05)
    assert found.coverage == pytest.approx(0.5)
    assert StartScores(tuple(many), {}).score("weights", without="a").logs == 0


def test_a_log_without_a_source_is_refused(tmp_path):
    file = data_folder("calibration") / "memory" / "start-up-logs.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    broken = tmp_path / "logs.csv"
    broken.write_text("\n".join([lines[0], "x" + "," * lines[0].count(",")]))
    with pytest.raises(SpecError, match="has no source"):
        start_up_logs(broken)


def test_a_number_of_a_log_that_is_none_is_refused(tmp_path):
    file = data_folder("calibration") / "memory" / "start-up-logs.csv"
    text = file.read_text(encoding="utf-8").replace(",56.93,", ",many,", 1)
    broken = tmp_path / "logs.csv"
    broken.write_text(text)
    with pytest.raises(SpecError, match="log-006, weights_gib: 'many' is not a number"):
        start_up_logs(broken)
