"""Probing this machine: the kernel's files, a CPU without accelerators, and NVML's answers."""

import sys
from types import SimpleNamespace

import pytest

from glmplan.io.machines.resolve import HostMemory, over_all_sockets, resolve_machine
from glmplan.io.machines.this_machine import (
    matrix_rate,
    memory_bandwidth,
    probe_machine,
    read_numa,
    read_nvml,
    read_sys_pci,
)


def test_the_cpu_of_this_machine_can_stand_in_for_an_accelerator(monkeypatch, tmp_path):
    monkeypatch.setattr("glmplan.io.machines.this_machine.read_nvml", lambda: ([], None))
    monkeypatch.setattr("glmplan.io.machines.this_machine.read_sys_pci", lambda: read_sys_pci(tmp_path))
    found = probe_machine(seconds=0.02)
    assert found.part.kind == "cpu-socket"
    assert found.part.memory_bandwidth == pytest.approx(found.rates.memory_bandwidth, rel=0.01)
    assert found.part.peak["bf16"] == pytest.approx(found.rates.matrix_rate, rel=0.01)
    assert found.host.host_memory > 0


def test_longer_measuring_never_lowers_the_order_of_magnitude():
    copy, read = memory_bandwidth(seconds=0.05, megabytes=64)
    assert 1e6 < copy < 1e13 and 1e6 < read < 1e13
    assert 1e6 < matrix_rate(seconds=0.05, size=512) < 1e15


def test_nodes_of_the_kernel_are_read(tmp_path):
    for node, (size, cpus) in enumerate([(1024, "0-3"), (2048, "")]):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "meminfo").write_text(f"Node {node} MemTotal:  {size} kB\n")
        (folder / "cpulist").write_text(cpus + "\n")
        (folder / "distance").write_text("10 21\n" if node == 0 else "21 10\n")
    found = read_numa(tmp_path, tmp_path / "none")
    assert found.sizes == {0: 2.0**20, 1: 2.0**21}
    assert found.with_cpus == {0: True, 1: False}
    assert found.distances[0, 1] == 21


def test_links_of_the_kernel_take_the_width_of_now_and_the_speed_of_the_slot(tmp_path):
    folder = tmp_path / "0000:41:00.0"
    folder.mkdir()
    content = {
        "class": "0x030200",
        "vendor": "0x10de",
        "device": "0x2bb5",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        "current_link_width": "8",
        "numa_node": "1",
    }
    for name, text in content.items():
        (folder / name).write_text(text + "\n")
    (device,) = read_sys_pci(tmp_path).devices
    assert (device.kind, device.generation, device.lanes, device.numa) == ("gpu", 5, 8, 1)


class Nvml(SimpleNamespace):
    """Two cards as NVML describes them; everything else is not supported, as on many parts."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_MEM = 2


def test_nvml_answers_become_facts_and_silence_stays_unknown(monkeypatch):
    nvml = Nvml(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"NVIDIA L40S",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0".encode()),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=48305799168),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 4,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetTopologyCommonAncestor=lambda one, other: 40,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus, relations = read_nvml()
    assert [(gpu.name, gpu.address, gpu.generation) for gpu in gpus] == [
        ("NVIDIA L40S", "0000:01:00.0", 4),
        ("NVIDIA L40S", "0000:02:00.0", 4),
    ]
    assert gpus[0].power_limit is None
    assert relations.cells[0, 1] == "NODE"


def test_a_machine_without_the_package_has_no_nvidia_accelerators(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml() == ([], None)


@pytest.mark.parametrize("sockets", [1, 2, 4])
def test_the_memory_of_a_machine_is_divided_between_its_sockets(sockets):
    machine = resolve_machine(f"{sockets}xepyc-9005-ddr5-6400", memory=HostMemory(768e9))
    assert machine.accelerator.memory == machine.host.host_memory == 768e9 / sockets
    options = over_all_sockets(machine.accelerator, sockets)
    assert bool(options) == (sockets > 1)
    if options:
        whole = resolve_machine("all", part=options.split("--part ")[1])
        assert whole.accelerator.memory == 768e9
        # each further socket adds less than the first has
        assert 1.0 < whole.accelerator.memory_bandwidth / 614.4e9 < sockets


@pytest.mark.parametrize(
    ("text", "taken", "other"),
    [
        ("8xv100", "16 GiB", "v100-sxm-32gb"),
        ("NVIDIA H20", "96 GiB", "h20-141gb"),
        ("gh200", "143 GiB", "gh200-96gb"),
        ("2xrtx pro 5000", "72 GB", "rtx-pro-5000-48gb"),
        ("4090", "24 GiB", "rtx-4090-48gb"),
        ("3060", "12 GiB", "rtx-3060-12gb"),
        ("m4-max", "128 GiB", "--part"),
        ("rtx-3090+rtx-2080-ti", "11 GiB", "rtx-2080-ti-22gb"),
    ],
)
def test_a_name_of_several_memory_sizes_says_which_one_it_is(text, taken, other):
    (said,) = resolve_machine(text).taken
    assert taken in said and other in said


@pytest.mark.parametrize("text", ["v100-32gb", "2xh20-96", "gh200-144GB", "RTX 4090 48G", "l40s", "mac-studio-m4-max"])
def test_a_name_with_its_memory_says_nothing_more(text):
    assert resolve_machine(text).taken == ()
