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
from glmplan.io.machines.dump_readers import (
    GpuFacts,
    broken,
    bus_address,
)

__all__ = [
    "TABLES",
    "PeerAccess",
    "read_amd_static",
    "read_concise_rocm",
    "read_list",
    "read_npu_info",
    "read_peer_access",
    "read_product_names",
    "read_smi_table",
    "read_xpu_discovery",
]

#: PCI device of AMD → product
_DEVICES = {
    "74a1": "Instinct MI300X",
    "74a5": "Instinct MI325X",
    "75a0": "Instinct MI350X",
    "75a3": "Instinct MI355X",
}
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
    return [GpuFacts(int(index), name) for index, name in found]


def read_smi_table(text: str, file: str) -> list[GpuFacts]:
    """Read the table of `nvidia-smi` without options.

    Names that the table cuts off end in `...` and are left out.

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
        head = re.match(r"\| +(\d+) +(\S.*?) +(?:Off|On|N/A) +\| *([0-9A-Fa-f:]+\.\d) ", line)
        if head:
            name = None if head[2].endswith("...") else head[2]
            result.append(GpuFacts(int(head[1]), name, bus_address(head[3]), driver=driver[1] if driver else None))
            continue
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
    for index, device, rest in re.findall(r"^(\d+)\s+\d+\s+0x([0-9a-f]{4}),(.*)$", text, re.M):
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
            result.append(GpuFacts(len(result), f"Ascend {name}", bus_address(chip[1]), float(chip[2]) * 2**20))
    if not result:
        raise SpecError("describes no chip as `npu-smi info` prints it", file=file)
    return result


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
    ("xpu-smi discovery", re.compile(r"^\| Device ID \| Device Information", re.M), read_xpu_discovery),
    ("npu-smi info", re.compile(r"^\| npu-smi \d", re.M), read_npu_info),
]
