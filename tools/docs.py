"""Write the generated pages and the answer in the README, or check that they are fresh: `make docs`, `make check`.

python tools/docs.py [--check]
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

import typer
from keyword_hints import keyword_hints_text
from machine_accuracy import offload_page, topology_page
from same_text import same_to_rounding
from seed_systems import seed_systems_page
from typer.models import ArgumentInfo

import glmplan
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.files import write_atomically
from glmplan.cli import COMMANDS
from glmplan.cli.run import application
from glmplan.costs.blocks.stack import model_parameters
from glmplan.io.runs.columns import ALIASES, COLUMNS
from glmplan.present.model_page import published_total
from glmplan.units import GIB

ROOT = Path(__file__).resolve().parents[1]
#: what `make demo` runs
DEMO = ("fit", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws")
NOTE = "<!-- Written by `make docs`; do not edit. -->\n"


def cli_page() -> str:
    """Return the page of commands and options, from the declarations that print `--help`."""
    parts = [
        "# Command line",
        NOTE,
        'Exit codes: 0 for an answer (also "does not fit"), 2 for bad input, 1 for a failed check, 130 after Ctrl-C. '
        "`-h` after any command prints the same text, `glmplan --version` the version.\n",
    ]
    parts += _group_lines(application(COMMANDS, importlib.import_module), ("glmplan",), "")
    return "\n".join(parts)


def _group_lines(group: typer.Typer, path: tuple[str, ...], help_text: str) -> list[str]:
    """Return the lines of a group, its commands and its groups, in the order of declaration."""
    rows, below = [], []
    for command in group.registered_commands:
        name = command.name or _callback(command).__name__.replace("_", "-")
        text = _prose(command.help or inspect.getdoc(_callback(command)))
        rows.append(f"| `{name}` | {_cell(command.short_help or text)} |")
        below += _command_lines(_callback(command), (*path, name), text)
    for one in group.registered_groups:
        assert one.typer_instance is not None
        rows.append(f"| `{one.name}` | {_cell(str(one.help))} |")
        below += _group_lines(one.typer_instance, (*path, str(one.name)), str(one.help))
    head = [f"## `{' '.join(path)}`\n", *([f"{help_text}\n"] if help_text else [])]
    return [*head, "\n".join(["| command | |", "|---|---|", *sorted(rows)]) + "\n", *below]


def _callback(command: Any) -> Callable[..., Any]:
    assert command.callback is not None
    return cast(Callable[..., Any], command.callback)


def _command_lines(function: Callable[..., Any], path: tuple[str, ...], text: str) -> list[str]:
    hints = get_type_hints(function, include_extras=True)
    words, rows = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])[:2]
        required = parameter.default is inspect.Parameter.empty
        if isinstance(info, ArgumentInfo):
            shown = name.upper() + ("..." if get_origin(kind) is list else "")
            words.append(shown if required else f"[{shown}]")
            title = f"`{name.upper()}`"
        else:
            # inside Annotated the first word stands where the default would be
            spelled = [*([info.default] if isinstance(info.default, str) else []), *(info.param_decls or ())]
            title = ", ".join(f"`{word}`" for word in spelled or [f"--{name.replace('_', '-')}"])
        choices = ", ".join(f"`{one.value}`" for one in _choices(kind))
        meaning = _cell(str(info.help or "")) + (f" One of {choices}." if choices else "")
        default = getattr(parameter.default, "value", parameter.default)
        stated = "required" if required else "" if default in (None, False, ()) or default == [] else f"`{default}`"
        rows.append(f"| {title} | {meaning} | {stated} |")
    usage = " ".join([*path, *words, *(["[OPTIONS]"] if len(rows) > len(words) else [])])
    lines = [f"## `{' '.join(path)}`\n", f"```text\n{usage}\n```\n", f"{text}\n"]
    if rows:
        lines.append("\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]) + "\n")
    return lines


def _choices(kind: Any) -> list[Enum]:
    """Values of an enumeration, also inside `X | None` and `list[X]`."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, Enum):
            return list(one)
    return []


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def models_page() -> str:
    """Return the page of models with computed sizes and checkpoints."""
    lines = ["# Models", NOTE, "Parameters are computed from the shapes, without MTP layers. `NAME-CHECKPOINT` selects "
             "a checkpoint; other models can be imported (see [the guide](../guide/models.md)).\n",
             "| name | total, 10⁹ | active, 10⁹ | layers | context, token | checkpoints | source |",
             "|---|---:|---:|---:|---:|---|---|"]  # fmt: skip
    for name in model_names():
        model = load_model(name)
        count = model_parameters(model)
        stored = ", ".join(f"`{checkpoint.name}`" for checkpoint in model.checkpoints)
        context = f"{model.max_context:,}" if model.max_context else "not stated"
        lines.append(f"| `{name}` | {count.total / 1e9:.2f} | {count.active / 1e9:.2f} | {len(model.layer_names)} "
                     f"| {context} | {stored} | {_cell(model.source)} |")  # fmt: skip
    lines += ["", "## Published totals", "", "Published totals, in 10⁹, beside the smallest sum of computed weights "
              "that gives the printed digits: rounded, truncated, or rounded to tens; if none does, the reason.\n",
              "| name | published | computed | counted weights | agrees | source |",
              "|---|---:|---:|---|---|---|"]  # fmt: skip
    for name in model_names():
        model = load_model(name)
        total = published_total(model)
        if total is None or model.published is None:
            continue
        agrees = total.agrees or f"no ({total.computed / 1e9 / float(total.printed) - 1:+.2%}): {total.why}"
        lines.append(f"| `{name}` | {total.printed} | {total.computed / 1e9:.3f} | {total.counts} "
                     f"| {_cell(agrees)} | {_cell(model.published.source)} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def hardware_page() -> str:
    """Return the page of accelerators and hosts."""
    lines = ["# Hardware", NOTE, "Data-sheet values, dense rates. An empty cell is an unpublished value.\n",
             "## Accelerators\n",
             "| name | memory, GiB | bandwidth, TB/s | BF16, TFLOP/s | FP8, TFLOP/s | FP4, TFLOP/s | source |",
             "|---|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    for name in accelerator_names():
        part = load_accelerator(name)
        rates = [_number(part.peak.get(kind), 1e12) for kind in ("bf16", "fp8", "fp4")]
        lines.append(f"| `{name}` | {_number(part.memory, GIB)} | {_number(part.memory_bandwidth, 1e12)} "
                     f"| {' | '.join(rates)} | {_cell(part.source)} |")  # fmt: skip
    lines += ["", "## Hosts\n", "`NxACCELERATOR`, as in `6xrtx-pro-6000-ws`, is a plain machine with N accelerators.\n",
              "| name | description | source |", "|---|---|---|"]  # fmt: skip
    for name in host_names():
        host = load_host(name)
        lines.append(f"| `{name}` | {_cell(host.title)} | {_cell(host.source)} |")
    return "\n".join(lines) + "\n"


def _columns_table() -> str:
    """Return the columns as a table in Markdown."""
    lines = ["| column | kind | unit | meaning |", "|---|---|---|---|"]
    others: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        others.setdefault(name, []).append(f"`{alias}`")
    for column in COLUMNS.values():
        more = ["required"] if column.required else []
        more += [f"one of {', '.join(f'`{choice}`' for choice in column.choices)}"] if column.choices else []
        more += [f"also read as {', '.join(others[column.name])}"] if column.name in others else []
        words = column.words + (f" ({'; '.join(more)})" if more else "")
        lines.append(f"| `{column.name}` | {column.kind} | {column.unit} | {words} |")
    return "\n".join(lines) + "\n"


def columns_page() -> str:
    """Return the page of the columns of a run, from the table that reads them."""
    told = (
        "A table of runs is a CSV file in UTF-8 with a header; empty cells are missing values. A `count` is an integer "
        "of one or more, an `amount` a number of zero or more, a `flag` yes or no. Unknown columns cause a warning.\n"
    )
    return "\n".join(["# Columns of a run", NOTE, told, _columns_table()])


def python_page() -> str:
    """Return the page of the public Python names; the documentation site fills in their docstrings."""
    kinds: dict[str, list[str]] = {"Functions": [], "Records": [], "Errors": []}
    for name in sorted(glmplan.__all__):
        value = getattr(glmplan, name)
        error = isinstance(value, type) and issubclass(value, Exception)
        kinds["Errors" if error else "Records" if isinstance(value, type) else "Functions"].append(name)
    told = (
        "Everything in `glmplan.__all__`. Examples are in [the guide](../guide/python.md). In a shell, "
        "`help(glmplan.fit)` shows the same text. Times are in seconds and sizes in bytes.\n"
    )
    lines = ["# Python API", NOTE, told]
    for title, names in kinds.items():
        lines += [f"## {title}\n", *(f"::: glmplan.{name}\n" for name in names)]
    return "\n".join(lines)


def readme_page() -> str:
    """Return the README with the current output of `make demo`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    # as in a fresh shell: no colours, a fixed width
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-c", "from glmplan.cli import main; main()", *DEMO]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    block = f"$ make demo\n{done.stdout.rstrip()}\n```"
    return re.sub(r"\$ make demo\n.*?\n```", lambda _: block, text, count=1, flags=re.DOTALL)


def sbom_page() -> str:
    """Return the bill of materials (CycloneDX 1.7): the wheel carries no other package, so versions are ranges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    users = {group: lines for group, lines in groups.items() if group not in ("all", "dev", "docs")}
    found: dict[str, dict[str, Any]] = {}
    for group, lines in users.items():
        for line in lines:
            named, bound = re.split(r">=", line.split(";")[0].strip())
            name = named.split("[")[0].lower()
            found.setdefault(name, {
                "type": "library", "bom-ref": name, "name": name, "versionRange": f"vers:generic/>={bound}",
                "isExternal": True, "scope": "optional" if group else "required",
            })  # fmt: skip
    own = f"{project['name']}@{project['version']}"
    subject = {
        "type": "application", "bom-ref": own, "name": project["name"], "version": project["version"],
        "description": project["description"], "licenses": [{"license": {"id": project["license"]}}],
    }  # fmt: skip
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.7", "version": 1, "metadata": {"component": subject},
        "components": [found[name] for name in sorted(found)],
        "dependencies": [{"ref": own, "dependsOn": [found[name]["bom-ref"] for name in sorted(found)]}],
    }  # fmt: skip
    return json.dumps(bill, indent=2) + "\n"


def notice_page() -> str:
    """Return the notice of the wheel: whose figures it holds, under which licence."""
    sources = tomllib.loads((ROOT / "calibration/sources.toml").read_text(encoding="utf-8"))
    head = (
        "glmplan\n\n"
        "The wheel holds facts and measured figures of other publishers. No text or code of theirs is included.\n"
        "Facts of hardware and models carry their source in each entry of hardware_db and model_specs.\n\n"
        "Measured figures (calibration/measurements), by source, address and licence:\n\n"
    )
    return head + "".join(f"{name}: {one['address']} ({one['licence']})\n" for name, one in sources.items())


def _number(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.4g}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/cli.md": cli_page,
    "docs/reference/models.md": models_page,
    "docs/reference/hardware.md": hardware_page,
    "docs/reference/columns.md": columns_page,
    "docs/reference/python.md": python_page,
    "docs/offload-accuracy.md": offload_page,
    "docs/seed-systems.md": seed_systems_page,
    "docs/topology-accuracy.md": topology_page,
    "glmplan/request/keywords.pyi": keyword_hints_text,
    "docs/reference/sbom.cdx.json": sbom_page,
    "docs/NOTICE": notice_page,
    "README.md": readme_page,
}
#: pages with computed times: the last digits depend on the CPU
COMPUTED = ("docs/offload-accuracy.md", "docs/seed-systems.md", "docs/topology-accuracy.md", "README.md")


def main(arguments: list[str]) -> int:
    """Write the pages; with `--check` write nothing and return 1 if one is stale."""
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        written = path.read_text(encoding="utf-8") if path.is_file() else ""
        check = "--check" in arguments
        if written == text or (check and name in COMPUTED and same_to_rounding(written, text)):
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            print(f"written: {name}")
    if "--check" in arguments and stale:
        print(f"stale, run `make docs`: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
