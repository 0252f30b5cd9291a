"""Dumps of machine tools: every trap of their formats, several dumps as one machine, and the real ones where they lie.

The fixtures here were written from descriptions of the formats, not copied from a machine.
"""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import load_host
from glmplan.costs.network.links import link_for_group
from glmplan.errors import SpecError
from glmplan.io.machines.dump_kinds import read_dump
from glmplan.io.machines.dump_merge import host_from_dumps
from glmplan.io.machines.resolve import record_toml

SAMPLES = Path(__file__).parents[4] / "shared" / "samples" / "machines"


def topo(rows, *, affinity=True, ansi=False):
    """Write a `topo -m` matrix from rows of cells."""
    names = [f"GPU{index}" for index in range(len(rows))]
    header = "\t" + "\t".join([*names, *(["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] if affinity else [])])
    lines = [f"\x1b[4m{header}\x1b[0m" if ansi else header]
    for name, row in zip(names, rows, strict=True):
        tail = ["0-15", "0", "", "N/A"] if affinity else []
        lines.append("\t".join([name, *(f"{cell:^5}" for cell in row), *tail]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


PAIR = [
    ["X", "PIX", "SYS", "SYS"],
    ["PIX", "X", "SYS", "SYS"],
    ["SYS", "SYS", "X", "NODE"],
    ["SYS", "SYS", "NODE", "X"],
]

LSPCI = """\
40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e (prog-if 00 [Normal decode])
\tNUMA node: 1
\tBus: primary=40, secondary=41, subordinate=44, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd+

41:00.0 PCI bridge: Microchip Technology Device 4000 (prog-if 00 [Normal decode])
\tNUMA node: 1
\tBus: primary=41, secondary=42, subordinate=44, sec-latency=0
\tCapabilities: [68] Express (v2) Upstream Port, MSI 00
\t\tLnkCap:\tPort #8, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)

42:00.0 PCI bridge: Microchip Technology Device 4000 (prog-if 00 [Normal decode])
\tNUMA node: 1
\tBus: primary=42, secondary=43, subordinate=43, sec-latency=0
\tCapabilities: [68] Express (v2) Downstream Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16, ASPM L1
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir-

42:01.0 PCI bridge: Microchip Technology Device 4000 (prog-if 00 [Normal decode])
\tNUMA node: 1
\tBus: primary=42, secondary=44, subordinate=44, sec-latency=0
\tCapabilities: [68] Express (v2) Downstream Port (Slot+), MSI 00
\t\tLnkCap:\tPort #2, Speed 32GT/s, Width x16, ASPM L1

43:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
\tNUMA node: 1
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16

44:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
\tNUMA node: 1
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
"""

COLUMNS = (
    "index, name, pci.bus_id, memory.total [MiB], pcie.link.gen.gpumax, pcie.link.gen.hostmax, "
    "pcie.link.gen.current, pcie.link.width.max, power.limit [W], ecc.mode.current"
)
QUERY = f"""\
{COLUMNS}
0, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 00000000:43:00.0, 97887 MiB, 5, 4, 1, 16, 600.00 W, [N/A]
1, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 00000000:44:00.0, 97887 MiB, 5, 5, 1, 16, 600.00 W, [N/A]
"""

NUMACTL = """\
available: 3 nodes (0-2)
node 0 cpus: 0 1 2 3
node 0 size: 1024 MB
node 1 cpus: 4 5 6 7
node 1 size: 2048 MB
node 2 cpus:
node 2 size: 512 MB
node distances:
node   0   1   2
  0:  10  32  40
  1:  32  10  40
  2:  40  40  10
"""


@pytest.fixture
def dump(tmp_path):
    """Write a text under a name and read it as a dump."""
    count = iter(range(100))

    def write(text, name=None):
        file = tmp_path / (name or f"dump{next(count)}.txt")
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_dump(file)

    return write


@pytest.mark.parametrize("ansi", [False, True])
@pytest.mark.parametrize("affinity", [False, True])
def test_topo_is_read_with_and_without_colours_and_affinities(dump, ansi, affinity):
    found = dump(topo(PAIR, ansi=ansi, affinity=affinity))
    assert found.tool == "nvidia-smi topo -m"
    assert found.content.cells[0, 1] == "PIX"
    assert bool(found.content.numa) == affinity


def test_pairs_place_cards_on_switches_roots_and_sockets(dump):
    host = host_from_dumps([dump(topo(PAIR, affinity=False))], name="x", accelerator="rtx-pro-6000-ws")
    assert [card.parent for card in host.slots] == ["switch0", "switch0", "root1", "root2"]
    assert [root.socket for root in host.roots] == ["cpu0", "cpu1", "cpu1"]
    assert "can hide a switch fabric" in host.note


def test_nested_switches_are_told_from_flat_ones(dump):
    near = [["X" if i == j else "PIX" if i // 2 == j // 2 else "PXB" for j in range(4)] for i in range(4)]
    host = host_from_dumps([dump(topo(near))], name="x", accelerator="rtx-pro-6000-ws")
    assert [switch.parent for switch in host.switches] == ["root0", "switch0", "switch0"]


def test_nvlinks_become_a_scale_up_network(dump):
    cells = [["X" if i == j else "NV18" for j in range(8)] for i in range(8)]
    host = host_from_dumps([dump(topo(cells))], name="x", accelerator="h100-sxm")
    assert (host.scale_up.kind, host.scale_up.topology, host.scale_up.domain) == ("nvlink", "switch", 8)


def test_a_broken_row_is_named_with_its_line(dump):
    text = topo(PAIR).replace("GPU2\t SYS \t SYS \t", "GPU2\t SYS \t FAR \t")
    with pytest.raises(SpecError, match=r"line 4: 'FAR' is not a kind of connection"):
        dump(text)


def test_a_matrix_that_contradicts_itself_is_refused(dump):
    cells = [["X", "PIX"], ["NODE", "X"]]
    with pytest.raises(SpecError, match="but NODE back"):
        dump(topo(cells))


def test_an_idle_link_is_not_taken_for_a_slow_one(dump):
    gpus = dump(QUERY).content
    assert [gpu.generation for gpu in gpus] == [4, 5]  # what both ends can do, not the 1 of an idle link
    assert (gpus[0].address, gpus[0].memory, gpus[0].power_limit) == ("0000:43:00.0", 97887 * 2**20, 600.0)


def test_units_may_stand_in_the_header_only(dump):
    found = dump("name, memory.total [MiB], clocks.max.mem [MHz]\nNVIDIA L40S, 46068, 9001\n").content[0]
    assert (found.memory, found.memory_clock) == (46068 * 2**20, 9001e6)


def test_a_short_row_of_a_query_is_named(dump):
    with pytest.raises(SpecError, match="line 2: has 1 fields, the header names 2"):
        dump("index, name\n0\n")


def test_lspci_gives_switches_links_and_acs(dump):
    host = host_from_dumps([dump(LSPCI), dump(QUERY)], name="x")
    assert host.accelerator_names == ("rtx-pro-6000-ws",) * 2
    switch = host.switches[0]
    assert (switch.uplink.generation, switch.uplink.lanes) == (5, 8)  # narrower is real, slower is idle
    assert switch.acs_redirect is False
    assert host.conditions.acs_redirect is True
    assert [card.link.generation for card in host.slots] == [4, 4]  # the host end of card 0, the card end of card 1
    assert host.roots[0].socket == "cpu0"
    assert link_for_group(host, 2).kind == "pcie"


def test_an_unknown_link_speed_is_named_with_its_line(dump):
    with pytest.raises(SpecError, match="line 5: '33 GT/s' is not a PCIe speed"):
        dump(LSPCI.replace("32GT/s", "33GT/s"))


TREE = r"""
-+-[0000:c0]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
 |           +-01.1-[c1-c5]----00.0-[c2-c5]--+-00.0-[c3]--+-00.0  NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell]
 |           |                               |            \-00.1  NVIDIA Corporation High Definition Audio Controller
 |           |                               +-01.0-[c4]----00.0  Samsung Electronics Co Ltd NVMe SSD Controller
 |           |                               \-02.0-[c5]--
 |           \-07.1-[c6]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 \-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
             \-01.1-[01]----00.0  NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell]
"""


def test_a_tree_gives_the_places_of_cards_drives_and_network_cards(dump):
    host = host_from_dumps([dump(TREE)], name="x", accelerator="rtx-pro-6000-ws")
    assert [(card.address, card.parent) for card in host.slots] == [
        ("0000:01:00.0", "root-00"),
        ("0000:c3:00.0", "switch-c1"),
    ]
    assert {(device.kind, device.parent) for device in host.devices} == {("nvme", "switch-c1"), ("nic", "root-c0")}


def test_a_branch_that_hangs_on_nothing_is_named(dump):
    with pytest.raises(SpecError, match="line 3: is a branch without a parent"):
        dump("\n-+-[0000:c0]-+-00.0  Device\n     \\-01.0  Device\n")


def test_a_display_adapter_is_not_an_accelerator(dump):
    text = LSPCI.replace(
        "44:00.0 3D controller: NVIDIA Corporation Device 2bb5", "44:00.0 VGA compatible controller: ASPEED Graphics"
    )
    host = host_from_dumps([dump(text)], name="x", accelerator="rtx-pro-6000-ws")
    assert host.accelerator_count == 1
    assert [(device.kind, device.parent) for device in host.devices] == [("display", "switch-41")]


@pytest.mark.parametrize("nested", [False, True])
def test_lscpu_json_is_read_flat_and_nested(dump, nested):
    entries = [{"field": "Socket(s):", "data": "2"}, {"field": "Core(s) per socket:", "data": "8"}]
    content = [{"field": "CPU(s):", "data": "16"}, {"field": "Model name:", "data": "CPU", "children": entries}]
    flat = [*content[:1], {"field": "Model name:", "data": "CPU"}, *entries]
    found = dump(json.dumps({"lscpu": content if nested else flat})).content
    assert (found.sockets, found.cores_per_socket) == (2, 8)


def test_a_node_without_processors_is_not_a_socket(dump):
    lscpu = dump("CPU(s): 8\nModel name: Test CPU\nSocket(s): 2\nCore(s) per socket: 4\nOff-line CPU(s) list: 7\n")
    host = host_from_dumps([lscpu, dump(NUMACTL), dump(QUERY)], name="x")
    assert [(socket.numa_nodes, socket.memory_size) for socket in host.sockets] == [((0,), 2.0**30), ((1,), 2.0**31)]
    assert "CPU 7 is off-line" in host.note


def test_four_nodes_of_one_socket_are_one_socket(dump):
    lines = "\n".join(f"node {n} cpus: {n}\nnode {n} size: 100 MB" for n in range(4))
    lscpu = dump("CPU(s): 4\nModel name: Test CPU\nSocket(s): 1\n")
    host = host_from_dumps([lscpu, dump(f"available: 4 nodes (0-3)\n{lines}\n"), dump(QUERY)], name="x")
    assert [socket.numa_nodes for socket in host.sockets] == [(0, 1, 2, 3)]


def test_distances_that_do_not_fit_are_named(dump):
    with pytest.raises(SpecError, match="line 10: has 2 distances for 3 nodes"):
        dump(NUMACTL.replace("  0:  10  32  40", "  0:  10  32"))


def module(bank, size="64 GB"):
    return (
        f"Memory Device\n\tSize: {size}\n\tBank Locator: {bank}\n\tType: DDR5\n\tConfigured Memory Speed: 6400 MT/s\n\n"
    )


def test_memory_modules_give_channels_and_bandwidth(dump):
    text = (
        "".join(module(f"P0 CHANNEL {letter}") for letter in "ABCDEFGHIJKL")
        + module("P0 CHANNEL A")
        + module("x", "No Module Installed")
    )
    host = host_from_dumps([dump(text), dump(QUERY)], name="x")
    assert host.sockets[0].memory_channels == 12
    assert host.sockets[0].memory_bandwidth == pytest.approx(614.4e9)  # 12 x 8 B x 6.4 GT/s


def test_a_partial_list_of_modules_gives_no_bandwidth(dump):
    host = host_from_dumps([dump(module("P0 CHANNEL A", "1 MB")), dump(NUMACTL), dump(QUERY)], name="x")
    assert host.sockets[0].memory_bandwidth is None
    assert any("not complete" in line for line in host.assumptions)


ROCM = """\
============================ ROCm System Management Interface ============================
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            {link}
GPU1   {link}         0
======================================= Numa Nodes =======================================
GPU[0]          : (Topology) Numa Node: 0
GPU[1]          : (Topology) Numa Node: 1
"""


def test_rocm_topology_and_memory_make_one_host(dump):
    memory = "".join(f"GPU[{n}]   : VRAM Total Memory (B): 206141652992\n" for n in range(2))
    host = host_from_dumps([dump(ROCM.format(link="XGMI")), dump(memory)], name="x", accelerator="mi300x")
    assert (host.scale_up.kind, host.scale_up.topology) == ("xgmi", "mesh")
    assert len(host.sockets) == 2


def test_pcie_between_accelerators_is_no_scale_up_network(dump):
    host = host_from_dumps([dump(ROCM.format(link="PCIE"))], name="x", accelerator="mi300x")
    assert host.scale_up is None


def test_a_dump_without_names_asks_for_one(dump):
    with pytest.raises(SpecError, match="--accelerator"):
        host_from_dumps([dump(ROCM.format(link="XGMI"))], name="x")


def test_dumps_of_different_machines_are_refused(dump):
    with pytest.raises(SpecError, match="describes 4 accelerators, the other dumps 2"):
        host_from_dumps([dump(QUERY), dump(topo(PAIR))], name="x")


def test_a_part_outside_the_catalogue_is_kept_and_said(dump):
    host = host_from_dumps([dump("index, name\n0, NVIDIA Imaginary 7\n")], name="x")
    assert host.accelerator == "imaginary-7"
    assert any("not in the catalogue" in line for line in host.unknown)


def test_compressed_dumps_are_read(dump):
    assert dump(gzip.compress(QUERY.encode()), "q.csv.gz").tool == "nvidia-smi --query-gpu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello\n", "none of the dumps"),
        ("pid, process_name, used_gpu_memory [MiB]\n1, x, 2 MiB\n", "processes"),
    ],
)
def test_a_file_that_is_no_dump_is_refused_with_the_reason(dump, text, message):
    with pytest.raises(SpecError, match=message):
        dump(text)


def test_xml_that_breaks_off_is_named_with_its_line(dump):
    with pytest.raises(SpecError, match="line 2: is not well-formed XML"):
        dump("<nvidia_smi_log>\n<gpu id='00000000:01:00.0'><product_name>NVIDIA L4</product_name>")


def test_an_imported_host_survives_being_written_and_read(dump, tmp_path):
    host = host_from_dumps([dump(LSPCI), dump(QUERY), dump(NUMACTL)], name="box")
    file = tmp_path / "box.toml"
    file.write_text(record_toml(host))
    assert load_host(file) == host


@pytest.mark.skipif(not SAMPLES.exists(), reason="compares with real dumps that are not part of the project")
class TestRealDumps:
    def test_every_real_dump_is_read_or_refused_with_a_reason(self):
        read = 0
        for file in SAMPLES.iterdir():
            try:
                read_dump(file)
                read += 1
            except SpecError as error:
                assert "none of the dumps" in str(error) or "processes" in str(error)
        assert read >= 20

    def test_six_dumps_of_one_server_make_the_server_in_the_catalogue(self):
        names = (
            "nvidia-smi_topo-m_8xRTXPRO6000_2xEPYC9575F_broadcom.txt",
            "nvidia-smi_-q_8xRTXPRO6000_full.txt.gz",
            "lspci_-vvv_ESC8000A-E13P_full.txt.gz",
            "lscpu_2xEPYC9575F.txt",
            "numactl-H_2xEPYC9575F.txt",
            "dmidecode_memory_device_excerpt.txt",
        )
        host = host_from_dumps([read_dump(SAMPLES / name) for name in names], name="x")
        known = load_host("asus-esc8000a-e13p")
        assert host.accelerator_names == known.accelerator_names
        assert [socket.memory_size for socket in host.sockets] == [socket.memory_size for socket in known.sockets]
        assert [socket.cores for socket in host.sockets] == [64, 64]
        assert len({card.parent for card in host.slots}) == 4
        assert link_for_group(host, 8).basis == "pcie/ring/two-sockets"
        assert any(device.kind == "display" for device in host.devices)

    def test_a_machine_with_one_card_on_the_other_node_is_placed_by_its_affinity(self):
        file = SAMPLES / "nvidia-smi_topo-m_5gpu_mixed_numa.txt"
        host = host_from_dumps([read_dump(file)], name="x", accelerator="rtx-3090")
        sockets = {root.name: root.socket for root in host.roots}
        assert [sockets[card.parent] for card in host.slots] == ["cpu1", "cpu0", "cpu0", "cpu0", "cpu0"]


def test_a_cpu_can_be_named_as_what_computes(dump):
    lscpu = dump("CPU(s): 8\nModel name: Test CPU\nSocket(s): 1\n")
    host = host_from_dumps([lscpu, dump(NUMACTL)], name="x", accelerator="epyc-9004")
    assert host.unified_memory
    assert host.slots[0].link is None
    assert host.unknown == ("power supply",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"lscpu": {"a": 1}}', "is not a list of fields"),
        ('{"lscpu": [1]}', "is not a list of fields"),
        ("06:00.0 3D controller: NVIDIA X\n\tNUMA node: x\n", "line 2: 'x' is not a NUMA node"),
    ],
)
def test_a_dump_of_the_wrong_shape_is_refused(dump, text, message):
    with pytest.raises(SpecError, match=message):
        dump(text)


WHOLE = {
    "topo": topo(PAIR, ansi=True),
    "query": QUERY,
    "lspci": LSPCI,
    "tree": TREE,
    "numactl": NUMACTL,
    "dmidecode": module("P0 CHANNEL A"),
    "rocm": ROCM.format(link="XGMI"),
    "lscpu": "CPU(s): 8\nModel name: Test CPU\nSocket(s): 1\nNUMA node0 CPU(s): 0-7\n",
    "json": '{"lscpu": [{"field": "CPU(s):", "data": "8"}, {"field": "Socket(s):", "data": "1"}]}',
    "xml": "<nvidia_smi_log><gpu id='00000000:01:00.0'><product_name>NVIDIA L4</product_name></gpu></nvidia_smi_log>",
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_a_damaged_dump_is_read_or_refused_but_never_crashes(tmp_path, name, data):
    text = WHOLE[name]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 30))
    damaged = text[:start] + data.draw(st.text(max_size=6)) + text[start + length :]
    file = tmp_path / "dump"
    file.write_text(damaged, errors="replace")
    try:
        host_from_dumps([read_dump(file)], name="x", accelerator="rtx-pro-6000-ws")
    except SpecError as error:
        assert str(error)


def test_a_host_file_is_no_dump(tmp_path):
    file = tmp_path / "machine.toml"
    file.write_text('title = "one"\n')
    with pytest.raises(SpecError, match="glmplan fit --on FILE"):
        read_dump(file)


@pytest.mark.parametrize(
    ("text", "name", "mib"),
    [
        ("NVIDIA GeForce RTX 3090, 24576 MiB\n" * 2, "NVIDIA GeForce RTX 3090", 24576),
        ("0, NVIDIA L40S, 46068, 535.104.05\n1, NVIDIA L40S, 46068, 535.104.05\n", "NVIDIA L40S", 46068),
        ("512 MiB, 81559 MiB, NVIDIA H100 80GB HBM3, 69.91 W\n" * 2, "NVIDIA H100 80GB HBM3", 81559),
        ("NVIDIA L40S\n" * 2, "NVIDIA L40S", None),
    ],
)
def test_a_query_without_header_is_read_by_the_form_of_its_values(dump, text, name, mib):
    found = dump(text, "q.csv").content
    assert [(gpu.index, gpu.name, gpu.memory and gpu.memory / 2**20, gpu.power_limit) for gpu in found] == [
        (index, name, mib, None) for index in range(2)
    ]


@pytest.mark.parametrize(
    "text", ["45, 250.1 W, 12 %\n", "NVIDIA L40S, 46068 MiB\nNVIDIA L40S\n", "0, NVIDIA L4\nx, y\n"]
)
def test_columns_that_cannot_be_told_are_refused_with_the_query_that_works(dump, text):
    with pytest.raises(SpecError, match="--query-gpu=index,name"):
        dump(text, "q.csv")
