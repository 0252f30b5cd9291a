"""Describe this machine, and measure memory and matrix rate of its CPU.

Linux is read through /proc and /sys, without tools; NVIDIA accelerators through NVML where `nvidia-ml-py` and a driver
are installed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.files import read_text
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.validation import validated
from glmplan.errors import SpecError
from glmplan.io.machines.dump_merge import host_from_dumps
from glmplan.io.machines.dump_readers import (
    GENERATION,
    MATRIX_INSTRUCTIONS,
    CpuFacts,
    Dump,
    GpuFacts,
    NumaFacts,
    PciDevice,
    PciTree,
    Relations,
    bus_address,
    device_kind,
    read_lscpu,
)
from glmplan.units import BytesPerSecond, FlopPerSecond, Seconds

__all__ = [
    "CpuRates",
    "Probe",
    "matrix_rate",
    "measure_cpu",
    "memory_bandwidth",
    "probe_machine",
    "read_cpu",
    "read_numa",
    "read_nvml",
    "read_sys_pci",
]


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Measured rates of a CPU."""

    memory_bandwidth: BytesPerSecond  # the higher of a copy and a dot product, all cores
    matrix_rate: FlopPerSecond  # FP32 matrix product
    threads: int  # cores that took part
    how: str  # description for users


def _threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _best(act: Callable[[], object], work: float, seconds: float) -> float:
    """Return work over the shortest of the runs that fit into a time."""
    act()  # pages are touched and caches filled before the clock runs
    best, until = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() >= until:
            return work / best


def memory_bandwidth(*, seconds: Seconds = 1.0, megabytes: int = 256) -> tuple[float, float]:
    """Return the bandwidth of a copy and a dot product on all cores [B/s].

    The copy counts bytes read and written, the dot product bytes read. `megabytes` of all arrays together must not fit
    any cache. Each thread works on memory that it touched first, so that it lies on its own NUMA node. A copy moves a
    third more than is counted where stores first read the line.

    Examples
    --------
    >>> copy, read = memory_bandwidth(seconds=0.01, megabytes=16)
    >>> copy > 0 and read > 0
    True
    """
    threads = _threads()
    count = max(megabytes * 10**6 // 4 // 2 // threads, 1024)
    with ThreadPoolExecutor(threads) as pool:
        pairs = list(pool.map(lambda _: (np.ones(count, np.float32), np.zeros(count, np.float32)), range(threads)))
        size = float(count * 4 * threads)

        def copy() -> None:
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))

        def read() -> None:
            list(pool.map(lambda pair: (pair[0].max(), pair[1].max()), pairs))

        return _best(copy, 2 * size, seconds), _best(read, 2 * size, seconds)


def matrix_rate(*, seconds: Seconds = 1.0, size: int = 1536) -> FlopPerSecond:
    """Measure an FP32 matrix product with numpy's BLAS on all cores.

    Examples
    --------
    >>> matrix_rate(seconds=0.01, size=256) > 0
    True
    """
    generator = np.random.default_rng(0)
    one, other = (generator.random((size, size), dtype=np.float32) for _ in range(2))
    out = np.empty_like(one)
    return _best(lambda: np.matmul(one, other, out=out), 2.0 * size**3, seconds)


def measure_cpu(*, seconds: Seconds = 1.0, progress: Callable[[str], None] | None = None) -> CpuRates:
    """Measure memory bandwidth and matrix rate of this machine's CPU.

    Examples
    --------
    >>> measure_cpu(seconds=0.01).threads >= 1
    True
    """
    say = progress or (lambda _: None)
    say("measuring memory bandwidth")
    copy, read = memory_bandwidth(seconds=seconds)
    say("measuring the matrix rate")
    rate = matrix_rate(seconds=seconds)
    threads = _threads()
    how = f"numpy copy {copy / 1e9:.1f} GB/s and read {read / 1e9:.1f} GB/s, FP32 product, {threads} threads"
    return CpuRates(max(copy, read), rate, threads, how)


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Probe:
    """Description of this machine."""

    host: Host
    part: Accelerator | None  # the CPU as an accelerator with measured rates; None with real accelerators
    rates: CpuRates | None


#: time limit of a tool [s] and of its output [B]
_PATIENCE, _MOST_SAID = 10.0, 1 << 20


def _first(path: Path) -> str | None:
    try:
        return read_text(path).strip()
    except SpecError:
        return None


def _said_by(tool: str) -> str:
    """Return the output of a tool; empty where it fails or does not end."""

    def end() -> None:
        # kill the process group: any child that holds the output open would block the read
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    where = subprocess.DEVNULL
    deadline = time.monotonic() + _PATIENCE
    try:
        process = subprocess.Popen(
            [tool], stdin=where, stdout=subprocess.PIPE, stderr=where, env={"LC_ALL": "C"}, start_new_session=True
        )
    except OSError:
        return ""
    assert process.stdout is not None
    said, whole = b"", False
    try:
        # do not wait for a child outside the group with the output open, nor for a tool that closed it and goes on
        while (left := deadline - time.monotonic()) > 0.0 and select.select([process.stdout], [], [], left)[0]:
            part = os.read(process.stdout.fileno(), 1 << 16)
            said += part
            if not part or len(said) > _MOST_SAID:
                whole = not part
                break
        if whole:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.0))
        whole = whole and process.returncode == 0
    finally:
        end()
        process.stdout.close()
        process.wait()
    return said.decode(errors="replace") if whole else ""


def read_cpu() -> CpuFacts:
    """Return the CPU of this machine, from lscpu or else from /proc/cpuinfo.

    Examples
    --------
    >>> read_cpu().sockets >= 1
    True
    """
    tool = shutil.which("lscpu")
    if tool:
        said = _said_by(tool)
        if "CPU(s):" in said:
            return read_lscpu(said, "lscpu")
    text = _first(Path("/proc/cpuinfo")) or ""
    packages = set(re.findall(r"^physical id\s*:\s*(\d+)", text, re.M))
    cores = re.search(r"^cpu cores\s*:\s*(\d+)", text, re.M)
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    words = flags[1].split() if flags else []
    known = tuple(name for name in MATRIX_INSTRUCTIONS if name in words)
    name = model[1].strip() if model else platform.processor() or platform.machine()
    return CpuFacts(name, max(len(packages), 1), int(cores[1]) if cores else None, instructions=known)


def read_numa(root: Path = Path("/sys/devices/system/node"), memory: Path = Path("/proc/meminfo")) -> NumaFacts:
    """Return the memory of each NUMA node by the kernel.

    A machine without nodes is one node with all memory.

    Examples
    --------
    >>> sum(read_numa().sizes.values()) > 0
    True
    """
    sizes: dict[int, float] = {}
    with_cpus: dict[int, bool] = {}
    distances: dict[tuple[int, int], int] = {}
    for folder in sorted(root.glob("node[0-9]*")):
        node = int(folder.name[4:])
        total = re.search(r"MemTotal:\s*(\d+) kB", _first(folder / "meminfo") or "")
        if total:
            sizes[node] = float(total[1]) * 1024
            with_cpus[node] = bool(_first(folder / "cpulist"))
            row = (_first(folder / "distance") or "").split()
            distances.update({(node, other): int(value) for other, value in enumerate(row)})
    whole = re.search(r"MemTotal:\s*(\d+) kB", _first(memory) or "")
    if whole and len(sizes) < 2:
        # /proc/meminfo counts: some virtual machines report less for their only node
        sizes, with_cpus = {0: float(whole[1]) * 1024}, {0: True}
    return NumaFacts(sizes, with_cpus, distances)


def read_sys_pci(root: Path = Path("/sys/bus/pci/devices")) -> PciTree:
    """Return this machine's PCI functions with the links by the kernel.

    A width below the maximum is real and taken; a speed below it can be power saving and is not.

    Examples
    --------
    >>> read_sys_pci(Path("/nowhere")).devices
    ()
    """
    names = {"0300": "VGA", "0302": "3D controller", "0380": "Display controller", "1200": "Processing accelerators"}
    names |= {"0604": "PCI bridge", "0108": "Non-Volatile memory controller", "0200": "Ethernet", "0207": "Infiniband"}
    vendors = {"0x10de": "NVIDIA Corporation", "0x1002": "AMD Instinct or Radeon", "0x1a03": "ASPEED Technology, Inc."}
    devices = []
    for folder in sorted(root.glob("*:*:*.*")):
        code = (_first(folder / "class") or "")[2:6]
        vendor = vendors.get(_first(folder / "vendor") or "", _first(folder / "vendor") or "")
        name = f"{vendor} Device {(_first(folder / 'device') or '')[2:]}"
        kind = names.get(code, "")
        secondary = _first(folder / "secondary_bus_number")
        speed = re.match(r"([\d.]+) GT/s", _first(folder / "max_link_speed") or "")
        widths = [_first(folder / f"{which}_link_width") or "" for which in ("max", "current")]
        lanes = [int(width) for width in widths if width.isdigit() and int(width) in (1, 2, 4, 8, 12, 16, 32)]
        numa = _first(folder / "numa_node") or "-1"
        generation = GENERATION.get(speed[1].removesuffix(".0")) if speed else None
        devices.append(
            PciDevice(
                folder.name,
                name,
                device_kind(kind, name) if kind else "other",
                f"{int(secondary):02x}" if secondary and secondary.isdigit() else None,
                None,
                generation,
                min(lanes) if lanes else None,
                int(numa) if int(numa) >= 0 else None,
            )
        )
    return PciTree(tuple(devices), described=False)


def read_nvml() -> tuple[list[GpuFacts], Relations | None]:
    """Return NVIDIA accelerators and their paths.

    Empty without package, driver or accelerators.

    Examples
    --------
    >>> isinstance(read_nvml()[0], list)
    True
    """
    try:
        import pynvml
    except ImportError:
        return [], None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = [_nvml_gpu(pynvml, index, handle) for index, handle in enumerate(handles)]
        cells = {
            (i, j): _nvml_pair(pynvml, one, other, i == j)
            for i, one in enumerate(handles)
            for j, other in enumerate(handles)
        }
        return gpus, Relations(len(gpus), cells) if gpus else None
    finally:
        pynvml.nvmlShutdown()


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """Return the answer of an NVML call, None if it is not supported."""
    try:
        return getattr(nvml, name)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _nvml_gpu(nvml: Any, index: int, handle: Any) -> GpuFacts:
    name, pci = _asked(nvml, "nvmlDeviceGetName", handle), _asked(nvml, "nvmlDeviceGetPciInfo", handle)
    memory = _asked(nvml, "nvmlDeviceGetMemoryInfo", handle)
    address = getattr(pci, "busId", None)
    clock = _asked(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
    limit = _asked(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
    driver = _asked(nvml, "nvmlSystemGetDriverVersion")
    return GpuFacts(
        index,
        _text(name),
        bus_address(_text(address) or "") if address else None,
        float(memory.total) if memory else None,
        None,
        _asked(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        _asked(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        float(clock) * 1e6 if clock else None,
        float(limit) / 1000 if limit else None,
        _text(driver),
    )


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _nvml_pair(nvml: Any, one: Any, other: Any, same: bool) -> str:
    """Return the cell that `topo -m` would print for a pair."""
    if same:
        return "X"
    address = bus_address(_text(nvml.nvmlDeviceGetPciInfo(other).busId) or "")
    links = 0
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        remote = _asked(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", one, link)
        active = _asked(nvml, "nvmlDeviceGetNvLinkState", one, link)
        # an NVLink switch answers with its own address, which joins all accelerators behind it
        if active and remote is not None:
            kind = _asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", one, link)
            links += bus_address(_text(remote.busId) or "") == address or kind == 2
    if links:
        return f"NV{links}"
    level = _asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE"}.get(-1 if level is None else int(level), "SYS")


def probe_machine(*, name: str = "this-machine", seconds: Seconds = 1.0, progress: Progress | None = None) -> Probe:
    """Describe this machine; without accelerators measure its CPU.

    The CPU takes their place with measured rates.

    Examples
    --------
    >>> probe = probe_machine(seconds=0.02)
    >>> probe.host.accelerator_count >= 1
    True
    """
    say = progress or (lambda _: None)
    say("reading CPU and memory")
    cpu, numa = read_cpu(), read_numa()
    dumps = [Dump("this machine", "lscpu", cpu), Dump("this machine", "NUMA nodes", numa)]
    say("looking for accelerators")
    gpus, relations = read_nvml()
    tree = read_sys_pci()
    listed = sum(device.kind == "gpu" for device in tree.devices)
    if not gpus and not listed:
        rates = measure_cpu(seconds=seconds, progress=say)
        part = _cpu_part(f"{name}-cpu", cpu, numa, rates)
        return Probe(_cpu_host(name, cpu, numa, part), part, rates)
    dumps.append(Dump("this machine", "PCI", tree))
    if gpus:
        dumps.append(Dump("this machine", "NVML", gpus))
    if relations and any(cell.startswith("NV") for cell in relations.cells.values()):
        dumps.append(Dump("this machine", "NVML topology", relations))
    return Probe(host_from_dumps(dumps, name=name, accelerator=None if gpus else "unnamed"), None, None)


def _source(rates: CpuRates) -> str:
    return f"measured by glmplan hardware probe on {date.today().isoformat()}: {rates.how}"


def _cpu_part(name: str, cpu: CpuFacts, numa: NumaFacts, rates: CpuRates) -> Accelerator:
    """Return the CPU as an accelerator with measured rates."""
    notes = ["memory bandwidth and matrix rate were measured here: no data sheet stands behind them"]
    notes.append("the BF16 rate is the FP32 rate of numpy's matrix product: no lower precision was measured")
    content = {
        "name": name,
        "full_name": cpu.model or platform.machine(),
        "kind": "cpu-socket",
        "vendor": (cpu.model or "unknown").split()[0],
        "memory": f"{sum(numa.sizes.values())!r} B",
        "memory_note": "all memory of the machine",
        "memory_bandwidth": f"{rates.memory_bandwidth / 1e9:.1f} GB/s",
        "unified_memory": True,
        "peak": {"bf16": f"{rates.matrix_rate / 1e9:.1f} GFLOP/s"},
        "source": _source(rates),
        "notes": notes,
    }
    return validated(Accelerator, content)


def _cpu_host(name: str, cpu: CpuFacts, numa: NumaFacts, part: Accelerator) -> Host:
    """Return a machine whose CPU does the work."""
    count = max(cpu.sockets, 1)
    nodes = sorted(node for node, has in numa.with_cpus.items() if has)
    share = max(len(nodes) // count, 1)
    sockets = []
    for index in range(count):
        mine = nodes[index * share : (index + 1) * share] if index < count - 1 else nodes[index * share :]
        socket: dict[str, Any] = {
            "name": f"cpu{index}",
            "cpu": cpu.model,
            "cores": cpu.cores_per_socket,
            "numa_nodes": mine,
        }
        socket |= {"instructions": list(cpu.instructions)}
        if mine:
            socket["memory_size"] = f"{sum(numa.sizes[node] for node in mine)!r} B"
        sockets.append({key: value for key, value in socket.items() if value not in (None, [])})
    content = {
        "name": name,
        "title": f"{cpu.model or platform.machine()}, no accelerator",
        "source": part.source,
        "unified_memory": True,
        "unknown": ["memory channels", "power supply"],
        "sockets": sockets,
        "socket_links": [{"ends": [f"cpu{index}", f"cpu{index + 1}"]} for index in range(count - 1)],
        "cards": [{"accelerator": f"{part.name}.toml"}],
    }
    return validated(Host, content)
