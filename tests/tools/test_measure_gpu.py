"""The campaign on a GPU: what can be right or wrong without one."""

from __future__ import annotations

import csv
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from glmplan.costs.memory.settings import load_memory_fit
from glmplan.measure import guard as gpu_monitor

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
measure_gpu = importlib.import_module("measure_gpu")
gpu_libraries = importlib.import_module("gpu_libraries")

GIB = 2**30
SHAPES = [(one, shape) for one in gpu_libraries.LIBRARIES for shape in one.shapes(1.0)]


def named(case) -> str:
    return f"{case.kernel}-{case.precision}-{case.name}"


@pytest.mark.parametrize("library", gpu_libraries.LIBRARIES, ids=named)
def test_a_library_that_is_not_there_says_so_in_one_line(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library.module, None)  # as where it is not installed
    reason = library.why_not(None, "cuda")
    assert library.module in reason
    assert "\n" not in reason


@pytest.mark.parametrize("library", gpu_libraries.LIBRARIES, ids=named)
def test_every_kernel_is_timed_alone_and_in_crowds_within_a_card_of_80_gb(library):
    shapes = list(library.shapes(1.0))
    tokens = [shape.get("m", shape.get("batch")) for shape in shapes]
    assert min(tokens) == 1
    assert max(tokens) >= 256
    assert len({tuple(shape.items()) for shape in shapes}) == len(shapes)
    # the operands that are kept cold are copied until they exceed a cache, and one copy must fit with room
    assert max(library.weight_bytes(shape) for shape in shapes) < 40e9


@pytest.mark.parametrize(("library", "shape"), [one for one in SHAPES if one[0].kernel == "gemm"][::9])
def test_a_product_moves_its_stored_weights_and_computes_two_operations_for_each(library, shape):
    work = library.work(shape)
    bits = {"fp8": 8, "mxfp4": 4 + 8 / 32}[library.precision]  # OCP MX: a scale of eight bits for 32 values
    assert float(work.flop) == 2 * shape["m"] * shape["n"] * shape["k"]
    assert library.weight_bytes(shape) == shape["n"] * shape["k"] * bits / 8
    assert float(work.bytes) > library.weight_bytes(shape)


def test_a_latent_of_576_values_is_read_once_for_all_heads():
    library = next(one for one in gpu_libraries.LIBRARIES if one.name == "flashinfer")
    work = library.work({"batch": 4, "context": 4096, "heads": 16})
    assert float(work.bytes) == 4 * 4096 * 576 * 2
    # scores over 512 + 64 values, sums over 512
    assert float(work.flop) == 2 * 4 * 4096 * 16 * (576 + 512)


def test_one_token_reads_the_weights_of_its_eight_experts():
    library = next(one for one in gpu_libraries.LIBRARIES if one.kernel == "experts" and one.precision == "mxfp4")
    shape = next(library.shapes(1.0))
    weights = 3 * shape["n"] * shape["k"] * 4.25 / 8
    assert shape["m"] == 1
    assert float(library.work(shape).bytes) == pytest.approx(8 * weights, rel=0.02)  # and its activations


def test_what_a_campaign_has_is_kept_and_a_torn_line_is_not(tmp_path):
    campaign = measure_gpu.Campaign(tmp_path / "new")
    campaign.add("rows.csv", {"kernel": "gemm", "m": 1})
    campaign.add("rows.csv", {"kernel": "gemm", "m": 4})
    with (tmp_path / "new" / "rows.csv").open("a") as file:
        file.write("gem")  # stopped while it wrote
    again = measure_gpu.Campaign(tmp_path / "new")
    assert [row["m"] for row in again.rows("rows.csv")] == ["1", "4"]
    again.add("rows.csv", {"kernel": "gemm", "m": 16})
    assert [row["m"] for row in again.rows("rows.csv")] == ["1", "4", "16"]
    again.say("a word")
    assert "a word" in (tmp_path / "new" / "log.txt").read_text()


def test_a_short_campaign_has_each_library_before_any_has_two_shapes():
    libraries = gpu_libraries.LIBRARIES
    order = measure_gpu.in_turn(libraries, 1.0)
    serving = [one for one in libraries if one.name != "torch-reference"]
    assert [library for library, _ in order[: len(serving)]] == serving
    assert {id(library) for library, _ in order} == {id(one) for one in libraries}
    assert len(order) == len(SHAPES)


def test_the_time_ends_a_campaign_and_the_next_one_goes_on(tmp_path, monkeypatch):
    """Each shape takes 50 s of a clock that nothing else moves: two begin within 90 s."""
    now, timed = [0.0], []
    monkeypatch.setattr(measure_gpu.time, "monotonic", lambda: now[0])

    def took(campaign, library, clock, torch, device, shape, repeats):
        now[0] += 50.0
        timed.append((library.kernel, library.name, library.precision, *shape.items()))
        return measure_gpu._row(clock, library.kernel, library.precision, library.work(shape), [1e-6], **shape)

    monkeypatch.setattr(measure_gpu, "_timed", took)
    monkeypatch.setattr(measure_gpu, "_software", lambda torch, library: "none")
    monkeypatch.setattr(gpu_libraries.Library, "why_not", lambda self, torch, device: "")
    campaign = measure_gpu.Campaign(tmp_path)
    torch, sized = SimpleNamespace(__version__="0"), {"device": "cpu", "scale": 1.0, "repeats": 1}
    measure_gpu.kernels(campaign, torch, 90.0, **sized)
    assert len(campaign.rows("rows.csv")) == 2
    assert "the time is over" in (tmp_path / "log.txt").read_text()
    measure_gpu.kernels(campaign, torch, 190.0, **sized)
    assert len(campaign.rows("rows.csv")) == 4
    assert len(set(timed)) == 4


def test_parts_come_by_value_and_one_that_cannot_stop_needs_its_time():
    assert measure_gpu.PARTS[0] == "shapes"  # needs nothing but PyTorch and Triton
    assert set(measure_gpu.NEEDS) == set(measure_gpu.PARTS) - {"shapes", "kernels"}
    assert measure_gpu.NEEDS["memory"] + measure_gpu.NEEDS["nvml"] < 2 * 60  # of nine minutes


@pytest.mark.parametrize("tool", ["measure_gpu", "measure_shapes"])
def test_a_machine_that_has_numpy_only_can_start_it(tool):
    """A card that is lent for ten minutes comes with PyTorch, Triton and NumPy, and nothing can be fetched there."""
    absent = ("pydantic", "rtoml", "httpx", "rich", "scipy", "pandas")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}, None)); import {tool}"
    done = subprocess.run([sys.executable, "-c", code], cwd=TOOLS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_memory_is_told_apart_by_who_holds_it():
    """A card of 80 GiB of which CUDA sees 79.5: 0.4 for the context, 0.1 for libraries, 1.5 for two graphs."""
    taken = [("context", 0.3, 0.0), ("first product", 0.35, 1.0), ("first attention", 0.5, 1.5), ("step", 0.5, 2.0)]
    taken.append(("2 captured graphs of 8 layers", 0.9, 3.1))
    steps = [
        {"step": name, "total": 79.5 * GIB, "free": (79.5 - outside - torch) * GIB, "torch_reserved": torch * GIB}
        for name, outside, torch in taken
    ]
    fit = load_memory_fit()
    found = {name: (size / GIB, beside) for name, size, beside in measure_gpu.memory_terms(steps, (80 * GIB, 0), fit)}
    assert found["listed by NVML, not seen by CUDA"] == (pytest.approx(0.5), fit.driver.mean)
    assert found["outside of PyTorch after the first attention"] == (pytest.approx(0.5), fit.context["single"].mean)
    assert found["outside of PyTorch, more after: first attention"][0] == pytest.approx(0.15)
    assert found["all memory of 2 captured graphs of 8 layers"] == (pytest.approx(1.5), 2 * fit.graph.mean)


def test_every_reading_of_the_watch_is_checked_and_exists_in_nvml():
    read = set(re.findall(r"nvml\.(nvmlDeviceGet\w+)", inspect.getsource(gpu_monitor.CardWatch.sample)))
    checked = {function for function, _ in measure_gpu.NVML_FIELDS.values()}
    assert read <= checked
    pynvml = pytest.importorskip("pynvml")
    assert all(callable(getattr(pynvml, function)) for function in checked)


def test_a_field_that_a_part_does_not_have_says_so():
    fields = dict(measure_gpu.nvml_fields(SimpleNamespace(nvmlDeviceGetPowerUsage=lambda card: 61_000), None))
    assert fields["power"] == "61000"
    assert fields["temperature"].startswith("not read")
    assert set(fields) == set(measure_gpu.NVML_FIELDS)


def test_without_pytorch_or_a_gpu_it_says_so_and_ends_cleanly(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert measure_gpu.main([str(tmp_path / "none")]) == 0
    assert "nothing measured" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_folder_is_needed(capsys):
    with pytest.raises(SystemExit) as stopped:
        measure_gpu.main([])
    assert stopped.value.code == 2
    assert "folder" in capsys.readouterr().err


def test_the_processor_runs_the_same_sums_and_goes_on_where_it_stopped(tmp_path):
    pytest.importorskip("torch")
    words = [str(tmp_path), "--device", "cpu", "--scale", "0.01", "--repeats", "1", "--only", "kernels"]
    assert measure_gpu.main(words) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["kernel"] for row in rows} == {"latent-decode", "experts"}
    assert all(float(row["time_us"]) > 0 for row in rows)
    assert measure_gpu.main(words) == 0
    with (tmp_path / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)


def test_tokens_of_the_loop_do_not_depend_on_who_runs_beside():
    torch = pytest.importorskip("torch")
    torch_server = importlib.import_module("torch_server")
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 32}
    shape |= {"intermediate_size": 48, "vocab_size": 50, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = torch_server.Model(torch, shape, "cpu")

    def decode(slot: int, others: tuple[int, ...]) -> list[int]:
        prompt = torch.tensor([[3, 1, 4, 1, 5]])
        found = [int(model.run(prompt, torch.tensor([slot]), torch.arange(5)[None])[0])]
        for place in range(5, 10):
            slots = torch.tensor([slot, *others])
            tokens = torch.tensor([[found[-1]], *([7] for _ in others)])
            found.append(int(model.run(tokens, slots, torch.tensor([[place]] * len(slots)))[0]))
        return found

    with torch.inference_mode():
        assert decode(0, ()) == decode(3, (5, 9))
