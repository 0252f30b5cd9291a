"""Photograph the pages of a running `glmplan serve` for docs/guide/service.md, at three widths, light and dark.

python tools/page_pictures.py [URL]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "guide" / "pictures"
#: name → address, size of the window and color scheme
PICTURES: dict[str, tuple[str, int, int, Any]] = {
    "page-wide-light": ("/", 1440, 1080, "light"),
    "page-wide-dark": ("/", 1440, 1080, "dark"),
    "page-tablet-light": ("/", 820, 1180, "light"),
    "page-tablet-dark": ("/", 820, 1180, "dark"),
    "page-phone-light": ("/", 390, 844, "light"),
    "page-phone-dark": ("/", 390, 844, "dark"),
    "page-buy": ("/buy?model=glm-5.1&users=8&only=rtx-pro-6000-ws,h200-sxm,b200-sxm", 1440, 1080, "light"),
    "page-check": ("/check?model=glm-5.1-nvfp4&on=6xrtx-pro-6000-ws&users=8", 1440, 900, "light"),
}
_MINUTES_5 = 300_000


def main() -> None:
    """Write the pictures."""
    url = (sys.argv[1:] or ["http://127.0.0.1:8000"])[0].rstrip("/")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (address, width, height, scheme) in PICTURES.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            context.set_default_timeout(_MINUTES_5)
            page = context.new_page()
            page.goto(url + address)
            page.locator("body[data-done]").wait_for()
            if "/buy" in address:
                page.locator("#go").click()
                page.locator("#verdict:not([hidden])").wait_for()
                page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=FOLDER / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
