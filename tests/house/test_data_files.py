"""Every entry of the data folders is readable, checked, named for its file, and says where it comes from."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tomllib

import pytest

from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.models import load_model_file, model_names
from glmplan.catalog.entries.prices import load_deliveries
from glmplan.catalog.schema.price import KINDS

#: places that exist on one desk only, and hosts of packages, which an installation chooses for itself
#: (the list of weaknesses calls a language so: the word of a protocol, and no place)
PRIVATE = re.compile(
    r"(?i)/work/|(?<!\"ecosystem\": \")pypi|pythonhosted|\.library|\.\./shared|/tmp/|/opt/|/root/|/home/\w"
)


def toml_files(root, folder):
    found = sorted((root / folder).rglob("*.toml"))
    assert found
    return found


def read(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


def rows(path):
    with path.open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def test_every_accelerator_validates_under_its_file_name_and_has_sources(root):
    stems = [path.stem for path in toml_files(root, "hardware_db/accelerators")]
    assert sorted(stems) == sorted(accelerator_names())
    for stem in stems:
        part = load_accelerator(stem)
        assert part.name == stem
        assert part.source.strip()
        assert all(entry.source.strip() for entry in part.measured)


def test_every_host_validates_under_its_file_name_and_has_a_source(root):
    stems = [path.stem for path in toml_files(root, "hardware_db/hosts")]
    assert sorted(stems) == sorted(host_names())
    for stem in stems:
        host = load_host(stem)
        assert host.name == stem
        assert host.source.strip()


def test_every_model_validates_under_its_file_name_and_has_sources(root):
    paths = toml_files(root, "model_specs")
    assert sorted(path.stem for path in paths) == list(model_names())
    for path in paths:
        model = load_model_file(path)
        assert model.name == path.stem
        assert model.source.strip()
        assert all(checkpoint.source.strip() for checkpoint in model.checkpoints)


def test_every_wall_and_every_default_of_an_engine_has_a_source(root):
    count = 0
    for path in sorted((root / "hardware_db/engines").glob("*.toml")):
        for kind, entries in read(path).items():
            for entry in entries if isinstance(entries, list) else ():
                count += 1
                assert entry["source"].strip(), f"{path.name}: {kind} {entry}"
    assert count > 40


def test_every_rule_of_a_cache_pool_validates_and_has_a_source(root):
    stems = [path.stem for path in toml_files(root, "hardware_db/engines/memory")]
    assert sorted(stems) == sorted(memory_engines())
    for stem in stems:
        assert read(root / f"hardware_db/engines/memory/{stem}.toml")["source"].strip()
        load_memory_rule(stem)


def test_every_hazard_has_a_rule_a_case_and_sources(root):
    for path in toml_files(root, "hardware_db/hazards"):
        hazard = read(path)
        assert hazard["rule"].strip() and hazard["case"].strip() and hazard["source"].strip(), path
        assert "thresholds" not in hazard or hazard["thresholds_from"].strip(), path


def test_every_price_has_a_date_a_part_and_a_source(root):
    paths = sorted((root / "hardware_db/prices").glob("*.csv"))
    paths = [path for path in paths if path.stem != "delivery"]  # times, which the next test looks at
    assert [path.stem for path in paths] == sorted(KINDS)
    for path in paths:
        found = list(rows(path))
        assert found, path.name
        for row in found:
            assert row["part"].strip() and row["source"].strip() and row["currency"].strip() and row["region"], row
            assert re.fullmatch(r"\d{4}(-\d{2}){0,2}|undated", row["date"]), row
            assert float(row["price"]) > 0, row


def test_every_delivery_time_is_of_a_part_of_the_catalogue_and_has_a_source():
    assert load_deliveries()
    for one in load_deliveries():
        assert one.part in accelerator_names() and one.source.startswith("https://") and one.note


def test_every_measured_row_has_a_source_of_its_own_or_of_its_campaign(root):
    campaigns = read(root / "calibration/sources.toml")
    assert all(entry["address"].strip() for entry in campaigns.values())
    for path in sorted((root / "calibration").rglob("*.csv")):
        if {"about.json", "log.txt"} <= {file.name for file in path.parent.iterdir()}:
            continue  # measured by a tool of this repository, whose card and log lie beside it
        bare = [
            row
            for row in rows(path)
            if not (row.get("source") or "").strip() and not campaigns.get(row.get("campaign") or "", {}).get("address")
        ]
        assert not bare, f"{path.name}: {bare[0]}"


def test_every_campaign_names_a_file_that_holds_its_rows(root):
    for name, entry in read(root / "calibration/sources.toml").items():
        path = root / "calibration/measurements" / entry["file"]
        assert path.is_file(), name
        if "rows" in entry and path.name not in {"acceptance.csv", "collectives.csv", "pcie-topologies.csv"}:
            assert sum(row.get("campaign") == name for row in rows(path)) == entry["rows"], name


def test_identifiers_of_measured_rows_are_unique_in_their_file(root):
    for path in sorted((root / "calibration").rglob("*.csv")):
        names = [row["id"] for row in rows(path) if "id" in row]
        assert len(set(names)) == len(names), path.name


def test_every_fit_says_that_a_program_wrote_it_or_lists_what_a_fit_rests_on(root):
    for path in toml_files(root, "calibration/fits"):
        head = path.read_text(encoding="utf-8")[:400].lower()
        assert "written by" in head or "that the fit rests on" in head, path


@pytest.fixture(scope="module")
def committed(root):
    """Text files that git knows, but for these tests, which must name what they forbid."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [root / name for name in listed.stdout.split("\0") if name and not name.startswith("tests/")]
    return [path for path in paths if path.is_file() and path.suffix not in {".gguf", ".gz", ".png"}]


def test_no_committed_file_points_at_places_that_exist_on_one_desk_only(committed):
    guilty = []
    for path in committed:
        text = path.read_text(encoding="utf-8")
        guilty += [f"{path.name}: {match[0]} in {text[max(0, match.start() - 30) : match.end() + 30]!r}"
                   for match in PRIVATE.finditer(text)]  # fmt: skip
    assert not guilty, "\n".join(["", *guilty])


def test_no_data_file_holds_a_factor_without_a_name_for_it(root):
    """A fudge factor beside a fact is how catalogues begin to lie."""
    for path in [*(root / "hardware_db").glob("[aeh]*s/*.toml"), *toml_files(root, "model_specs")]:
        if path.parent.name == "hazards":
            continue  # rules about machines, whose thresholds are named and have sources
        keys = re.findall(r"^\s*([a-z_]+)\s*=", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [key for key in keys if re.search(r"empirical|fudge|scaling_factor|effective|efficiency", key)], path
