"""Read the data sheet of an accelerator outside the catalogue.

It is a TOML file, or one line ``name:memory=48GB,bandwidth=1008GB/s,bf16=165T,fp8=330T``: a name, and the values of the
data sheet with units. `--part` takes it, and wherever a machine names an accelerator the whole line may stand, as in
``2xname:memory=48GB,bandwidth=1008GB/s``. No run measured such a part, so its speeds have the interval of a new part.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from glmplan.catalog.files import plain_name
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator, Precision

__all__ = ["EXAMPLE", "blank_line", "described_part", "line_of"]

#: example of a line, for messages
EXAMPLE = "{name}:memory=48GB,bandwidth=1008GB/s,bf16=165T,fp8=330T"
#: names of processors, and of parts that share their memory with one → values of their line
_BLANKS = (
    (r"epyc|xeon|threadripper|opteron|graviton|altra|ampere-?one|^(?:core-)?(?:i[3579]|ultra)-\d|ryzen-\d|cpu",
     "memory=?GB,bandwidth=?GB/s,kind=cpu-socket"),
    (r"^m\d+(?:-(?:pro|max|ultra))?$|apple|^mac", "memory=?GB,bandwidth=?GB/s,vendor=Apple,kind=soc,unified=yes"),
    (r"jetson|orin|thor|xavier|ryzen-ai|strix|halo|8060s|8050s|\d{3}m$",
     "memory=?GB,bandwidth=?GB/s,bf16=?T,unified=yes"),
)  # fmt: skip
_BLANK = "memory=?GB,bandwidth=?GB/s,bf16=?T"
_LINE = re.compile(r"\s*(?P<name>[^:/\\]+):(?P<values>\s*[A-Za-z][\w-]*\s*=.*)", re.DOTALL)
_RATES: tuple[Precision, ...] = ("bf16", "fp8", "fp4", "int8")
#: word of the line → field of the record; rates apart
_FIELDS = {"memory": "memory", "bandwidth": "memory_bandwidth", "power": "tdp", "vendor": "vendor", "chip": "same_chip",
           "compute": "compute_capability", "kind": "kind"}  # fmt: skip
_WORDS = (*_FIELDS, *_RATES, "pcie", "nvlink", "unified")


def _link(text: str) -> dict[str, object]:
    """Return generation and lanes of a PCIe link as in 4x16."""
    match = re.fullmatch(r"(\d)(?:\.0)?(?:x(\d+))?", text)
    if match is None:
        raise SpecError("is no PCIe link; write generation and lanes, as in 4x16", field="--part", value=f"pcie={text}")
    return {"pcie_generation": int(match[1]), "pcie_lanes": int(match[2] or 16)}


def blank_line(name: str) -> str:
    """Return the line of a part with ``?`` for its values.

    No values of another part: a copied line must not plan with them.

    Examples
    --------
    >>> blank_line("t4"), blank_line("m2-max")[:40]
    ('t4:memory=?GB,bandwidth=?GB/s,bf16=?T', 'm2-max:memory=?GB,bandwidth=?GB/s,vendor')
    >>> blank_line("epyc-7742")
    'epyc-7742:memory=?GB,bandwidth=?GB/s,kind=cpu-socket'
    """
    values = next((values for words, values in _BLANKS if re.search(words, name.lower())), _BLANK)
    return f"{name}:{values}"


def line_of(part: Accelerator) -> str:
    """Return the line of a catalogued part, with ``?`` for missing values.

    Examples
    --------
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> line_of(load_accelerator("m3-max"))
    'm3-max-own:memory=137.439GB,bandwidth=400GB/s,vendor=Apple,kind=soc,unified=yes,bf16=?T'
    """
    rates: list[tuple[str, float | None, float, str]] = [
        (rate, part.peak.get(rate), 1e12, "T")
        for rate in _RATES
        if rate in part.peak or (rate == "bf16" and not part.peak)
    ]
    known = [("memory", part.memory, 1e9, "GB"), ("bandwidth", part.memory_bandwidth, 1e9, "GB/s"), *rates]
    values = [f"{word}={'?' if value is None else f'{value / scale:.6g}'}{unit}" for word, value, scale, unit in known]
    values[2:2] = [f"vendor={part.vendor}", f"kind={part.kind}"] + ["unified=yes"] * part.unified_memory
    return f"{part.name}-own:{','.join(values)}"


@lru_cache(maxsize=256)
def described_part(text: str) -> Accelerator:
    """Return the accelerator of a data sheet in one line.

    Examples
    --------
    >>> part = described_part("own-card:memory=48GB,bandwidth=1008GB/s,bf16=165T,fp8=330T,power=450W")
    >>> part.name, part.memory / 1e9, part.peak["fp8"] / 1e12, part.link_kind
    ('own-card', 48.0, 330.0, 'pcie')
    """
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.validation import validated

    match = _LINE.fullmatch(text)
    assert match is not None
    name = plain_name(match["name"])
    values: dict[str, str] = {}
    for item in match["values"].split(","):
        word, _, value = (one.strip() for one in item.partition("="))
        if word not in _WORDS:
            raise SpecError("is no value of a part", field="--part", value=word, choices=_WORDS)
        if not value or word in values:
            raise SpecError("is empty or given twice", field="--part", value=word)
        if "?" in value:
            raise SpecError("stands for a value of the data sheet", field="--part", value=f"{word}={value}")
        values[word] = value
    if "memory" not in values:
        raise SpecError("is needed, as in memory=48GB", field="--part", value="memory")
    content: dict[str, object] = {
        "name": name, "full_name": match["name"].strip(), "vendor": "not stated", "source": "as given with --part",
        **{_FIELDS[word]: value for word, value in values.items() if word in _FIELDS},
        **_link(values.get("pcie", "4x16")),
        "peak": {rate: _rate(values[rate]) for rate in _RATES if rate in values},
        "unified_memory": values.get("unified") == "yes",
    }  # fmt: skip
    fast = "nvlink" in values
    content["scaleup"] = "nvlink" if fast else "pcie"
    if fast:
        content["scaleup_bandwidth"] = values["nvlink"]
    return validated(Accelerator, content)


def _rate(text: str) -> str:
    """Return a matrix rate with its unit; a bare T is TFLOP/s."""
    return f"{text}FLOP/s" if re.fullmatch(r"[\d.]+ ?[TP]", text) else text
