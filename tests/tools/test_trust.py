"""The bill of materials and the notice of the wheel: valid, complete for dependencies and measured sources."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[2]
BILL = (ROOT / "docs/reference/sbom.cdx.json").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_bill_of_materials_follows_its_schema():
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(BILL) is None
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(BILL.replace('"scope"', '"range"')) is not None


def test_the_bill_lists_each_dependency_of_users_and_no_tool_of_developers():
    scopes = {one["name"]: one["scope"] for one in json.loads(BILL)["components"]}
    core = {line.split(">=")[0].lower() for line in PROJECT["project"]["dependencies"]}
    assert {name for name, scope in scopes.items() if scope == "required"} == core
    assert "fastapi" in scopes and "pytest" not in scopes


#: licences as the sources state them; the rest says what was looked for
_STATED = re.compile(
    r"(Apache-2\.0|BSD-3-Clause|CC-BY-4\.0|GPL-3\.0|MIT)( \(.+\))?|this project's( own documents)?"
    r"|no(t stated by| licence file at) the source( \(an? (issue|gist)\))?"
    r"|not stated in the part of the page that was read"
)


def test_each_measured_source_states_its_licence_or_that_it_has_none():
    sources = tomllib.loads((ROOT / "calibration/sources.toml").read_text(encoding="utf-8"))
    said = {name: one["licence"] for name, one in sources.items()}
    assert not {name: one for name, one in said.items() if not _STATED.fullmatch(one)}
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    in_part = sum("in the part" in one for one in said.values())
    silent = sum(one.startswith("no") for one in said.values()) - in_part
    assert f"{in_part} of {len(said)} measured sources were read in part" in security
    assert f"{silent} others state none" in security


def test_the_notice_names_each_measured_source_and_is_in_the_wheel():
    notice = (ROOT / "docs/NOTICE").read_text(encoding="utf-8")
    for name, one in tomllib.loads((ROOT / "calibration/sources.toml").read_text(encoding="utf-8")).items():
        assert f"{name}: {one['address']} ({one['licence']})" in notice
    assert "docs/NOTICE" in PROJECT["project"]["license-files"]
