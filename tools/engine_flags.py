"""Read the options of an engine out of its wheel into `hardware_db/engines/flags/`: names only, nothing is installed.

python tools/engine_flags.py vllm vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl

A wheel comes from ``pip download --no-deps vllm==0.33.0``. What changed against the release before is printed.
"""

from __future__ import annotations

import argparse
import ast
import re
import zipfile
from pathlib import Path

import rtoml

ROOT = Path(__file__).resolve().parents[1]
#: where the options stand in each engine's wheel; classes whose fields become options by their names
READ = {
    "vllm": (r"vllm/(engine/arg_utils|entrypoints/(common|openai)/cli_args|entrypoints/cli/serve)\.py",
             {"FrontendArgs", "BaseFrontendArgs"}),
    "sglang": (r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py", None),
    "trtllm": (r"tensorrt_llm/commands/serve\.py", set()),
}  # fmt: skip
_NAME = re.compile(r"--[a-z][a-z0-9_-]+")


def options_of(source: str, classes: set[str] | None) -> set[str]:
    """Names of options in a module: texts that look like one, and fields of the classes (of all of them for None)."""
    tree = ast.parse(source)
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (classes is None or node.name in classes):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            names = (one.id for one in fields if isinstance(one, ast.Name) and not one.id.startswith("_"))
            found |= {"--" + name.replace("_", "-") for name in names}
    return found


def read_wheel(engine: str, wheel: Path) -> tuple[str, list[str], list[str]]:
    """Version of a wheel, the modules that were read, and the names of the options in them."""
    pattern, classes = READ[engine]
    version = wheel.name.split("-")[1]
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as content:
        modules = sorted(name for name in content.namelist() if re.fullmatch(pattern, name))
        for name in modules:
            found |= options_of(content.read(name).decode("utf-8"), classes)
    if not found:
        raise SystemExit(f"{wheel.name}: no options found where {engine} keeps them: {pattern}")
    return version, modules, sorted(found)


def main() -> None:
    """Read the wheels and write the file of the engine."""
    from glmplan.facts.schema.engine import version_key

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=READ)
    parser.add_argument("wheels", nargs="+", type=Path)
    given = parser.parse_args()
    for wheel in given.wheels:
        if not zipfile.is_zipfile(wheel) or wheel.name.count("-") < 4:
            parser.error(f"{wheel}: no wheel, as `pip download --no-deps` fetches it")
    file = ROOT / "hardware_db" / "engines" / "flags" / f"{given.engine}.toml"
    kept = {one["version"]: one for one in rtoml.load(file).get("versions", [])} if file.is_file() else {}
    for wheel in given.wheels:
        version, modules, names = read_wheel(given.engine, wheel)
        before = max((key for key in kept if version_key(key) < version_key(version)), key=version_key, default=None)
        old = set(kept[before]["flags"]) if before else set()
        new = " ".join(sorted(set(names) - old))
        print(f"{given.engine} {version}: {len(names)} options; new since {before}: {new}")
        print(f"  gone since {before}: {' '.join(sorted(old - set(names)))}")
        project = {"trtllm": "tensorrt-llm"}.get(given.engine, given.engine)
        where = ", ".join(modules[:3]) + " ..." * (len(modules) > 3)
        source = f"wheel of {project} {version} ({where})"
        kept[version] = {"version": version, "source": source, "flags": names}
    text = "# Options of the server by release, names only: written by tools/engine_flags.py\n"
    for version in sorted(kept, key=version_key):
        one = kept[version]
        lines = "\n".join(f'    "{name}",' for name in one["flags"])
        text += f'\n[[versions]]\nversion = "{version}"\nsource = "{one["source"]}"\nflags = [\n{lines}\n]\n'
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


if __name__ == "__main__":
    main()
