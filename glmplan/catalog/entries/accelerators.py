"""Load an accelerator of `hardware_db/accelerators`.

The text is a name, alias or file. Nothing is ever substituted.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from glmplan.catalog.entries.catalog import Catalog
from glmplan.catalog.files import data_folder, plain_name, read_entries, read_toml
from glmplan.catalog.rule_provenance import remaining_rules
from glmplan.errors import SpecError, UnknownName, nearest
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = [
    "accelerator_aliases",
    "accelerator_names",
    "in_one_line",
    "load_accelerator",
    "nearest_accelerators",
    "outside_catalog",
    "printed_names",
    "refused_accelerators",
    "short_name",
    "short_names",
    "split_count",
    "taken_memory",
]


def _read(file: Path) -> Accelerator:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.validation import validated

    content = read_toml(file)
    if "name" in content:
        raise SpecError("must be left out: the file's name is the name", file=file, field="name", value=content["name"])
    return validated(Accelerator, {"name": file.stem, **content}, file)


_CATALOG = Catalog("hardware_db/accelerators", _read)


def accelerator_names() -> tuple[str, ...]:
    """Return the names of all accelerators, sorted.

    Examples
    --------
    >>> "b200-sxm" in accelerator_names()
    True
    """
    return _CATALOG.names


def accelerator_aliases() -> dict[str, str]:
    """Return alias → name.

    Examples
    --------
    >>> accelerator_aliases()["h800"]
    'h800-sxm'
    """
    return _CATALOG.aliases


@cache
def printed_names() -> dict[str, str]:
    """Return names as vendors' tools print them → name of the catalogue.

    Each name also with the vendor before it. Names printed for several accelerators are left out, and so are names and
    aliases of the catalogue.

    Examples
    --------
    >>> printed_names()["nvidia-h100-80gb-hbm3"], printed_names()["nvidia-geforce-rtx-5090"]
    ('h100-sxm', 'rtx-5090')
    """
    known = {**{name: name for name in accelerator_names()}, **accelerator_aliases()}
    called: dict[str, set[str]] = {}
    for name in accelerator_names():
        part = load_accelerator(name)
        texts = {plain_name(part.full_name), *(alias for alias, of in known.items() if of == name)}
        vendor = plain_name(part.vendor)
        printed = {f"{vendor}-{text}" for text in {*texts, *map(plain_name, part.printed_as)}}
        for text in {*texts, *printed}:
            called.setdefault(text, set()).add(name)
    return {text: next(iter(of)) for text, of in called.items() if len(of) == 1 and text not in known}


def short_name(text: str) -> str:
    """Return a name without separators, vendor, brand and series.

    Examples
    --------
    >>> short_name("GeForce RTX 4060 Ti"), short_name("7900xtx"), short_name("Radeon RX 7900 XTX")
    ('4060ti', '7900xtx', '7900xtx')
    >>> short_name("4090 48G"), short_name("Ascend 910B")
    ('409048gb', '910b')
    """
    plain = re.sub(r"(?<=\d)g$", "gb", re.sub(r"[^a-z0-9]", "", text.lower()))
    return _BEFORE_NUMBER.sub("", plain)


_BEFORE_NUMBER = re.compile(
    r"^(nvidia|amd|intel|apple|huawei)?(geforce|radeon|instinct|tesla|quadro|arc|ascend)?(rtx|gtx|rx)?"
)


@cache
def short_names() -> dict[str, frozenset[str]]:
    """Return short name → the names of the catalogue that have it.

    Names that only tools print are left out: `NVIDIA H200` of nvidia-smi is one part, and H200 is two.

    Examples
    --------
    >>> sorted(short_names()["3090ti"])
    ['rtx-3090-ti']
    """
    found: dict[str, set[str]] = {}
    full = {load_accelerator(name).full_name: name for name in accelerator_names()}
    for text, name in {**full, **accelerator_aliases(), **{name: name for name in accelerator_names()}}.items():
        found.setdefault(short_name(text), set()).add(name)
    return {text: frozenset(names) for text, names in found.items() if text}


#: end of a name that states the memory, and the form factors that a short name leaves out
_SIZE, _FORM = re.compile(r"\dg(i?b)?$"), r"(sxm\d?|pcie)?(\d+gb)?"


def taken_memory(text: str, part: Accelerator) -> str | None:
    """Return which memory a name without its size was taken for, or None.

    None if no accelerator of the name is known with another memory.

    Examples
    --------
    >>> taken_memory("v100", load_accelerator("v100"))
    'v100: 16 GiB taken (v100-sxm-16gb); other memory: v100-sxm-32gb'
    >>> taken_memory("rtx-3060", load_accelerator("rtx-3060"))
    'rtx-3060: 12 GiB taken (rtx-3060-12gb)'
    >>> taken_memory("m4-max", load_accelerator("m4-max"))
    'm4-max: 128 GiB taken, the largest configuration; a smaller one: --part'
    >>> taken_memory("v100-32gb", load_accelerator("v100-32gb")), taken_memory("l40s", load_accelerator("l40s"))
    (None, None)
    """
    typed, plain = short_name(text), plain_name(text)
    if part.memory is None or part.name not in accelerator_names():
        return None
    size, unit = (part.memory / 1e9, "GB") if part.memory % 1e9 == 0.0 else (part.memory / GIB, "GiB")
    if _SIZE.search(plain) or plain.endswith(f"-{size:.0f}"):
        return None
    taken = f"{text}: {size:.0f} {unit} taken"
    if (part.memory_note or "").startswith("largest configuration"):
        return f"{taken}, the largest configuration; a smaller one: --part"
    alike = (name for name in accelerator_names() if re.fullmatch(typed + _FORM, short_name(name)))
    others = [name for name in alike if load_accelerator(name).memory != part.memory]
    if not others and (part.name == plain or not _SIZE.search(part.name)):
        return None
    taken += f" ({part.name})" if part.name != plain else ""
    return f"{taken}; other memory: {', '.join(others)}" if others else taken


@cache
def refused_accelerators() -> dict[str, str]:
    """Return names of published tables that cannot be computed → reason.

    Examples
    --------
    >>> "mixed" in refused_accelerators()
    True
    """
    entries = read_entries(data_folder("hardware_db") / "refused.toml", "refused", {"name", "why"})
    return {entry["name"]: entry["why"] for entry in remaining_rules(entries)}


def in_one_line(text: str) -> bool:
    """Return True for a data sheet in one line.

    See `glmplan.catalog.entries.own_parts`.

    Examples
    --------
    >>> in_one_line("v100:memory=32GB"), in_one_line("v100"), in_one_line("C:/part.toml")
    (True, False, False)
    """
    return ":" in text and re.match(r"\s*[^:/\\]+:\s*[A-Za-z][\w-]*\s*=", text) is not None


def outside_catalog(text: str) -> bool:
    """Return True for the file or the line of a data sheet."""
    return text.endswith(".toml") or in_one_line(text)


def load_accelerator(name: str | Path) -> Accelerator:
    """Load one accelerator.

    Parameters
    ----------
    name : str or path
        Name, alias, a TOML file of the same form, or a data sheet in one line.

    Returns
    -------
    Accelerator
        The part.

    Raises
    ------
    UnknownName
        If there is no such part (lists the nearest), or the name is one that stands for no single part (says why).
    SpecError
        If the file is not a correct entry.

    Examples
    --------
    >>> load_accelerator("RTX_PRO_6000_WS").full_name
    'RTX PRO 6000 Blackwell Workstation Edition'
    >>> load_accelerator("h20-sxm")
    Traceback (most recent call last):
    glmplan.errors.UnknownName: 'h20-sxm' is not a known accelerator; nearest: ...
    """
    if in_one_line(str(name)):
        from glmplan.catalog.entries.own_parts import described_part

        own = described_part(str(name))
        if own.name in accelerator_names() or own.name in accelerator_aliases():
            message = "is a name of the catalogue; give the part another name"
            raise SpecError(message, field="--part", value=own.name)
        return own
    part = _CATALOG.find(name)
    if part is None:
        # a long name may be a vendor's; all entries are read for those, so short names come first
        stem = plain_name(str(name))
        known = printed_names().get(stem)
        if known is None:
            called = short_names().get(short_name(stem), frozenset())
            if stem in refused_accelerators() or len(called) != 1:
                raise _unknown(str(name), stem)
            (known,) = called
        part = load_accelerator(known)
    return part


def nearest_accelerators(name: str, count: int = 5) -> list[str]:
    """Return the accelerators with the most similar names or aliases.

    Names that begin with it come first. A vendor or a brand before the name is ignored.

    Examples
    --------
    >>> nearest_accelerators("a100", 1), nearest_accelerators("h20-sxm", 1)
    (['a100-80gb-sxm'], ['h20-96gb'])
    >>> sorted(nearest_accelerators("4060 ti", 2))
    ['rtx-4060-ti-16gb', 'rtx-4060-ti-8gb']
    """
    names = {**{name: name for name in accelerator_names()}, **accelerator_aliases()}
    key = plain_name(name)
    for vendor in {plain_name(load_accelerator(accelerator_name).vendor) for accelerator_name in accelerator_names()}:
        key = key.removeprefix(f"{vendor}-")
    short = short_name(key)
    begun = [item for item in names if item.startswith(f"{key}-") or (short and short_name(item).startswith(short))]
    matches = [*nearest(key, begun, len(names), alike=0.0), *nearest(key, names, 8)]
    return list(dict.fromkeys(names[match] for match in matches))[:count]


def _unknown(text: str, stem: str) -> UnknownName:
    reason = refused_accelerators().get(stem)
    if reason is not None:
        return UnknownName(f"is refused: {reason}", value=text)
    close = nearest_accelerators(stem)
    hint = f"nearest: {', '.join(close)}" if close else "see `glmplan hardware list`"
    return UnknownName(f"is not a known accelerator; {hint}", value=text)


def split_count(text: str) -> tuple[int, str]:
    """Return count and name of `6xrtx-pro-6000-ws`; the count defaults to 1.

    Examples
    --------
    >>> split_count("6xrtx-pro-6000-ws"), split_count("dgx-spark"), split_count("7900xtx")
    ((6, 'rtx-pro-6000-ws'), (1, 'dgx-spark'), (1, '7900xtx'))
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\S.*?)\s*", text)
    # the number of a card may stand before an x: 7900xtx
    if match is None or (len(match[1]) > 3 and short_name(text) in short_names()):
        return 1, text.strip()
    if int(match[1]) == 0:
        raise SpecError("asks for no accelerator", value=text)
    return int(match[1]), match[2]
