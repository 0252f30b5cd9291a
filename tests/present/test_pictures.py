"""Pictures: whole in themselves, readable on paper and on dark screens, with labels that stand apart."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pytest
from pandas import DataFrame

import glmplan
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.cli import main
from glmplan.errors import CONTROLS, SpecError
from glmplan.present.charts import (
    _against_load,
    band,
    chart_svg,
    check_chart,
    log_axis,
    rows_chart,
    safe_charts,
    short,
    standalone,
    sweep_chart,
    tornado_chart,
    write_chart,
    write_charts,
)
from glmplan.present.host_drawing import draw_svg
from glmplan.present.page import COLOURS, FULL, SERIES, dark_rules
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.frontier import frontier
from glmplan.purchase.sweep import swept

SVG = "{http://www.w3.org/2000/svg}"


class Fetched(HTMLParser):
    """Addresses that a browser would load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if tag == "script" or name in ("src", "srcset", "data", "poster") or (name == "href" and tag != "a"):
                self.found.append((tag, name, value))


def fetched(html):
    parser = Fetched()
    parser.feed(html)
    return parser.found + re.findall(r"@import|url\((?!#)[^)]*\)", html)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Of WCAG 2.2, section 1.4.3."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


ROWS = [{"users": n, "value": 10.0 * n, "low": 5.0 * n, "high": 20.0 * n} for n in (1, 4, 16, 64, 100, 200)]


@pytest.fixture(scope="module")
def drawn():
    chart = band(ROWS, alt.X(**log_axis("users", "users at once")), ("value", "low", "high"), title="rate", wide=True)
    return chart_svg(chart.properties(width=300, height=200), 'a "rate" < all')


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_texts_and_marks_stand_out_from_their_ground(side):
    shade = {name: pair[side] for name, pair in COLOURS.items()}
    for text in ("ink", "faint"):
        for ground in ("paper", "part", "socket", "root", "switch", "display"):
            if text == "ink" or ground == "paper":
                assert contrast(shade[text], shade[ground]) >= 4.5, (text, ground)
    for mark in {*SERIES, *(name for _, name in FULL)}:
        assert contrast(shade[mark], shade["paper"]) >= 3.0, mark


def test_every_colour_of_a_drawing_has_a_shade_for_dark_screens(drawn):
    lights = [pair[0] for pair in COLOURS.values()]
    assert len(set(lights)) == len(lights)
    for svg in (drawn, draw_svg(load_host("six-cards-and-display-gpu"))):
        used = set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) - {"none", "transparent"}
        assert used and used <= set(lights)


def test_a_drawing_says_what_it_shows_and_its_marks_say_their_figures(drawn):
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img" and root.get("aria-label") == 'a "rate" < all'
    told = [one.text for one in root.iter(f"{SVG}title")]
    assert len([text for text in told if "users" in text]) >= len(ROWS)


def test_an_interval_is_a_band_below_its_line(drawn):
    areas = re.findall(r'<path d="[^"]*" fill="(#\w+)"[^>]*opacity="0?\.2', drawn) or re.findall(
        r'opacity="0?\.2[^"]*"', drawn
    )
    assert areas


def test_an_interval_at_one_place_is_a_bar():
    x = alt.X(**log_axis("users", "users at once"))
    lone = chart_svg(band(ROWS[-1:], x, ("value", "low", "high"), title="rate", wide=True), "rate")
    [bar] = re.findall(r'<line [^>]*stroke-width="9"[^>]*>', lone)
    ends = dict(re.findall(r' ([xy]2)="(-?[\d.]+)"', bar))
    assert abs(float(ends["y2"])) > 50 and float(ends["x2"]) == 0


def test_the_line_of_a_tornado_crosses_no_name():
    rows = [{"what": what, "low": 1.0, "high": 3.0} for what in ("one thing", "another")]
    drawing = chart_svg(
        tornado_chart(rows, 2.0, of="cost", title="a long title of a chart " * 4, unit="USD"), "tornado"
    )
    assert "stroke-dasharray" not in drawing
    title = re.findall(r">(a long title[^<]*)<", drawing)
    assert title and max(map(len, title)) <= 46


def axis_labels(svg):
    """Row or column of an axis [px] → places along it [px] and texts that are shown."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if "role-axis-label" in (group.get("class") or ""):
            for text in group.iter(f"{SVG}text"):
                place = [float(one) for one in re.findall(r"-?[\d.]+", text.get("transform"))]
                if text.text and text.get("opacity") != "0":
                    found.setdefault(round(place[1]), []).append((place[0], text.text))
    return found


def test_figures_keep_their_digits():
    """Places are cut to a tenth of a pixel; 0.25 on an axis and 7.261 under a pointer are no places."""
    rows = [{"x": one, "y": 1.0, "told": f"{one + 7.0055:.4f} USD"} for one in (0.0, 0.125, 0.25)]
    dots = rows_chart(rows).mark_point().encode(x="x:Q", y="y:Q", description="told:N").properties(width=400)
    svg = chart_svg(dots, "7.2612 USD")
    assert "7.1305 USD" in svg and 'aria-label="7.2612 USD"' in svg
    across = max(axis_labels(svg).values(), key=len)
    assert {"0.04", "0.08", "0.20"} <= {text for _, text in across}


def test_what_a_mark_says_has_digits_that_are_read_and_one_line_of_a_title():
    rows = [{"x": 2.37137370566, "y": 12345.678912, "of": "0.33.0"}, {"x": 0.000123456789, "y": -1.0, "of": "b200-sxm"}]
    across = alt.X("x:Q", title=["users", "points: tried;", "band: 90 %"])
    dots = rows_chart(rows).mark_point().encode(x=across, y="y:Q", detail="of:N")
    told = re.findall(r"<title>([^<]*)", chart_svg(dots, "words"))
    assert told == ["users: 2.371; y: 12346; of: 0.33.0", "users: 0.0001235; y: −1; of: b200-sxm"]


def test_labels_of_an_even_axis_stand_at_even_distances():
    rows = [{"x": float(one), "y": 1.0} for one in (0, 700)]
    across = sorted(
        max(
            axis_labels(
                chart_svg(rows_chart(rows).mark_line().encode(x="x:Q", y="y:Q").properties(width=370), "x")
            ).values(),
            key=len,
        )
    )
    steps = {float(other) - float(one) for (_, one), (_, other) in zip(across, across[1:], strict=False)}
    assert len(across) > 3 and len(steps) == 1, across


def test_a_band_far_above_its_line_leaves_the_line_to_be_seen():
    """A TTFT of 1 s whose slow end is 2,000 s: on an even axis the line lies on the ground."""
    middle = [{"load": load, "ttft_p95_ms": 1000.0 + load} for load in (1.0, 2.0, 3.0)]
    slow = [{"load": row["load"], "ttft_p95_ms": 2e6} for row in middle]
    svg = chart_svg(_against_load((middle, middle, slow), "ttft", "users", ["p95"]), "x")
    shown = {text for labels in axis_labels(svg).values() for _, text in labels}
    assert "1,000" in shown and shown & {"500,000", "1,000,000", "2,000,000"}, shown


def test_labels_of_a_logarithmic_axis_stand_apart(drawn):
    across = sorted(max(axis_labels(drawn).values(), key=len))
    assert len(across) >= 3 and "100" in [text for _, text in across]
    for (left, one), (right, other) in zip(across, across[1:], strict=False):
        assert right - left > 11 * 0.55 * (len(one) + len(other)) / 2 + 4, (one, other)


@pytest.mark.parametrize("name", host_names())
def test_no_box_of_a_host_touches_another_and_no_label_leaves_its_box(name):
    root = ElementTree.fromstring(draw_svg(load_host(name)))
    boxes = [[float(one.get(key)) for key in ("x", "y", "width", "height")] for one in root.findall(f"{SVG}rect")[1:]]
    for number, (x, y, width, height) in enumerate(boxes):
        for other in boxes[number + 1 :]:
            apart = (
                x + width <= other[0] or other[0] + other[2] <= x or y + height <= other[1] or other[1] + other[3] <= y
            )
            assert apart, (boxes[number], other)
        for text in root.findall(f"{SVG}text"):
            at, down = float(text.get("x")), float(text.get("y"))
            if text.get("text-anchor") == "middle" and x < at < x + width and y < down < y + height:
                assert len(text.text) * float(text.get("font-size")) * 0.55 <= width, text.text
    width = float(root.get("width"))
    assert all(x >= 0 and x + wide <= width for x, _, wide, _ in boxes)


def test_a_file_of_a_drawing_is_dark_on_a_dark_screen_by_itself(drawn):
    alone = standalone(drawn)
    assert dark_rules() in alone and "prefers-color-scheme:dark" in alone
    ElementTree.fromstring(alone)


def test_a_page_of_charts_has_no_script_and_fetches_nothing(tmp_path):
    chart = rows_chart(ROWS).mark_line().encode(x="users:Q", y="value:Q")
    write_charts([("one", chart), ("other", chart)], tmp_path / "a.html", title="<b>two</b>")
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert html.count("<svg ") == 2 and fetched(html) == [] and "<b>" not in html
    names = re.findall(r'id="([^"]+)"', html)
    assert len(names) == len(set(names)), "inner names of drawings must not meet on a page"


def test_the_test_would_notice_a_script_of_a_public_network():
    assert fetched("<script src='https://cdn.jsdelivr.net/npm/vega@6'></script>")
    assert fetched("<link href='https://a/b.css'>") and fetched("<style>@import 'a'</style>")


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_chart_is_written_as_a_picture(tmp_path, ending):
    write_chart(rows_chart(ROWS).mark_line().encode(x="users:Q", y="value:Q"), tmp_path / f"a.{ending}", title="t")
    assert (tmp_path / f"a.{ending}").read_bytes()[:4] in (b"<svg", b"\x89PNG")


def test_a_chart_without_its_extra_is_refused_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"--plot: needs the extra png: pip install 'glmplan\[png\]'"):
        check_chart("a.html")


def test_text_that_no_drawing_can_hold_is_written_out_and_ends_no_process():
    """The converter aborts the process at a character that XML has not; a plan out of a file may hold any."""
    words = "a\x1b[31m b\x00 c\ufffe d\u202e <script>"
    bars = alt.Chart(alt.InlineData([{"name": words, "x": 1.0}])).mark_bar()
    svg = chart_svg(bars.encode(x="x:Q", y=alt.Y("name:N", title=words)), words)
    ElementTree.fromstring(svg)
    assert "\\x1b" in svg and "\\ufffe" in svg and "<script>" not in svg and not CONTROLS.search(svg.replace("\n", ""))


#: colour of the page of `glmplan serve` → its name in the palette
OF_THE_PAGE = {
    "ink": "ink", "soft": "faint", "line": "line", "weights": "blue", "work": "purple", "cache": "teal", "band": "blue",
    "link-idle": "idle", "link-mid": "busy", "link-full": "full", "stage-0": "blue", "stage-1": "orange",
    "stage-2": "teal", "stage-3": "purple", "stage-4": "red", "stage-5": "brown",
}  # fmt: skip


@pytest.mark.parametrize(("theme", "side"), [(":root {", 0), (':root[data-theme="dark"] {', 1)], ids=["light", "dark"])
def test_the_page_of_the_service_takes_its_colours_from_the_palette(theme, side):
    text = (Path(glmplan.__file__).parent / "service/page/page.css").read_text(encoding="utf-8")
    rules = text.partition(theme)[2].partition("}")[0]
    shown = dict(re.findall(r"--([\w-]+): (#\w+)", rules))
    assert {name: shown[name] for name in OF_THE_PAGE} == {
        name: COLOURS[colour][side] for name, colour in OF_THE_PAGE.items()
    }


def swept_picture(**said):
    frame = swept(read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "output": 200} | said)).to_frame()
    names = ["user_tokens_per_s", "output_tokens_per_s"]
    best = frontier({name: frame[name].to_numpy() for name in frame}, names)
    return chart_svg(sweep_chart(frame, best, title="circles"), "circles"), frame, best


SPANS = [(118.4, 146.8), (140.6, 140.6), (21.0, 49.0), (0.0123, 0.0191), (99.0, 101.5), (3e5, 4e9)]


@pytest.mark.parametrize("ends", SPANS)
def test_a_logarithmic_axis_has_three_labels_at_least_whatever_it_spans(ends):
    said = log_axis("x", "x", over=ends)
    low, high = said["scale"].to_dict().get("domain", ends)
    assert low <= ends[0] <= ends[1] <= high
    shown = said["axis"].to_dict()["values"]
    assert len([one for one in shown if low <= one <= high]) >= 3
    svg = chart_svg(rows_chart([{"x": end} for end in ends]).mark_point().encode(x=alt.X(**said)), "points")
    texts = [float(one.replace(",", "")) for one in re.findall(r"<text [^>]*>([\d.,]+)</text>", svg)]
    assert len(set(texts)) == len(texts) >= 3
    # written out as they are: a label of a short axis is not rounded to another number
    assert all(any(one == pytest.approx(value, rel=1e-6) for value in shown) for one in texts)


def test_a_long_logarithmic_axis_has_its_powers_of_ten_and_one_of_unknown_length_all_labels():
    def labels(**said):
        return log_axis("x", "x", **said)["axis"].to_dict()["values"]

    assert {100.0, 300.0, 1000.0} < set(labels(over=[20.0, 90_000.0])) and 200.0 not in labels(over=[20.0, 90_000.0])
    assert {1.0, 2.0, 5.0, 10.0} < set(labels()) and {1.0, 2.0, 5.0} < set(labels(over=[1.0, 8.0]))


@pytest.mark.parametrize("said", [{"users": "4"}, {"users": "1,2,4,8,16"}, {"users": "1..64", "input": "500,8000"}])
def test_the_picture_of_a_sweep_has_labels_on_both_axes_and_bands(said):
    svg, frame, best = swept_picture(**{"input": "1000"} | said)
    words = re.findall(r"<text [^>]*>([\d.,]+)</text>", svg)
    assert len(words) >= 6, words
    # a band for a curve of the frontier, a bar for a point alone
    assert ("mark-area" in svg) == (best.sum() > 1)
    assert ('stroke-width="7"' in svg) == (best.sum() == 1)


def test_the_picture_of_a_sweep_in_which_nothing_is_possible_says_so():
    svg, frame, _ = swept_picture(on="1xrtx-5090", model="llama-3.3-70b", weights="bf16", input="1000", users="1")
    assert frame["user_tokens_per_s"].isna().all()
    assert "no point of this sweep has a throughput" in svg


def test_a_load_of_which_nothing_was_served_is_left_out_of_the_picture(tmp_path):
    target = SimpleNamespace(name="ttft_p95_ms", metric="ttft", statistic="p95", bound=2.0)
    tried = [SimpleNamespace(load=1.0, safe=True, summary={"ttft_p95_ms": 50.0})]
    tried.append(SimpleNamespace(load=2.0, safe=False, summary={}))
    file = tmp_path / "safe.svg"
    safe_charts(SimpleNamespace(points=tried, load=1.0, unit="1/s"), [target], file, title="safe")
    assert "TTFT [ms]: 50" in file.read_text(encoding="utf-8")


def test_a_line_and_its_band_say_nothing_and_each_point_its_value_and_interval(drawn):
    told = [one.text for one in ElementTree.fromstring(drawn).iter(f"{SVG}title")]
    assert told == [
        f"users at once: {row['users']}; rate: {short(row['value'])} ({short(row['low'])} to {short(row['high'])})"
        for row in ROWS
    ]


def test_a_plot_of_one_plan_has_several_concurrencies_with_their_values(tmp_path):
    with pytest.raises(SystemExit):
        main(["fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--users", "8", "--plot", str(tmp_path / "fit.svg")])
    root = ElementTree.fromstring((tmp_path / "fit.svg").read_text())
    told = [one.text for one in root.iter(f"{SVG}title") if one.text.startswith("concurrency: ") and "TPOT" in one.text]
    texts = {one.text for one in root.iter(f"{SVG}text")}
    assert len(told) >= 5
    for one in told:
        assert re.search(r"TPOT \[ms\]: ([\d.,]+)", one)[1] in texts


def test_the_ends_of_a_pareto_front_say_users_layout_and_cost():
    rows = [
        {"model": "m", "on": on, "users": users, "output_tokens": 512, "layout": "TP2", "usd_month": 1583.4,
         "user_tokens_per_s": speed * (20.0 - users), "output_tokens_per_s": speed * 20.0 * users,
         "output_tokens_per_s_low": speed * 10.0 * users, "output_tokens_per_s_high": speed * 40.0 * users}
        for on, speed in (("a", 1.0), ("b", 8.0)) for users in (1, 4, 16)
    ]  # fmt: skip
    svg = chart_svg(sweep_chart(DataFrame(rows), np.ones(len(rows), dtype=bool), title="front"), "front")
    texts = [one.text for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"1 user, TP2, 1,583 USD/month", "16 users, TP2, 1,583 USD/month"} <= set(texts)
    assert not any("4 users" in (one or "") for one in texts)
