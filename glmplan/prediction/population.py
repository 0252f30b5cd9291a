"""Compare a run with the other measured runs of its configuration.

An interval that covers many machines also covers one that is slow. A run is slow if runs of the same configuration are
faster, each relative to the prediction of its load in the deployment of the compared run: builds and boards count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import model_shape
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import compared_figures
from glmplan.io.runs.ledger import load_measurements, split_held_out
from glmplan.io.runs.record import Run
from glmplan.prediction.from_row import RunCase, question_of
from glmplan.prediction.predict import Prediction, predict_many
from glmplan.units import Ratio

__all__ = ["Population", "population_of", "usual_causes"]

#: runs of a population, at least and at most [-]
_LEAST, _MOST = 4, 48
#: concurrencies of a population differ by this factor at most [-]
_LOADS = 2.0
#: vendor → commands that show connections, power and PCIe lanes; other vendors have those of the operating system
_TOOLS: Mapping[str, tuple[str, str, str]] = {
    "NVIDIA": ("nvidia-smi topo -m", "nvidia-smi -q -d POWER,PERFORMANCE",
               "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv"),
    "AMD": ("rocm-smi --showtopo", "amd-smi metric --power --clock --throttle", "amd-smi metric --pcie"),
    "Intel": ("xpu-smi topology -m", "xpu-smi dump -m 1,2", "xpu-smi discovery -d 0"),
    "Huawei": ("npu-smi info -t topo", "npu-smi info -t power -i 0", "lspci -vv (LnkSta)"),
    "Apple": ("system_profiler SPHardwareDataType", "sudo powermetrics --samplers gpu_power", ""),
}  # fmt: skip
_OTHERS = ("lstopo", "the vendor's monitor", "lspci -vv (LnkSta)")
#: kind of the links between accelerators → usual cause and its check
_LINKS = {
    "pcie": ("peer-to-peer copies are off", "iommu=pt and ACS off on the kernel command line, and {peers}"),
    "nvlink": ("NVLink is down", "nvidia-smi nvlink --status, and nvidia-fabricmanager is running"),
    "xgmi": ("xGMI is down", "amd-smi xgmi --metric"),
    "fabric": ("the network runs below its rate", "ib_write_bw or iperf3 between the machines, and NCCL_DEBUG=INFO"),
}
_PEERS = {"NVIDIA": "nvidia-smi topo -p2p r", "AMD": "rocm-smi --showtopoaccess"}
_HOST = (
    ("empty memory channels or slow memory", "dmidecode -t memory, and the bandwidth that likwid-bench measures"),
    ("weights in the memory of one socket", "numactl -H, and the engine's NUMA options and thread pools"),
    ("generic CPU kernels, or more threads than cores", "AMX or AVX-512 in the engine's log; its thread count"),
)
_SHARED = ("other programs use the memory, or it is swapped", "free -h or vm_stat, and swap in use")
_ANY = (
    ("a slow backend", "attention and MoE backend and `enforce_eager` in the engine's log"),
    ("another build", "the faster runs may have a patched build: compare the version that the engine prints"),
)


def usual_causes(
    count: float, *, hosted: bool, vendor: str = "NVIDIA", link: str = "pcie", shared: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the usual causes of a slow machine, each with its check.

    `count`: accelerators. `hosted`: weights lie in host memory. `link`: kind between accelerators. `shared`: CPU and
    GPU have one memory.

    Examples
    --------
    >>> usual_causes(8, hosted=False)[0][0]
    'peer-to-peer copies are off'
    >>> usual_causes(8, hosted=False, vendor="AMD", link="xgmi")[0]
    ('xGMI is down', 'amd-smi xgmi --metric')
    """
    connections, power, lanes = _TOOLS.get(vendor, _OTHERS)
    causes = [*(_HOST if hosted else ())]
    if count > 1 and link in _LINKS:
        cause, check = _LINKS[link]
        causes.append((cause, check.format(peers=_PEERS.get(vendor, connections))))
    if shared:
        causes.append(_SHARED)
    else:
        causes.append(("processes on the far socket", f"{connections}, numactl -H, and the CPU affinity of the server"))
    if vendor == "AMD" and not shared:
        causes.append(("NUMA balancing moves pages", "/proc/sys/kernel/numa_balancing is 0"))
    causes.append(("a power limit or heat", f"{power} under load"))
    if lanes and not shared:
        causes.append(("fewer PCIe lanes", f"{lanes} under load"))
    return (*causes, *_ANY)


@dataclass(frozen=True, slots=True)
class Population:
    """Speeds of a configuration relative to their predictions."""

    runs: tuple[str, ...]  # their ids
    median: Ratio  # measured / predicted speed
    low: Ratio  # tenth percentile
    own: Ratio  # of the compared run

    @property
    def slow(self) -> bool:
        """Return True if the run is slower than nine tenths, and by a fifth.

        Examples
        --------
        >>> Population(("a", "b", "c", "d"), 1.5, 1.4, 1.1).slow, Population(("a", "b", "c", "d"), 1.5, 0.9, 1.1).slow
        (True, False)
        """
        return self.own < self.low and self.own < self.median / 1.2


def _speed(run: Run, case: RunCase, prediction: Prediction) -> Ratio | None:
    """Return measured / predicted decode speed of a run, or None."""
    ratios: dict[str, float] = {}
    for one, value in compared_figures(run.observed, tokens_per_step=case.load.tokens_per_step):
        if one.predicted in prediction.figures:
            predicted = prediction.figures[one.predicted].value / one.factor
            ratios[one.column] = predicted / value if _is_time(one.column) else value / predicted
    for start in ("tpot", "output_tokens_per_s_per_request", "output"):
        found = [ratio for column, ratio in ratios.items() if column.startswith(start)]
        if found:
            return float(np.median(found))
    return None


def _is_time(column: str) -> bool:
    return column.endswith(("_ms", "_s")) and "per_s" not in column


def _same(one: Run, case: RunCase) -> bool:
    """Return True if a run has the configuration of a case."""
    d = case.deployment
    if one.unusable or one.offload or one.phase in ("prefill", "memory"):
        return False
    own = (one.engine or "", one.weights, one.tp or 0, one.pp or 1, one.dcp or 1, one.speculation.state == "yes")
    if own != (d.engine, case.run.weights, d.tp, d.pp, case.run.dcp or 1, bool(d.draft_tokens)):
        return False
    ratio = (one.concurrency or 1.0) / max(case.load.concurrency, 1.0)
    if not 1.0 / _LOADS <= ratio <= _LOADS:
        return False
    try:
        part, model = load_accelerator(one.accelerator), load_model(one.model)
    except GlmplanError:
        return False
    mine = d.accelerator
    alike = (part.compute_capability, part.memory) == (mine.compute_capability, mine.memory)
    return alike and model_shape(model) == model_shape(d.model)


def population_of(case: RunCase, prediction: Prediction) -> Population | None:
    """Return the runs of a configuration beside a run; None if they are few.

    Held-out runs and those with a reason against them do not count.
    """
    own = _speed(case.run, case, prediction)
    if own is None:
        return None
    known, _ = split_held_out(load_measurements())
    cases: list[RunCase] = []
    for one in known:
        if one.id != case.run.id and _same(one, case):
            try:
                cases.append(question_of(one))
            except GlmplanError:
                continue
    cases = cases[:_MOST]
    if len(cases) < _LEAST:
        return None
    found = predict_many([(case.deployment, one.load, case.run.measured_on) for one in cases])
    pairs = [(one.run.id, _speed(one.run, one, each)) for one, each in zip(cases, found, strict=True)]
    speeds = {name: speed for name, speed in pairs if speed is not None}
    if len(speeds) < _LEAST:
        return None
    values = np.array(list(speeds.values()))
    return Population(tuple(speeds), float(np.median(values)), float(np.quantile(values, 0.1)), own)
