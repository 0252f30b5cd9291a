"""Refresh `model_specs/*.toml` from a folder of Hugging Face configs named `OWNER--NAME_config.json`.

What a config says (shapes, layers, MTP) is rewritten; what people added (aliases, checkpoints, published totals,
disagreements) stays. Models that the catalogue does not have are left out unless named.

    python tools/import_models.py FOLDER [NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from glmplan.catalog.entries.models import load_model_file, model_key
from glmplan.catalog.files import data_folder, write_atomically
from glmplan.errors import GlmplanError
from glmplan.io.models.hf_config import read_hf_config
from glmplan.io.models.resolve import model_toml

#: fields that a config says
SHAPES = ("family", "hidden", "vocabulary", "tied_embedding", "max_context", "layers", "stack")
#: fields that a config says of some towers only: what people counted for the others stays
TOWERS = ("extra_parameters", "extra_replicated", "tower_layers", "tower_width", "multimodal_positions")


def refresh(config: Path, name: str) -> str:
    """Write one model; return its name and which of its shapes changed."""
    found = read_hf_config(config, name=name)
    path = data_folder("model_specs") / f"{name}.toml"
    repository = config.name.removesuffix("_config.json").replace("--", "/", 1)
    if path.is_file():
        known = load_model_file(path)
        said = [*SHAPES, *(field for field in TOWERS if getattr(found, field))]
        changed = [field for field in said if getattr(found, field) != getattr(known, field)]
        found = known.model_copy(update={field: getattr(found, field) for field in said})
    else:
        changed = ["new"]
        source = f"https://huggingface.co/{repository} config.json"
        found = found.model_copy(update={"hugging_face": repository, "source": source})
    if changed:  # a file of which nothing changed keeps its wording
        write_atomically(path, model_toml(found))
    return f"{name}: {', '.join(changed) or 'unchanged'}"


def main(arguments: list[str]) -> int:
    """Refresh the models of the catalogue that have a config in the folder, and those named; 2 where one is refused."""
    if not arguments or not Path(arguments[0]).is_dir():
        print(__doc__, *(f"{folder}: no such folder" for folder in arguments[:1]), sep="\n", file=sys.stderr)
        return 2
    wanted = {model_key(name) for name in arguments[1:]}
    known = {}
    for path in data_folder("model_specs").glob("*.toml"):
        model = load_model_file(path)
        if model.hugging_face:
            known[model_key(model.hugging_face)] = model.name
    configs = [
        one
        for one in sorted(Path(arguments[0]).glob("*--*_config.json"))
        if not one.name.endswith("_hf_quant_config.json")
    ]
    if not configs:
        print(f"{arguments[0]}: no file named OWNER--NAME_config.json", file=sys.stderr)
        return 2
    code = 0
    for config in configs:
        key = config.name.removesuffix("_config.json").partition("--")[2].lower()
        if key in known or key in wanted:
            try:
                print(refresh(config, known.get(key, key)))
            except GlmplanError as error:
                print(f"{key}: {error}", file=sys.stderr)
                code = 2
        else:
            print(f"{key}: not in the catalogue, left out; name it to add it")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
