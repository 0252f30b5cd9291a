"""Short tables of vendor tools become hosts: names, memory, NVLink pairs, peer access, sockets of NUMA nodes."""

from __future__ import annotations

import pytest

from glmplan.errors import SpecError
from glmplan.io.machines.dump_kinds import read_dump, read_dumps
from glmplan.io.machines.dump_merge import host_from_dumps

SMI = """\
| NVIDIA-SMI 575.57.08              Driver Version: 575.57.08      CUDA Version: 12.9     |
|   0  NVIDIA GeForce RTX 3090        Off |   00000000:01:00.0 Off |                  N/A |
| 30%   38C    P8             22W /  210W |       1MiB /  24576MiB |      0%      Default |
|   1  NVIDIA GeForce RTX 3090        Off |   00000000:02:00.0  On |                  N/A |
| 30%   41C    P8             25W /  210W |     512MiB /  24576MiB |      0%      Default |
"""
LIST = "GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-0)\nGPU 1: NVIDIA GeForce RTX 3090 (UUID: GPU-1)\n"
NAMES = "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X OAM\nGPU[1]\t\t: Card Series: \t\tAMD Instinct MI300X OAM\n"
CONCISE = """\
===================== Concise Info =====================
0       2     0x74a1,   28851  44.0°C      141.0W    NPS1, SPX, 0        132Mhz  900Mhz  0%   auto  750.0W  0%     0%
1       3     0x74a1,   51499  39.0°C      136.0W    NPS1, SPX, 0        132Mhz  900Mhz  0%   auto  750.0W  0%     0%
"""
AMD = """\
GPU: 0
    BDF: 0000:05:00.0
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
    BUS:
        MAX_PCIE_WIDTH: 16
        MAX_PCIE_SPEED: 32 GT/s
    VRAM:
        TYPE: HBM
        SIZE: 196592 MB
GPU: 1
    BDF: 0000:26:00.0
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
    VRAM:
        SIZE: 196592 MB
"""
XPU = """\
| Device ID | Device Information                                    |
| 0         | Device Name: Intel(R) Arc(TM) Pro B60 Graphics        |
|           | PCI BDF Address: 0000:03:00.0                         |
| 1         | Device Name: Intel(R) Arc(TM) Pro B60 Graphics        |
|           | PCI BDF Address: 0000:07:00.0                         |
"""
NPU = """\
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
| 0     910B3               | OK            | 93.4        38                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3351 / 65536         |
| 1     910B3               | OK            | 90.9        37                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3351 / 65536         |
"""
PAIRS = "\n".join(
    [
        "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \tNV4\tPHB\tPHB\t0-63\t0\t\tN/A",
        "GPU1\tNV4\t X \tPHB\tPHB\t0-63\t0\t\tN/A",
        "GPU2\tPHB\tPHB\t X \tNV4\t0-63\t0\t\tN/A",
        "GPU3\tPHB\tPHB\tNV4\t X \t0-63\t0\t\tN/A\n",
    ]
)
PEERS = " \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n\nLegend:\n\n  CNS  = Chipset not supported\n"
NUMA = "available: 4 nodes (0-3)\n" + "".join(
    f"node {node} cpus: {node}\nnode {node} size: 1024 MB\n" for node in range(4)
)
FOUR = """\
node distances:
node   0   1   2   3
  0:  10  12  21  21
  1:  12  10  21  21
  2:  21  21  10  12
  3:  21  21  12  10
"""
ENV = f"""\
PyTorch version: 2.9.0
GPU models and configuration:
GPU 0: NVIDIA GeForce RTX 3090
GPU 1: NVIDIA GeForce RTX 3090
GPU 2: NVIDIA GeForce RTX 3090
GPU 3: NVIDIA GeForce RTX 3090

CPU:
Architecture: x86_64
CPU(s): 64
Model name: AMD EPYC 7543 32-Core Processor
Core(s) per socket: 32
Socket(s): 2
NUMA node0 CPU(s): 0-31
NUMA node1 CPU(s): 32-63

vLLM Version: 0.19.0
GPU Topology:
{PAIRS}
==============================
"""


@pytest.fixture
def host(tmp_path):
    """Return the host of one text."""

    def of(text, accelerator=None):
        file = tmp_path / "dump.txt"
        file.write_text(text, encoding="utf-8")
        return host_from_dumps(read_dumps(file), name="x", accelerator=accelerator)

    return of


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (SMI, "rtx-3090"),
        (LIST, "rtx-3090"),
        (NAMES, "mi300x"),
        (CONCISE, "mi300x"),
        (AMD, "mi300x"),
        (XPU, "arc-pro-b60"),
        (NPU, "ascend-910b"),
    ],
)
def test_every_short_table_names_two_accelerators(host, text, part):
    found = host(text)
    assert (found.accelerator, found.accelerator_count) == (part, 2)


def test_a_power_limit_below_the_data_sheet_is_said(host):
    assert any("210 W" in note for note in host(SMI).assumptions)
    assert not any("power" in note for note in host(SMI.replace("210W", "350W")).assumptions)


def test_links_in_pairs_have_the_rate_of_their_number(host):
    found = host(PAIRS, "rtx-3090").scale_up
    assert (found.domain, found.topology, found.bandwidth) == (2, "bridge", 4 * 14.0625e9)
    # NVLink of H100 NVL: its data sheet gives the rate
    nvl = host(PAIRS.replace("NV4", "NV12"), "h100-nvl").scale_up
    assert nvl.domain == 2 and nvl.bandwidth > 2e11


def test_links_that_do_not_join_neighbours_stay_unknown(host):
    cells = [["X", "PHB", "NV4", "PHB"], ["PHB", "X", "PHB", "NV4"]]
    rows = ["\tGPU0\tGPU1\tGPU2\tGPU3", *(f"GPU{n}\t" + "\t".join(row) for n, row in enumerate(cells))]
    rows += [f"GPU{n + 2}\t" + "\t".join(row[2:] + row[:2]) for n, row in enumerate(cells)]
    found = host("\n".join(rows) + "\n", "rtx-3090")
    assert found.scale_up is None and any("pairs" in item for item in found.unknown)


@pytest.mark.parametrize(("status", "p2p"), [("OK", "direct"), ("CNS", "missing"), ("NS", "missing"), ("U", None)])
def test_peer_access_becomes_a_condition_of_the_host(host, status, p2p):
    found = host(PEERS.format(status), "rtx-3090")
    assert (found.conditions.p2p, found.accelerator_count) == (p2p, 2)


def test_near_numa_nodes_share_a_socket(host):
    assert [socket.numa_nodes for socket in host(NUMA + FOUR, "rtx-3090").sockets] == [(0, 1), (2, 3)]
    # without distances, or all of them equal, nothing says so
    assert len(host(NUMA, "rtx-3090").sockets) == 4
    assert len(host(NUMA + FOUR.replace("12", "21"), "rtx-3090").sockets) == 4


def test_the_report_of_vllm_is_several_dumps(host):
    found = host(ENV)
    assert (found.accelerator, found.accelerator_count) == ("rtx-3090", 4)
    assert len(found.sockets) == 2 and found.sockets[0].cores == 32
    assert found.scale_up.domain == 2


def test_a_file_that_is_no_dump_is_refused_with_the_commands_to_run(tmp_path):
    file = tmp_path / "x.txt"
    file.write_text("hello\n")
    with pytest.raises(SpecError, match="nvidia-smi -q -x > gpu.xml"):
        read_dump(file)


@pytest.mark.parametrize(
    ("name", "mebibytes", "part"),
    [
        ("RTX 3090", 24576, "rtx-3090"),
        ("RTX 4090", 24564, "rtx-4090"),
        ("RTX 4090", 49140, "rtx-4090-48gb"),
        ("RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("RTX 4060 Ti", 8188, "rtx-4060-ti-8gb"),
        ("RTX 2080 Ti", 22528, "rtx-2080-ti-22gb"),
    ],
)
def test_boards_of_one_printed_name_are_told_apart_by_their_memory(host, name, mebibytes, part):
    text = SMI.replace("RTX 3090", name).replace("24576", str(mebibytes))
    assert [card.accelerator for card in host(text).cards] == [part, part]
