"""Short tables of vendor tools become hosts: names, memory, NVLink pairs, peer access, sockets of NUMA nodes."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.hosts import load_machine
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
AMD_TABLE = """\
| AMD-SMI 26.0.0+37d158ab      amdgpu version: 6.14.14 ROCm version: 7.0.0     |
| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |
| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |
| 0000:05:00.0    AMD Instinct MI300X | 0 %      34 °C   0           138/650 W |
|   0       0       7        SPX/NPS1 | 0 %        N/A           285/196592 MB |
| 0000:26:00.0    AMD Instinct MI300X | 0 %      34 °C   0           138/750 W |
|   1       1       6        SPX/NPS1 | 0 %        N/A           285/196592 MB |
"""
AMD_LINKS = """\
LINK TYPE TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 SELF         XGMI
0000:26:00.0 XGMI         SELF

NUMA BW TABLE:
"""
AMD_LIST = """\
GPU: 0
    BDF: 0000:05:00.0
    UUID: d1ff74a1-0000-1000-80d8-3ed6dd4cf3a5

GPU: 1
    BDF: 0000:26:00.0
    UUID: 33ff74a1-0000-1000-8069-9bbf3f5ffa5c
"""
GAUDI = """\
| HL-SMI Version:                              hl-1.19.0-fw-57.2.4.0          |
|   0  HL-225              N/A  | 0000:9a:00.0     N/A |                   0  |
| N/A   25C   N/A    82W / 600W |   768MiB /  98304MiB |     0%           N/A |
|   1  HL-225              N/A  | 0000:9b:00.0     N/A |                   0  |
| N/A   25C   N/A    82W / 600W |   768MiB /  98304MiB |     0%           N/A |
"""
WINDOWS = """\
| NVIDIA-SMI 566.14                 Driver Version: 566.14         CUDA Version: 12.7     |
|   0  NVIDIA GeForce RTX 3090      WDDM  |   00000000:01:00.0  On |                  N/A |
|  0%   41C    P8             22W /  350W |     812MiB /  24576MiB |      2%      Default |
|   1  NVIDIA GeForce RTX 3090      WDDM  |   00000000:02:00.0 Off |                  N/A |
|  0%   41C    P8             22W /  350W |     812MiB /  24576MiB |      2%      Default |
"""
VOLTA = """\
| NVIDIA-SMI 450.80.02    Driver Version: 450.80.02    CUDA Version: 11.0     |
|   0  Tesla V100-SXM2...  On   | 00000000:15:00.0 Off |                    0 |
| N/A   38C    P0    44W / 300W |      0MiB / 32510MiB |      0%      Default |
|   1  Tesla V100-SXM2...  On   | 00000000:16:00.0 Off |                    0 |
| N/A   38C    P0    44W / 300W |      0MiB / 32510MiB |      0%      Default |
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
        (AMD_TABLE, "mi300x"),
        (GAUDI, "gaudi-2"),
        (WINDOWS, "rtx-3090"),
        (VOLTA, "v100-sxm-32gb"),
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
    assert found.scale_up is None and any("equal groups" in item for item in found.unknown)


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


def matrix(count, cell, tail=""):
    """Return `nvidia-smi topo -m` with the cells of a function."""
    rows = [f"\tGPU{n}" for n in range(count)]
    lines = ["".join(rows) + "\tCPU Affinity" * bool(tail)]
    for one in range(count):
        cells = (" X " if one == other else cell(one, other) for other in range(count))
        lines.append(f"GPU{one}\t" + "\t".join(cells) + (f"\t{tail(one)}" if tail else ""))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("size", "joined"), [(2, "NV4"), (4, "NV4"), (8, "NV12")])
def test_equal_groups_of_joined_neighbours_are_domains(host, size, joined):
    text = matrix(8, lambda one, other: joined if one // size == other // size else "SYS")
    found = host(text, "a100-80gb-sxm").scale_up
    assert (found.domain, found.bandwidth) == (size, 300e9)


@pytest.mark.parametrize("links", [{(0, 1)}, {(0, 1), (1, 2), (2, 3)}, {(0, 2), (1, 3)}])
def test_links_that_join_no_equal_groups_stay_unknown_with_a_next_step(host, links):
    text = matrix(4, lambda one, other: "NV4" if (min(one, other), max(one, other)) in links else "PHB")
    found = host(text, "rtx-3090")
    assert found.scale_up is None and any("a machine of their own" in item for item in found.unknown)


def test_processors_tell_the_sockets_where_no_numa_column_does(host):
    # DGX-1: NVLink hides the paths between accelerators of one socket
    text = matrix(8, lambda one, other: "NV1" if one // 4 == other // 4 else "SYS",
                  lambda one: "0-19,40-59" if one < 4 else "20-39,60-79")  # fmt: skip
    found = host(text, "v100-sxm-16gb")
    assert len(found.sockets) == 2
    assert [root.socket for root in found.roots] == ["cpu0"] * 4 + ["cpu1"] * 4


def test_a_cut_name_without_one_part_of_its_memory_asks_for_the_whole_names(host):
    with pytest.raises(SpecError, match="nvidia-smi -L"):
        host(VOLTA.replace("Tesla V100-SXM2...", "NVIDIA RTX PRO 60..."))
    # a laptop: 16 GiB under the name of the card of 24 GiB
    with pytest.raises(SpecError, match="nvidia-smi -L"):
        host(VOLTA.replace("Tesla V100-SXM2...", "GeForce RTX 4090...").replace("32510", "16376"))


def test_instances_of_an_accelerator_are_said(host):
    table = SMI.replace(
        "|      0%      Default |\n", "|      0%      Default |\n|        |         |     Enabled |\n", 1
    )
    for text in (table, LIST.replace("\nGPU 1", "\n  MIG 3g.40gb     Device  0: (UUID: MIG-b)\nGPU 1")):
        (said,) = [note for note in host(text).assumptions if "MIG" in note]
        assert "accelerator 0:" in said
    assert not any("MIG" in note for note in host(SMI).assumptions)


def test_the_limit_in_force_of_the_long_dump_is_said(host):
    text = "GPU 00000000:06:00.0\n    Product Name : NVIDIA L4\n    GPU Power Readings\n" \
           "        Current Power Limit : 50.00 W\n        Default Power Limit : 72.00 W\n"  # fmt: skip
    assert any("50 W (of 72 W)" in note for note in host("NVSMI LOG\n" + text).assumptions)
    xml = "<nvidia_smi_log><gpu id='00000000:01:00.0'><product_name>NVIDIA L4</product_name><gpu_power_readings>" \
          "<current_power_limit>60.00 W</current_power_limit></gpu_power_readings></gpu></nvidia_smi_log>"  # fmt: skip
    assert any("60 W (of 72 W)" in note for note in host(xml).assumptions)


def test_a_link_that_is_narrower_now_is_said_and_not_planned(host):
    text = "name, pcie.link.width.current, pcie.link.width.max, pcie.link.gen.max\nNVIDIA L4, 8, 16, 4\n"
    found = host(text)
    assert found.slots[0].link.lanes == 16
    assert any("8 lanes now, 16 are planned" in note for note in found.assumptions)


def test_links_of_amd_smi_join_its_table(tmp_path):
    files = [tmp_path / "table.txt", tmp_path / "links.txt", tmp_path / "list.txt"]
    for file, text in zip(files, (AMD_TABLE, AMD_LINKS, AMD_LIST), strict=True):
        file.write_text(text, encoding="utf-8")
    found = host_from_dumps([dump for file in files for dump in read_dumps(file)], name="x")
    # two of a mesh of eight: a pair has a seventh of the rate, as in 2xmi300x
    assert found.scale_up.domain == load_machine("2xmi300x").scale_up.domain == 8
    assert (found.accelerator, found.scale_up.kind) == ("mi300x", "xgmi")
    assert [card.address for card in found.cards] == ["0000:05:00.0", "0000:26:00.0"]
    assert any("650 W (of 750 W)" in note for note in found.assumptions)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("               total        used\nMem:           503Gi        12Gi\nSwap: 8Gi 0B\n", 503 * 2**30),
        ("        total used\nMem: 527951400 12000000\n", 527951400 * 1024),
        ("MemTotal:       527951400 kB\nMemFree:        500000000 kB\n", 527951400 * 1024),
        ("  Package L#0\n    NUMANode L#0 (P#0 252GB)\n  Package L#1\n    NUMANode L#1 (P#1 252GB)\n", 504 * 2**30),
    ],
)
def test_the_memory_of_the_system_is_that_of_its_sockets(host, text, size):
    found = host(text, "rtx-3090")
    assert found.host_memory == pytest.approx(size) and len(found.sockets) == 1 + text.count("L#1 (")


def test_free_in_other_units_is_refused(host):
    with pytest.raises(SpecError, match="free -h"):
        host("        total used\nMem: 515577 12000\n", "rtx-3090")


def test_an_apple_chip_with_other_memory_is_planned_with_its_own_line(host):
    found = host("      Chip: Apple M3 Ultra\n      Memory: 96 GB\n")
    assert (found.accelerator, found.unified_memory) == ("m3-ultra", True)
    (said,) = [note for note in found.assumptions if "this machine 96 GiB" in note]
    line = said.split("--on '")[1].rstrip("'")
    assert load_machine(line).accelerator_count == 1


def test_nodes_of_memory_alone_and_rings_of_sockets_are_no_sockets_of_several_nodes(host):
    memory = "available: 3 nodes (0-2)\n" + "".join(
        f"node {node} cpus:{' 1' * (node < 2)}\nnode {node} size: 2048 MB\n" for node in range(3)
    )
    found = host(memory, "rtx-3090")
    assert len(found.sockets) == 2 and any("2 (2 GiB)" in note for note in found.assumptions)
    ring = NUMA + FOUR.replace("21", "16", 2)  # node 0 is 12 from 1 and 16 from 2, node 1 is 21 from 3
    assert len(host(ring, "rtx-3090").sockets) == 4
