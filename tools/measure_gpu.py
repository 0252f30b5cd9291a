"""A GPU in minutes or half an hour: shapes of models, memory, NVML's fields, kernels of serving libraries, an engine.

    python tools/measure_gpu.py campaign/                    # everything that is installed
    python tools/measure_gpu.py campaign/ --minutes 9        # the most valuable first, until the time is over
    python tools/measure_gpu.py campaign/ --only kernels     # or shapes, memory, nvml, engine; repeatable
    python tools/measure_gpu.py campaign/ --device cpu --scale 0.02 --repeats 2   # the same sums on a processor

The folder keeps shapes/ (of measure_shapes.py, which needs PyTorch and Triton only), rows.csv (a line for each shape),
memory.csv, nvml.csv, about.json, log.txt and the run of the engine. Each line is there as soon as it is measured;
a second start continues after the last line. Missing parts are named in one line and left out.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign import Campaign, installed
from measure_kernels import COLD_BYTES, MOST_COPIES, NumpyCpu, Row, TorchGpu, _row

from glmplan.catalog.files import write_atomically
from glmplan.units import GIB

if TYPE_CHECKING:
    from gpu_libraries import Library, Shape

#: in the order of their value for each minute
PARTS = ("shapes", "memory", "nvml", "kernels", "engine")
#: longest time of a part that does not stop by itself, [s]; it is not started with less left
NEEDS = {"memory": 60.0, "nvml": 15.0, "engine": 600.0}
_SIZES = tuple(one.name for one in fields(Row) if one.type == "int" and one.name != "repeats")
#: what a card tells that `glmplan.measure.guard` or a probe reads: name → NVML's function and its arguments
NVML_FIELDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "temperature": ("nvmlDeviceGetTemperature", (0,)),
    "power": ("nvmlDeviceGetPowerUsage", ()),
    "power limit": ("nvmlDeviceGetPowerManagementLimit", ()),
    "energy": ("nvmlDeviceGetTotalEnergyConsumption", ()),
    "throttle reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    "PCIe sent": ("nvmlDeviceGetPcieThroughput", (0,)),
    "PCIe received": ("nvmlDeviceGetPcieThroughput", (1,)),
    "PCIe generation": ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    "PCIe width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "SM clock": ("nvmlDeviceGetClockInfo", (1,)),
    "memory clock": ("nvmlDeviceGetClockInfo", (2,)),
}
#: graphs that an engine captures: numbers of requests
_CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["kernel"], row["backend"], row["precision"], *(str(row[name]) for name in _SIZES))


def in_turn(libraries: Iterable[Library], scale: float) -> list[tuple[Library, Shape]]:
    """Shapes of all libraries: the first of each, then the second of each; kernels that no server runs at the end."""
    listed = [(library.name == "torch-reference", place, library, shape)
              for library in libraries for place, shape in enumerate(library.shapes(scale))]  # fmt: skip
    return [(library, shape) for _, _, library, shape in sorted(listed, key=lambda one: one[:2])]


def kernels(campaign: Campaign, torch: Any, ends: float, *, device: str, scale: float, repeats: int) -> None:
    """Time every library in its shapes, until the time is over."""
    from gpu_libraries import LIBRARIES

    clock: Any = NumpyCpu() if device == "cpu" else TorchGpu(torch)
    clock.software = f"torch {torch.__version__}"
    done = {_key(row) for row in campaign.rows("rows.csv")}
    here = []
    for library in LIBRARIES:
        if reason := library.why_not(torch, device):
            campaign.say(f"left out: {library.kernel} {library.precision} of {library.name}: {reason}")
        else:
            here.append(library)
    for library, shape in in_turn(here, scale):
        sizes = {name: shape.get(name, 0) for name in _SIZES}
        named = {"kernel": library.kernel, "backend": library.name, "precision": library.precision}
        if _key(named | sizes) in done:
            continue
        if time.monotonic() > ends:
            campaign.say(f"the time is over: {library.kernel} {library.precision} {shape} and later ones are left")
            return
        row = _timed(campaign, library, clock, torch, device, shape, repeats)
        if row is not None:
            campaign.add("rows.csv", asdict(row) | named | {"software": _software(torch, library)})


def shapes(campaign: Campaign, ends: float) -> None:
    """Shapes of GLM, gpt-oss and Qwen with PyTorch and Triton alone, in a process of its own."""
    if reason := installed("triton"):
        campaign.say(f"left out: shapes: {reason}")
        return
    left = min(ends - time.monotonic(), 420.0)
    command = [sys.executable, str(Path(__file__).with_name("measure_shapes.py")), str(campaign.folder / "shapes")]
    done = subprocess.run([*command, "--budget-seconds", f"{left:.0f}"], check=False)
    rows = len(campaign.rows("shapes/rows.csv"))
    campaign.say(f"shapes: {rows} rows, measure_shapes.py ended with {done.returncode}")


def _software(torch: Any, library: Library) -> str:
    found = [f"torch {torch.__version__}", f"cuda {torch.version.cuda or torch.version.hip}"]
    package = library.module.partition(".")[0]
    for name in {package, f"{package}-python"} - {"torch", "torch-python"}:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return " ".join(found)


def _timed(
    campaign: Campaign, library: Library, clock: Any, torch: Any, device: str, shape: Shape, repeats: int
) -> Row | None:
    words = f"{library.kernel} {library.precision} {library.name} {' '.join(f'{k}={v}' for k, v in shape.items())}"
    cold = 8e6 if device == "cpu" else COLD_BYTES
    copies = int(min(max(1, -(-cold // library.weight_bytes(shape))), MOST_COPIES))
    try:
        seconds = clock.time(library.calls(torch, device, shape, copies), repeats)
    except Exception as error:  # one shape that a kernel refuses must not end the half hour
        campaign.say(f"failed: {words}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")
        return None
    finally:
        if device != "cpu":
            torch.cuda.empty_cache()
    row = _row(clock, library.kernel, library.precision, library.work(shape), seconds, **shape)
    rates = f"{row.bytes / row.time_us / 1e3:.1f} GB/s {row.flop / row.time_us / 1e6:.2f} TFLOP/s"
    campaign.say(f"{words}: {row.time_us:.2f} µs, {rates}")
    return row


def memory_steps(torch: Any, step: Callable[[str], None], *, layers: int = 8, hidden: int = 2048) -> None:
    """Take memory as a server does: a context, a first product, attention, then captured graphs.

    Called in a process of its own; `step` notes what the card has left after each.
    """
    step("context")
    a = torch.randn(512, hidden, device="cuda", dtype=torch.bfloat16)
    torch.mm(a, a.T)
    step("first product")
    q = torch.randn(8, 8, 512, 128, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    step("first attention")
    weights = [torch.randn(4 * hidden, hidden, device="cuda", dtype=torch.bfloat16) / hidden for _ in range(layers)]
    inputs = torch.randn(max(_CAPTURED), hidden, device="cuda", dtype=torch.bfloat16)

    def forward(count: int) -> Any:
        x = inputs[:count]
        for weight in weights:
            x = x + torch.nn.functional.silu(x @ weight.T) @ weight
        return x

    forward(max(_CAPTURED))
    torch.cuda.synchronize()
    step("weights and a step")
    pool, kept = None, []
    for count in reversed(_CAPTURED):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            forward(count)
        pool = pool or graph.pool()
        kept.append(graph)
    step(f"{len(kept)} captured graphs of {len(weights)} layers")


def _child() -> int:
    """Print what the card and PyTorch say after each step, a JSON object a line."""
    import torch

    torch.cuda.init()

    def step(name: str) -> None:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        said = {"step": name, "free": free, "total": total, "torch_reserved": torch.cuda.memory_reserved()}
        print(json.dumps(said), flush=True)

    memory_steps(torch, step)
    return 0


def memory(campaign: Campaign, torch: Any) -> None:
    """Memory of the driver, of a context, of libraries and of captured graphs, beside what glmplan takes them to be."""
    from glmplan.costs.memory.settings import load_memory_fit

    if campaign.rows("memory.csv"):
        return
    fit = load_memory_fit()
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        before = pynvml.nvmlDeviceGetMemoryInfo(card)
        known: tuple[float, float] | None = (float(before.total), float(before.used))
    except Exception as error:
        known = None
        campaign.say(f"left out: memory before a context: NVML says {type(error).__name__}")
    done = subprocess.run([sys.executable, __file__, "--child"], capture_output=True, text=True, check=False)
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not steps:
        campaign.say(f"failed: memory: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}")
        return
    for name, taken, expected in memory_terms(steps, known, fit):
        beside = "" if expected is None else f"{expected / GIB:.3f}"
        campaign.add("memory.csv", {"term": name, "gib": f"{taken / GIB:.4f}", "glmplan_gib": beside})
        campaign.say(f"memory: {name}: {taken / GIB:.3f} GiB" + (f"; glmplan takes {beside}" if beside else ""))


def memory_terms(
    steps: list[dict[str, Any]], known: tuple[float, float] | None, fit: Any
) -> Iterator[tuple[str, float, float | None]]:
    """Terms of memory from what the card had left after each step: name, bytes, what glmplan takes it to be [B]."""
    total = float(steps[0]["total"])
    idle = 0.0
    if known is not None:
        listed, idle = known
        yield "listed by NVML, not seen by CUDA", listed - total, float(fit.driver.mean)
        yield "used before a context", idle, None
    outside = [total - one["free"] - one["torch_reserved"] for one in steps]
    yield "outside of PyTorch after the first attention", outside[2] - idle, float(fit.context["single"].mean)
    for before, after, one in zip(outside, outside[1:], steps[1:], strict=False):
        yield f"outside of PyTorch, more after: {one['step']}", after - before, None
    last, previous = steps[-1], steps[-2]
    graphs = float(fit.graph.mean) * int(last["step"].split()[0])
    yield f"all memory of {last['step']}", float(previous["free"] - last["free"]), graphs


def nvml_fields(nvml: Any, card: Any) -> Iterator[tuple[str, str]]:
    """Every field of NVML that is read somewhere: its value, or why there is none."""
    for name, (function, arguments) in NVML_FIELDS.items():
        try:
            yield name, str(getattr(nvml, function)(card, *arguments))
        except Exception as error:  # parts leave out single readings
            yield name, f"not read: {type(error).__name__}: {error}"


def nvml(campaign: Campaign, torch: Any, *, seconds: float = 5.0) -> None:
    """NVML's fields at rest and under load, and whether the watch of `validate` says the same."""
    if campaign.rows("nvml.csv"):
        return
    if reason := installed("pynvml"):
        campaign.say(f"left out: nvml: {reason}")
        return
    import pynvml

    from glmplan.measure.guard import CardWatch

    pynvml.nvmlInit()
    card, watch = pynvml.nvmlDeviceGetHandleByIndex(0), CardWatch()
    at_rest = dict(nvml_fields(pynvml, card))
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    began, seen = time.monotonic(), []
    while time.monotonic() - began < seconds:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
        if (sample := watch.sample()) is not None:
            seen.append(sample.power)
    loaded, took = dict(nvml_fields(pynvml, card)), time.monotonic() - began
    for name in NVML_FIELDS:
        campaign.add("nvml.csv", {"field": name, "at rest": at_rest[name], "under load": loaded[name]})
    if seen and at_rest["energy"].isdigit() and loaded["energy"].isdigit():
        counted = (int(loaded["energy"]) - int(at_rest["energy"])) / 1e3 / took
        mean = sum(seen) / len(seen)
        campaign.say(f"nvml: the watch read {mean:.1f} W in the mean, the energy counter says {counted:.1f} W")
    lacking = [name for name, said in loaded.items() if said.startswith("not read")]
    words = f"; without: {', '.join(lacking)}" if lacking else ""
    campaign.say(f"nvml: {len(loaded) - len(lacking)} of {len(loaded)} fields read{words}")


def engine(campaign: Campaign, *, on: str, device: str, users: str, seconds: float) -> None:
    """A small model with random weights on vLLM, else on a loop in PyTorch, under `glmplan validate`."""
    import torch_server
    import validate_vllm

    folder = campaign.folder / "engine"
    if (folder / "run.json").exists():
        return
    (folder / "model").mkdir(parents=True, exist_ok=True)
    large = device != "cpu"
    validate_vllm.write_model(folder / "model", torch_server.config(large))
    log = folder / "server.log"
    if (reason := installed("vllm")) == "" and large:
        options = (*validate_vllm.SMALL, "--gpu-memory-utilization", "0.8")
        started = validate_vllm.vllm_server(
            Path(sys.executable), folder / "model", port=18_431, log=log, options=options
        )
        name = "vllm"
    else:
        campaign.say(f"engine: a loop in PyTorch, because {reason or 'vLLM is not timed on a processor here'}")
        started = torch_server.torch_server(folder / "model" / "config.json", device=device, log=log)
        name = "torch loop"
    with started as url:
        command = [sys.executable, "-c", "from glmplan.cli import main; main()", "validate"]
        command += [str(folder / "model" / "config.json"), "--on", on, "--url", url, "--users", users]
        ends = f"{users.split(',', maxsplit=1)[0]},{users.rsplit(',', maxsplit=1)[-1]}"
        command += ["--calibrate-on", ends, "--falling", "0", "--input", "64"]
        command += ["--output", "64", "--seconds-per-step", str(seconds), "--out", str(folder / "validate")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "validate.txt").write_text(done.stdout + done.stderr)
    write_atomically(folder / "run.json", json.dumps({"engine": name, "code": done.returncode, "command": command[3:]}))
    campaign.say(f"engine: {name}, glmplan validate ended with {done.returncode}: {folder / 'validate.txt'}")


def about(torch: Any, device: str) -> dict[str, Any]:
    """What it was measured on."""
    found: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "device": device}
    for name in ("flashinfer-python", "vllm", "triton", "nvidia-ml-py"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    if device == "cpu":
        return found | {"name": platform.processor() or platform.machine()}
    part = torch.cuda.get_device_properties(0)
    return found | {
        "name": part.name,
        "cuda": torch.version.cuda or torch.version.hip,
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "memory_bytes": part.total_memory,
        "cores": part.multi_processor_count,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure what can be measured.

    Parameters
    ----------
    arguments : list of str, optional
        Words of the command line.

    Returns
    -------
    int
        Exit code: 0, also where there is no GPU; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="the campaign")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop before so many minutes are over")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--on", default="", help="the machine as glmplan names it, such as 1xh100-sxm, for the engine")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the widths; 1 is a model's")
    parser.add_argument("--repeats", type=int, default=50, help="timed calls of each shape")
    parser.add_argument("--users", default="1,4,16,64", help="steps of the engine's ladder")
    parser.add_argument("--seconds", type=float, default=15.0, help="counted time of each of them [s]")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    began, chosen = time.monotonic(), parser.parse_args(arguments)
    if chosen.child:
        return _child()
    if chosen.folder is None:
        parser.error("name a folder for the campaign")
    if reason := installed("torch"):
        print(f"nothing measured: {reason}; pip install torch", file=sys.stderr)
        return 0
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("nothing measured: PyTorch sees no GPU; --device cpu takes the processor", file=sys.stderr)
        return 0
    campaign = Campaign(chosen.folder)
    write_atomically(chosen.folder / "about.json", json.dumps(about(torch, chosen.device), indent=1))
    sized = {"device": chosen.device, "scale": chosen.scale, "repeats": chosen.repeats}
    on = chosen.on or ("this-machine" if chosen.device == "cpu" else "")
    ends = began + chosen.minutes * 60.0
    parts: dict[str, Callable[[], None]] = {
        "shapes": partial(shapes, campaign, ends),
        "kernels": partial(kernels, campaign, torch, ends, **sized),
        "memory": partial(memory, campaign, torch),
        "nvml": partial(nvml, campaign, torch),
        "engine": partial(engine, campaign, on=on, device=chosen.device, users=chosen.users, seconds=chosen.seconds),
    }
    try:
        for name in chosen.only or PARTS:
            if chosen.device == "cpu" and name in ("shapes", "memory", "nvml"):
                campaign.say(f"left out: {name}: it needs a GPU")
            elif (left := ends - time.monotonic()) < NEEDS.get(name, 0.0):
                campaign.say(f"left out: {name}: {left:.0f} s are left, it may take {NEEDS.get(name, 0.0):.0f}")
            elif name == "engine" and not on:
                campaign.say("left out: engine: say which machine this is, as in --on 1xh100-sxm")
            else:
                try:
                    parts[name]()
                except ImportError as error:  # a lent machine has what it has
                    campaign.say(f"left out: {name}: {error}")
    except KeyboardInterrupt:
        campaign.say("stopped; started again with this folder it goes on")
        return 130
    print(chosen.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
