"""Readers of rocm-smi: `--showtopo` and `--showmeminfo vram`."""

from __future__ import annotations

import re

from glmplan.errors import SpecError
from glmplan.readers.machines.dumps.findings import GpuFacts, Relations, broken

__all__ = ["read_showmeminfo", "read_showtopo"]


def read_showtopo(text: str, file: str) -> Relations:
    """Read `rocm-smi --showtopo`.

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    Relations
        `XGMI` or `PCIE` between accelerators, and their NUMA nodes. Hops are not read: the tool prints 1 for any XGMI
        (ROCm/rocm-systems issue 5763).

    Raises
    ------
    SpecError
        If the matrix of link types is missing, or a row does not fit it (names file and line).

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
    """Read `rocm-smi --showmeminfo vram`.

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    list of GpuFacts
        Memory of each accelerator; the tool does not name them.

    Raises
    ------
    SpecError
        If no total is there.

    Examples
    --------
    >>> read_showmeminfo("GPU[0]   : VRAM Total Memory (B): 206141652992\\n", "mem.txt")[0].memory
    206141652992.0
    """
    found = re.findall(r"GPU\[(\d+)\]\s*:\s*VRAM Total Memory \(B\):\s*(\d+)", text)
    if not found:
        raise SpecError("has no total of VRAM as `rocm-smi --showmeminfo vram` prints it", file=file)
    return [GpuFacts(int(index), memory=float(total)) for index, total in found]
