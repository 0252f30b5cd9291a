"""Readers of nvidia-smi: `topo -m`, `-q`, `-q -x` and `--query-gpu … --format=csv`."""

from __future__ import annotations

import csv
import re
from xml.etree import ElementTree

from glmplan.errors import SpecError
from glmplan.readers.machines.dumps.findings import GpuFacts, Relations, broken, bus_address
from glmplan.units import parse_quantity

__all__ = ["read_query_csv", "read_query_text", "read_query_xml", "read_topo"]

_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+")
_NONE = ("n/a", "[n/a]", "[not supported]", "not supported", "none", "", "requested functionality has been deprecated")


def read_topo(text: str, file: str) -> Relations:
    """Read `nvidia-smi topo -m`.

    Parameters
    ----------
    text : str
        The dump; escape sequences have been removed.
    file : str
        Its name, for messages.

    Returns
    -------
    Relations
        Cells between GPUs; NUMA nodes where the columns are there.

    Raises
    ------
    SpecError
        If a row does not fit the header; names file and line.

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
    cells: dict[tuple[int, int], str] = {}
    numa: dict[int, int] = {}
    seen = 0
    for number, line in enumerate(lines[start + 1 :], start + 2):
        found = re.match(r"\s*GPU(\d+)\s+(.*)", line)
        if not found:
            if seen and not line.strip():
                break
            continue
        row, rest = int(found[1]), found[2].split()
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
        seen += 1
    if seen != len(gpus):
        raise SpecError(f"describes {seen} GPUs, its header names {len(gpus)}", file=file)
    for (one, other), value in cells.items():
        if cells[other, one] != value:
            raise SpecError(f"says {value} from GPU{one} to GPU{other} but {cells[other, one]} back", file=file)
    notes: tuple[str, ...] = ()
    if "NODE" in cells.values():
        notes = ("NODE can hide a switch fabric inside one chip: lspci -vvv or a measurement tells",)
    return Relations(len(gpus), cells, numa, notes)


def _numa_node(line: str, rest: list[str]) -> int | None:
    """Return the NUMA affinity of a row: the first plain number after the processor list, None if it is not given."""
    tail = [part.strip() for part in line.split("\t")[-3:]] if "\t" in line else rest
    numbers = [part for part in tail if re.fullmatch(r"\d+", part)]
    return int(numbers[0]) if len(numbers) == 1 else None


def _quantity(text: str | None, dimension: str) -> float | None:
    """Return a quantity as the tool prints it, None for every way to say that there is none."""
    if text is None or text.strip().lower() in _NONE:
        return None
    try:
        return parse_quantity(text.strip(), dimension)
    except SpecError:
        return None


def _number(text: str | None) -> int | None:
    found = re.match(r"\s*(\d+)", text or "")
    return int(found[1]) if found else None


def _least(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def read_query_xml(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi -q -x`.

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    list of GpuFacts
        One for each GPU described.

    Raises
    ------
    SpecError
        If it is not well-formed XML (names the line) or describes no GPU.

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
        limit = gpu.findtext("gpu_power_readings/default_power_limit") or gpu.findtext(
            "power_readings/default_power_limit"
        )
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
                _quantity(limit, "watts"),
                driver,
            )
        )
    if not gpus:
        raise SpecError("describes no GPU", file=file)
    return gpus


def read_query_text(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi -q`, the same tree told by indentation.

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    list of GpuFacts
        One for each GPU described.

    Raises
    ------
    SpecError
        If it describes no GPU.

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
        found = re.match(r"GPU\s+([0-9a-fA-F:.]+)\s*$", line)
        if found:
            gpus.append({"address": bus_address(found[1]) or ""})
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
    limit = gpu.get("GPU Power Readings/Default Power Limit") or gpu.get("Power Readings/Default Power Limit")
    return GpuFacts(
        index,
        gpu.get("Product Name"),
        gpu["address"] or None,
        total,
        total - reserved if total is not None and reserved is not None else None,
        generation,
        _number(gpu.get("PCI/GPU Link Info/Link Width/Max")),
        _quantity(gpu.get("Max Clocks/Memory"), "hertz"),
        _quantity(limit, "watts"),
        driver,
    )


def read_query_csv(text: str, file: str) -> list[GpuFacts]:
    """Read `nvidia-smi --query-gpu=… --format=csv`, whatever columns were asked for.

    Parameters
    ----------
    text : str
        The dump; units stand in the header, in the values, or in both.
    file : str
        Its name, for messages.

    Returns
    -------
    list of GpuFacts
        One for each row.

    Raises
    ------
    SpecError
        If a row has another number of fields than the header; names file and line.

    Notes
    -----
    The current link generation is not read: an idle link falls back to generation 1 to save power.

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
                of("power.limit", "watts"),
                row.get("driver_version"),
            )
        )
    if not gpus:
        raise SpecError("describes no GPU", file=file)
    return gpus
