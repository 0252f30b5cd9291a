"""The documentation site: links resolve on it, every page is in its navigation, nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from build_site import ROOT_PAGES, keep_local, rewrite_links, write_index  # noqa: E402


@pytest.mark.parametrize(
    ("link", "source", "page", "rewritten"),
    [
        ("docs/guide/fit.md", "README.md", "project/readme.md", "../guide/fit.md"),
        ("../README.md", "docs/index.md", "index.md", "project/readme.md"),
        ("../../SECURITY.md", "docs/guide/service.md", "guide/service.md", "../project/security.md"),
        ("simulate.md#traffic", "docs/guide/fit.md", "guide/fit.md", "simulate.md#traffic"),
        ("CHANGELOG.md", "README.md", "project/readme.md", "changelog.md"),
        ("https://vllm.ai/x.md", "README.md", "project/readme.md", "https://vllm.ai/x.md"),
    ],
)
def test_a_link_of_the_repository_resolves_on_the_site(link, source, page, rewritten):
    assert rewrite_links(f"see [it]({link}).", source, page) == f"see [it]({rewritten})."


def test_every_page_is_in_the_navigation_once():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"([\w./-]+\.md)$", nav, re.MULTILINE)
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    pages = {page for page in pages if not page.startswith("changes/")} | set(ROOT_PAGES.values())
    assert sorted(listed) == sorted(pages)


def test_an_external_script_is_replaced_or_reported(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide/a.html").write_text('<script src="https://unpkg.com/iframe-worker/shim"></script>')
    (tmp_path / "b.html").write_text('<a href="https://vllm.ai">x</a><link rel="stylesheet" href="https://x.y/z.css">')
    assert keep_local(tmp_path) == ["b.html"]
    assert 'src="../assets/iframe-worker.js"' in (tmp_path / "guide/a.html").read_text()


def test_assistants_get_a_list_of_pages_as_markdown(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    (source / "guide").mkdir(parents=True)
    site.mkdir()
    (source / "guide/fit.md").write_text("# Plan a deployment\n", encoding="utf-8")
    write_index(source, site)
    assert "- [Plan a deployment](guide/fit.md)" in (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert (site / "guide/fit.md").read_text(encoding="utf-8") == "# Plan a deployment\n"
