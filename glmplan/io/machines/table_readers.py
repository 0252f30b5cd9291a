"""Read the short tables of vendor tools: names, memory, peer access.

They say less than the dumps of `glmplan.io.machines.dump_readers`: no links, no places. Names of AMD accelerators in
the short table of `rocm-smi` are PCI device numbers, which the list of PCI identifiers names [1]_.

References
----------
.. [1] https://pci-ids.ucw.cz/read/PC/1002 (74a1, 74a5, 75a0, 75a3); amd-smi on an MI350X prints 0x75a0:
   https://github.com/ROCm/rocm-systems/pull/2987
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from glmplan.errors import SpecError
from glmplan.io.machines.dump_readers import GpuFacts, NumaFacts, Relations, broken, bus_address
from glmplan.units import GIB, Bytes

__all__ = [
    "TABLES",
    "MainMemory",
    "PeerAccess",
    "read_amd_list",
    "read_amd_static",
    "read_amd_table",
    "read_amd_topology",
    "read_concise_rocm",
    "read_free",
    "read_habana_table",
    "read_list",
    "read_lstopo",
    "read_npu_info",
    "read_peer_access",
    "read_product_names",
    "read_smi_table",
    "read_system_profiler",
    "read_xpu_discovery",
]

#: PCI device of AMD → product
_DEVICES = {
    "74a1": "Instinct MI300X",
    "74a5": "Instinct MI325X",
    "75a0": "Instinct MI350X",
    "75a3": "Instinct MI355X",
}
#: persistence mode, or the driver model of Windows
_MODES = r"(?:Off|On|N/A|WDDM|TCC|MCDM)"
_PEER = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False}


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """Peer-to-peer access of GPUs; `direct` None: the tool does not know."""

    count: int
    direct: bool | None


def read_list(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi -L`.

    Examples
    --------
    >>> read_list("GPU 0: NVIDIA L4 (UUID: GPU-1)\\n  MIG 1g.10gb\\n", "L.txt")
    [GpuFacts(index=0, name='NVIDIA L4', address=None, memory=None, memory_usable=None, generation=None, lanes=None, \
memory_clock=None, power_limit=None, driver=None)]
    """
    found = re.findall(r"^GPU (\d+): (.+?) \(UUID:", text, re.M)
    if not found:
        raise SpecError("names no GPU as `nvidia-smi -L` prints it", file=file)
    marks = re.split(r"^GPU \d+: .+ \(UUID:", text, flags=re.M)[1:]
    return [
        GpuFacts(int(index), name, divided=re.search(r"^ +MIG ", after, re.M) is not None)
        for (index, name), after in zip(found, marks, strict=True)
    ]


def read_smi_table(text: str, file: str) -> list[GpuFacts]:
    """Read the table of `nvidia-smi` without options.

    Names that the table cuts off end in `...`; their beginning is kept apart.

    Examples
    --------
    >>> text = '''|   0  NVIDIA GeForce RTX 3090        Off |   00000000:01:00.0 Off |                  N/A |
    ... | 30%   38C    P8             22W /  210W |       1MiB /  24576MiB |      0%      Default |'''
    >>> gpu = read_smi_table(text, "smi.txt")[0]
    >>> gpu.name, gpu.power_limit, gpu.memory / 2**20
    ('NVIDIA GeForce RTX 3090', 210.0, 24576.0)
    """
    driver = re.search(r"Driver Version: *(\S+)", text)
    result: list[GpuFacts] = []
    for line in text.splitlines():
        head = re.match(rf"\| +(\d+) +(\S.*?) +{_MODES} +\| *([0-9A-Fa-f:]+\.\d) ", line)
        if head:
            cut = head[2].removesuffix("...").strip() if head[2].endswith("...") else None
            name = None if cut else head[2]
            release = driver[1] if driver else None
            result.append(GpuFacts(int(head[1]), name, bus_address(head[3]), driver=release, cut_name=cut))
            continue
        if result and re.match(r"\|[ |]*\| +Enabled +\|$", line):
            result[-1] = replace(result[-1], divided=True)
        body = re.search(r"/ *(\d+)W +\|.*/ *(\d+)MiB \|", line) or re.search(r"()N/A +\|.*/ *(\d+)MiB \|", line)
        if body and result and result[-1].memory is None:
            limit = float(body[1]) if body[1] else None
            result[-1] = replace(result[-1], memory=float(body[2]) * 2**20, power_limit=limit)
    if not result:
        raise SpecError("has no row of a GPU as `nvidia-smi` prints it", file=file)
    return result


def read_peer_access(text: str, file: str) -> PeerAccess:
    """Read `nvidia-smi topo -p2p r`: whether GPUs read each other's memory.

    Examples
    --------
    >>> read_peer_access(" \\tGPU0\\tGPU1\\n GPU0\\tX\\tCNS\\n GPU1\\tCNS\\tX\\n", "p2p.txt")
    PeerAccess(count=2, direct=False)
    """
    rows, cells = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        row = re.match(r"\s*GPU\d+\s+((?:X|OK|CNS|GNS|TNS|NS|DR|U)(?:\s+.*)?)$", line)
        if not row:
            continue
        rows += 1
        values = row[1].split()
        wrong = next((value for value in values if value not in (*_PEER, "X", "U")), None)
        if wrong is not None:
            raise broken(file, number, "is not a status of peer access (OK, CNS, GNS, TNS, NS, DR, U)", wrong)
        cells += [value for value in values if value != "X"]
    if not rows:
        raise SpecError("has no matrix of peer access as `nvidia-smi topo -p2p r` prints it", file=file)
    known = [_PEER[value] for value in cells if value in _PEER]
    return PeerAccess(rows, all(known) if known and len(known) == len(cells) else None)


def read_product_names(text: str, file: str) -> list[GpuFacts]:
    """Read `rocm-smi --showproductname`.

    Examples
    --------
    >>> read_product_names("GPU[0]\\t\\t: Card Series: \\t\\tAMD Instinct MI300X OAM\\n", "p.txt")[0].name
    'AMD Instinct MI300X'
    """
    found = re.findall(r"GPU\[(\d+)\]\s*: Card [Ss]eries:\s*(.+)", text)
    if not found:
        raise SpecError("names no card series as `rocm-smi --showproductname` prints it", file=file)
    return [GpuFacts(int(index), re.sub(r" OAM$", "", name.strip())) for index, name in found]


def read_concise_rocm(text: str, file: str) -> list[GpuFacts]:
    """Read the table of `rocm-smi` without options.

    Examples
    --------
    >>> row = "0       2     0x74a1,   28851  44.0C  141.0W  NPS1, SPX, 0  132Mhz  900Mhz  0%  auto  750.0W  0%  0%"
    >>> read_concise_rocm(row, "rocm.txt")[0].name, read_concise_rocm(row, "rocm.txt")[0].power_limit
    ('Instinct MI300X', 750.0)
    """
    result = []
    # releases before ROCm 6 print no device number
    rows = re.findall(r"^(\d+)\s+(?:\d+\s+0x([0-9a-f]{4}),|(?=[\d.]+.?[cC]\s))(.*)$", text, re.M)
    for index, device, rest in rows:
        limits = re.findall(r"([\d.]+)W\b", rest)
        limit = float(limits[-1]) if len(limits) > 1 else None
        result.append(GpuFacts(int(index), _DEVICES.get(device), power_limit=limit))
    if not result:
        raise SpecError("has no row of a device as `rocm-smi` prints it", file=file)
    return result


def read_amd_static(text: str, file: str) -> list[GpuFacts]:
    """Read `amd-smi static`: `MB` of this tool are MiB.

    Examples
    --------
    >>> text = "GPU: 0\\n    BDF: 0000:05:00.0\\n    ASIC:\\n        MARKET_NAME: AMD Instinct MI300X\\n"
    >>> read_amd_static(text, "amd.txt")[0].address
    '0000:05:00.0'
    """
    result = []
    for index, block in _blocks(text, r"^GPU: (\d+)\s*$"):
        said = dict(re.findall(r"^\s+([A-Z_]+): (.+?)\s*$", block, re.M))
        size = re.search(r"VRAM:\n(?:\s+[A-Z_]+:.*\n)*?\s+SIZE: (\d+) MB", block)
        rate = re.match(r"([\d.]+) GT/s", said.get("MAX_PCIE_SPEED", ""))
        lanes = said.get("MAX_PCIE_WIDTH", "")
        generations = {"8": 3, "16": 4, "32": 5, "64": 6}
        result.append(
            GpuFacts(
                index,
                said.get("MARKET_NAME"),
                bus_address(said.get("BDF", "")),
                float(size[1]) * 2**20 if size else None,
                generation=generations.get(rate[1].removesuffix(".0")) if rate else None,
                lanes=int(lanes) if lanes.isdigit() else None,
            )
        )
    if not result:
        raise SpecError("describes no GPU as `amd-smi static` prints it", file=file)
    return result


def read_xpu_discovery(text: str, file: str) -> list[GpuFacts]:
    """Read `xpu-smi discovery`.

    Examples
    --------
    >>> text = "| 0  | Device Name: Intel(R) Arc(TM) Pro B60 Graphics  |\\n|  | PCI BDF Address: 0000:03:00.0  |"
    >>> read_xpu_discovery(text, "xpu.txt")[0].name
    'Arc Pro B60'
    """
    result = []
    for index, block in _blocks(text, r"^\| (\d+) +\|"):
        name = re.search(r"Device Name: (.+?) *\|", block)
        address = re.search(r"PCI BDF Address: (\S+)", block)
        plain = re.sub(r"\((?:R|TM)\)|\bIntel\b|\bGraphics\b", "", name[1]) if name else ""
        result.append(GpuFacts(index, " ".join(plain.split()) or None, bus_address(address[1]) if address else None))
    if not result:
        raise SpecError("describes no device as `xpu-smi discovery` prints it", file=file)
    return result


def read_npu_info(text: str, file: str) -> list[GpuFacts]:
    """Read `npu-smi info`: name and HBM of each chip, in MiB.

    Examples
    --------
    >>> text = '''| 0     910B3               | OK            | 93.4        38                0    / 0             |
    ... | 0                         | 0000:C1:00.0  | 0           0    / 0          3351 / 65536         |'''
    >>> read_npu_info(text, "npu.txt")[0].name, read_npu_info(text, "npu.txt")[0].memory / 2**20
    ('Ascend 910B3', 65536.0)
    """
    result: list[GpuFacts] = []
    name = None
    for line in text.splitlines():
        head = re.match(r"\| \d+ +(\w+) +\| *(?:OK|Warning|Alarm|Critical|UNKNOWN)", line)
        if head:
            name = head[1]
            continue
        chip = re.match(r"\| \d+ +(?:\d+ +)?\| *([0-9A-Fa-f:]+\.\d) *\|.*/ *(\d+) *\|\s*$", line)
        if chip and name:
            called = name if name.startswith("Ascend") else f"Ascend {name}"
            result.append(GpuFacts(len(result), called, bus_address(chip[1]), float(chip[2]) * 2**20))
    if not result:
        raise SpecError("describes no chip as `npu-smi info` prints it", file=file)
    return result


def read_amd_table(text: str, file: str) -> list[GpuFacts]:
    """Read the table of `amd-smi` without options: its `MB` are MiB.

    Examples
    --------
    >>> text = "| 0000:05:00.0    AMD Instinct MI300X | 0 %      34 C   0           138/750 W |\\n"
    >>> text += "|   0       0       7        SPX/NPS1 | 0 %        N/A           285/196592 MB |"
    >>> gpu = read_amd_table(text, "amd.txt")[0]
    >>> gpu.name, gpu.power_limit, gpu.memory / 2**20
    ('AMD Instinct MI300X', 750.0, 196592.0)
    """
    head = r"^\| ([0-9a-f]{4}:[0-9a-f:]+\.\d) +(\S[^|]*?) +\|[^|]*?(?:/(\d+) W|N/A) *\|\s*\n"
    head += r"\| +(\d+) [^|]*\|[^|]*?(?:/(\d+) MB|N/A) *\|"
    result = [
        GpuFacts(
            int(index), name, bus_address(address), float(size) * 2**20 if size else None,
            power_limit=float(limit) if limit else None,
        )
        for address, name, limit, index, size in re.findall(head, text, re.M)
    ]  # fmt: skip
    if not result:
        raise SpecError("has no row of a GPU as `amd-smi` prints it", file=file)
    return result


def read_amd_list(text: str, file: str) -> list[GpuFacts]:
    """Read `amd-smi list`: addresses, without names.

    Examples
    --------
    >>> read_amd_list("GPU: 0\\n    BDF: 0000:05:00.0\\n    UUID: d1\\n", "list.txt")[0].address
    '0000:05:00.0'
    """
    found = re.findall(r"^GPU: (\d+)\n\s+BDF: (\S+)", text, re.M)
    if not found:
        raise SpecError("names no GPU as `amd-smi list` prints it", file=file)
    return [GpuFacts(int(index), address=bus_address(address)) for index, address in found]


def read_amd_topology(text: str, file: str) -> Relations:
    """Read the link types of `amd-smi topology`.

    Examples
    --------
    >>> text = "LINK TYPE TABLE:\\n     a    b\\na    SELF XGMI\\nb    XGMI SELF\\n"
    >>> read_amd_topology(text, "topo.txt").cells[0, 1]
    'XGMI'
    """
    block = re.search(r"LINK TYPE TABLE:\s*\n(.*\n)((?:\S+ +(?:(?:SELF|XGMI|PCIE|UNKNOWN|N/A) *)+\n?)+)", text)
    rows = [line.split()[1:] for line in block[2].splitlines()] if block else []
    if not rows or any(len(row) != len(rows) for row in rows):
        raise SpecError("has no matrix of link types as `amd-smi topology` prints it", file=file)
    cells = {
        (one, other): "X" if cell == "SELF" else cell for one, row in enumerate(rows) for other, cell in enumerate(row)
    }
    return Relations(len(rows), cells)


def read_habana_table(text: str, file: str) -> list[GpuFacts]:
    """Read the table of `hl-smi`, which has the form of that of nvidia-smi.

    The product number HL-225 is Gaudi 2, HL-325 and HL-338 are Gaudi 3 [1]_.

    References
    ----------
    .. [1] https://docs.habana.ai/en/latest/Management_and_Monitoring/Embedded_System_Tools_Guide (hl-smi)

    Examples
    --------
    >>> text = "|   0  HL-225              N/A  | 0000:9a:00.0     N/A |                   0  |"
    >>> read_habana_table(text, "hl.txt")[0].name
    'Gaudi 2'
    """
    result: list[GpuFacts] = []
    for line in text.splitlines():
        head = re.match(r"\| +(\d+) +HL-(\d+)\w* .*?\| *([0-9a-f]{4}:[0-9a-f:]+\.\d) ", line)
        if head:
            generation = {"2": "Gaudi 2", "3": "Gaudi 3"}.get(head[2][0])
            result.append(GpuFacts(int(head[1]), generation or f"HL-{head[2]}", bus_address(head[3])))
        body = re.search(r"/ *(\d+)W +\|.*/ *(\d+)MiB \|", line)
        if body and result and result[-1].memory is None:
            result[-1] = replace(result[-1], memory=float(body[2]) * 2**20, power_limit=float(body[1]))
    if not result:
        raise SpecError("has no row of an AIP as `hl-smi` prints it", file=file)
    return result


def read_system_profiler(text: str, file: str) -> list[GpuFacts]:
    """Read `system_profiler SPHardwareDataType` or `SPDisplaysDataType`.

    Examples
    --------
    >>> read_system_profiler("      Chip: Apple M3 Ultra\\n      Memory: 512 GB\\n", "mac.txt")[0].memory / 2**30
    512.0
    """
    chip = re.search(r"^\s*(?:Chip|Chipset Model): (Apple .+?)\s*$", text, re.M)
    if chip is None:
        raise SpecError("names no chip of Apple as `system_profiler` prints it", file=file)
    memory = re.search(r"^\s*Memory: (\d+) GB", text, re.M)
    return [GpuFacts(0, chip[1], memory=float(memory[1]) * GIB if memory else None)]


@dataclass(frozen=True, slots=True)
class MainMemory:
    """Memory of all processors of a machine."""

    size: Bytes


#: units of `free`, of `free -h` and of /proc/meminfo
_FREE_UNITS = {"": 1024.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": GIB, "Ti": 2.0**40,
               "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # fmt: skip


def read_free(text: str, file: str) -> MainMemory:
    """Read the total of `free`, `free -h` or /proc/meminfo.

    Without a unit `free` counts KiB; `free -m` and `-g` print none either and are refused as too small.

    Examples
    --------
    >>> read_free("               total        used\\nMem:           503Gi        12Gi\\n", "free.txt").size / 2**30
    503.0
    """
    found = re.search(r"^(?:Mem|MemTotal):\s+([\d.]+)([KMGT]i?)?B?(?: kB)?\b", text, re.M)
    size = float(found[1]) * _FREE_UNITS[found[2] or ""] if found else 0.0
    if size < GIB:
        raise SpecError("says less than 1 GiB: run free -h", file=file)
    return MainMemory(size)


#: distances of NUMA nodes of one package and of two, for a tool that prints packages in place of distances
_NEAR, _FAR = 12, 32


def read_lstopo(text: str, file: str) -> NumaFacts:
    """Read the NUMA nodes of each package in `lstopo-no-graphics`.

    Examples
    --------
    >>> text = "  Package L#0\\n    NUMANode L#0 (P#0 504GB)\\n  Package L#1\\n    NUMANode L#1 (P#1 504GB)\\n"
    >>> facts = read_lstopo(text, "lstopo.txt")
    >>> facts.sizes[1] / 2**30, facts.distances[0, 1]
    (504.0, 32)
    """
    sizes: dict[int, float] = {}
    packages: dict[int, int] = {}
    package = 0
    for line in text.splitlines():
        if found := re.match(r"\s*Package L#(\d+)", line):
            package = int(found[1])
        if found := re.match(r"\s*NUMANode L#\d+ \(P#(\d+)(?: local=\S+)? (?:total=)?(\d+)([KMGT]B)", line):
            sizes[int(found[1])] = float(found[2]) * _FREE_UNITS[f"{found[3][0]}i"]
            packages[int(found[1])] = package
    if not sizes:
        raise SpecError("has no NUMANode with its memory as `lstopo-no-graphics` prints it", file=file)
    pairs = ((one, other) for one in sizes for other in sizes)
    distances = {(one, other): 10 if one == other else _NEAR if packages[one] == packages[other] else _FAR
                 for one, other in pairs}  # fmt: skip
    return NumaFacts(sizes, dict.fromkeys(sizes, True), distances)


def _blocks(text: str, head: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every block that begins with `head`."""
    marks = list(re.finditer(head, text, re.M))
    for mark, after in zip(marks, [*(one.start() for one in marks[1:]), len(text)], strict=True):
        yield int(mark[1]), text[mark.start() : after]


#: tool → (pattern of its output, reader); tried before the dumps that say more
TABLES: list[tuple[str, re.Pattern[str], Callable[[str, str], object]]] = [
    ("nvidia-smi topo -p2p r", re.compile(r"^\s*GPU0\s+(X\s+)?(OK|CNS|GNS|TNS|NS|DR|U)\b", re.M), read_peer_access),
    ("nvidia-smi -L", re.compile(r"^GPU \d+: .+ \(UUID: ", re.M), read_list),
    ("nvidia-smi", re.compile(r"^\| NVIDIA-SMI \d", re.M), read_smi_table),
    ("rocm-smi --showproductname", re.compile(r"GPU\[\d+\]\s*: Card [Ss]eries:"), read_product_names),
    ("rocm-smi", re.compile(r"^=+ Concise Info =+", re.M), read_concise_rocm),
    ("amd-smi static", re.compile(r"^\s+MARKET_NAME: ", re.M), read_amd_static),
    ("amd-smi topology", re.compile(r"^LINK TYPE TABLE:", re.M), read_amd_topology),
    ("amd-smi", re.compile(r"^\| AMD-SMI ", re.M), read_amd_table),
    ("amd-smi list", re.compile(r"^GPU: \d+\n\s+BDF: \S+\n\s+UUID: \S+\n(?!\s+ASIC)", re.M), read_amd_list),
    ("hl-smi", re.compile(r"^\| HL-SMI Version", re.M), read_habana_table),
    ("system_profiler", re.compile(r"^\s*(?:Chip|Chipset Model): Apple ", re.M), read_system_profiler),
    ("lstopo", re.compile(r"^\s*NUMANode L#\d+ \(", re.M), read_lstopo),
    ("free", re.compile(r"^(?:Mem|MemTotal):\s+\d", re.M), read_free),
    ("xpu-smi discovery", re.compile(r"^\| Device ID \| Device Information", re.M), read_xpu_discovery),
    ("npu-smi info", re.compile(r"^\| npu-smi \d", re.M), read_npu_info),
]
