"""A sweep says of each point what `predict` says of it alone, keeps what does not work, and can be stopped."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glmplan
from glmplan.costs.points import StepPoints
from glmplan.errors import SpecError
from glmplan.prediction.effects import KNOWN_AS
from glmplan.prediction.evidence import evidence_from_fit, evidence_of_points
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.frontier import frontier
from glmplan.purchase.money import money_of
from glmplan.purchase.step_histograms import StepTable
from glmplan.purchase.sweep import Checkpoints, blocks_of, swept, write_table

TODAY = date(2026, 11, 22)
SMALL = {"model": "llama-3.1-8b", "on": "1..2xh100-sxm", "users": "1,12", "input": "900,7000", "output": 150}


@pytest.mark.parametrize(
    ("model", "on", "words"),
    [
        ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", {}),
        ("glm-5.1-fp8", "8xh200-sxm", {"mtp": 3}),
        ("gpt-oss-120b", "2xh100-sxm", {"engine": "sglang"}),
        ("deepseek-r1", "8xb200-sxm", {"engine": "trtllm"}),
        ("llama-3.1-8b", "3xl40s", {"tp": 1, "pp": 1, "dp": 1}),
        ("qwen3-32b", "1xh200-sxm", {"weights": "fp8", "drafter": "ngram", "mtp": 3, "acceptance": 0.6}),
    ],
)
@pytest.mark.parametrize(("users", "within"), [([1, 7, 40], 0.0), ([1, 3, 7, 12, 20, 40], 1e-3)])
def test_every_point_says_what_predict_says_of_it_with_the_same_interval(model, on, words, users, within):
    """Few loads are predicted themselves; more are read from a table, whose rows say how near it is."""
    axes = {"model": model, "on": on, "users": users, "input": [600, 5000], "output": [300], **words}
    sweep = read_sweep(axes)
    [block] = blocks_of(sweep)
    assert block.facts["within"] == within
    degrees = {}
    for place in np.flatnonzero(block.verdict <= 1):
        inputs, outputs = int(sweep.inputs[place]), int(sweep.outputs[place])
        if not degrees:
            longest = {"input": int(sweep.inputs.max()), "output": outputs}
            terms = glmplan.deployment(model, on, users=(40,), **longest, **words).holding.terms
            degrees = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp", "kv", "replicas")}
        planned = glmplan.deployment(model, on, input=inputs, output=outputs, **(words | degrees))
        alone = glmplan.predict(planned, users=int(sweep.users[place])).figures
        for name in ("ttft", "tpot", "output_rate"):
            for end, word in (("", "value"), ("_low", "low"), ("_high", "high")):
                assert block.figures[name + end][place] == pytest.approx(getattr(alone[name], word), rel=within or 1e-9)


@pytest.mark.parametrize("exact", [False, True])
def test_no_point_of_a_sweep_beats_what_the_part_allows(exact):
    # seven stages that nobody measured: the interval is so wide that its quick end would read weights too fast
    axes = {
        "model": "glm-5.1-nvfp4",
        "on": "7xrtx-pro-6000-ws",
        "tp": 1,
        "pp": 7,
        "users": "1,4,8,12,20",
        "input": "500,8000",
    }
    sweep = read_sweep(axes | {"output": 200})
    [block] = blocks_of(sweep, exact=exact)
    assert block.facts["within"] == (0.0 if exact else 1e-3)
    bound = []
    for place in np.flatnonzero(block.verdict <= 1):
        inputs = int(sweep.inputs[place])
        planned = glmplan.deployment("glm-5.1-nvfp4", "7xrtx-pro-6000-ws", tp=1, pp=7, input=inputs, output=200)
        best = glmplan.predict(planned, users=int(sweep.users[place])).figures["tpot"].best
        assert block.figures["tpot_low"][place] >= best * (1 - 1e-3)
        bound.append(block.figures["tpot_low"][place] <= best * (1 + 1e-3))
    assert len(bound) >= 4 and any(bound)


def test_timing_every_step_and_reading_tables_of_steps_agree():
    sweep = read_sweep({"model": "glm-5.1-nvfp4", "on": "8xb200-sxm", "users": "1..20*6", "input": "300..20000*5"})
    [one], [other] = blocks_of(sweep), blocks_of(sweep, exact=True)
    assert (one.verdict == other.verdict).all()
    for name, values in one.figures.items():
        np.testing.assert_allclose(values, other.figures[name], rtol=1e-3, err_msg=name)


def test_a_table_holds_steps_on_both_sides_of_where_shared_experts_stop_running_beside():
    # prompts of about 256 tokens on eight B200, where one token more takes 1.3 ms more
    axes = {"model": "deepseek-r1", "on": "8xb200-sxm", "tp": 8, "users": "1..12", "input": "230,250,256,257,300,900"}
    sweep = read_sweep(axes | {"output": 40})
    [one], [other] = blocks_of(sweep), blocks_of(sweep, exact=True)
    assert one.facts["within"] == 1e-3
    for name, values in one.figures.items():
        np.testing.assert_allclose(values, other.figures[name], rtol=1e-3, err_msg=name)


def test_intervals_of_many_loads_are_those_of_each_alone():
    from glmplan.prediction.effects import TTFT_SCALE, keys_of, load_effects
    from glmplan.prediction.evidence import KINDS
    from glmplan.prediction.load import Load

    deployed = glmplan.deployment("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws").deployment
    fit, keys = load_effects(deployed.engine), keys_of(deployed)
    total, levels = fit.sum_of(keys)
    loads = list(product((1, 3, 60, 3000), (10, 1000, 180_000), (5, 900, 30_000)))
    many = evidence_of_points(deployed, *np.array(loads, dtype=float).T, fit=fit)
    for place, load in enumerate(loads):
        one = Load(*map(float, load), phase="serving")
        alone = evidence_from_fit(deployed, one, keys, levels, float(total[TTFT_SCALE]), fit)
        assert (many.knowledge, many.ttft_scale) == (alone.knowledge, alone.ttft_scale)
        assert set(many.ends) == set(KINDS)
        for kind, (lows, highs) in many.ends.items():
            assert (lows[place], highs[place]) == pytest.approx(alone.ends[kind], rel=1e-12)


def test_what_does_not_work_keeps_its_rows_with_the_reason():
    sweep = read_sweep({"model": "glm-5.1-nvfp4", "on": "2xrtx-5090,6xrtx-pro-6000-ws", "users": "1,500", "tp": "2,3",
                        "context": "8000,202000", "output": 500})  # fmt: skip
    frame = swept(sweep).to_frame()
    assert len(frame) == sweep.points == 16
    works = frame["verdict"].isin(["fits", "tight"])
    assert works.any() and frame.loc[works, "tpot_mean_ms"].notna().all()
    assert frame.loc[~works, "tpot_mean_ms"].isna().all()
    reasons = frame.loc[~works, "reason"]
    assert (reasons.str.len() > 10).all()
    assert reasons.str.contains("does not fit 2xrtx-5090").any()
    assert reasons.str.contains("64 attention heads").any()  # TP3
    assert reasons.str.contains("KV pool holds").any()


def test_more_requests_than_the_engine_has_places_for_are_not_possible():
    sweep = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "users": "8,9", "max_num_seqs": 8, "input": 100})
    [block] = blocks_of(sweep)
    frame = swept(sweep).to_frame()
    assert frame["verdict"].tolist() == ["fits", "does_not_fit"]
    assert "at most 8 requests at once, not 9" in frame["reason"][1] and block.facts["places"] == 8


def test_a_machine_with_one_memory_is_swept_too_and_lacks_what_nobody_can_time():
    sweep = read_sweep({"model": "glm-5.1", "weights": "mxfp4", "on": "1xm3-ultra", "users": "1", "input": 500})
    [block] = blocks_of(sweep)
    assert block.figures["tpot"][0] > 0 and np.isnan(block.figures["ttft"][0])


def test_a_sweep_that_was_stopped_goes_on_and_ends_as_if_it_had_not_been(tmp_path):
    sweep = read_sweep(SMALL)
    whole = swept(sweep, money=money_of(today=TODAY)).to_frame()
    kept = Checkpoints(tmp_path / "a.csv", sweep, {"price": None})
    kept.start()

    def keep(block):
        kept.keep(block)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(sweep, money=money_of(today=TODAY), keep=keep)
    done = kept.read()
    assert [one.number for one in done] == [0]
    seen = []
    again = swept(sweep, money=money_of(today=TODAY), done=done, keep=lambda block: seen.append(block.number))
    assert seen == [1] and again.whole
    assert again.to_frame().to_csv() == whole.to_csv()


def test_a_checkpoint_with_the_old_name_of_the_evidence_is_read(tmp_path):
    """The column `evidence` was `knowledge`: a sweep that an earlier release began goes on with one column."""
    sweep = read_sweep(SMALL)
    whole = swept(sweep)
    assert set(whole.to_frame()["evidence"]) <= set(KNOWN_AS) and "knowledge" not in whole.to_frame()
    kept = Checkpoints(tmp_path / "a.csv", sweep, {})
    kept.start()
    first = whole.blocks[0]
    assert "evidence" in first.facts
    old = {"knowledge" if name == "evidence" else name: value for name, value in first.facts.items()}
    kept.keep(replace(first, facts=old))
    assert swept(sweep, done=kept.read()).to_frame().to_csv() == whole.to_frame().to_csv()


def test_parts_of_another_sweep_are_not_taken_for_those_of_this_one(tmp_path):
    Checkpoints(tmp_path / "a.csv", read_sweep(SMALL), {}).start()
    with pytest.raises(SpecError, match="another sweep"):
        Checkpoints(tmp_path / "a.csv", read_sweep(SMALL | {"users": "2"}), {}).read()


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_tables_are_written_and_read_again(tmp_path, ending):
    import pandas as pd

    frame = swept(read_sweep(SMALL)).to_frame()
    path = tmp_path / f"a.{ending}"
    write_table(frame, path)
    again = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}[ending](path)
    assert list(again.columns) == list(frame.columns)
    np.testing.assert_allclose(again["tpot_mean_ms"], frame["tpot_mean_ms"], rtol=1e-5)


def test_money_and_energy_of_a_point_follow_from_its_speed():
    money = money_of(["electricity=0.1"], ["utilisation=0.5"], today=TODAY)
    frame = swept(read_sweep(SMALL | {"on": "1xrtx-pro-6000-ws"}), money=money).to_frame()
    row = frame.iloc[1]
    tokens = row["output_tokens_per_s"] * 0.5 * 730 * 3600
    assert row["usd_per_million_output_tokens"] == pytest.approx(row["usd_month"] / tokens * 1e6)
    both = tokens * (1.0 + row["input_tokens"] / row["output_tokens"])
    assert row["usd_per_million_tokens"] == pytest.approx(row["usd_month"] / both * 1e6)
    assert row["joules_per_output_token"] == pytest.approx(0.75 * 600 / row["output_tokens_per_s"])


def test_a_power_limit_costs_what_serving_was_measured_to_lose():
    # voipmonitor/rtx6kpro hardware/gpu-configs.md, MiniMax-M2.5 NVFP4 on four cards: 600 W against 300 W gains 4, 17,
    # 26 and 30 % for 4, 16, 32 and 64 users, 500 W nearly as much
    axes = {"model": "minimax-m2.5-nvfp4", "on": "4xrtx-pro-6000-ws", "tp": 4, "input": 1000, "output": 500}
    frame = swept(read_sweep(axes | {"users": "1,4,16,32,64", "power_limit": "300W,500W,600W"})).to_frame()
    rates = frame.pivot(index="users", columns="power_limit", values="output_tokens_per_s")
    gain = rates[600.0] / rates[300.0] - 1.0
    assert gain.tolist() == pytest.approx([0.04, 0.04, 0.17, 0.26, 0.30], abs=0.015)
    assert (rates[500.0] / rates[600.0]).between(0.985, 1.0).all()


def test_a_limit_that_a_part_does_not_have_keeps_its_row_with_the_reason():
    axes = {"model": "llama-3.1-8b", "on": "1xrtx-pro-6000-ws,1xh100-sxm", "input": 500, "output": 100}
    frame = swept(read_sweep(axes | {"power_limit": "200W,450W,700W,750W"})).to_frame()
    reasons = frame.groupby("on")["reason"].apply(list)
    assert reasons["1xrtx-pro-6000-ws"][:2] == ["", ""] and reasons["1xh100-sxm"][:3] == ["", "", ""]
    assert all("above the 600 W of rtx-pro-6000-ws" in one for one in reasons["1xrtx-pro-6000-ws"][2:])
    assert "above the 700 W of h100-sxm" in reasons["1xh100-sxm"][3]
    assert (frame["tpot_mean_ms"].notna() == (frame["reason"] == "")).all()


def test_a_limit_that_nobody_measured_is_as_uncertain_as_no_slow_down_and_one_in_proportion():
    axes = {"model": "llama-3.1-8b", "on": "1xrtx-pro-6000-ws,1xh100-sxm", "input": 500, "output": 100}
    frame = swept(read_sweep(axes | {"power_limit": "200W,450W,600W,700W"})).to_frame().set_index(["on", "power_limit"])
    tpot, low, high = (frame[f"tpot_mean_ms{end}"] for end in ("", "_low", "_high"))
    rated = tpot["1xh100-sxm", 700.0]
    assert rated < tpot["1xh100-sxm", 450.0] < tpot["1xh100-sxm", 200.0] < 700 / 200 * rated
    assert low["1xh100-sxm", 200.0] <= rated and high["1xh100-sxm", 200.0] >= 700 / 200 * rated
    # 450 W was measured on the RTX PRO 6000: no wider than at its rating; 200 W was not
    width = high / low
    assert width["1xrtx-pro-6000-ws", 450.0] == pytest.approx(width["1xrtx-pro-6000-ws", 600.0], rel=0.02)
    assert width["1xrtx-pro-6000-ws", 200.0] > 1.1 * width["1xrtx-pro-6000-ws", 450.0]


def test_ranges_and_ratios_are_spelt_out():
    sweep = read_sweep(SMALL | {"users": "1..4,8", "input": "100..10000*3", "on": "1..3xh100-sxm,8xb200-sxm"})
    assert sweep.axes["on"] == ("1xh100-sxm", "2xh100-sxm", "3xh100-sxm", "8xb200-sxm")
    assert sorted(set(sweep.users)) == [1, 2, 3, 4, 8] and sorted(set(sweep.inputs)) == [100, 1000, 10000]


def test_axes_stand_in_a_file_and_what_is_said_beside_it_counts(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text('model = ["llama-3.1-8b"]\non = "1xh100-sxm"\nusers = [1, 2, 3]\n')
    assert read_sweep({}, file=file).points == 3
    assert read_sweep({"users": "5"}, file=file).users.tolist() == [5]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"model": ""}, "--model"),
        ({"users": []}, "empty"),
        ({"users": "1,,2"}, "empty value between commas"),
        ({"users": "4..1"}, "rising"),
        ({"users": "0..4"}, "at least 1"),
        ({"users": "many"}, "whole number"),
        # no range is made before it is known to be short: a billion numbers took all memory
        ({"users": "1..1000000000"}, "1,000,000,000 values, at most 100,000"),
        ({"users": "1..1000000*1000000000"}, "at most 100,000"),
        ({"users": "1.." + "9" * 5000}, "digits|too large|whole number"),
        ({"on": "1..1000000xh100-sxm"}, "at most 4,096"),
        ({"on": "1.." + "9" * 5000 + "xh100-sxm"}, "digits|too large|whole number"),
        ({"userz": "1"}, "nearest: users"),
        ({"on": "6xrtx-pro-6000-wx"}, "rtx-pro-6000-ws"),
        ({"model": "glm-5.7"}, "glm-5"),
        ({"engine": "vlmm"}, "nearest: vllm"),
        ({"context": "4000", "input": "100"}, "conflicts with --input"),
        ({"context": "100", "output": "150", "input": None}, "not longer than"),
        ({"power_limit": "hot"}, "number with a unit"),
        ({"kv": "fp8,fp7"}, "'fp7' is not a KV cache format"),
        ({"users": "1..100000", "input": "1..100000", "output": "1"}, "20,000,000,000 points, about 53,333 minutes"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused_with_the_word(axes, said):
    with pytest.raises(SpecError, match=said):
        read_sweep(SMALL | axes)


def test_a_sweep_without_a_model_or_a_machine_is_refused():
    with pytest.raises(SpecError, match="--on"):
        read_sweep({"model": "llama-3.1-8b"})


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_the_frontier_is_what_comparing_all_with_all_finds(rows):
    names = ("user_tokens_per_s", "output_tokens_per_s", "usd_month")
    table = np.array(rows, dtype=float).reshape(-1, 3)
    better = table * (1, 1, -1)
    slow = [not any((other >= one).all() and (other > one).any() for other in better) for one in better]
    assert frontier(dict(zip(names, table.T, strict=True)), names).tolist() == slow


def test_the_frontier_of_many_rows_is_what_comparing_all_with_all_finds():
    rng, names = np.random.default_rng(3), ("user_tokens_per_s", "output_tokens_per_s", "usd_month")
    # a trade-off between the first two, prices that many rows share, and rows that are there twice
    speed = rng.uniform(1.0, 50.0, 2500)
    rows = np.stack([speed, rng.uniform(0.5, 1.0, 2500) * 1000 / speed, rng.integers(1, 6, 2500) * 1000.0], axis=1)
    rows = np.concatenate([rows, rows[:500]])
    better = rows * (1, 1, -1)
    beaten = [bool(((better >= one).all(axis=1) & (better > one).any(axis=1)).any()) for one in better]
    found = frontier(dict(zip(names, rows.T, strict=True)), names)
    assert 20 < found.sum() < 500
    np.testing.assert_array_equal(found, ~np.array(beaten))


def test_a_row_without_a_figure_is_on_no_frontier_and_an_unknown_column_is_named():
    rows = {"wall_w": np.array([np.nan, 5.0])}
    assert frontier(rows, ("wall_w",)).tolist() == [False, True]
    with pytest.raises(SpecError, match="nearest: wall_w"):
        frontier(rows, ("wal_w",))
    with pytest.raises(SpecError, match="not a column of this sweep"):
        frontier(rows, ("usd_month",))


def test_answers_of_one_token_have_the_interval_of_their_ttft_in_a_sweep_and_in_a_prediction():
    planned = glmplan.deployment("llama-3.1-8b", on="1xh100-sxm", engine="vllm", input=2000, output=1)
    found = glmplan.predict(planned, users=1).figures
    first, rate = found["ttft"], found["output_rate"]
    assert (rate.value, rate.low, rate.high) == pytest.approx(
        (1 / first.value, 1 / first.high, 1 / first.low), rel=1e-6
    )
    sweep = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "engine": "vllm", "users": "1,4", "input": 2000,
                        "output": 1})  # fmt: skip
    row = swept(sweep).to_frame().iloc[0]
    names = ("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high")
    assert [row[name] for name in names] == pytest.approx([rate.value, rate.low, rate.high], rel=0.01)


def test_an_entry_of_a_table_of_steps_is_a_step_or_the_difference_of_two():
    points = StepPoints(*np.ones((4, 3)))
    assert StepTable(points, np.array([2, -1])).values(np.array([5.0, 3.0, 1.0])).tolist() == [4.0, 3.0]


def test_users_with_a_data_parallel_rank_of_their_own_have_every_step_timed():
    axes = {"model": "glm-5.1-fp8", "on": "8xh200-sxm", "tp": 1, "dp": 8, "users": "1..14", "input": "600,5000"}
    sweep = read_sweep(axes | {"output": "100..104"})
    [one], [other] = blocks_of(sweep), blocks_of(sweep, exact=True)
    assert one.facts["within"] == 1e-3 and other.facts["within"] == 0.0
    few = sweep.users <= 8
    assert few.any() and (~few).any() and np.isfinite(one.figures["tpot"][few]).any()
    for name, values in one.figures.items():
        np.testing.assert_allclose(values[few], other.figures[name][few], rtol=1e-12, err_msg=name)


def test_rents_of_a_sweep_are_at_one_term():
    rented = replace(money_of(today=date(2026, 11, 22)), kinds=("rent",))
    sweep = read_sweep({"model": "llama-3.1-8b", "on": "1xmi355x,1xh200-sxm", "users": "8", "input": 1000})
    frame = swept(sweep, money=rented).to_frame()
    assert set(frame["paid"]) == {"rent 3 years"} and len(frame) == 2
    alone = read_sweep({"model": "llama-3.1-8b", "on": "1xh200-sxm", "users": "8", "input": 1000})
    assert set(swept(alone, money=rented).to_frame()["paid"]) == {"rent on demand"}
