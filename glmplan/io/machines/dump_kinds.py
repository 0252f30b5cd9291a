"""Recognise a dump of a machine tool by its content, and read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glmplan.catalog.files import MOST_OF_A_FILE, read_log, understood
from glmplan.errors import SpecError
from glmplan.io.machines.dump_readers import (
    QUERY,
    Dump,
    GpuFacts,
    read_bare_csv,
    read_dmidecode,
    read_lscpu,
    read_lspci,
    read_lspci_tree,
    read_numactl,
    read_query_csv,
    read_query_text,
    read_query_xml,
    read_showmeminfo,
    read_showtopo,
    read_topo,
)
from glmplan.io.machines.table_readers import TABLES

__all__ = ["read_dump", "read_dumps"]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


#: tool → (pattern of its output, reader)
_READERS: list[tuple[str, re.Pattern[str], Callable[[str, str], Any]]] = [
    ("nvidia-smi -q -x", re.compile(r"<nvidia_smi_log"), read_query_xml),
    ("nvidia-smi -q", re.compile(r"NVSMI LOG|^GPU [0-9a-fA-F]{8}:[0-9a-fA-F]{2}:", re.M), read_query_text),
    ("rocm-smi --showmeminfo", re.compile(r"VRAM Total Memory \(B\)"), read_showmeminfo),
    ("rocm-smi --showtopo", re.compile(r"(Link Type|Weight|Hops) between two GPUs"), read_showtopo),
    ("nvidia-smi topo -m", re.compile(r"^\s*GPU0\s*(GPU1|NIC0|CPU Affinity|$)", re.M), read_topo),
    ("lscpu", re.compile(r'^Architecture:|"lscpu"\s*:|^CPU\(s\):', re.M), read_lscpu),
    ("numactl -H", re.compile(r"^available: \d+ nodes?|^node 0 (cpus|size):", re.M), read_numactl),
    ("dmidecode", re.compile(r"^Memory Device$|^Handle 0x[0-9A-F]{4}, DMI type", re.M), read_dmidecode),
    (
        "lspci -vvv",
        re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] .*\n(?:\t.*\n)*?\t", re.M),
        read_lspci,
    ),
    ("lspci -tv", re.compile(r"[+\\-]-\[[0-9a-f]{4}:[0-9a-f]{2}\]-"), read_lspci_tree),
    (
        "nvidia-smi --query-gpu",
        re.compile(r"\A\s*(?:[a-z_.]+(?: \[[^\]]*\])?,\s*)*(?:name|gpu_name|memory\.total)\b"),
        read_query_csv,
    ),
    (
        "nvidia-smi --query-gpu without header",
        re.compile(r"\A\s*(?:[^,\n]{1,80}, ?){0,30}(?:NVIDIA|Tesla|Quadro|GeForce) [^,:\n]{1,60}(?:,|\n|\Z)"),
        read_bare_csv,
    ),
]


#: commands whose output says the most, by maker
_COMMANDS = (
    "nvidia-smi -q -x > gpu.xml; nvidia-smi topo -m > topo.txt; lscpu > lscpu.txt; numactl -H > numa.txt; "
    "sudo lspci -vvv > pci.txt (AMD: amd-smi static, rocm-smi --showtopo; Intel: xpu-smi discovery; "
    "Ascend: npu-smi info; Gaudi: hl-smi; Mac: system_profiler SPHardwareDataType)"
)


def read_dump(file: str | Path) -> Dump:
    """Read a dump of any known machine tool, text or gzip.

    Colour escapes are removed.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "numactl.txt"
    >>> _ = file.write_text("available: 1 nodes (0)\\nnode 0 cpus: 0 1\\nnode 0 size: 1024 MB\\n")
    >>> read_dump(file).tool
    'numactl -H'
    """
    path = Path(file)
    return _read_text(path, _text_of(path))


def _text_of(path: Path) -> str:
    """Return the text of a dump without colour escapes."""
    text = _ESCAPES.sub("", read_log(path, most=MOST_OF_A_FILE)).replace("\r\n", "\n")
    if not text.strip():
        raise SpecError("is empty", file=path)
    if re.match(r"\s*pid, process_name", text):
        raise SpecError("lists processes (--query-compute-apps), which says nothing of the machine", file=path)
    return text


def _read_text(path: Path, text: str) -> Dump:
    """Return the dump that a text is, by its content."""
    readers = [*TABLES, *_READERS]
    for tool, sign, reader in readers:
        if sign.search(text):
            with understood(path, f"dump of {tool}"):
                return Dump(str(path), tool, reader(text, str(path)))
    if path.suffix == ".toml":
        raise SpecError("is no dump but a host file: glmplan fit --on FILE, or glmplan hardware check FILE", file=path)
    if path.suffix == ".csv":
        raise SpecError(f"names neither its columns nor an accelerator; run: {QUERY} > {path.name}", file=path)
    tools = ", ".join(tool for tool, _, _ in readers)
    raise SpecError(f"is none of the dumps that can be read: {tools}. Run: {_COMMANDS}", file=path)


def read_dumps(file: str | Path) -> list[Dump]:
    """Read a file of one or more dumps, such as the report of `collect_env`.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "env.txt"
    >>> _ = file.write_text("PyTorch version: 2.9\\nGPU models and configuration:\\nGPU 0: NVIDIA L4\\n\\nCPU:\\n"
    ...                     "Architecture: x86_64\\nCPU(s): 4\\n")
    >>> [dump.tool for dump in read_dumps(file)]
    ['collect_env', 'lscpu']
    """
    path = Path(file)
    text = _text_of(path)
    models = re.search(r"GPU models and configuration: ?\n?((?:GPU \d+: .+\n)+)", text)
    if models is None:
        return [_read_text(path, text)]
    gpus = [GpuFacts(int(index), name) for index, name in re.findall(r"GPU (\d+): (.+?)\s*$", models[1], re.M)]
    result = [Dump(str(path), "collect_env", gpus)]
    parts = (
        (r"^CPU:\n((?:.+\n)+)", "lscpu", read_lscpu),
        (r"^GPU Topology:\n((?:.+\n)+)", "nvidia-smi topo -m", read_topo),
    )
    for head, tool, reader in parts:
        block = re.search(head, text + "\n", re.M)
        if block is not None:
            with understood(path, f"dump of {tool}"):
                result.append(Dump(str(path), tool, reader(block[1], str(path))))
    return result
