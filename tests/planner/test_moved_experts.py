"""Experts of some layers in host memory: the number of layers, their cost, and the options of llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from glmplan.costs.network.links import host_transfer_rate
from glmplan.errors import SpecError, UnknownFact
from glmplan.planner.ask import deployment
from glmplan.planner.make_plan import fit_answer
from glmplan.planner.moved_experts import DISK_RATE, all_moved, movable_layers, moved_words
from glmplan.planner.ranking import deployment_of
from glmplan.planner.traffic_search import described_under
from glmplan.planner.users import hazards_of, solve
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_answer import figures_of
from glmplan.purchase.size_question import read_size
from glmplan.purchase.sweep import swept
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.spec import Traffic

HOST = """
title = "one socket"
source = "made up for this test"
[[sockets]]
name = "cpu0"
cpu = "made up"
cores = 72
memory_size = "{memory} GB"
memory_bandwidth = "800 GB/s"
[[roots]]
name = "root0"
socket = "cpu0"
[[cards]]
accelerator = "rtx-pro-6000-server"
count = {cards}
parent = "root0"
link = {{ generation = 5, lanes = 16 }}
"""


@pytest.fixture
def plan(tmp_path):
    def made(model="glm-5.1", *, memory=1152, cards=1, engine="llama.cpp", weights="q4_k_m", drive=None):
        file = tmp_path / "machine.toml"
        drives = f'[[devices]]\nname = "drive0"\nkind = "nvme"\nbandwidth = "{drive}"\n' if drive else ""
        file.write_text(HOST.format(memory=memory, cards=cards) + drives)
        return fit_answer(PlanRequest(model, str(file), weights=weights, engine=engine), changes=False)

    return made


def test_as_few_layers_move_as_the_slots_need(plan):
    answer = plan()
    moved = answer.asked.settings.host_experts * 75
    assert answer.verdict == "fits"
    assert answer.holding.held_low >= 4  # slots that llama-server starts
    fewer = replace(answer.asked.settings, host_experts=(moved - 1) / 75)
    assert solve(answer.asked.but(settings=fewer)).best.held_low < 4
    # three dense layers lead
    assert f"--n-cpu-moe {round(moved) + 3}" in answer.command


def test_memory_and_time_count_the_same_experts(plan):
    answer = plan()
    every = all_moved(answer.asked.model, answer.asked.checkpoint)
    share = answer.asked.settings.host_experts
    assert answer.holding.host == pytest.approx(share * float(every.held_bytes[0]), rel=1e-9)
    offload = answer.deployment.offload
    assert (offload.placement.unit, offload.placement.share, offload.streams_above) == ("expert-layers", share, 31)


def test_decode_reads_the_moved_experts_from_host_memory(plan):
    answer = plan()
    # 8 of 256 experts of each moved layer at 800 GB/s at most
    least = answer.holding.host * 8 / 256 / 800e9
    assert answer.users[0].tpot.value > least


def test_several_accelerators_keep_the_same_share(plan):
    answer = plan(cards=2)
    (words,) = [word for word in answer.command if word.startswith("-ot")]
    chosen = [int(number) for number in words.split("(")[1].split(")")[0].split("|")]
    assert set(chosen) <= set(movable_layers(answer.asked.model))
    assert len(chosen) == round(answer.asked.settings.host_experts * 75)
    # the output counts as a layer: 40 and 38 layers
    shares = sum(n < 40 for n in chosen) / 37, sum(n >= 40 for n in chosen) / 38
    assert shares[0] == pytest.approx(shares[1], abs=1 / 37)


@pytest.mark.parametrize("on", ["rtx-5090+rtx-3090", "rtx-3090+rtx-5090", "2xrtx-4060-ti-16gb+rtx-3090+rtx-5090"])
def test_accelerators_of_several_kinds_keep_the_same_share_of_their_layers(on):
    asked = PlanRequest("qwen3-235b-a22b", on, weights="q4_k_m", engine="llama.cpp", host_memory="192GB",
                        host_memory_bandwidth="96GB/s")  # fmt: skip
    answer = fit_answer(asked, changes=False)
    (words,) = [word for word in answer.command if word.startswith("-ot")]
    chosen = [int(number) for number in words.split("(")[1].split(")")[0].split("|")]
    share = answer.asked.settings.host_experts
    assert len(chosen) == round(share * 94)
    # 94 layers and the output: the first layer of an accelerator is the first beyond the shares before it
    ends = [sum(answer.asked.machine.shares[: n + 1]) * 95 for n in range(len(answer.asked.machine.shares))]
    starts = [0.0, *ends[:-1]]
    for start, end in zip(starts, ends, strict=True):
        own = [n for n in range(94) if start <= n < end]
        moved = sum(n in chosen for n in own)
        assert moved == pytest.approx(share * len(own), abs=1)


def test_prompts_fetch_experts_over_one_link_in_every_step():
    """Steps of a quarter of the tokens fetch the same weights four times, and nothing is prepared before."""
    words = PlanRequest("gpt-oss-120b-mxfp4-gguf", "1xrtx-3090", host_memory="64GB", host_memory_bandwidth="51GB/s",
                        input=4096, output=128, users=(1,))  # fmt: skip
    few, many = (fit_answer(words.but(max_num_batched_tokens=tokens), changes=False) for tokens in (512, 2048))
    side = deployment_of(few.asked, few.holding.terms).offload.side
    assert not side.prepares and side.link == pytest.approx(host_transfer_rate(few.asked.machine.host, members=(0,)))
    times = [answer.users[0].ttft.value for answer in (few, many)]
    assert 2.5 < times[0] / times[1] < 4.0  # the rest of a step takes the same time for each token


def test_weights_beyond_host_memory_are_bounded_by_the_drive(plan):
    answer = plan(memory=256)
    assert answer.verdict == "does_not_fit"
    missing = answer.holding.host - 256e9
    assert answer.holding.host_short == pytest.approx(missing)
    bound = DISK_RATE / (missing * 8 / 256)
    assert f"below {bound:.3g} tok/s, {missing * 8 / 256 / 1e9:.3g} GB of each token" in answer.reasons[0]


def test_the_stated_rate_of_a_drive_replaces_that_of_the_fastest_link(plan):
    free, stated = (plan(memory=256, drive=rate).reasons[0] for rate in (None, "3.15 GB/s"))
    below = [float(text.split("below ")[1].split()[0]) for text in (free, stated)]
    assert below[0] / below[1] == pytest.approx(DISK_RATE / 3.15e9, rel=0.01)
    assert "the 3.15 GB/s of the drive" in stated


def test_pinned_weights_have_no_bound_by_the_drive(plan):
    answer = plan("kimi-k2.5", memory=256, engine="ktransformers", weights="int4")
    assert answer.verdict == "does_not_fit"
    assert "pinned" in answer.reasons[0]


@pytest.mark.parametrize(
    ("model", "engine", "weights"), [("llama-3.1-405b", "vllm", "fp8"), ("glm-5.1", "vllm", "fp8")]
)
def test_other_engines_move_none(plan, model, engine, weights):
    answer = plan(model, engine=engine, weights=weights)
    assert (answer.verdict, answer.asked.settings.host_experts) == ("does_not_fit", 0.0)


def test_a_dense_model_moves_feed_forward_matrices(plan):
    answer = plan("llama-3.1-405b", memory=512)
    moved = round(answer.asked.settings.host_experts * 126)
    assert answer.verdict == "fits" and 0 < moved < 126
    (words,) = [word for word in answer.command if word.startswith("-ot")]
    assert words == r'-ot "blk\.(' + "|".join(map(str, range(moved))) + r')\.ffn_(up|down|gate)\.weight=CPU"'
    # three matrices of 16,384 x 53,248 a layer, all read for each token
    size = moved * 3 * 16384 * 53248 * 4.89 / 8
    assert answer.holding.host == pytest.approx(size, rel=0.01)
    assert answer.users[0].tpot.value > size / 800e9
    assert answer.deployment.offload.placement.unit == "expert-layers"


def test_a_host_of_unknown_bandwidth_is_asked_for():
    answer = fit_answer(PlanRequest("glm-5.1", "1xrtx-5090", weights="q4_k_m", engine="llama.cpp"), changes=False)
    assert answer.verdict == "does_not_fit"
    assert "--host-memory 512GB --host-memory-bandwidth" in answer.reasons[1]


def test_a_host_of_known_size_is_asked_for_its_bandwidth_alone():
    words = PlanRequest("glm-5.1", "1xrtx-5090", weights="q4_k_m", engine="llama.cpp", host_memory="768GB")
    do = fit_answer(words, changes=False).reasons[1]
    assert "--host-memory-bandwidth" in do and "--host-memory " not in do


def test_safe_and_simulate_take_the_plan_that_fit_moves_to_host_memory(plan):
    asked = plan("qwen3-235b-a22b", weights="q4_k_m").asked
    found, _ = described_under(asked.request, [Traffic(kind="closed", users=2)])
    planned = found.plan[0]
    assert planned.settings.host_experts == asked.settings.host_experts > 0
    assert found.service.pool.tokens >= asked.request_tokens


#: parameters of a layer of Llama-3.1-70B: queries and outputs, keys and values, three feed-forward matrices, two norms
LAYER = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
#: keys and values of a token in a layer in F16: 8 heads of 128 [B]
CACHE = 2 * 8 * 128 * 2


@pytest.fixture
def layered(tmp_path):
    file = tmp_path / "machine.toml"
    file.write_text(HOST.format(memory=128, cards=1))

    def made(**options):
        asked = {"weights": "bf16", "engine": "llama.cpp", "users": (1,), "input": 2048, "output": 512} | options
        return fit_answer(PlanRequest("llama-3.1-70b", str(file), **asked), changes=False)

    return made


def test_gpu_layers_leave_leading_layers_and_their_cache_to_the_host(layered):
    # the output is one of 41 layers: 40 of 80 are in host memory
    answer = layered(gpu_layers=41)
    weights, cache = 40 * LAYER * 2, 40 * CACHE * 2560
    assert answer.holding.host == pytest.approx(weights + cache, rel=1e-4)
    held = answer.ranks[0]
    assert sum(held.weights.values()) == pytest.approx(weights + 2 * 128256 * 8192 * 2, rel=1e-3)
    assert held.per_token == 40 * CACHE
    assert answer.command[2] == "-ngl 41" and "--no-kv-offload" not in answer.command
    assert moved_words(answer.asked, answer.holding).startswith("40 of 80 layers in host memory (")


@pytest.mark.parametrize(("weights", "drafting"), [("q4_k_m", 1), ("q4_k_xl", 0)])
def test_mtp_layers_of_a_file_count_among_gpu_layers(tmp_path, weights, drafting):
    """The log of GLM-4.6 (92 layers and one MTP layer) ends at 94 of 94 layers; the MTP layer is before the output."""
    file = tmp_path / "machine.toml"
    file.write_text(HOST.format(memory=512, cards=1))
    model = "glm-4.7" if drafting else "glm-4.6"

    def away(layers):
        asked = PlanRequest(model, str(file), weights=weights, engine="llama.cpp", gpu_layers=layers)
        return fit_answer(asked, changes=False).asked.settings.host_layers

    assert [away(n) for n in (92, 93, 94)] == ([2, 1, 0] if drafting else [1, 0, 0])
    assert away(1) == 92


def test_experts_of_an_mtp_layer_stay_on_the_accelerators(tmp_path):
    # --n-cpu-moe names the first layers, and MTP layers come after the last
    file = tmp_path / "machine.toml"
    file.write_text(HOST.format(memory=512, cards=1))
    asked = {"weights": "q4_k_m", "engine": "llama.cpp", "users": (1,)}
    one, drafting = (
        fit_answer(PlanRequest("glm-4.7", str(file), mtp=mtp, **asked), changes=False).holding for mtp in (0, 1)
    )
    assert one.memory.settings.offloaded and drafting.memory.settings.offloaded
    share = drafting.memory.settings.offloaded / one.memory.settings.offloaded
    assert drafting.host == pytest.approx(one.host * share)


def test_decode_of_gpu_layers_reads_half_of_the_weights_from_each_memory(layered):
    answer = layered(gpu_layers=41)
    (host, device) = 40 * LAYER * 2 / 800e9, 40 * LAYER * 2 / 1.6e12
    assert answer.users[0].tpot.value > host + device
    fewer = layered(gpu_layers=31)
    assert fewer.users[0].tpot.value - answer.users[0].tpot.value > 10 * LAYER * 2 * (1 / 800e9 - 1 / 1.6e12)


def test_more_layers_than_the_accelerator_holds_are_refused_with_the_option(layered):
    answer = layered(gpu_layers=75)
    assert answer.verdict == "does_not_fit" and "--gpu-layers" in answer.reasons[1]


def test_no_kv_offload_moves_the_cache_of_every_layer(layered):
    answer = layered(gpu_layers=41, no_kv_offload=True)
    assert answer.holding.host == pytest.approx(40 * LAYER * 2 + 80 * CACHE * 2560, rel=1e-4)
    assert answer.ranks[0].per_token == 0 and answer.ranks[0].cache == 0
    room = (128e9 - 40 * LAYER * 2) / (80 * CACHE * 2560)
    assert answer.holding.held == int(room)
    assert "--no-kv-offload" in answer.command


@pytest.mark.parametrize(
    ("options", "away"), [({"gpu_layers": 41}, 40), ({"no_kv_offload": True, "gpu_layers": 41}, 80)]
)
def test_the_pool_is_counted_where_it_is(layered, options, away):
    answer = layered(**options)
    held, on_card = answer.holding, CACHE * (80 - away)
    assert held.host_pool == pytest.approx(away * CACHE * held.pool.tokens)
    # a pool takes all that weights and buffers leave of an accelerator, unless its tokens are elsewhere
    assert (held.pool_bytes >= on_card * held.pool.tokens) if on_card else held.pool_bytes == 0
    assert answer.ranks[0].cache == pytest.approx(max(held.pool_bytes, 0))
    assert held.host_weights == pytest.approx(40 * LAYER * 2, rel=1e-4)


def test_a_server_leaves_host_memory_to_other_processes(layered):
    # -c is reserved at start: more than four fifths of 128 GB would be weights and cache
    answer = layered(gpu_layers=41, no_kv_offload=True, users=(8,))
    words = next(one for one in answer.command if one.startswith("-c "))
    assert answer.holding.host_weights + 80 * CACHE * int(words.split()[1]) <= 0.8 * 128e9 + 80 * CACHE * 256
    full = int(answer.holding.held)
    found = [{one.id for one in hazards_of(answer.asked, answer.holding, users=n, longest=2560)} for n in (8, full)]
    assert ["host-memory-overcommit" in one for one in found] == [False, True]


def test_the_cache_in_host_memory_limits_requests_as_accelerators_do(layered):
    # with 70 layers in host memory the accelerator holds 10 layers of many more requests than the host
    answer = layered(gpu_layers=11)
    room = (128e9 - 70 * LAYER * 2) / (70 * CACHE * 2560)
    assert answer.holding.held == max(int(room), 0)
    assert answer.verdict == ("fits" if room >= 1 else "does_not_fit")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu_layers": 0}, "1 keeps the output alone"),
        ({"gpu_layers": 41, "engine": "vllm"}, "give --engine llama.cpp"),
        ({"no_kv_offload": True, "on": "1xrtx-4090"}, "--host-memory"),
        ({"gpu_layers": 41, "on": "1xdgx-spark"}, "leave it out"),
    ],
)
def test_layers_that_cannot_be_placed_are_refused_with_the_next_step(options, said):
    given = {"model": "llama-3.1-70b", "on": "1xrtx-4090", "weights": "bf16", "engine": "llama.cpp"} | options
    with pytest.raises(SpecError, match=said):
        fit_answer(PlanRequest(**given))


@pytest.mark.parametrize(
    ("on", "said"), [("1xrtx-5080", "memory bandwidth of the host"), ("1xgh200-96gb", "bandwidth of gh200-96gb")]
)
def test_an_unknown_speed_names_the_missing_fact(on, said):
    words = PlanRequest("llama-3.1-8b", on, weights="q4_k_m", engine="llama.cpp", gpu_layers=20)
    answer, [traffic] = fit_answer(words, changes=False), [Traffic(kind="closed", users=1)]
    assert answer.unknown
    with pytest.raises(UnknownFact, match=said):
        described_under(words, [traffic])


def test_no_cache_of_fewer_bits_saves_a_layer_in_host_memory(tmp_path):
    file = tmp_path / "machine.toml"
    file.write_text(HOST.format(memory=64, cards=1).replace("rtx-pro-6000-server", "rtx-5080"))
    for users in (1, 2, 3, 4):
        words = PlanRequest("qwen3-32b", str(file), weights="q4_k_m", engine="llama.cpp", users=(users,))
        answer = fit_answer(words, changes=False)
        assert answer.asked.settings.host_experts > 0 and answer.holding.terms.kv == "f16"


def test_a_plan_of_another_engine_that_does_not_fit_names_the_one_beside_host_memory(tmp_path):
    file = tmp_path / "machine.toml"
    file.write_text(HOST.format(memory=512, cards=1))
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", str(file), users=(1,)))
    assert answer.verdict == "does_not_fit" and answer.asked.engine == "vllm"
    found = [one for one in answer.changes if "in host memory" in one.what]
    assert found and all("--engine " in one.ask and one.verdict in ("fits", "tight") for one in found)
    asked = answer.asked.request.but(engine="llama.cpp", weights=found[0].ask.split("--weights ")[1].split()[0])
    again = fit_answer(asked, changes=False)
    assert f"{again.asked.settings.host_experts * 75:.0f} of 75 layers" in found[0].what


def test_every_command_moves_weights_as_fit_does(plan, tmp_path):
    """`sweep` and `size` said that a machine does not hold the weights which `fit` moves to its host memory."""
    answer = plan()
    file, share = str(tmp_path / "machine.toml"), answer.asked.settings.host_experts
    planned = deployment("glm-5.1-q4_k_m", file, engine="llama.cpp")
    assert planned.asked.settings.host_experts == share > 0
    rows = swept(read_sweep({"model": "glm-5.1-q4_k_m", "on": file, "users": "1,4", "engine": "llama.cpp"})).to_frame()
    assert set(rows["verdict"]) == {"fits"} and rows["host_weights"].str.contains("in host memory").all()
    own = tmp_path / "own.toml"
    own.write_text('[[machine]]\non = "machine.toml"\n[[model]]\nmodel = "glm-5.1"\nusers = 1\n')
    asked = read_size("glm-5.1", "tpot p95 < 1 s", users=1, inventory=str(own), weights="q4_k_m", engine="llama.cpp")
    found = sized(asked, money_of(today=date(2026, 11, 22)))
    [option] = found.options
    assert option.planned.holding.host > 0
    assert "in host memory" in figures_of(option, found)["host_weights"]


def test_the_given_bandwidth_of_host_memory_moves_experts_there():
    said = {"model": "glm-5.1", "on": "1xrtx-5090", "users": (1,)}
    without = fit_answer(PlanRequest(**said), changes=False)
    given = fit_answer(PlanRequest(**said, host_memory="768 GB", host_memory_bandwidth="460 GB/s"), changes=False)
    assert without.verdict == "does_not_fit" and any("--host-memory-bandwidth" in one for one in without.reasons)
    assert given.verdict == "fits" and given.asked.engine == "llama.cpp" and given.asked.settings.host_experts > 0
    assert given.asked.machine.host.host_memory_bandwidth == 460e9
    small = PlanRequest(**said, host_memory="64 GB", host_memory_bandwidth="460 GB/s")
    assert fit_answer(small, changes=False).verdict == "does_not_fit"


def test_a_model_without_a_listed_file_asks_for_one():
    answer = fit_answer(PlanRequest("kimi-k2.6", "1xrtx-5090", users=(1,)), changes=False)
    [do] = [one for one in answer.reasons if one.startswith("do: ")]
    assert "--weights q4_k_m --host-memory" in do


def test_faster_host_memory_never_makes_moved_experts_slower():
    rates = []
    for bandwidth in (50e9, 100e9, 400e9):
        words = PlanRequest(
            "glm-5.1-q4_k_m", "1xrtx-5090", host_memory=768e9, host_memory_bandwidth=bandwidth, users=(1,)
        )
        rates.append(fit_answer(words, changes=False).users[0].tpot.value)
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_a_plan_without_an_answer_names_the_command_that_has_one():
    apart = fit_answer(PlanRequest("llama-3.1-8b", "2xh100-sxm", disaggregated="1:1", tp=1), changes=False)
    assert apart.users and "glmplan safe --slo" in apart.reply.words
    without = fit_answer(PlanRequest("llama-3.1-8b", "1xrtx-5080", engine="llama.cpp", weights="q4_k_m", gpu_layers=20))
    assert not without.users and without.reply.words == "Unknown"
