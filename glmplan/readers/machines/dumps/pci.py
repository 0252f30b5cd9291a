"""Readers of lspci: the tree (`-tv`) and the full description (`-vvv`)."""

from __future__ import annotations

import re

from glmplan.errors import SpecError
from glmplan.readers.machines.dumps.findings import PciDevice, PciTree, broken

__all__ = ["GENERATION", "device_kind", "read_lspci", "read_lspci_tree"]

#: gigatransfers per second → PCIe generation
GENERATION = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}

_NEW = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(.*?): (.*)$")
_GPU = re.compile(r"NVIDIA|Instinct|Radeon|\bMI\d{2,3}|Arc Pro|Ascend", re.IGNORECASE)


def device_kind(kind: str, name: str) -> str:
    """Return what a device is to a planner: `gpu`, `display`, `nic`, `nvme`, `bridge` or `other`.

    Parameters
    ----------
    kind : str
        Class as lspci prints it; empty in a tree without classes.
    name : str
        Vendor and device.

    Returns
    -------
    str
        The kind.

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
    """Read `lspci -vvv`.

    Parameters
    ----------
    text : str
        The dump.
    file : str
        Its name, for messages.

    Returns
    -------
    PciTree
        All functions with links, NUMA nodes and ACS state.

    Raises
    ------
    SpecError
        If a link speed is unknown (names the line) or there is no device.

    Notes
    -----
    Generation and lanes are those that the port can do (`LnkCap`). A width that is lower now (`LnkSta … downgraded`) is
    taken, because width does not fall at idle; a speed that is lower now is not.

    Examples
    --------
    >>> text = '''06:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
    ... 	LnkCap:	Port #0, Speed 32GT/s, Width x16, ASPM L1
    ... 	LnkSta:	Speed 2.5GT/s (downgraded), Width x8 (downgraded)
    ... '''
    >>> device = read_lspci(text, "lspci.txt").devices[0]
    >>> device.kind, device.generation, device.lanes
    ('gpu', 5, 8)
    """
    found: list[dict[str, object]] = []
    for number, line in enumerate(text.splitlines(), 1):
        new = _NEW.match(line)
        if new:
            address = new[1] if new[1].count(":") == 2 else f"0000:{new[1]}"
            found.append({"address": address, "name": new[3].strip(), "class": new[2]})
            continue
        if not found:
            continue
        device, text_ = found[-1], line.strip()
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
    if not found:
        raise SpecError("describes no device as `lspci -vvv` prints it", file=file)
    devices = []
    for entry in found:
        kind = device_kind(str(entry.pop("class")), str(entry["name"]))
        devices.append(PciDevice(kind=kind, **entry))  # type: ignore[arg-type]
    return PciTree(tuple(devices), described=True)


def read_lspci_tree(text: str, file: str) -> PciTree:
    """Read `lspci -tv`.

    Parameters
    ----------
    text : str
        The dump; it may begin in the middle.
    file : str
        Its name, for messages.

    Returns
    -------
    PciTree
        Places of all functions; link rates are not in this form.

    Raises
    ------
    SpecError
        If a branch hangs nowhere; names file and line.

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
                raise broken(file, number, "is a branch that hangs on nothing above it")
            place, position = bus_at[branch.start()], branch.end()
        _read_branch(line, position, place, bus_at, devices, file, number)
    if not devices:
        raise SpecError("describes no device as `lspci -tv` prints it", file=file)
    return PciTree(tuple(devices), described=False)


def _after_dashes(line: str, position: int, place: tuple[str, str], bus_at: dict[int, tuple[str, str]]) -> int:
    """Skip the dashes before children; remember the column of a fork."""
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
