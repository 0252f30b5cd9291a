"""Draw the picture of docs/guide/report.md: the top of the page that its second command writes, in a browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/guide/pictures/report.png"
CODE = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
#: the command of the guide
WORDS = ("report", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws", "--on", "hgx-b200-8", "--users", "1,4,16")
#: what is seen of the page, down to the first row of its table [px]
WIDTH, HEIGHT = 1040, 1200


def main() -> int:
    """Write the report and take its picture."""
    browser = shutil.which("chromium")
    if browser is None:
        print("report_picture: chromium is not installed: the picture stays as it is", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        words = [sys.executable, "-c", CODE, *WORDS, "--out", str(page)]
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with sync_playwright() as running:
            shown = running.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-dev-shm-usage"])
            sheet = shown.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            sheet.goto(page.as_uri())
            sheet.screenshot(path=PICTURE)
            shown.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
