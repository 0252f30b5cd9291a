"""A part that somebody describes meets the walls of its vendor, its kind and its silicon, whatever it is called."""

from __future__ import annotations

import pytest

from glmplan.catalog.engines.limitations import conditions_of, walls_for
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.own_parts import blank_line, described_part
from glmplan.catalog.files import data_folder
from glmplan.errors import SpecError, UnknownName
from glmplan.io.machines.resolve import HostMemory, resolve_machine
from glmplan.planner import fit_answer
from glmplan.request.plan import PlanRequest

#: parts of nobody's catalogue: a card and a processor for neural networks, from what their sheets would say
CARD = """
full_name = "Own card"
kind = "{kind}"
vendor = "{vendor}"
memory = "96 GB"
memory_bandwidth = "3 TB/s"
pcie_generation = 5
pcie_lanes = 16
source = "a quote"
{more}

[peak]
bf16 = "900 TFLOP/s"
"""


@pytest.fixture
def own_part(tmp_path):
    def write(vendor, kind="gpu", more=""):
        file = tmp_path / "own-card.toml"
        file.write_text(CARD.format(vendor=vendor, kind=kind, more=more), encoding="utf-8")
        return str(file)

    return write


@pytest.mark.parametrize(
    ("engine", "vendor", "kind", "wall"),
    [
        ("trtllm", "AMD", "gpu", "trtllm-on-nvidia-only"),
        ("trtllm", "Intel", "gpu", "trtllm-on-nvidia-only"),
        ("trtllm", "Acme", "npu", "trtllm-on-nvidia-only"),
        ("mlx", "AMD", "gpu", "mlx-on-apple-and-nvidia"),
        ("mlx", "Acme", "npu", "mlx-on-apple-and-nvidia"),
        ("llama.cpp", "Google", "npu", "llamacpp-on-other-npus"),
        ("llama.cpp", "Acme", "npu", "llamacpp-on-other-npus"),
        ("sglang", "Acme", "npu", "sglang-on-other-npus"),
    ],
)
def test_an_engine_without_a_backend_does_not_run_on_a_part_of_ones_own(own_part, engine, vendor, kind, wall):
    answer = fit_answer(PlanRequest("llama-3.1-8b", own_part(vendor, kind), engine=engine), changes=False)
    assert answer.holding.terms.blocked.id == wall
    assert answer.verdict == "does_not_fit" and answer.command == ()


@pytest.mark.parametrize(
    ("engine", "vendor", "kind"),
    [
        ("trtllm", "NVIDIA", "gpu"),
        ("mlx", "NVIDIA", "gpu"),
        ("llama.cpp", "AMD", "gpu"),
        ("llama.cpp", "Huawei", "npu"),
        ("sglang", "Intel", "gpu"),
        ("sglang", "Huawei", "npu"),
        ("vllm", "AMD", "gpu"),
    ],
)
def test_an_engine_with_a_backend_runs_on_a_part_of_ones_own(own_part, engine, vendor, kind):
    answer = fit_answer(PlanRequest("llama-3.1-8b", own_part(vendor, kind), engine=engine), changes=False)
    assert answer.holding.terms.blocked is None and answer.verdict == "fits"


@pytest.mark.parametrize(
    ("engine", "vendor", "kind", "wall", "severity"),
    [
        ("sglang", "Google", "npu", "sglang-on-tpus-by-jax", "error"),
        ("sglang", "Intel", "npu", "sglang-on-gaudi-by-a-fork", "error"),
        ("vllm", "Acme", "npu", "vllm-on-other-npus", "unknown"),
        ("ktransformers", "AMD", "gpu", "ktransformers-beside-nvidia-and-ascend", "unknown"),
        ("ktransformers", "Intel", "gpu", "ktransformers-beside-nvidia-and-ascend", "unknown"),
    ],
)
def test_a_backend_outside_the_engine_and_one_that_nobody_ran_are_said(own_part, engine, vendor, kind, wall, severity):
    answer = fit_answer(PlanRequest("llama-3.1-8b", own_part(vendor, kind), engine=engine), changes=False)
    found = next(one for one in answer.warnings if one.name == wall)
    assert found.severity == severity and found.do


@pytest.mark.parametrize(
    ("engine", "on", "wall"),
    [
        ("sglang", "1xtpu-v7", "sglang-on-tpus-by-jax"),
        ("sglang", "1xgaudi-3", "sglang-on-gaudi-by-a-fork"),
        ("sglang", "1xm3-ultra", "sglang-on-apple-by-mlx"),
        ("sglang", "1xarc-pro-b70", None),
        ("sglang", "1xascend-910c", None),
        ("vllm", "1xm5-max", "vllm-on-apple-by-plug-in"),
        ("vllm", "1xtpu-v7", "vllm-on-tpus-by-plug-in"),
        ("vllm", "1xgaudi-3", "vllm-on-gaudi-by-plug-in"),
        ("vllm", "1xascend-910c", "vllm-on-ascend-by-plug-in"),
        ("vllm", "1xarc-pro-b70", None),
        ("ktransformers", "1xmi355x", "ktransformers-beside-nvidia-and-ascend"),
        ("ktransformers", "1xascend-910c", None),
        ("ktransformers", "1xrtx-4090", None),
        ("llama.cpp", "1xascend-910c", None),
        ("llama.cpp", "1xarc-pro-b70", None),
    ],
)
def test_parts_of_the_catalogue_meet_the_same_walls(engine, on, wall):
    found = {one.id for one in walls_for(conditions_of(load_machine(on), engine=engine, features=frozenset()))}
    backends = {one for one in found if "-on-" in one and one.split("-on-")[1].split("-")[0] in BACKENDS}
    backends |= found & {"ktransformers-beside-nvidia-and-ascend"}
    assert backends == ({wall} if wall else set())


#: what a wall about a backend names after the engine
BACKENDS = {"tpus", "gaudi", "ascend", "apple", "other", "nvidia"}


def test_experts_in_nvfp4_have_no_kernels_on_a_card_of_amd_whose_capability_nobody_wrote_down(own_part):
    answer = fit_answer(PlanRequest("qwen3-30b-a3b-nvfp4", own_part("AMD"), engine="vllm"), changes=False)
    assert answer.holding.terms.blocked.id == "vllm-nvfp4-experts-on-rocm"


def test_fp8_is_computed_in_bf16_on_intel_cards_that_lack_it(own_part):
    def walls(more):
        machine = load_machine(own_part("Intel", more=more))
        return {one.id for one in walls_for(conditions_of(machine, engine="vllm", features=frozenset(), weights="fp8"))}

    assert "fp8-on-arc-pro-b60" in walls('unsupported = ["fp8"]')
    assert "fp8-on-arc-pro-b60" not in walls("")


def test_a_copy_of_a_part_under_another_name_meets_its_walls(tmp_path):
    """Walls on silicon ask for the compute capability; those on a product for the part whose chip it has."""
    text = (data_folder("hardware_db") / "accelerators" / "rtx-pro-6000-ws.toml").read_text(encoding="utf-8")
    assert 'full_name = "' in text
    (tmp_path / "my-blackwell.toml").write_text(text.replace('full_name = "', 'full_name = "My '), encoding="utf-8")
    assert load_accelerator(tmp_path / "my-blackwell.toml").same_chip == "rtx-pro-6000-server"

    def walls(on, **said):
        asked = conditions_of(load_machine(on), engine="vllm", **said)
        return {one.id for one in walls_for(asked)}

    plain = dict(features=frozenset({"mla", "dsa", "moe"}), weights="nvfp4", tp=2, pp=2, engine_version="0.33.0")
    assert walls(f"4x{tmp_path}/my-blackwell.toml", **plain) == walls("4xrtx-pro-6000-ws", **plain)
    switched = plain | {"options": frozenset({"pcie-switch"})}
    assert "card-drops-off-the-bus" in walls(f"4x{tmp_path}/my-blackwell.toml", **switched)


def test_a_file_of_a_part_can_be_counted_and_the_answer_names_it(own_part):
    file = own_part("AMD")
    answer = fit_answer(PlanRequest("llama-3.1-70b", f"4x{file}", engine="vllm"))
    assert answer.asked.machine.count == 4 and answer.verdict == "fits"
    fewer = next(one for one in answer.changes if one.name in ("fewer", "accelerators") and one.ask)
    assert file in fewer.ask


#: the RTX 4090 of the catalogue as its data sheet in one line
_ONE_LINE = (
    "own-card:memory=24GiB,bandwidth=1008GB/s,bf16=165.2T,fp8=330.3T,int8=660.6T,power=450W,vendor=NVIDIA,compute=8.9"
)


def test_a_data_sheet_in_one_line_is_planned_as_the_listed_part_with_the_width_of_a_new_one():
    own, listed = (
        fit_answer(PlanRequest("qwen3-8b", on, part=part, engine="vllm", users=(1,)), changes=False)
        for on, part in (("own-card", _ONE_LINE), ("rtx-4090", None))
    )
    assert own.verdict == listed.verdict == "fits"
    assert own.asked.machine.accelerator.memory == listed.asked.machine.accelerator.memory
    assert own.holding.pool.tokens == pytest.approx(listed.holding.pool.tokens, rel=0.02)
    # the RTX 4090 has no run of this model either: both have the interval of an accelerator that no run measured
    rates = [one.one_user.each_rate for one in (own, listed)]
    assert rates[0].value == pytest.approx(rates[1].value, rel=0.05)
    assert rates[0].high / rates[0].low == pytest.approx(rates[1].high / rates[1].low, rel=0.05)
    # the whole line is the part, so that an answer can be asked again from its own question
    assert own.asked.machine.part == _ONE_LINE


@pytest.mark.parametrize(
    ("on", "part", "field"),
    [
        ("other", _ONE_LINE, "--part"),
        ("own-card", "own-card", "--part"),
        ("own-card", "own-card:bandwidth=1008GB/s", "--part"),
        ("own-card", "own-card:memory=24GB,speed=9", "--part"),
        ("own-card", "own-card:memory=24GB,memory=48GB", "--part"),
        ("rtx-4090", "rtx-4090:memory=48GB", "--part"),
        ("own-card", "own-card:memory=24GB,pcie=fast", "--part"),
        ("own-card", "own-card:memory=24", "memory"),
    ],
)
def test_an_incomplete_data_sheet_is_refused(on, part, field):
    with pytest.raises(SpecError) as refused:
        resolve_machine(on, part=part)
    assert field in str(refused.value)


def test_an_unknown_part_is_asked_for_in_one_line():
    for on in ("v99", "4xv99"):
        with pytest.raises(SpecError, match="--part v99:memory="):
            resolve_machine(on)


def test_the_memory_of_a_processor_is_what_the_question_says():
    said = {"model": "qwen3-8b-q4_k_m", "on": "epyc-9005-ddr5-6400", "engine": "llama.cpp", "users": (1,)}
    assert fit_answer(PlanRequest(**said), changes=False).verdict == "unknown"
    small, large = (fit_answer(PlanRequest(**said, host_memory=size), changes=False) for size in ("4 GB", "512 GB"))
    assert (small.verdict, large.verdict) == ("does_not_fit", "fits")
    assert large.asked.machine.accelerator.memory == 512e9


def test_the_memory_of_a_host_bounds_experts_on_its_processors():
    said = {"model": "glm-5.3-flash-fp8", "on": "2xrtx-pro-6000-maxq", "engine": "ktransformers", "users": (1,)}
    small, large = (fit_answer(PlanRequest(**said, host_memory=size), changes=False) for size in ("256 GB", "512 GB"))
    # kvcache-ai/ktransformers#2183: 304 GB of pinned weights
    assert (small.verdict, large.verdict) == ("does_not_fit", "fits")
    assert large.asked.machine.with_count(4).host.host_memory == 512e9
    with pytest.raises(SpecError, match="host-memory"):
        resolve_machine("m3-ultra", memory=HostMemory(512e9))


@pytest.mark.parametrize("name", ["t4", "rtx-4090-laptop", "jetson-agx-orin", "epyc-7742", "m2-max", "radeon-8060s"])
def test_the_hint_of_an_unknown_part_has_no_values_of_another_part(name):
    with pytest.raises(UnknownName) as refused:
        fit_answer(PlanRequest("qwen3-8b", name))
    line = refused.value.message.split("--part ")[1].split(" ")[0]
    assert line == blank_line(name) and "?GB" in line
    with pytest.raises(SpecError, match="value of the data sheet"):
        described_part(line)
    filled = line.replace("=?GB/s", "=300GB/s").replace("=?GB", "=64GB").replace("=?T", "=65T")
    assert fit_answer(PlanRequest("qwen3-8b", name, part=filled), changes=False).verdict == "fits"


@pytest.mark.parametrize(
    ("name", "close"), [("RTX 8000", "rtx-a6000"), ("mi210", "mi3"), ("hgx-b200-9", "hgx-b200-8"), ("a30", "a40")]
)
def test_the_nearest_names_of_an_unknown_part_begin_with_the_most_similar(name, close):
    with pytest.raises(UnknownName, match=f"nearest: {close}"):
        resolve_machine(name)
