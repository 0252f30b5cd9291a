"""Build the documentation site: `make site`.

README, CONTRIBUTING, SECURITY and CHANGELOG are outside `docs/`, where a site generator follows no links. The pages
are copied to `build/site-source` with these four under `project/`, and links are rewritten in both directions, so that
one source serves the repository and the site. `mkdocs.yml` describes the site.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NAMES = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")
#: page of the site for each file of the repository root
ROOT_PAGES = {f"{name}.md": f"project/{name.lower()}.md" for name in _NAMES}
#: the offline search loads this script from a public host; the site gets a copy instead
SHIM = "https://unpkg.com/iframe-worker/shim"
#: fragments of the changelog become pages with the next release only
_LEFT_OUT = shutil.ignore_patterns("changes")
#: a script, style sheet, font or picture that a page would load from elsewhere
_EXTERNAL = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:"""
    r"""|<link\b(?=[^>]*(?:stylesheet|preload|icon))[^>]*\bhref="https?:|@import url\(.?https?:"""
)
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def rewrite_links(text: str, source: str, page: str) -> str:
    """Return the Markdown of `source` with links that resolve on `page` of the site."""

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if path not in ROOT_PAGES and not path.startswith("docs/"):
            return match[0]
        path = ROOT_PAGES.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(path, posixpath.dirname(page) or '.')}"

    return _LINK.sub(target, text)


def write_source(folder: Path) -> None:
    """Write the pages of the site into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=_LEFT_OUT)
    pages = {f"docs/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.md")}
    pages |= {name: folder / page for name, page in ROOT_PAGES.items()}
    for source, path in pages.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        path.parent.mkdir(exist_ok=True)
        path.write_text(rewrite_links(text, source, path.relative_to(folder).as_posix()), encoding="utf-8")


def keep_local(site: Path) -> list[str]:
    """Replace the one external script by a copy; return the pages that still load something from another host."""
    shutil.copy(ROOT / "tools/iframe-worker.js", site / "assets/iframe-worker.js")
    loading = []
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        local = posixpath.relpath("assets/iframe-worker.js", page.parent.relative_to(site).as_posix())
        text = text.replace(SHIM, local)
        page.write_text(text, encoding="utf-8")
        if _EXTERNAL.search(text):
            loading.append(page.relative_to(site).as_posix())
    return loading


def write_index(source: Path, site: Path) -> None:
    """Write `llms.txt`, which lists the pages for assistants (https://llmstxt.org), and the pages as Markdown."""
    lines = ["# glmplan", "", "> Capacity planner and simulator for serving large language models.", "", "## Pages", ""]
    for path in sorted(source.rglob("*.md")):
        name = path.relative_to(source).as_posix()
        text = path.read_text(encoding="utf-8")
        title = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), name)
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
        lines.append(f"- [{title}]({name})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Build the site into `build/site`; return 1 if the generator warns or a page loads something from another host."""
    write_source(ROOT / "build/site-source")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        return 1
    write_index(ROOT / "build/site-source", ROOT / "build/site")
    loading = keep_local(ROOT / "build/site")
    if loading:
        print(f"loads from another host: {', '.join(loading)}", file=sys.stderr)
    return 1 if loading else 0


if __name__ == "__main__":
    sys.exit(main())
