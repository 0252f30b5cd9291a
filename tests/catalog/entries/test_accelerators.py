"""Every part is there, is checked, says where its figures come from, and is never substituted."""

import csv
from pathlib import Path

import pytest

from glmplan.catalog.entries.accelerators import (
    accelerator_aliases,
    accelerator_names,
    load_accelerator,
    nearest_accelerators,
    plain_name,
    printed_names,
    refused_accelerators,
    split_count,
)
from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.names import accelerator_name
from glmplan.catalog.files import read_toml
from glmplan.catalog.schema.accelerator import PRECISIONS
from glmplan.errors import SpecError, UnknownFact, UnknownName

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY.parent / "shared"

# The rows of the facts table the catalogue was built from, with the name each has here.
ROWS = {
    "RTX_PRO_6000_WS": "rtx-pro-6000-ws",
    "RTX_PRO_6000_SERVER": "rtx-pro-6000-server",
    "RTX_PRO_6000_MAXQ": "rtx-pro-6000-maxq",
    "RTX_5090": "rtx-5090",
    "RTX_4090": "rtx-4090",
    "RTX_3090": "rtx-3090",
    "L40S": "l40s",
    "L20": "l20",
    "A100_40_SXM": "a100-40gb-sxm",
    "A100_80_SXM": "a100-80gb-sxm",
    "A100_80_PCIE": "a100-80gb-pcie",
    "H100_SXM": "h100-sxm",
    "H100_PCIE": "h100-pcie",
    "H100_NVL": "h100-nvl",
    "H200_SXM": "h200-sxm",
    "H200_NVL": "h200-nvl",
    "H20_96": "h20-96gb",
    "H20_141": "h20-141gb",
    "H800_SXM": "h800-sxm",
    "B200": "b200-sxm",
    "B300": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "GH200": "gh200",
    "GB10": "dgx-spark",
    "MI300X": "mi300x",
    "MI325X": "mi325x",
    "MI355X": "mi355x",
    "MI308X": "mi308x",
    "R9700": "r9700",
    "W7900": "w7900",
    "RYZEN_AI_MAX_395": "ryzen-ai-max-395",
    "M3_ULTRA": "m3-ultra",
    "M4_MAX": "m4-max",
    "M5": "m5",
    "M5_MAX": "m5-max",
    "ASCEND_910B": "ascend-910b",
    "ASCEND_910C": "ascend-910c",
    "ARC_PRO_B60": "arc-pro-b60",
    "EPYC_9004_SOCKET": "epyc-9004",
    "EPYC_9005_6000_SOCKET": "epyc-9005-ddr5-6000",
    "EPYC_9005_6400_SOCKET": "epyc-9005-ddr5-6400",
    "XEON6_MRDIMM_8800": "xeon-6-mrdimm-8800",
    "NIZWO_A1": "nizwo-a1",
}


@pytest.mark.parametrize("name", accelerator_names())
def test_every_entry_is_valid_and_written_back_the_same(name):
    part = load_accelerator(name)
    assert part.name == name
    assert part.source
    content = part.model_dump(mode="json", exclude_unset=True)
    assert type(part).model_validate(content) == part


@pytest.mark.parametrize(("key", "name"), ROWS.items())
def test_every_row_of_the_facts_table_has_an_entry_and_resolves_by_its_key(key, name):
    assert load_accelerator(key).name == name


def test_there_are_forty_four_rows():
    assert len(ROWS) == len(set(ROWS.values())) == 44


@pytest.mark.skipif(not (SHARED / "facts/hardware.csv").exists(), reason="the facts table is not beside this checkout")
def test_entries_agree_with_the_facts_table():
    columns = {
        "memory": ("mem_bytes", 1),
        "memory_bandwidth": ("mem_bw_GBps", 1e9),
        "peak.bf16": ("bf16_dense_tflops", 1e12),
        "peak.fp8": ("fp8_dense_tflops", 1e12),
        "peak.fp4": ("fp4_dense_tflops", 1e12),
        "peak.int8": ("int8_dense_tops", 1e12),
        "tdp": ("tdp_w", 1),
        "pcie_generation": ("pcie_gen", 1),
        "pcie_lanes": ("pcie_lanes", 1),
        "scaleup_bandwidth": ("scaleup_GBps_per_dir", 1e9),
    }
    with (SHARED / "facts/hardware.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["key"] for row in rows} == set(ROWS)
    for row in rows:
        part = load_accelerator(ROWS[row["key"]])
        for field, (column, scale) in columns.items():
            if not row[column]:
                continue
            ours = part.figure(field)
            kept = [entry.quantity for entry in part.contradictions if entry.field == field]
            values = [value for value in (ours, *kept) if value is not None]
            theirs = pytest.approx(float(row[column]) * scale, rel=1e-9)
            assert any(value == theirs for value in values), (part.name, field)


def _measured_names() -> set[str]:
    """Names of parts in tables of runs; ledgers of transfers have no engine and describe machines in words."""
    names = set()
    for path in (REPOSITORY / "calibration/measurements").glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            if "engine" in (table.fieldnames or ()):
                names |= {row.get("accelerator") or "" for row in table}
    return names - {""}


def test_every_accelerator_of_the_measurements_resolves_or_is_refused_with_the_reason():
    names = _measured_names()
    assert len(names) > 20
    for name in names:
        if plain_name(name) in refused_accelerators():
            with pytest.raises(UnknownName, match="is refused: "):
                load_accelerator(name)
        else:
            assert load_accelerator(name).name in accelerator_names()


def test_the_fast_scan_finds_exactly_the_aliases_that_the_files_declare():
    declared = {}
    for name in accelerator_names():
        for alias in load_accelerator(name).aliases:
            assert plain_name(alias) not in declared, f"{alias} is claimed twice"
            declared[plain_name(alias)] = name
    assert accelerator_aliases() == declared
    assert not set(declared) & set(accelerator_names())
    assert not set(refused_accelerators()) & (set(declared) | set(accelerator_names()))


def test_an_unknown_name_lists_the_nearest_and_never_substitutes():
    with pytest.raises(UnknownName, match="nearest: .*rtx-pro-6000-ws"):
        load_accelerator("rtx-pro-6000-wss")
    with pytest.raises(UnknownName, match="not a known accelerator"):
        load_accelerator("")
    with pytest.raises(UnknownName, match="not a known accelerator"):
        load_accelerator("../accelerators/b200-sxm")


def test_a_name_without_its_edition_says_how_it_is_read():
    part = load_accelerator("rtx-pro-6000")
    assert part.name == "rtx-pro-6000-ws"
    assert "Workstation" in part.alias_notes["rtx-pro-6000"]


def test_the_server_edition_uses_the_bandwidth_of_its_clock_and_keeps_the_other_figure():
    part = load_accelerator("rtx-pro-6000-server")
    # 12481 MHz x 2 x 512 bit / 8
    assert part.memory_bandwidth == pytest.approx(12481e6 * 2 * 512 / 8, rel=1e-4)
    kept = {entry.quantity: entry.used for entry in part.contradictions}
    assert kept == {1597.6e9: True, 1792e9: False}


def test_an_unknown_figure_is_named_and_what_it_would_imply_is_told():
    with pytest.raises(UnknownFact, match=r"nizwo-a1: unknown: memory, bandwidth; .*1 TB/s to 1.4 TB/s"):
        load_accelerator("nizwo-a1").need("memory", "memory_bandwidth")
    assert load_accelerator("b200-sxm").need("memory", "peak.fp8") == (180 * 2**30, 4.5e15)


def test_a_wrong_field_or_precision_is_refused():
    part = load_accelerator("b200-sxm")
    with pytest.raises(SpecError, match="nearest: memory_bandwidth"):
        part.figure("memory_bandwith")
    with pytest.raises(SpecError, match="is not a precision"):
        part.figure("peak.fp6")


def test_no_precision_is_claimed_where_the_silicon_lacks_it():
    assert load_accelerator("h200-sxm").supports("fp4") is False
    assert load_accelerator("rtx-4090").supports("fp8") is True
    assert load_accelerator("m3-ultra").supports("bf16") is None
    for name in accelerator_names():
        part = load_accelerator(name)
        assert all(part.supports(precision) is not True or part.peak[precision] > 0 for precision in PRECISIONS)


@pytest.mark.parametrize("name", accelerator_names())
def test_a_wider_precision_has_a_rate_of_its_own_and_is_slower(name):
    # a missing rate was that of FP4 (DGX Spark)
    peak = load_accelerator(name).peak
    narrow = [one for one in ("fp8", "fp4") if one in peak]
    assert not narrow or "bf16" in peak
    assert "fp4" not in peak or "fp8" in peak
    for one in narrow:
        assert peak["bf16"] <= peak[one]


def test_a_users_own_file_is_checked_like_the_catalogue(tmp_path):
    file = tmp_path / "my-card.toml"
    file.write_text('full_name = "Mine"\nvendor = "Me"\nmemory = "48 GiB"\nsource = "measured here"\n')
    assert load_accelerator(file).memory == 48 * 2**30
    file.write_text('full_name = "Mine"\nvendor = "Me"\nmemory = 48\nsource = "measured here"\n')
    with pytest.raises(SpecError, match=r"my-card.toml: memory: 48 must be text with its unit"):
        load_accelerator(file)
    file.write_text('full_name = "Mine"\nvendor = "Me"\nmemery = "48 GiB"\nsource = "measured here"\n')
    with pytest.raises(SpecError, match="nearest: memory"):
        load_accelerator(file)
    file.write_text("full_name = \n")
    with pytest.raises(SpecError, match="not valid TOML"):
        load_accelerator(file)
    with pytest.raises(SpecError, match="cannot be read"):
        load_accelerator(tmp_path / "none.toml")


def test_a_contradiction_marked_as_used_must_be_the_figure_in_use(tmp_path):
    content = (Path(REPOSITORY) / "hardware_db/accelerators/rtx-pro-6000-server.toml").read_text()
    file = tmp_path / "wrong.toml"
    file.write_text(content.replace('memory_bandwidth = "1.5976 TB/s"', 'memory_bandwidth = "1.7 TB/s"'))
    assert read_toml(file)["memory_bandwidth"] == "1.7 TB/s"
    with pytest.raises(SpecError, match="differs from the entry"):
        load_accelerator(file)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("6xrtx-pro-6000-ws", (6, "rtx-pro-6000-ws")), ("4×h100-sxm", (4, "h100-sxm")), ("8 x b200", (8, "b200"))],
)
def test_a_count_and_a_name_are_told_apart(text, parts):
    assert split_count(text) == parts


def test_zero_accelerators_are_refused():
    with pytest.raises(SpecError, match="asks for no accelerator"):
        split_count("0xb200-sxm")


def test_no_part_can_use_more_memory_than_it_has():
    for name in accelerator_names():
        part = load_accelerator(name)
        if part.memory is not None and part.memory_usable is not None:
            assert part.memory_usable <= part.memory, name


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        # as nvidia-smi, rocm-smi and torch print them
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-ws"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GB10", "dgx-spark"),
    ],
)
def test_a_part_is_known_by_the_name_that_its_tools_print(printed, name):
    assert load_accelerator(printed).name == accelerator_name(printed) == name
    assert load_machine(f"2x{printed}").accelerator == name


def test_printed_names_are_of_one_part_each_and_shadow_nothing():
    assert not set(printed_names()) & {*accelerator_names(), *accelerator_aliases(), *refused_accelerators()}
    # which H200 is not said by its short name; another vendor's part is none of ours
    assert "h200" not in printed_names() and "amd-h200" not in printed_names()
    with pytest.raises(UnknownName, match="nearest: .*h100-sxm"):
        load_accelerator("NVIDIA H100 120GB")


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("3090 ti", "rtx-3090-ti"),
        ("RTX4060Ti 16GB", "rtx-4060-ti-16gb"),
        ("7900xtx", "rx-7900-xtx"),
        ("Radeon RX9070XT", "rx-9070-xt"),
        ("RTX6000Ada", "rtx-6000-ada"),
        ("2080ti-22gb", "rtx-2080-ti-22gb"),
        ("arc b60", "arc-pro-b60"),
    ],
)
def test_a_card_is_known_by_its_ordinary_spelling(spelt, name):
    assert load_accelerator(spelt).name == name
    assert load_machine(f"2x{spelt}").accelerator == name


@pytest.mark.parametrize(
    ("spelt", "sizes"),
    [
        ("4060 ti", {"rtx-4060-ti-8gb", "rtx-4060-ti-16gb"}),
        ("5060ti", {"rtx-5060-ti-8gb", "rtx-5060-ti-16gb"}),
        ("3080", {"rtx-3080-10gb", "rtx-3080-12gb"}),
    ],
)
def test_a_card_that_is_sold_with_two_memory_sizes_is_asked_for_by_one_of_them(spelt, sizes):
    with pytest.raises(UnknownName):
        load_accelerator(spelt)
    assert set(nearest_accelerators(spelt, 2)) == sizes


def test_the_number_of_a_card_before_an_x_is_no_count():
    assert split_count("7900xtx") == (1, "7900xtx")
    assert split_count("2x7900xtx") == (2, "7900xtx")
    assert split_count("1000x4090") == (1000, "4090")
