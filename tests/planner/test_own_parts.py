"""A part that somebody describes meets the walls of its vendor, its kind and its silicon, whatever it is called."""

from __future__ import annotations

import pytest

from glmplan.catalog.engines.limitations import conditions_of, walls_for
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.files import data_folder
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
