"""A sheet with =WEBSERVICE(...) recalculated by LibreOffice against the running service."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import zipfile
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

OFFICE = shutil.which("soffice")
PLAN = {"model": "llama-3.1-8b", "on": "1xh100-sxm"}
NAMES = ("tokens_per_s", "ttft_ms", "safe_users", "verdict")


def interpreter():
    """A Python that can speak to LibreOffice: its own, or that of the system."""
    candidates = [*Path("/usr/lib/libreoffice/program").glob("python"), Path("/usr/bin/python3")]
    for one in candidates:
        if one.exists() and not subprocess.run([one, "-c", "import uno"], capture_output=True).returncode:
            return str(one)
    return None


def sheet(path, formulas):
    """The smallest spreadsheet with these formulas, one below the other."""
    rows = "".join(
        f"<table:table-row><table:table-cell table:formula={quoteattr('of:=' + one)}/></table:table-row>"
        for one in formulas
    )
    spaces = "urn:oasis:names:tc:opendocument:xmlns"
    content = (
        f'<office:document-content xmlns:office="{spaces}:office:1.0" xmlns:table="{spaces}:table:1.0" '
        f'xmlns:of="{spaces}:of:1.2" office:version="1.2"><office:body><office:spreadsheet>'
        f'<table:table table:name="Sheet1">{rows}</table:table>'
        "</office:spreadsheet></office:body></office:document-content>"
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    listed = (
        f'<manifest:manifest xmlns:manifest="{spaces}:manifest:1.0" manifest:version="1.2">'
        f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/>'
        '<manifest:file-entry manifest:full-path="content.xml" manifest:media-type="text/xml"/></manifest:manifest>'
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", kind)
        archive.writestr("content.xml", content)
        archive.writestr("META-INF/manifest.xml", listed)


def trusting(profile, folder):
    """Settings of somebody who trusts a folder: links of sheets in it are followed without asking."""
    items = (
        ("Calc/Content/Update", "Link", "<value>0</value>"),
        ("Common/Security/Scripting", "SecureURL", f"<value><it>file://{folder}</it></value>"),
    )
    lines = "".join(
        f'<item oor:path="/org.openoffice.Office.{path}"><prop oor:name="{name}" oor:op="fuse">{value}</prop></item>'
        for path, name, value in items
    )
    (profile / "user").mkdir(parents=True)
    (profile / "user/registrymodifications.xcu").write_text(
        f'<oor:items xmlns:oor="http://openoffice.org/2001/registry">{lines}</oor:items>', encoding="utf-8"
    )


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.skipif(OFFICE is None, reason="LibreOffice is not installed")
def test_libreoffice_fills_its_cells_from_the_service(client, address, tmp_path):
    python = interpreter()
    if python is None:
        pytest.skip("no Python here can speak to LibreOffice (python3-uno)")
    query = "&".join(f"{name}={value}" for name, value in (PLAN | {"users": 32}).items())
    sheet(tmp_path / "a.ods", [f'COM.MICROSOFT.WEBSERVICE("{address}/v1/value?{query}&get={name}")' for name in NAMES])
    trusting(tmp_path / "profile", tmp_path)
    port = free_port()
    words = [OFFICE, "--headless", "--norestore", "--nologo", f"-env:UserInstallation=file://{tmp_path}/profile"]
    words.append(f"--accept=socket,host=127.0.0.1,port={port};urp")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    office = subprocess.Popen(words, env=plain, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        script = Path(__file__).with_name("recalculate.py")
        done = subprocess.run(
            [python, str(script), str(port), str(tmp_path / "a.ods")], env=plain, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    finally:
        office.terminate()
        office.wait(60)
    expected = [client.get("/v1/value", params=PLAN | {"users": 32, "get": name}).text for name in NAMES]
    assert done.stdout.splitlines() == expected
    assert float(expected[0]) > 0
