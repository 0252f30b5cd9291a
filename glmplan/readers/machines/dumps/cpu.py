"""Readers of lscpu (text and JSON), `numactl -H` and `dmidecode -t memory`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from glmplan.errors import SpecError
from glmplan.readers.machines.dumps.findings import CpuFacts, Memory, NumaFacts, broken
from glmplan.units import parse_quantity

__all__ = ["MATRIX_INSTRUCTIONS", "read_dmidecode", "read_lscpu", "read_numactl"]

#: Instruction sets that decide how fast a CPU multiplies matrices.
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

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    CpuFacts
        Model, sockets, cores, processors of NUMA nodes.

    Raises
    ------
    SpecError
        If it is broken JSON (names the line) or has no CPU count.

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
        found = re.fullmatch(r"NUMA node(\d+) CPU\(s\)", key)
        if found:
            numa[int(found[1])] = value
    flags = fields.get("Flags", "").split()
    notes: tuple[str, ...] = ()
    if fields.get("Off-line CPU(s) list"):
        notes = (f"CPU {fields['Off-line CPU(s) list']} is off-line",)
    sockets = fields.get("Socket(s)", "1")
    cores = fields.get("Core(s) per socket") or fields.get("Core(s) per cluster") or ""
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
    """Read `numactl -H`.

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    NumaFacts
        Memory, processors and distances of the nodes; a node without processors is valid.

    Raises
    ------
    SpecError
        If the matrix of distances does not fit the nodes (names file and line) or no node has a size.

    Notes
    -----
    `MB` in this tool are MiB.

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
    """Read `dmidecode -t memory`.

    Parameters
    ----------
    text : str
        The dump, whole or in part.
    file : str
        Its name, for messages.

    Returns
    -------
    Memory
        Populated channels with the speed they are configured for.

    Raises
    ------
    SpecError
        If a populated module does not say its size in a known form; names file and line.

    Notes
    -----
    `GB` in this tool are GiB. Two modules on one channel share it.

    Examples
    --------
    >>> text = '''Memory Device
    ... 	Size: 64 GB
    ... 	Bank Locator: P0 CHANNEL A
    ... 	Type: DDR5
    ... 	Configured Memory Speed: 6400 MT/s
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
        found = re.fullmatch(r"(\d+) (MB|GB|TB)", size)
        if not found:
            raise broken(file, number, "is not a module size", size)
        total += parse_quantity(f"{found[1]} {found[2][0]}iB", "bytes")
        kind = block.get("Type", kind)
        speed = re.match(r"(\d+) MT/s", block.get("Configured Memory Speed", "") or block.get("Speed", ""))
        place = _channel(block.get("Bank Locator", ""), block.get("Locator", ""), len(channels))
        if speed:
            channels[place] = min(float(speed[1]) * 1e6, channels.get(place, float("inf")))
    if not total:
        raise SpecError("describes no populated memory module", file=file)
    return Memory(channels, total, kind)


def _memory_devices(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of the first line and the fields of every memory device."""
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
    """Return socket and channel of a module; a channel of its own where the names do not say."""
    found = re.search(r"P(\d+)[ _]?CHANNEL ?([A-Z])", bank, re.IGNORECASE)
    if found:
        return int(found[1]), found[2].upper()
    found = re.search(r"(?:CPU|P|PROC ?)(\d+)[ _-]*(?:DIMM|CH)?[ _-]*([A-Z])", locator, re.IGNORECASE)
    if found:
        return max(int(found[1]) - 1, 0), found[2].upper()
    return 0, f"module {number}"
