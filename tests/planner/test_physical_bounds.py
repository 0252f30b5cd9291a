"""Bounds of physics over plans drawn at random: what no machine can do is in no answer, nor at an end of its intervals.

The draws are the same in every run of the tests; `GLMPLAN_PLANS` in the environment says how many plans they give
(`make bounds` asks for 1,000), and `GLMPLAN_SEED` draws others.
"""

from __future__ import annotations

import math
import os
import random
from datetime import date
from functools import cache
from itertools import count, pairwise
from typing import NamedTuple

import pytest

from glmplan.catalog.engines.limitations import engine_names
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.costs.blocks.stack import checkpoint_bytes, model_parameters
from glmplan.errors import GlmplanError
from glmplan.planner import fit_answer
from glmplan.planner.ask import deployment
from glmplan.present.answer_text import fit_sections, users_table
from glmplan.present.compare_text import causes_of
from glmplan.purchase.compare import fitted_apart, side_of
from glmplan.purchase.money import money_of
from glmplan.request.plan import PlanRequest

PLANS, SEED = int(os.environ.get("GLMPLAN_PLANS", "120")), os.environ.get("GLMPLAN_SEED", "")
#: a part and one of the same family that is nowhere slower: memory, bandwidth, matrix rates but for INT8 on B300, which
#: none of these engines serves there
PAIRS = [
    ("h100-sxm", "h200-sxm"),
    ("a100-40gb-sxm", "a100-80gb-sxm"),
    ("h200-sxm", "b200-sxm"),
    ("mi300x", "mi325x"),
    ("b200-sxm", "b300-sxm"),
]
USERS = "1,2,4,8,16,32"
#: relative error of sums of floats, and of a number of three digits [-]
SUMS, DIGITS = 1e-9, 0.5e-2
#: what counts of weights by hand may be too high by: norms, biases, scales [-]
BY_HAND = 0.97


class Plan(NamedTuple):
    """What is looked at of an answer; the whole of a thousand would fill the memory."""

    what: str
    model: str
    form: str
    engine: str
    part: str
    tp: int
    lengths: tuple[int, int]
    users: tuple
    table: str
    rests_on: str


def draw(number):
    """A model, a format, a pair of parts, an engine, a degree and lengths."""
    chance = random.Random(f"plans {number}{SEED}")
    name = chance.choice(model_names())
    form = chance.choice([one.name for one in load_model(name).checkpoints])
    lengths = chance.choice([(128, 128), (1024, 256), (8192, 512), (1024, 1)])
    return (
        name,
        form,
        chance.choice(PAIRS),
        chance.choice(["vllm", "sglang", "trtllm"]),
        chance.choice([1, 2, 4, 8]),
        lengths,
    )


def plan(name, form, part, engine, tp, lengths):
    """The plan; None where the model does not fit or is not served so."""
    words = PlanRequest(f"{name}-{form}", f"{tp}x{part}", engine=engine, tp=str(tp), users=USERS,
                  input=str(lengths[0]), output=str(lengths[1]))  # fmt: skip
    try:
        found = fit_answer(words, changes=False)
    except GlmplanError:
        return None
    if found.verdict != "fits" or not found.users:
        return None
    what = f"{name}-{form} {engine} TP{tp} on {part}, {lengths[0]} in and {lengths[1]} out"
    return Plan(what, name, form, engine, part, tp, lengths, found.users, users_table(found, 120),
                fit_sections(found, 400)["basis"])  # fmt: skip


@cache
def pairs():
    """Pairs of plans that can be served, alike but for a faster part of the same family."""
    found = []
    for number in count():
        name, form, parts, engine, tp, lengths = draw(number)
        one = plan(name, form, parts[0], engine, tp, lengths)
        other = one and plan(name, form, parts[1], engine, tp, lengths)
        if one and other:
            found.append((one, other))
            if 2 * len(found) >= PLANS:
                return found


def plans():
    for both in pairs():
        yield from both


def rows():
    for one in plans():
        for row in one.users:
            yield one, row, f"{one.what}, {row.users} users"


def broken(cases):
    """All that does not hold, for a thousand plans are drawn to be counted."""
    found = list(cases)
    assert not found, f"{len(found)} broken:\n" + "\n".join(found[:50])


def weights_read(one: Plan) -> float:
    """By hand: what one token reads of the weights at least, 0 where a model looks parts of them up [B]"""
    model = load_model(one.model)
    checkpoint = next(each for each in model.checkpoints if each.name == one.form)
    counted = model_parameters(model)
    # what a token need not read and files keep in more bits than the rest: both ends, drafting layers, a tower
    ends = (1 if model.tied_embedding else 2) * model.vocabulary * model.hidden
    wide = ends + counted.mtp + counted.mtp_vocabulary + model.extra_parameters
    # routed experts are nowhere stored in more bits than the other layers, of which a token uses all
    each = (checkpoint_bytes(model, checkpoint) - 2.0 * wide) / (counted.total - ends)
    return 0.0 if counted.looked_up else max(counted.active - model.vocabulary * model.hidden, 0) * max(each, 0.0)


def operations(one: Plan) -> float:
    """By hand: multiplications and additions of a prompt's token but for attention and the head, at least [FLOP]"""
    model = load_model(one.model)
    return 2.0 * max(model_parameters(model).active_prompt - model.vocabulary * model.hidden, 0)


def test_as_many_plans_are_looked_at_as_were_asked_for_on_every_part():
    assert len(list(plans())) >= PLANS
    assert {one.part for one in plans()} == {part for both in PAIRS for part in both}


def test_no_end_of_an_interval_is_beyond_the_bound_that_the_answer_tells():
    def beyond():
        for _, row, what in rows():
            for name in ("ttft", "tpot"):
                figure = getattr(row, name)
                if figure is not None and figure.best is not None and figure.best > figure.low * (1 + SUMS):
                    yield f"{what}: {name} {figure}"
            rate = row.total_rate
            if rate.best is not None and rate.high > rate.best * (1 + SUMS):
                yield f"{what}: total {rate}"

    broken(beyond())


def test_no_end_of_an_interval_beats_the_roofline_counted_by_hand():
    def beating():
        for one, row, what in rows():
            machine = load_accelerator(one.part)
            bytes_per_s, flop_per_s = one.tp * machine.memory_bandwidth, one.tp * max(machine.peak.values())
            least = BY_HAND * weights_read(one) / bytes_per_s
            if row.tpot is not None and row.tpot.low < least:
                yield f"{what}: TPOT {row.tpot} reads {least:.3g} s of weights"
            if row.user_rate is not None and least and row.user_rate.high > 1.0 / least:
                yield f"{what}: decode {row.user_rate}, at most {1.0 / least:.4g}"
            prompt, answer = one.lengths
            reading = BY_HAND * operations(one) * prompt / flop_per_s
            if row.users == 1 and row.ttft is not None and row.ttft.low < reading:
                yield f"{what}: TTFT {row.ttft} computes {reading:.3g} s"
            most = flop_per_s / (BY_HAND * operations(one) * (1.0 + prompt / answer))
            if row.total_rate.high > most:
                yield f"{what}: total {row.total_rate}, at most {most:.4g}"

    broken(beating())


#: parts of every kind of memory and engines that serve on them: one memory with and without a published matrix rate,
#: cards with and without one, a card that is another under a power limit
OTHERS = [
    *(("mlx", part) for part in ("m1-ultra", "m2-ultra", "m3-ultra", "m4-max", "m5-max")),
    *(("llama.cpp", part) for part in ("m3-ultra", "ryzen-ai-max-395", "dgx-spark", "rtx-4090", "w7900")),
    *(("vllm", part) for part in ("dgx-spark", "rtx-5090", "rtx-pro-6000-maxq", "l20", "dgx-station-gb300")),
]
READ = [
    ("llama-3.1-8b", "bf16"), ("llama-3.1-8b", "q8_0"), ("llama-3.1-70b", "q4_k_m"), ("qwen3-32b", "bf16"),
    ("gemma-3-27b", "bf16"), ("qwen3-30b-a3b", "bf16"), ("gpt-oss-20b", "mxfp4"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "part"), OTHERS)
def test_no_end_of_a_decode_interval_reads_memory_faster_than_the_part_does(engine, part):
    """Each token reads the weights that it uses; a step of several users has a token of each."""
    found = [plan(name, form, part, engine, 1, (2048, 256)) for name, form in READ]
    found = [one for one in found if one is not None]
    assert found, "nothing is served there"
    bytes_per_s = load_accelerator(part).memory_bandwidth

    def beating():
        for one in found:
            least = BY_HAND * weights_read(one) / bytes_per_s
            for row in one.users:
                if row.tpot is not None and row.tpot.low < least:
                    yield f"{one.what}, {row.users} users: TPOT {row.tpot} reads {least:.3g} s of weights"
                if row.total_rate.high > row.users / least:
                    yield f"{one.what}, {row.users} users: total {row.total_rate}, at most {row.users / least:.4g}"

    broken(beating())


HOSTS = ("genoa-2s-direct-8", "workstation-direct-1", "turin-2s-direct-8", "quad-rtx-4090", "strix-halo", "dgx-spark")


@cache
def anywhere():
    """Plans on parts of every kind, by every engine, with the engine's own layout: one for every four pairs.

    A fourth of the questions is about parts that share the memory of the host.
    """
    shared = [name for name in accelerator_names() if load_accelerator(name).kind in ("soc", "system")]
    found = []
    for number in count():
        chance = random.Random(f"anywhere {number}{SEED}")
        name, engine = chance.choice(model_names()), chance.choice([*engine_names(), "llama.cpp", "mlx"])
        form = chance.choice([one.name for one in load_model(name).checkpoints])
        cards = [f"{many}x{part}" for many in (1, 2, 8) for part in accelerator_names()]
        on = chance.choice([*cards, *HOSTS * 8] if number % 4 else shared)
        lengths = chance.choice([(128, 128), (1024, 256), (8192, 512)])
        words = PlanRequest(name, on, weights=form, engine=engine, users=USERS, input=lengths[0], output=lengths[1])
        try:
            answer = fit_answer(words, changes=False)
        except GlmplanError:
            continue
        if answer.verdict == "fits" and answer.users:
            what = f"{name}-{form} {engine} on {on}, {lengths[0]} in and {lengths[1]} out"
            one = Plan(what, name, form, engine, "", 1, lengths, answer.users, "", "")
            found.append((one, answer.asked.machine))
        if 4 * len(found) >= PLANS:
            return found


def test_no_answer_on_any_part_reads_memory_or_computes_faster_than_its_machine():
    """Decoding by bytes has no step model of its own for one memory; the bound holds of the answer all the same."""

    def beating():
        for one, machine in anywhere():
            part, (prompt, answer) = machine.accelerator, one.lengths
            rate = machine.count * part.memory_bandwidth + (machine.host.host_memory_bandwidth or 0.0)
            least, computing = BY_HAND * weights_read(one) / rate, 0.0
            if part.peak:
                computing = BY_HAND * operations(one) / (machine.count * max(part.peak.values()))
            for row in one.users:
                what = f"{one.what}, {row.users} users"
                if row.tpot is not None and row.tpot.low < least:
                    yield f"{what}: TPOT {row.tpot} reads {least:.3g} s of weights"
                if least and row.total_rate.high > row.users / least:
                    yield f"{what}: total {row.total_rate}, at most {row.users / least:.4g}"
                if row.users == 1 and row.ttft is not None and row.ttft.low < computing * prompt:
                    yield f"{what}: TTFT {row.ttft} computes {computing * prompt:.3g} s"
                if computing and row.ttft is not None and row.total_rate.high * computing * (1 + prompt / answer) > 1:
                    yield f"{what}: total {row.total_rate} computes more than the machine does"
                if row.each_rate.low < 0.0 or not row.total_rate.low <= row.total_rate.value <= row.total_rate.high:
                    yield f"{what}: {row.total_rate} is no interval"

    assert {one.engine for one, _ in anywhere()} >= {"vllm", "llama.cpp", "mlx"}
    assert sum(machine.host.unified_memory for _, machine in anywhere()) >= PLANS // 40
    broken(beating())


def test_more_users_never_give_more_speed_to_each_nor_a_sooner_first_token():
    def gaining():
        for one in plans():
            for few, many in pairwise(one.users):
                for name, sign in (("user_rate", -1), ("each_rate", -1), ("ttft", 1)):
                    before, after = getattr(few, name), getattr(many, name)
                    if before is not None and sign * after.value < sign * before.value - SUMS * before.value:
                        yield f"{one.what}: {name} {before.value:.6g} at {few.users}, {after.value:.6g} at {many.users}"

    broken(gaining())


def test_the_total_is_users_times_what_each_has_in_the_record_and_as_printed():
    def differing():
        for one in plans():
            lines = one.table.splitlines()
            head = next(line for line in lines if line.startswith("  users"))
            for row in one.users:
                line = next(line for line in lines if line.split()[:1] == [str(row.users)])
                total, each = (printed(head, line, title) for title in ("tok/s total", "per user"))
                if abs(row.total_rate.value / (row.users * row.each_rate.value) - 1.0) > SUMS:
                    yield f"{one.what}: {row.users} × {row.each_rate} is not {row.total_rate}"
                if abs(total / (row.users * each) - 1.0) > last_digit(total) + last_digit(each):
                    yield f"{one.what}: {row.users} × {each} is not {total}, as printed"

    broken(differing())


def last_digit(value):
    """Half a unit of the last digit of a number with three digits or two decimals, as a share of it."""
    return max(DIGITS, 0.005 / value) if value < 1 else DIGITS


def printed(head, line, title):
    """The value under a title of a table: the first number of its cell."""
    end = head.index(f"  {title}") + len(title) + 2
    begin = len(head[: head.index(f"  {title}")].rstrip())
    return float(line[begin:end].split()[0].replace(",", ""))


def test_each_has_no_more_than_its_decode_speed():
    def having():
        for _, row, what in rows():
            # each waits for its first token too; among many the engine's pauses fall to fewer than all of them
            if row.user_rate is not None and row.each_rate.value > row.user_rate.value * 1.02:
                yield f"{what}: each {row.each_rate.value:.5g}, decode {row.user_rate.value:.5g}"

    broken(having())


def evidence(one):
    """What the answer prints of what it rests on: who measured it, and what of it."""
    said = [line.strip() for line in one.rests_on.splitlines()]
    found = [line for line in said if ": this model on this accelerator" in line or line.startswith("speeds: ")]
    assert len(found) == 2, one.rests_on
    return found


def is_slower(before, after, name):
    """Whether a figure of the faster part is beyond the slow end of the other's interval."""
    was, becomes = getattr(before, name), getattr(after, name)
    if was is None or becomes is None:
        return False
    return becomes.value < was.low if name == "total_rate" else becomes.value > was.high


def sides(one, other, users):
    """Both plans as `compare` has them."""
    money = money_of(today=date(2026, 11, 22))
    return [
        side_of(deployment(f"{plan.model}-{plan.form}", f"{plan.tp}x{plan.part}", engine=plan.engine, tp=plan.tp,
                           users=(users,), input=plan.lengths[0], output=plan.lengths[1]), users, money)
        for plan in (one, other)
    ]  # fmt: skip


def excused(first, other):
    """Whether `compare` names the cause where a figure that it compares is beyond the interval."""
    was, becomes = (side.prediction.figures for side in (first, other))
    beyond = [name for name in ("ttft", "tpot") if name in was and becomes[name].value > was[name].high]
    beyond += ["output_rate"] * (becomes["output_rate"].value < was["output_rate"].low)
    said = " ".join(causes_of(first, other))
    return said.count("beyond its interval") == len(beyond)


def measured_factors(first, other):
    """How many times slower the effects of measured runs make either time of the second plan."""
    found = fitted_apart(first, other)
    return {name: math.exp(sum(ratios.get(name, 0.0) for _, ratios in found)) for name in ("ttft", "tpot")}


def test_a_faster_part_of_the_family_is_not_slower_beyond_the_interval():
    """Or the cause is printed: evidence of another level, or effects of measured runs without which it is not slower.

    `compare` names either. Intervals always meet.
    """

    def slower():
        for one, other in pairs():
            for before, after in zip(one.users, other.users, strict=True):
                names = [name for name in ("ttft", "tpot", "total_rate") if is_slower(before, after, name)]
                if not names:
                    continue
                compared = sides(one, other, before.users)
                factors = measured_factors(*compared)
                for name in names:
                    was, becomes = getattr(before, name), getattr(after, name)
                    if name == "total_rate":
                        apart = becomes.high < was.low
                        by_runs = becomes.value * max(factors.values()) >= was.low
                    else:
                        apart = becomes.low > was.high
                        by_runs = becomes.value / factors[name] <= was.high
                    if apart or (evidence(one) == evidence(other) and not by_runs):
                        yield f"{other.what}: {name} at {before.users} {becomes}, {was} on {one.part}"
                if not excused(*compared):
                    yield f"{other.what}: compare says no cause for {names} at {before.users}, slower than {one.part}"

    broken(slower())


@pytest.mark.parametrize("users", [1, 7, 128])
def test_what_each_has_is_said_in_every_form_of_an_answer(users):
    from glmplan.present.json_answers import fit_record

    found = fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm", users=str(users)))
    (row,) = found.users
    told = fit_record(found)["users"][0]
    total, each = told["output_tokens_per_s"]["value"], told["output_tokens_per_s_per_user"]["value"]
    assert total == pytest.approx(users * each, rel=1e-3)
    frame = found.to_frame("users").iloc[0]
    assert frame["output_tokens_per_s"] == pytest.approx(users * frame["output_tokens_per_s_per_user"])
    assert row.each_rate.low <= row.each_rate.value <= row.each_rate.high
