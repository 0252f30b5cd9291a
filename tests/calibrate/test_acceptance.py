"""Acceptance lengths of speculative decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same_text import same_to_rounding

from glmplan.calibrate.all_fits import accepted_logit, fit_acceptance, write_acceptance_fit
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import data_folder
from glmplan.costs.step.acceptance import TEXTS, acceptance_prior, yielded
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.ledger import load_acceptance


def test_one_drafted_token_yields_one_plus_its_chance():
    assert yielded(np.log(9.0), 1) == pytest.approx(1.9)


@settings(deadline=None)
@given(st.floats(-3, 3), st.integers(1, 12), st.floats(0, 1))
def test_the_logit_comes_back_from_the_length(logit, draft, decay):
    assert accepted_logit(yielded(logit, draft, decay), draft, decay) == pytest.approx(logit, abs=1e-6)


def test_more_tokens_than_drafted_are_refused():
    with pytest.raises(SpecError, match="cannot come from"):
        accepted_logit(4.5, 3)


@settings(deadline=None)
@given(
    st.sampled_from(["glm", "deepseek", "qwen", "a family nobody measured"]),
    st.sampled_from(["mtp", "eagle3", "", "draft-model"]),
    st.sampled_from([*TEXTS, ""]),
    st.integers(1, 8),
)
def test_a_longer_chain_yields_more_but_never_more_than_it_drafts(family, method, text, draft):
    mean, deviation = acceptance_prior(family, method, draft, text)
    longer, _ = acceptance_prior(family, method, draft + 1, text)
    assert 1.0 < mean < longer < draft + 2
    assert 0.0 < deviation < 0.6


def test_what_was_never_measured_has_a_wider_spread():
    for_known = acceptance_prior("glm", "mtp", 3, "random")[1]
    for_unknown = acceptance_prior("nobody", "something", 3, "")[1]
    assert for_unknown > 1.4 * for_known


def test_the_prior_covers_nine_in_ten_of_the_cited_lengths_left_out_model_by_model(tmp_path, monkeypatch):
    # lengths cited in calibration/measurements/acceptance.csv; each model predicted from the others
    import glmplan.costs.step.acceptance as prior

    inside = []
    rows = [row for row in load_acceptance() if row.draft_tokens]
    for model in sorted({row.model for row in rows}):
        try:
            family = load_model(model).family
        except GlmplanError:
            continue
        fit = fit_acceptance([row for row in rows if row.model != model])
        names = {" ".join(name).strip(): place for place, name in enumerate(fit.names)}
        table = prior._Prior(
            names, fit.value, fit.covariance, {"method": 0.4, "family": 0.4, "text": 0.4}, fit.noise, fit.decay
        )
        monkeypatch.setattr(prior, "_read", lambda table=table: table)
        for row in rows:
            if row.model == model:
                mean, deviation = acceptance_prior(
                    family, row.method, row.draft_tokens, row.text, verify_tokens=row.verify_tokens
                )
                inside.append(abs(np.log(row.acceptance_length / mean)) < 1.645 * deviation)
    assert len(inside) > 40
    assert np.mean(inside) > 0.85


def test_a_figure_repeated_on_one_page_weighs_once():
    rows = [row for row in load_acceptance() if row.draft_tokens]
    once, often = fit_acceptance(rows), fit_acceptance([*rows, *[replace(rows[0], run=None)] * 50])
    assert often.rows == once.rows + 50
    assert np.allclose(once.value, often.value, atol=0.2)


def test_the_shipped_file_is_what_the_observations_give(tmp_path):
    shipped = data_folder("calibration") / "fits" / "acceptance.toml"
    # another processor may round the last digit the other way: docs/decisions/processors.md
    written = write_acceptance_fit(tmp_path / "a.toml").read_text(encoding="utf-8")
    assert same_to_rounding(shipped.read_text(encoding="utf-8"), written)
