"""Write the page with answers computed beforehand, for static hosts.

A browser loads no modules and sends no requests from a file, so the modules of the page become one script, and the
answers another. `ask` in `page/dom.js` reads the answers from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import write_atomically
from glmplan.errors import SpecError
from glmplan.service.form import Asset, page_assets
from glmplan.service.guard import Limits
from glmplan.service.worker import answered

__all__ = ["bundled", "stored_answers", "write_site"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async function|function|class|const) (\w+))", re.MULTILINE)
_SCRIPT = re.compile(r'<script type="module" src="page/([\w.-]+)"></script>')
#: highest concurrency of the curve of the page [-]
_MOST = 4096
#: question, its answer and the status
Entry = tuple[dict[str, Any], Any, int]


def bundled(start: str, files: Mapping[str, str]) -> str:
    """Return a module and its imports as one script.

    Examples
    --------
    >>> files = {"a.js": 'import { one } from "./b.js";\\nshow(one);\\n', "b.js": "export const one = 1;\\n"}
    >>> print(bundled("a.js", files))
    (async () => {
    const modules = {};
    modules["b.js"] = await (async () => {
    const one = 1;
    return { one };
    })();
    modules["a.js"] = await (async () => {
    const { one } = modules["b.js"];
    show(one);
    return {  };
    })();
    })();
    """
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        for _, needed in _IMPORT.findall(files[name]):
            add(needed)
        text = _IMPORT.sub(
            lambda one: f'const {{{one[1].replace(" as ", ": ")}}} = modules["{one[2]}"];\n', files[name]
        )
        names = ", ".join(match[1] for match in _EXPORT.findall(text))
        text = _EXPORT.sub(r"\1", text)
        parts[name] = f'modules["{name}"] = await (async () => {{\n{text}return {{ {names} }};\n}})();\n'

    add(start)
    return f"(async () => {{\nconst modules = {{}};\n{''.join(parts.values())}}})();"


def stored_answers(
    plans: Sequence[Mapping[str, Any]], users: Sequence[int], report: Callable[[int, int], None] | None = None
) -> dict[str, list[Entry]]:
    """Return the answers that the page asks for, by route.

    - `plans`: Fields of `/v1/fit` of each plan, without users.
    - `users`: Concurrencies of each plan.
    - `report`: Called with the finished and the total questions.
    """
    limits = asdict(Limits())
    found: dict[str, list[Entry]] = {"v1/catalogue": [({}, *_answer("catalogue", {}, limits))]}
    total = len(plans) * len(users)
    for number, (plan, count) in enumerate((plan, count) for plan in plans for count in users):
        for ask, question, answer, status in _of_page(dict(plan), count, limits):
            entries = found.setdefault(f"v1/{ask}", [])
            if not any(question == asked for asked, _, _ in entries):
                entries.append((question, answer, status))
        if report is not None:
            report(number + 1, total)
    for plan in plans:
        question = _purchase(plan, plans, max(users), found["v1/fit"])
        entries = found.setdefault("v1/size", [])
        if not any(question == asked for asked, _, _ in entries):
            entries.append((question, *_answer("size", question, limits)))
    return found


def _purchase(
    plan: Mapping[str, Any], plans: Sequence[Mapping[str, Any]], users: int, fits: Sequence[Entry]
) -> dict[str, Any]:
    """Return the search for one model over the accelerators of all plans."""
    parts = {one["on"]: fit["question"]["accelerator"] for one, fit, _ in fits}
    only = ",".join(sorted({parts[one["on"]] for one in plans}))
    lengths = {name: plan[name] for name in ("input", "output") if name in plan}
    limits = {"slo": "tpot mean < 100 ms, ttft mean < 10 s", "kind": "any", "probability": 0.95, "answers": 20}
    return {"model": plan["model"], "users": users, **limits, **lengths, "only": only}


def _answer(ask: str, question: Mapping[str, Any], limits: Mapping[str, Any]) -> tuple[Any, int]:
    status, body = answered(ask, question, limits, lambda done, total: None)
    return json.loads(body), status


def _of_page(
    plan: dict[str, Any], users: int, limits: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any], Any, int]]:
    """Yield the questions of the page about one plan, with their answers."""

    def asked(ask: str, question: dict[str, Any]) -> tuple[str, dict[str, Any], Any, int]:
        return ask, question, *_answer(ask, question, limits)

    first = asked("fit", plan | {"users": sorted({1, users})})
    fit, status = first[2:]
    if status != 200:
        error = fit["error"]
        raise SpecError(error["message"], field=error.get("field"), value=error.get("value"))
    yield first
    safe = fit["safe"] or {}
    most = max(users, min(4 * max(safe.get("users") or users, safe.get("expected") or users), _MOST), 4)
    grid = {1, users, *(1 << power for power in range(13) if 1 << power <= 1.5 * most)}
    # the page keeps the format of its answer
    own = {"model": fit["question"]["model"], "weights": fit["question"]["checkpoint"]}
    yield asked("explain", plan | {"users": fit["question"]["users"], "changes": False})
    if fit["users"]:
        yield asked("fit", plan | own | {"users": sorted(grid), "changes": False})
    yield asked("cost", plan | (own if fit["plan"] else {}) | {"users": users})
    if fit["plan"] is not None:
        yield asked("links", {"on": plan["on"], "tp": fit["plan"]["tp"], "pp": fit["plan"]["pp"]})
    free = {name: value for name, value in plan.items() if name not in ("tp", "pp", "dp", "ep")}
    for one in load_model(own["model"]).checkpoints:
        if one.name != own["weights"]:
            yield asked("fit", free | own | {"weights": one.name, "users": users, "changes": False})


def write_site(folder: Path, answers: Mapping[str, Sequence[Entry]], start: str) -> list[Path]:
    """Write the pages with their answers; return the files.

    `start`: Query of the address that the first page opens with.
    """
    assets = page_assets()
    texts = {name: asset.content.decode() for name, asset in assets.items() if name.endswith(".js")}
    # "</" would end a script that stands in a page
    held = json.dumps(answers, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    written = {"page/answers.js": f"window.glmplanAnswers = {held};\n".encode()}
    search = answers["v1/size"][0][0] if "v1/size" in answers else {}
    bought: dict[str, object] = {
        name: search[name] for name in ("model", "users", "input", "output", "only") if name in search
    }
    for name, query in (("index", start), ("buy", urlencode(bought)), ("check", start)):
        page = assets[f"{name}.html"].content.decode()
        script = _SCRIPT.search(page)
        assert script is not None
        scripts = f'<script defer src="page/answers.js"></script>\n<script defer src="page/{name}-site.js"></script>'
        page = _SCRIPT.sub(scripts, page).replace('href="./"', 'href="index.html"')
        page = re.sub(r'href="(buy|check)"', r'href="\1.html"', page)
        first = (
            f"if (!location.search) history.replaceState(null, '', location.pathname + {json.dumps('?' + query)});\n"
        )
        written[f"{name}.html"] = page.encode()
        written[f"page/{name}-site.js"] = (first + bundled(script[1], texts)).encode()
    written |= {f"page/{name}": asset.content for name, asset in _plain_files(assets)}
    for name, content in written.items():
        write_atomically(folder / name, content)
    return [folder / name for name in written]


def _plain_files(assets: Mapping[str, Asset]) -> Iterator[tuple[str, Asset]]:
    return ((name, asset) for name, asset in assets.items() if not name.endswith((".js", ".html")))
