"""Drawings of hosts: every part is there, SVG is well-formed, a plan shows its ranks and full links."""

import re
from xml.etree import ElementTree

import pytest

from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.costs.network.topology import place
from glmplan.present.host_drawing import draw_svg, draw_text
from glmplan.present.page import FULL, figure, light


@pytest.mark.parametrize("name", host_names())
def test_every_host_can_be_drawn(name):
    host = load_host(name)
    text, svg = draw_text(host), draw_svg(host)
    root = ElementTree.fromstring(svg)
    boxes = len(host.sockets) + len(host.roots) + len(host.switches) + len(host.devices) + host.accelerators_per_node
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == boxes + 1  # and the background
    assert len(text.splitlines()) > host.accelerators_per_node


#: room that a letter takes, over the size of its font [-]
LETTER = 0.5


@pytest.mark.parametrize("step", [None, 0.35])
@pytest.mark.parametrize("name", host_names())
def test_words_of_links_do_not_run_into_each_other(name, step):
    host = load_host(name)
    cards = host.accelerators_per_node
    plan = place(host, tp=cards, pp=1) if cards > 1 and host.roots else None
    root = ElementTree.fromstring(draw_svg(host, plan, step))
    words = [
        one
        for one in root.iter("{http://www.w3.org/2000/svg}text")
        if one.get("stroke") is None
        and ((one.text or "").startswith("Gen") or (one.text or "").endswith(("full", "of step")))
    ]
    for number, one in enumerate(words):
        for other in words[number + 1 :]:
            if one.get("y") == other.get("y"):
                apart = abs(float(one.get("x")) - float(other.get("x")))
                wide = LETTER * float(one.get("font-size")) * (len(one.text) + len(other.text)) / 2
                assert apart > wide, (one.text, other.text)


@pytest.mark.parametrize("name", host_names())
def test_letters_can_be_read_on_paper(name):
    """A drawing is as wide as the text of a sheet, on its side where it is wide; no letter is below 5.5 points."""
    [wide] = [float(one) for one in re.findall(r' width="(\d+)"', draw_svg(load_host(name)))[:1]]
    kind = figure([f'<svg width="{wide:.0f}"></svg>'])
    room = 757 if "class='wide'" in kind else 510
    assert 11 * min(room / wide, 0.75) >= 5.5


def test_a_link_that_transfers_fill_for_a_hundredth_of_a_step_is_not_red():
    host = load_host("workstation-direct-6")
    plan = place(host, tp=2, pp=3)
    for step, colour in ((0.01, "used"), (0.2, "busy"), (0.4, "full")):
        text = draw_svg(host, plan, step)
        assert f">{step:.0%} of step<" in text and "% full" not in text
        assert {one for _, one in FULL if f'stroke="{light(one)}"' in text} - {"idle"} == {colour}


def test_names_with_signs_of_markup_do_not_break_the_picture():
    host = load_host("workstation-direct-1").model_copy(update={"title": "a < b & c"})
    assert "a &lt; b &amp; c" in draw_svg(host)
    ElementTree.fromstring(draw_svg(host))


def test_a_plan_writes_ranks_order_gain_and_loads():
    host = load_host("wrx90-2-switches-8")
    text = draw_text(host, place(host, tp=4, pp=2))
    assert "0: stage 0, rank 0" in text and "7: stage 1, rank 3" in text
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in text
    assert "root1 → switch1  54.1 of 54.1 GB/s (100%), 4 transfers" in text


def test_the_display_of_the_seed_machine_is_drawn_under_the_root_of_its_last_cards():
    lines = draw_text(load_host("six-cards-and-display-gpu")).splitlines()[1:]
    first = {
        word: next(index for index, line in enumerate(lines) if word in line) for word in ("root1", "display", "3  ")
    }
    assert first["root1"] < first["display"] < first["3  "]
