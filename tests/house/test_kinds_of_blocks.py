"""Only `physics/blocks` asks of what kind a block is: elsewhere a new kind would be answered by nobody."""

from __future__ import annotations

import ast
from typing import get_args

from glmplan.catalog.schema.model import Ffn, Mixer

RECORDS = {one for union in (Mixer, Ffn) for one in get_args(get_args(union)[0])}
CLASSES = {one.__name__ for one in RECORDS}
KINDS = {one.model_fields["kind"].default for one in RECORDS}
#: where kinds are told apart: their physics, and the facts that define them
HOMES = ("costs.blocks.", "catalog.schema.model")
#: modules that compare a `kind` of something else with the same words, and of what
OTHER = {"io.models.checkpoints": "published GGUF files, of models with experts or without"}


def names(node):
    """Names of classes in an expression: ``A``, ``m.A``, ``A | B`` and ``(A, B)``."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def asked(tree):
    """Lines that ask for the kind of a block: by class, by pattern, or by the word in its `kind`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            if names(node.args[1]) & CLASSES:
                yield node.lineno
        elif isinstance(node, ast.MatchClass) and names(node.cls) & CLASSES:
            yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            by_type = any(isinstance(one, ast.Call) and names(one.func) == {"type"} for one in sides)
            if by_type and any(names(one) & CLASSES for one in sides):
                yield node.lineno
            words = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            if any(isinstance(one, ast.Attribute) and one.attr == "kind" for one in sides) and words & KINDS:
                yield node.lineno


def test_each_way_to_ask_is_found():
    ways = (
        "isinstance(mixer, LatentAttention)",
        "isinstance(mixer, model.GroupedQuery | Recurrent)",
        "match mixer:\n    case GroupedQuery():\n        pass",
        "type(mixer) is DenseFfn",
        "block.kind == 'experts'",
        "mixer.kind in ('latent', 'recurrent')",
    )
    assert [len(list(asked(ast.parse(way)))) for way in ways] == [1] * len(ways)
    assert not list(asked(ast.parse("isinstance(x, dict)\nlink.kind == 'pcie'\nGroupedQuery(heads=8)")))


def test_nobody_else_asks_of_what_kind_a_block_is(sources):
    others = [source for source in sources if not source.name.startswith(HOMES) and source.name not in OTHER]
    guilty = [f"{source.name}:{line}" for source in others for line in asked(source.tree)]
    assert not guilty, "\n".join(["ask `costs.blocks.kinds` instead:", *guilty])


def test_whoever_is_excused_compares_words_only_and_still_does(sources):
    for source in sources:
        if source.name in OTHER:
            assert len(list(asked(source.tree))) == 1
            assert not CLASSES & {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}


def test_one_module_goes_from_a_record_to_what_answers_for_it(sources):
    places = {source.name for source in sources if any(asked(source.tree))}
    assert places - set(OTHER) == {"costs.blocks.kinds"}
