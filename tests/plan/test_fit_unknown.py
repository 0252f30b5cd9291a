"""Parts of which not everything is published: what is known is answered, the rest is said to be unknown."""

from __future__ import annotations

from glmplan.plan import Words, fit_answer
from glmplan.report.fit_json import fit_record
from glmplan.report.fit_text import fit_text


def test_a_part_without_memory_and_bandwidth_is_unknown_with_what_its_speeds_imply():
    answer = fit_answer(Words("glm-5.1-int4", "nizwo-a1"))
    assert answer.verdict == "unknown"
    assert answer.headline.startswith("unknown: memory, bandwidth")
    text = fit_text(answer)
    assert "1 TB/s to 1.4 TB/s" in text and "at least 400 GB" in text
    assert fit_record(answer)["unknown"] == ["memory", "memory_bandwidth"]


def test_a_part_without_matrix_rates_gives_decode_figures_only():
    answer = fit_answer(Words("glm-5.1-mlx-3.645bpw", "m3-ultra"))
    assert answer.engine == "mlx" if hasattr(answer, "engine") else answer.asked.engine == "mlx"
    assert answer.unknown == ("matrix rate",)
    assert all(row.ttft is None and row.tpot.value > 0 for row in answer.users)
    assert "TTFT are unknown" in fit_text(answer)


def test_a_part_without_bandwidth_still_says_what_fits():
    answer = fit_answer(Words("llama-3.1-8b", "gh200"))
    assert answer.verdict == "fits"
    assert answer.users == () and "memory_bandwidth" in answer.unknown
    assert "no speed can be given" in fit_text(answer)


def test_experts_computed_by_processors_of_unknown_rates_have_no_invented_speed():
    answer = fit_answer(Words("glm-5.1-nvfp4", "2xrtx-pro-6000-ws", engine="ktransformers"))
    assert answer.ranks[0].host > 100 * 2**30
    assert answer.users == ()
