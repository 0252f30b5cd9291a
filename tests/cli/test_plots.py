"""`fit --plot` and `compare --plot` draw every row over concurrency, the SLO and the safe users."""

from __future__ import annotations

import re

import pytest

from glmplan.cli import main
from glmplan.planner import fit_answer
from glmplan.present.decision_parts import users_charts
from glmplan.present.json_answers import fit_record
from glmplan.request.plan import PlanRequest

FIT = ("fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--users", "1,8,32")
COMPARE = ("compare", "--model", "llama-3.1-8b", "1xh100-sxm", "1xl40s", "--users", "8")


@pytest.mark.parametrize(("words", "charts"), [(FIT, 3), (COMPARE, 3)], ids=["fit", "compare"])
def test_a_plot_has_a_chart_for_throughput_and_one_for_each_latency(words, charts, tmp_path):
    for name in ("a.html", "a.svg"):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--plot", str(tmp_path / name)])
        assert not ended.value.code
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg") == charts
    assert re.search(r"<p>[^<]*bands: 90 % intervals; dashed: [\d,]+ safe users[^<]*</p>", page)
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def data(spec):
    """Yield the rows of each layer."""
    if "values" in spec.get("data", {}):
        yield spec["data"]["values"]
    for layer in spec.get("layer", ()):
        yield from data(layer)


def test_the_charts_hold_the_numbers_of_fit():
    record = fit_record(fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm", users="1,8,32")))
    charts = dict(users_charts([("a", record)]))
    [tpot] = [chart for title, chart in charts.items() if title.startswith("mean TPOT")]
    values = list(data(tpot.to_dict()))
    assert [row["tpot_mean_ms"]["value"] for row in record["users"]] in [
        [row.get("value") for row in rows] for rows in values
    ]
    assert [{"users": record["safe"]["users"]}] in values
    assert [{"limit": record["safe"]["target_tpot_ms"]}] in values
