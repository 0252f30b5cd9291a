"""Recognise machine dumps by their content and read their facts.

Readers of lscpu, numactl, dmidecode, nvidia-smi, lspci and rocm-smi. `glmplan.io.machines.dump_merge` combines dumps.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from glmplan.catalog.schema.host import MOST_SOCKETS
from glmplan.errors import SpecError
from glmplan.units import Bytes, Hertz, Watts, parse_quantity

__all__ = [
    "GENERATION",
    "MATRIX_INSTRUCTIONS",
    "QUERY",
    "CpuFacts",
    "Dump",
    "GpuFacts",
    "Memory",
    "NumaFacts",
    "PciDevice",
    "PciTree",
    "Relations",
    "broken",
    "bus_address",
    "device_kind",
    "read_bare_csv",
    "read_dmidecode",
    "read_lscpu",
    "read_lspci",
    "read_lspci_tree",
    "read_numactl",
    "read_query_csv",
    "read_query_text",
    "read_query_xml",
    "read_showmeminfo",
    "read_showtopo",
    "read_topo",
]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One accelerator as a vendor tool describes it; None: not stated."""

    index: int
    name: str | None = None
    address: str | None = None
    memory: Bytes | None = None
    memory_usable: Bytes | None = None
    generation: int | None = None  # this and the next: limit of both ends, not the state of an idle link
    lanes: int | None = None
    memory_clock: Hertz | None = None
    power_limit: Watts | None = None
    driver: str | None = None
    lanes_now: int | None = field(default=None, repr=False)  # an idle link can be narrower
    divided: bool = field(default=False, repr=False)  # into instances (MIG)
    cut_name: str | None = field(default=None, repr=False)  # beginning of a name that a table cuts off


@dataclass(frozen=True, slots=True)
class Relations:
    """Paths between accelerators, and their NUMA nodes.

    `cells[i, j]` is the text of the tool.
    """

    count: int
    cells: dict[tuple[int, int], str]
    numa: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function.

    `secondary` is the bus behind a bridge, `port` is `root`, `upstream` or `downstream`.
    """

    address: str
    name: str
    kind: str
    secondary: str | None = None
    port: str | None = None
    generation: int | None = None
    lanes: int | None = None
    numa: int | None = None
    redirect: bool | None = None


@dataclass(frozen=True, slots=True)
class PciTree:
    """All PCI functions of a machine.

    `described`: link rates are known (`-vvv`), not only places (`-tv`).
    """

    devices: tuple[PciDevice, ...]
    described: bool


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """Sockets and cores.

    `numa` lists the processors of each node, `instructions` those for matrix work.
    """

    model: str | None
    sockets: int
    cores_per_socket: int | None
    numa: dict[int, str] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NumaFacts:
    """Memory of each NUMA node [B], presence of processors, and distances."""

    sizes: dict[int, float]
    with_cpus: dict[int, bool]
    distances: dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Memory:
    """Populated memory channels and the size of all modules [B].

    (socket, channel) → configured transfers [1/s].
    """

    channels: dict[tuple[int, str], float]
    size: float
    kind: str | None


def broken(file: str, line: int, message: str, value: object = None) -> SpecError:
    """Return the error for a line that cannot be read, with file and line.

    Examples
    --------
    >>> print(broken("topo.txt", 3, "has 7 cells, the header has 8"))
    topo.txt line 3: has 7 cells, the header has 8
    """
    return SpecError(message, file=f"{file} line {line}", value=value)


def bus_address(text: str) -> str | None:
    """Return a PCI address as `dddd:bb:dd.f`, in lower case.

    The domain may be missing.

    Examples
    --------
    >>> bus_address("00000000:06:00.0"), bus_address("C1:00.0")
    ('0000:06:00.0', '0000:c1:00.0')
    """
    match = re.fullmatch(r"(?:([0-9a-f]*):)?([0-9a-f]{1,2}):([0-9a-f]{1,2}\.[0-9a-f])", text.strip().lower())
    return f"{(match[1] or '')[-4:]:0>4}:{match[2]:0>2}:{match[3]:0>4}" if match else None


#: instruction sets that decide how fast a CPU multiplies matrices
MATRIX_INSTRUCTIONS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)


def read_lscpu(text: str, file: str) -> CpuFacts:
    """Read `lscpu`, as text or with `-J` (flat or nested).

    Examples
    --------
    >>> read_lscpu("CPU(s): 4\\nModel name: AMD EPYC 9575F\\nSocket(s): 2\\n", "lscpu.txt").sockets
    2
    """
    fields: dict[str, str] = {}
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise broken(file, error.lineno, f"is not valid JSON: {error.msg}") from None
        fields = dict(_flat(content.get("lscpu"), file))
    else:
        for line in text.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key.strip(), value.strip())
    if "CPU(s)" not in fields:
        raise SpecError("does not say how many CPUs there are", file=file, field="CPU(s)")
    numa = {}
    for key, value in fields.items():
        match = re.fullmatch(r"NUMA node(\d+) CPU\(s\)", key)
        if match:
            numa[int(match[1])] = value
    flags = fields.get("Flags", "").split()
    notes: tuple[str, ...] = ()
    if fields.get("Off-line CPU(s) list"):
        notes = (f"CPU {fields['Off-line CPU(s) list']} is off-line",)
    sockets = fields.get("Socket(s)", "-")
    cores = fields.get("Core(s) per socket") or fields.get("Core(s) per cluster") or "-"
    for name, value, most in (("Socket(s)", sockets, MOST_SOCKETS), ("Core(s) per socket", cores, _MOST_CORES)):
        # lscpu prints a dash where it does not know
        if value != "-" and not (value.isascii() and value.isdecimal() and 1 <= int(value) <= most):
            raise SpecError(f"is not between 1 and {most}", file=file, field=name, value=value)
    return CpuFacts(
        fields.get("Model name"),
        int(sockets) if sockets.isdigit() else 1,
        int(cores) if cores.isdigit() else None,
        numa,
        tuple(name for name in MATRIX_INSTRUCTIONS if name in flags),
        notes,
    )


def _flat(entries: Any, file: str) -> Iterator[tuple[str, str]]:
    """Yield field and value of every entry, children after their parent."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SpecError("is not a list of fields as `lscpu -J` prints it", file=file, field="lscpu")
    for entry in entries:
        yield str(entry.get("field", "")).rstrip(":"), str(entry.get("data") or "")
        yield from _flat(entry.get("children", []), file)


def read_numactl(text: str, file: str) -> NumaFacts:
    """Read `numactl -H`, whose `MB` are MiB.

    A node without processors is valid.

    Examples
    --------
    >>> facts = read_numactl("available: 1 nodes (0)\\nnode 0 cpus: 0 1\\nnode 0 size: 1024 MB\\n", "numactl.txt")
    >>> facts.sizes[0]
    1073741824.0
    """
    sizes: dict[int, float] = {}
    with_cpus: dict[int, bool] = {}
    distances: dict[tuple[int, int], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        size = re.match(r"node (\d+) size:\s*(\d+) MB", line)
        cpus = re.match(r"node (\d+) cpus:(.*)", line)
        row = re.match(r"\s*(\d+):((?:\s+\d+)+)\s*$", line)
        if size:
            sizes[int(size[1])] = float(size[2]) * 2**20
        elif cpus:
            with_cpus[int(cpus[1])] = bool(cpus[2].strip())
        elif row:
            values = [int(value) for value in row[2].split()]
            nodes = sorted(sizes)
            if len(values) != len(nodes):
                raise broken(file, number, f"has {len(values)} distances for {len(nodes)} nodes")
            distances.update({(int(row[1]), node): value for node, value in zip(nodes, values, strict=True)})
    if not sizes:
        raise SpecError("does not say how much memory any node has", file=file)
    return NumaFacts(sizes, with_cpus, distances)


def read_dmidecode(text: str, file: str) -> Memory:
    """Read `dmidecode -t memory`: populated channels, configured speed.

    `GB` of this tool are GiB. Two modules on one channel share it.

    Examples
    --------
    >>> text = '''Memory Device
    ...         Size: 64 GB
    ...         Bank Locator: P0 CHANNEL A
    ...         Type: DDR5
    ...         Configured Memory Speed: 6400 MT/s
    ... '''
    >>> read_dmidecode(text, "dmi.txt").channels
    {(0, 'A'): 6400000000.0}
    """
    channels: dict[tuple[int, str], float] = {}
    total, kind = 0.0, None
    for number, block in _memory_devices(text):
        size = block.get("Size", "")
        if not size or "No Module" in size or size.startswith("0"):
            continue
        match = re.fullmatch(r"(\d+) (MB|GB|TB)", size)
        if not match:
            raise broken(file, number, "is not a module size", size)
        total += parse_quantity(f"{match[1]} {match[2][0]}iB", "bytes")
        kind = block.get("Type", kind)
        speed = re.match(r"(\d+) MT/s", block.get("Configured Memory Speed", "") or block.get("Speed", ""))
        place = _channel(block.get("Bank Locator", ""), block.get("Locator", ""), len(channels))
        if speed:
            channels[place] = min(float(speed[1]) * 1e6, channels.get(place, float("inf")))
    if not total:
        raise SpecError("describes no populated memory module", file=file)
    return Memory(channels, total, kind)


def _memory_devices(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield first line number and fields of every memory device."""
    block: dict[str, str] | None = None
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith((" ", "\t")):
            if block:
                yield start, block
            block, start = ({} if line.strip() == "Memory Device" else None), number
        elif block is not None:
            key, _, value = line.strip().partition(":")
            block.setdefault(key, value.strip())
    if block:
        yield start, block


def _channel(bank: str, locator: str, number: int) -> tuple[int, str]:
    """Return socket and channel of a module.

    A module whose names do not state them gets a channel of its own.
    """
    match = re.search(r"P(\d+)[ _]?CHANNEL ?([A-Z])", bank, re.IGNORECASE)
    if match:
        return int(match[1]), match[2].upper()
    match = re.search(r"(?:CPU|P|PROC ?)(\d+)[ _-]*(?:DIMM|CH)?[ _-]*([A-Z])", locator, re.IGNORECASE)
    if match:
        return max(int(match[1]) - 1, 0), match[2].upper()
    return 0, f"module {number}"


#: cores of a socket: forty times those of the largest of 2026
_MOST_CORES = 10_000
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+")
_NONE = ("n/a", "[n/a]", "[not supported]", "not supported", "none", "", "requested functionality has been deprecated")


def read_topo(text: str, file: str) -> Relations:
    """Read `nvidia-smi topo -m`: cells between GPUs, and NUMA nodes.

    Some versions have no column of NUMA nodes.

    Examples
    --------
    >>> read_topo("\\tGPU0\\tGPU1\\nGPU0\\t X \\tNODE\\nGPU1\\tNODE\\t X \\n", "topo.txt").cells[0, 1]
    'NODE'
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.match(r"\s*GPU0\s", line + " ")), None)
    if start is None:
        raise SpecError("has no row of GPU0, GPU1, … as `nvidia-smi topo -m` prints it", file=file)
    words = lines[start].split()
    columns = [word for word in words if re.fullmatch(r"GPU\d+|NIC\d+|mlx\d+_\d+", word)]
    gpus = [word for word in columns if word.startswith("GPU")]
    affinity = "NUMA Affinity" in lines[start]
    processors: dict[int, str] = {}
    cells: dict[tuple[int, int], str] = {}
    numa: dict[int, int] = {}
    seen = 0
    for number, line in enumerate(lines[start + 1 :], start + 2):
        match = re.match(r"\s*GPU(\d+)\s+(.*)", line)
        if not match:
            if seen and not line.strip():
                break
            continue
        row, rest = int(match[1]), match[2].split()
        if row >= len(gpus):
            raise broken(file, number, f"names GPU{row}, the header names {len(gpus)} GPUs")
        values = rest[: len(columns)]
        if len(values) < len(columns):
            raise broken(file, number, f"has {len(values)} cells, the header names {len(columns)}")
        for column, value in zip(columns, values, strict=True):
            if not _CELL.fullmatch(value):
                raise broken(file, number, "is not a kind of connection (X, SYS, NODE, PHB, PXB, PIX, NV#)", value)
            if column.startswith("GPU"):
                cells[row, int(column[3:])] = value
        if affinity:
            node = _numa_node(line, rest[len(columns) :])
            if node is not None:
                numa[row] = node
        elif "CPU Affinity" in lines[start] and len(rest) > len(columns):
            processors[row] = rest[len(columns)]
        seen += 1
    if seen != len(gpus):
        raise SpecError(f"describes {seen} GPUs, its header names {len(gpus)}", file=file)
    _check_symmetric(cells, file)
    if len(processors) == len(gpus):  # before the column of NUMA nodes: equal processors are one node
        order = list(dict.fromkeys(processors[row] for row in sorted(processors)))
        numa = {row: order.index(listed) for row, listed in processors.items()}
    notes: tuple[str, ...] = ()
    if "NODE" in cells.values():
        notes = ("NODE can hide a switch fabric inside one chip: lspci -vvv or a measurement tells",)
    return Relations(len(gpus), cells, numa, notes)


def _check_symmetric(cells: dict[tuple[int, int], str], file: str) -> None:
    for (one, other), value in cells.items():
        if cells[other, one] != value:
            raise SpecError(f"says {value} from GPU{one} to GPU{other} but {cells[other, one]} back", file=file)


def _numa_node(line: str, rest: list[str]) -> int | None:
    """Return the NUMA affinity of a row, None without one.

    It is the first plain number after the processor list.
    """
    tail = [part.strip() for part in line.split("\t")[-3:]] if "\t" in line else rest
    numbers = [part for part in tail if re.fullmatch(r"\d+", part)]
    return int(numbers[0]) if len(numbers) == 1 else None


def _quantity(text: str | None, dimension: str) -> float | None:
    """Return a quantity as the tool prints it; None where it states none."""
    if text is None or text.strip().lower() in _NONE:
        return None
    try:
        return parse_quantity(text.strip(), dimension)
    except SpecError:
        return None


def _number(text: str | None) -> int | None:
    match = re.match(r"\s*(\d+)", text or "")
    return int(match[1]) if match else None


def _least(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


#: blocks and names of the power limit in force, in the releases of nvidia-smi; the default is that of the board
_POWER_BLOCKS = ("gpu_power_readings", "power_readings")
_POWER_LIMITS = ("current_power_limit", "enforced_power_limit", "power_limit", "default_power_limit")


def _first_watts(texts: Iterable[str | None]) -> float | None:
    return next((watts for text in texts if (watts := _quantity(text, "watts")) is not None), None)


def read_query_xml(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi -q -x`.

    Examples
    --------
    >>> read_query_xml("<nvidia_smi_log><gpu id='00000000:01:00.0'><product_name>NVIDIA L4</product_name>"
    ...                "</gpu></nvidia_smi_log>", "q.xml")[0].name
    'NVIDIA L4'
    """
    try:
        root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", text))
    except ElementTree.ParseError as error:
        raise broken(file, error.position[0], f"is not well-formed XML: {error}") from None
    driver = root.findtext("driver_version")
    gpus = []
    for index, gpu in enumerate(root.findall("gpu")):
        link = gpu.find("pci/pci_gpu_link_info")

        def of(path: str, node: ElementTree.Element | None = link) -> str | None:
            return node.findtext(path) if node is not None else None

        generation = _least(
            *(_number(of(f"pcie_gen/{key}")) for key in ("max_link_gen", "max_device_link_gen", "max_host_link_gen"))
        )
        limits = (gpu.findtext(f"{block}/{name}") for block in _POWER_BLOCKS for name in _POWER_LIMITS)
        total = _quantity(gpu.findtext("fb_memory_usage/total"), "bytes")
        reserved = _quantity(gpu.findtext("fb_memory_usage/reserved"), "bytes")
        gpus.append(
            GpuFacts(
                index,
                gpu.findtext("product_name"),
                bus_address(gpu.get("id") or gpu.findtext("pci/pci_bus_id") or ""),
                total,
                total - reserved if total is not None and reserved is not None else None,
                generation,
                _number(of("link_widths/max_link_width")),
                _quantity(gpu.findtext("max_clocks/mem_clock"), "hertz"),
                _first_watts(limits),
                driver,
                _number(of("link_widths/current_link_width")),
                gpu.findtext("mig_mode/current_mig") == "Enabled",
            )
        )
    if not gpus:
        raise SpecError("describes no GPU", file=file)
    return gpus


def read_query_text(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi -q`, the same tree by indentation.

    Examples
    --------
    >>> read_query_text("GPU 00000000:06:00.0\\n    Product Name   : NVIDIA L4\\n", "q.txt")[0].address
    '0000:06:00.0'
    """
    gpus: list[dict[str, str]] = []
    path: list[tuple[int, str]] = []
    driver = None
    for line in text.splitlines():
        if line.startswith("Driver Version"):
            driver = line.partition(":")[2].strip()
        match = re.match(r"GPU\s+([0-9a-fA-F:.]+)\s*$", line)
        if match:
            gpus.append({"address": bus_address(match[1]) or ""})
            path = []
            continue
        if not gpus or not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(" : ")
        path = [(depth, name) for depth, name in path if depth < indent]
        if colon:
            gpus[-1].setdefault("/".join([name for _, name in path] + [key.strip()]), value.strip())
        else:
            path.append((indent, key.rstrip(" :")))
    if not gpus:
        raise SpecError("describes no GPU", file=file)
    return [_from_text(index, gpu, driver) for index, gpu in enumerate(gpus)]


def _from_text(index: int, gpu: dict[str, str], driver: str | None) -> GpuFacts:
    """Return the facts of one GPU from its flattened text tree."""
    link = "PCI/GPU Link Info/PCIe Generation"
    generation = _least(*(_number(gpu.get(f"{link}/{key}")) for key in ("Max", "Device Max", "Host Max")))
    total = _quantity(gpu.get("FB Memory Usage/Total"), "bytes")
    reserved = _quantity(gpu.get("FB Memory Usage/Reserved"), "bytes")
    names = [(block.replace("_", " "), name.replace("_", " ")) for block in _POWER_BLOCKS for name in _POWER_LIMITS]
    tree = {key.lower(): value for key, value in gpu.items()}
    return GpuFacts(
        index,
        gpu.get("Product Name"),
        gpu["address"] or None,
        total,
        total - reserved if total is not None and reserved is not None else None,
        generation,
        _number(gpu.get("PCI/GPU Link Info/Link Width/Max")),
        _quantity(gpu.get("Max Clocks/Memory"), "hertz"),
        _first_watts(tree.get(f"{block}/{name}") for block, name in names),
        driver,
        _number(gpu.get("PCI/GPU Link Info/Link Width/Current")),
        gpu.get("MIG Mode/Current") == "Enabled",
    )


#: query whose columns say the most
QUERY = (
    "nvidia-smi --query-gpu=index,name,pci.bus_id,memory.total,pcie.link.gen.max,pcie.link.width.max,power.limit "
    "--format=csv"
)


def read_query_csv(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi --query-gpu=… --format=csv` with any columns.

    Units stand in the header, in the values or in both. The current link generation is not read: an idle link falls
    back to generation 1 to save power.

    Examples
    --------
    >>> read_query_csv("index, name, memory.total [MiB]\\n0, NVIDIA L40S, 46068 MiB\\n", "q.csv")[0].memory
    48305799168.0
    """
    rows = [line for line in text.splitlines() if line.strip()]
    header = [re.sub(r"\s*\[.*\]", "", name).strip() for name in next(csv.reader(rows[:1], skipinitialspace=True))]
    units = dict(zip(header, re.findall(r"(?:^|,)[^,\[]*(?:\[([^\]]*)\])?", rows[0]), strict=False))
    gpus: list[GpuFacts] = []
    for number, fields in enumerate(csv.reader(rows[1:], skipinitialspace=True), 2):
        if len(fields) != len(header):
            raise broken(file, number, f"has {len(fields)} fields, the header names {len(header)}")
        row = dict(zip(header, (value.strip() for value in fields), strict=True))

        def of(name: str, dimension: str, row: dict[str, str] = row) -> float | None:
            value = row.get(name)
            if value is not None and re.fullmatch(r"[\d.]+", value):
                value = f"{value} {units.get(name) or {'bytes': 'MiB', 'hertz': 'MHz', 'watts': 'W'}[dimension]}"
            return _quantity(value, dimension)

        ends = ("pcie.link.gen.max", "pcie.link.gen.gpumax", "pcie.link.gen.hostmax")
        address, index = row.get("pci.bus_id") or row.get("gpu_bus_id"), _number(row.get("index"))
        gpus.append(
            GpuFacts(
                index if index is not None else len(gpus),
                row.get("name") or row.get("gpu_name"),
                bus_address(address) if address else None,
                of("memory.total", "bytes"),
                None,
                _least(*(_number(row.get(key)) for key in ends)),
                _number(row.get("pcie.link.width.max")),
                of("clocks.max.mem", "hertz") or of("clocks.max.memory", "hertz"),
                of("power.limit", "watts") or of("enforced.power.limit", "watts"),
                row.get("driver_version"),
                _number(row.get("pcie.link.width.current")),
                row.get("mig.mode.current") == "Enabled",
            )
        )
    if not gpus:
        raise SpecError("describes no GPU", file=file)
    return gpus


#: column of a query → form of its values; the other columns of a file without a header line are left out
_FORMS = {
    "name": re.compile(r"(?:NVIDIA|Tesla|Quadro|GeForce)\b.*"),
    "pci.bus_id": re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"),
    "driver_version": re.compile(r"\d{3}\.\d+(?:\.\d+)?"),
    "memory.total": re.compile(r"\d+ MiB"),
}


def read_bare_csv(text: str, file: str) -> list[GpuFacts]:
    """Read a query with ``--format=csv,noheader``.

    The form of their values tells the columns. The largest column in MiB, or else the only one of numbers with four
    digits or more, is the memory. A power is left out: it may be a draw or a limit.

    Examples
    --------
    >>> gpu = read_bare_csv("0, NVIDIA L40S, 46068 MiB, 40000 MiB\\n", "q.csv")[0]
    >>> gpu.name, gpu.memory
    ('NVIDIA L40S', 48305799168.0)
    """
    rows = [[value.strip() for value in row] for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    if len({len(row) for row in rows}) > 1:
        raise SpecError(f"has rows of unlike length and no header line; run: {QUERY} > gpu.csv", file=file)
    columns = list(zip(*rows, strict=True))
    names = [f"column {number}" for number in range(len(columns))]
    for name, form in _FORMS.items():
        fit = [number for number, column in enumerate(columns) if all(form.fullmatch(value) for value in column)]
        if not fit and name == "memory.total":
            large = [
                number for number, column in enumerate(columns) if all(re.fullmatch(r"\d{4,}", one) for one in column)
            ]
            fit = large if len(large) == 1 else []
        if fit:
            names[max(fit, key=lambda number: [_number(value.split()[0]) or 0.0 for value in columns[number]])] = name
    if "name" not in names:
        raise SpecError(f"names no accelerator in one column; run: {QUERY} > gpu.csv", file=file)
    order = [str(number) for number in range(len(rows))]
    names = ["index" if list(column) == order else name for name, column in zip(names, columns, strict=True)]
    return read_query_csv("\n".join([", ".join(names), *text.splitlines()]), file)


#: gigatransfers per second → PCIe generation
GENERATION = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}

_NEW = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(.*?): (.*)$")
_GPU = re.compile(r"NVIDIA|Instinct|Radeon|\bMI\d{2,3}|Arc Pro|Ascend", re.IGNORECASE)


def device_kind(kind: str, name: str) -> str:
    """Return `gpu`, `display`, `nic`, `nvme`, `bridge` or `other`.

    `kind`: class as lspci prints it; empty in a tree without classes.

    Examples
    --------
    >>> device_kind("3D controller", "NVIDIA Corporation Device 2bb5")
    'gpu'
    >>> device_kind("VGA compatible controller", "ASPEED Technology, Inc. ASPEED Graphics Family")
    'display'
    """
    if "bridge" in kind.lower():
        return "bridge"
    if "audio" in (kind + name).lower() or "usb" in (kind + name).lower():
        return "other"
    if kind.startswith(("3D controller", "Processing accelerators", "Display controller")):
        return "gpu"
    if kind.startswith("VGA"):
        return "gpu" if _GPU.search(name) else "display"
    if kind.startswith("Non-Volatile") or "NVMe" in name:
        return "nvme"
    if kind.startswith(("Ethernet", "Infiniband", "Network")) or re.search(
        r"ConnectX|Ethernet Controller|BlueField", name
    ):
        return "nic"
    if not kind and re.search(
        r"NVIDIA Corporation .*(?:\[.*(?:RTX|Tesla|GeForce|Quadro)|[ABGH]\d{2,3}\b|Device 2)", name
    ):
        return "gpu"
    return "display" if not kind and "Graphics" in name else "other"


def read_lspci(text: str, file: str) -> PciTree:
    """Read `lspci -vvv`: all functions with links, NUMA nodes and ACS state.

    Generation and lanes are the capability of the port (`LnkCap`). A lower present width (`LnkSta … downgraded`)
    replaces it, because width does not fall at idle; a lower present speed does not.

    Examples
    --------
    >>> text = '''06:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
    ...         LnkCap: Port #0, Speed 32GT/s, Width x16, ASPM L1
    ...         LnkSta: Speed 2.5GT/s (downgraded), Width x8 (downgraded)
    ... '''
    >>> device = read_lspci(text, "lspci.txt").devices[0]
    >>> device.kind, device.generation, device.lanes
    ('gpu', 5, 8)
    """
    result: list[dict[str, object]] = []
    for number, line in enumerate(text.splitlines(), 1):
        new = _NEW.match(line)
        if new:
            address = new[1] if new[1].count(":") == 2 else f"0000:{new[1]}"
            result.append({"address": address, "name": new[3].strip(), "class": new[2]})
            continue
        if not result:
            continue
        device, text_ = result[-1], line.strip()
        if text_.startswith("LnkCap:"):
            speed, width = re.search(r"Speed ([\d.]+)GT/s", text_), re.search(r"Width x(\d+)", text_)
            if speed and speed[1] not in GENERATION:
                raise broken(file, number, "is not a PCIe speed", f"{speed[1]} GT/s")
            device["generation"] = GENERATION[speed[1]] if speed else None
            device["lanes"] = int(width[1]) if width else None
        elif text_.startswith("LnkSta:"):
            now = re.search(r"Width x(\d+) \(downgraded\)", text_)
            if now:
                device["lanes"] = int(now[1])
        elif text_.startswith("NUMA node:"):
            node = re.fullmatch(r"NUMA node:\s*(-?\d+)", text_)
            if not node:
                raise broken(file, number, "is not a NUMA node", text_.partition(":")[2].strip())
            device["numa"] = int(node[1])
        elif text_.startswith("Bus: primary="):
            secondary = re.search(r"secondary=([0-9a-f]{2})", text_)
            device["secondary"] = secondary[1] if secondary else None
        elif text_.startswith("ACSCtl:"):
            device["redirect"] = "ReqRedir+" in text_
        elif "Express (v" in text_:
            port = re.search(r"(Root|Upstream|Downstream) Port", text_)
            device["port"] = port[1].lower() if port else None
    if not result:
        raise SpecError("describes no device as `lspci -vvv` prints it", file=file)
    devices = []
    for entry in result:
        kind = device_kind(str(entry.pop("class")), str(entry["name"]))
        devices.append(PciDevice(kind=kind, **entry))  # type: ignore[arg-type]
    return PciTree(tuple(devices), described=True)


def read_lspci_tree(text: str, file: str) -> PciTree:
    """Read `lspci -tv`: places of all functions, without link rates.

    The dump may begin in the middle.

    Examples
    --------
    >>> text = r'''-+-[0000:c0]-+-01.1-[c1]----00.0  NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]
    ...  \\-[0000:00]---00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4'''
    >>> [(device.address, device.kind) for device in read_lspci_tree(text, "tree.txt").devices]
    [('0000:c0:01.1', 'bridge'), ('0000:c1:00.0', 'gpu'), ('0000:00:00.0', 'other')]
    """
    bus_at: dict[int, tuple[str, str]] = {}
    devices: list[PciDevice] = []
    for number, line in enumerate(text.splitlines(), 1):
        root = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{2})\]", line)
        if root:
            bus_at = {}
            place = (root[1], root[2])
            position = root.end()
            position = _after_dashes(line, position, place, bus_at)
        else:
            branch = re.search(r"[+\\]-", line)
            if not branch or not line.strip():
                continue
            if branch.start() not in bus_at:
                raise broken(file, number, "is a branch without a parent")
            place, position = bus_at[branch.start()], branch.end()
        _read_branch(line, position, place, bus_at, devices, file, number)
    if not devices:
        raise SpecError("describes no device as `lspci -tv` prints it", file=file)
    return PciTree(tuple(devices), described=False)


def _after_dashes(line: str, position: int, place: tuple[str, str], bus_at: dict[int, tuple[str, str]]) -> int:
    """Skip the dashes before children; store the column of a fork."""
    fork = re.match(r"-+\+-", line[position:])
    if fork:
        bus_at[position + fork.end() - 2] = place
        return position + fork.end()
    dashes = re.match(r"-+", line[position:])
    return position + (dashes.end() if dashes else 0)


def _read_branch(
    line: str,
    position: int,
    place: tuple[str, str],
    bus_at: dict[int, tuple[str, str]],
    devices: list[PciDevice],
    file: str,
    number: int,
) -> None:
    """Read a chain of bridges and the device at its end."""
    while position < len(line.rstrip()):
        here = re.match(r"([0-9a-f]{2}\.[0-7])(?:-\[([0-9a-f]{2})(?:-[0-9a-f]{2})?\]|\s+(.*)|\s*$)", line[position:])
        if not here:
            raise broken(file, number, "is not a device or bridge of a tree", line[position:][:40])
        address = f"{place[0]}:{place[1]}:{here[1]}"
        if here[2] is None:
            name = (here[3] or "").strip()
            devices.append(PciDevice(address, name, device_kind("", name)))
            return
        devices.append(PciDevice(address, "PCI bridge", "bridge", secondary=here[2]))
        place = (place[0], here[2])
        position = _after_dashes(line, position + here.end(), place, bus_at)


def read_showtopo(text: str, file: str) -> Relations:
    """Read `rocm-smi --showtopo`: `XGMI` or `PCIE`, and NUMA nodes.

    Hops are not read: the tool prints 1 for any XGMI (ROCm/rocm-systems issue 5763).

    Examples
    --------
    >>> text = '''=== Link Type between two GPUs ===
    ...        GPU0         GPU1
    ... GPU0   0            XGMI
    ... GPU1   XGMI         0
    ... '''
    >>> read_showtopo(text, "topo.txt").cells[0, 1]
    'XGMI'
    """
    cells: dict[tuple[int, int], str] = {}
    numa: dict[int, int] = {}
    block, columns = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        title = re.match(r"=+\s*(.*?)\s*=+\s*$", line)
        if title:
            block = title[1]
            continue
        node = re.match(r"GPU\[(\d+)\]\s*:\s*\(Topology\) Numa Node:\s*(-?\d+)", line)
        if node and int(node[2]) >= 0:
            numa[int(node[1])] = int(node[2])
        if not block.startswith("Link Type"):
            continue
        if re.match(r"\s+GPU0\b", line):
            columns = len(line.split())
            continue
        row = re.match(r"GPU(\d+)\s+(.*)", line)
        if row:
            values = row[2].split()
            if len(values) != columns:
                raise broken(file, number, f"has {len(values)} cells, the header names {columns}")
            for other, value in enumerate(values):
                if value not in ("0", "XGMI", "PCIE"):
                    raise broken(file, number, "is not a kind of link (XGMI, PCIE)", value)
                cells[int(row[1]), other] = "X" if value == "0" else value
    if not cells:
        raise SpecError("has no matrix of link types as `rocm-smi --showtopo` prints it", file=file)
    return Relations(columns, cells, numa)


def read_showmeminfo(text: str, file: str) -> list[GpuFacts]:
    """Read `rocm-smi --showmeminfo vram`: memory, without names.

    Examples
    --------
    >>> read_showmeminfo("GPU[0]   : VRAM Total Memory (B): 206141652992\\n", "mem.txt")[0].memory
    206141652992.0
    """
    result = re.findall(r"GPU\[(\d+)\]\s*:\s*VRAM Total Memory \(B\):\s*(\d+)", text)
    if not result:
        raise SpecError("has no total of VRAM as `rocm-smi --showmeminfo vram` prints it", file=file)
    return [GpuFacts(int(index), memory=float(total)) for index, total in result]


@dataclass(frozen=True, slots=True)
class Dump:
    """Content of a dump, with the tool that printed it."""

    file: str
    tool: str
    content: Any
