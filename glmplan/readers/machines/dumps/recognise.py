"""Tell machine dumps apart by their content and read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import MOST_OF_A_FILE, read_log, understood
from glmplan.readers.machines.dumps import cpu, nvidia, pci, rocm

__all__ = ["Dump", "read_dump"]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump that was read: which tool printed it, and what it says."""

    file: str
    tool: str
    content: Any


#: tool → (how its output is recognised, its reader)
_READERS: list[tuple[str, re.Pattern[str], Callable[[str, str], Any]]] = [
    ("nvidia-smi -q -x", re.compile(r"<nvidia_smi_log"), nvidia.read_query_xml),
    ("nvidia-smi -q", re.compile(r"NVSMI LOG|^GPU [0-9a-fA-F]{8}:[0-9a-fA-F]{2}:", re.M), nvidia.read_query_text),
    ("rocm-smi --showmeminfo", re.compile(r"VRAM Total Memory \(B\)"), rocm.read_showmeminfo),
    ("rocm-smi --showtopo", re.compile(r"(Link Type|Weight|Hops) between two GPUs"), rocm.read_showtopo),
    ("nvidia-smi topo -m", re.compile(r"^\s*GPU0\s*(GPU1|NIC0|CPU Affinity|$)", re.M), nvidia.read_topo),
    ("lscpu", re.compile(r'^Architecture:|"lscpu"\s*:|^CPU\(s\):', re.M), cpu.read_lscpu),
    ("numactl -H", re.compile(r"^available: \d+ nodes?|^node 0 (cpus|size):", re.M), cpu.read_numactl),
    ("dmidecode", re.compile(r"^Memory Device$|^Handle 0x[0-9A-F]{4}, DMI type", re.M), cpu.read_dmidecode),
    (
        "lspci -vvv",
        re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] .*\n(?:\t.*\n)*?\t", re.M),
        pci.read_lspci,
    ),
    ("lspci -tv", re.compile(r"[+\\-]-\[[0-9a-f]{4}:[0-9a-f]{2}\]-"), pci.read_lspci_tree),
    (
        "nvidia-smi --query-gpu",
        re.compile(r"\A\s*(?:[a-z_.]+(?: \[[^\]]*\])?,\s*)*(?:name|gpu_name|memory\.total)\b"),
        nvidia.read_query_csv,
    ),
]


def read_dump(file: str | Path) -> Dump:
    """Read a dump of a machine tool, whichever it is.

    Parameters
    ----------
    file : path
        Text or gzip; escape sequences of colours are removed.

    Returns
    -------
    Dump
        The tool and what it says.

    Raises
    ------
    SpecError
        If the file cannot be read, is none of the known forms (lists them), or is broken (names the line).

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "numactl.txt"
    >>> _ = file.write_text("available: 1 nodes (0)\\nnode 0 cpus: 0 1\\nnode 0 size: 1024 MB\\n")
    >>> read_dump(file).tool
    'numactl -H'
    """
    path = Path(file)
    text = _ESCAPES.sub("", read_log(path, most=MOST_OF_A_FILE)).replace("\r\n", "\n")
    if not text.strip():
        raise SpecError("is empty", file=path)
    if re.match(r"\s*pid, process_name", text):
        raise SpecError("lists processes (--query-compute-apps), which says nothing of the machine", file=path)
    for tool, sign, reader in _READERS:
        if sign.search(text):
            with understood(path, f"dump of {tool}"):
                return Dump(str(path), tool, reader(text, str(path)))
    raise SpecError(f"is none of the dumps that can be read: {', '.join(tool for tool, _, _ in _READERS)}", file=path)
