"""Intervals of rows that no fit takes: as wide as such rows have shown to need, one vote for each group."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from glmplan.calibrate.step.intervals import needed_stretch, stretches, write_refused_widths
from glmplan.catalog.files import fits_folder
from glmplan.io.runs.ledger import group_key
from glmplan.io.runs.record import Run
from glmplan.prediction.evidence import LIKE, refused_widths
from glmplan.prediction.table import predict_runs

LOAD = {"engine": "vllm", "tp": 1, "concurrency": 8.0, "input_tokens": 1024.0, "output_tokens": 256.0}
MODELS = ("llama-3.1-8b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "gpt-oss-20b", "gpt-oss-120b")
PARTS = ("h100-sxm", "h200-sxm", "b200-sxm")


def test_a_group_has_one_vote_however_many_rows_it_has():
    # one group of a hundred rows far off, nineteen of one row that lie inside
    needed = [5.0] * 100 + [0.5] * 19
    groups = ["wild"] * 100 + [str(one) for one in range(19)]
    assert needed_stretch(needed, groups) == 1.0
    assert needed_stretch([*needed, 4.0, 3.0], [*groups, "a", "b"]) == 4.0


def test_the_vote_of_the_next_group_counts_as_a_miss():
    rng = np.random.default_rng(5)
    held = []
    for _ in range(400):
        *seen, new = np.exp(rng.normal(size=21))
        held.append(new <= needed_stretch(seen, [str(one) for one in range(20)]))
    # an interval is never narrowed, so that some more lie inside
    assert 0.88 <= np.mean(held) <= 0.95


def test_too_few_groups_say_nothing():
    assert needed_stretch([1.0] * 8, [str(one) for one in range(8)]) == float("inf")
    assert stretches([]) == {}


def test_rows_that_lie_three_interval_widths_off_ask_for_three_times_the_width(tmp_path):
    plain = [Run(f"{part} {model}", model, part, unusable="a cold start", **LOAD) for part in PARTS for model in MODELS]
    assert len({group_key(run) for run in plain}) > 15
    answers = predict_runs(plain, as_fitted=True)
    off = []
    for run, answer in zip(plain, answers, strict=True):
        one = answer.figures["tpot_mean_ms"]
        observed = {"tpot_mean_ms": one.value * (one.high / one.value) ** 3.0}
        off.append((Run(run.id, run.model, run.accelerator, unusable="a cold start", observed=observed, **LOAD), "why"))
    found = stretches(off)
    assert found == {"decode": (pytest.approx(3.0), len({group_key(run) for run in plain}))}
    # what nothing marks before it is measured has no vote, nor has what repeats another row
    assert (
        stretches([(Run(run.id, run.model, run.accelerator, observed=run.observed, **LOAD), why) for run, why in off])
        == {}
    )
    assert stretches([(run, "repeats another") for run, _ in off]) == {}
    text = write_refused_widths(found, tmp_path).read_text()
    assert f"decode = [3, {found['decode'][1]}]" in text


def test_what_ships_was_written_by_the_calibration_and_widens():
    shipped = (fits_folder() / "refused.toml").read_text()
    assert shipped.startswith("# Written by `glmplan calibrate`")
    written = {kind: row[0] for kind, row in tomllib.loads(shipped)["stretch"].items()}
    assert set(written) >= {"decode", "prefill", "ttft"}
    assert set(refused_widths()) == {*written, *LIKE}
    # a kind without rows of its own is as wide as the widest of those that it is like
    for kind, width in refused_widths().items():
        assert width == max(written[one] for one in ((kind,) if kind in written else LIKE[kind])), kind
    assert all(1.0 <= one < 4.0 for one in refused_widths().values())
    # two thirds of such groups lay inside of the intervals of others
    assert refused_widths()["decode"] > 1.5
