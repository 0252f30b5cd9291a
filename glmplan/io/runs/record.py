"""Records of one measured run and of a table of runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmplan.io.runs.columns import FIGURES
from glmplan.units import Tokens

__all__ = ["Run", "Runs", "Speculation", "read_speculation"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding of a run."""

    state: str = "unknown"  # ``none``, ``unknown`` (the source does not say) or ``yes``
    method: str | None = None  # ``mtp``, ``eagle``, ``eagle3``, ``dspark`` or ``draft-model``
    draft_tokens: int | None = None  # draft passes of each step
    verify_tokens: int | None = None  # verified tokens of each step and request, the last accepted one included
    acceptance_length: float | None = None  # mean tokens of a step for each request
    #: lowest and highest of a page where the run has no value of its own
    acceptance_range: tuple[float, float] | None = None
    #: True: one drawn acceptance length for the whole batch, with SGLang's ``SGLANG_SIMULATE_ACC_LEN``
    #: (`sample_simulated_acc_len` in python/sglang/srt/speculative/spec_utils.py at 00731f0b)
    simulated: bool = False


_STEPS = re.compile(r"(?:steps=|num-steps[= ])(\d+)")
_DRAFT = re.compile(r"(?:draft=|num-draft-tokens[= ])(\d+)")
_CHAIN = re.compile(r"\b(\d+)-(\d+)-(\d+)\b")  # steps-topk-draft
_COUNT = re.compile(r"(?:mtp|nextn|eagle3?)(?: depth)?[ -]+(\d+)\b|num_speculative_tokens\D{1,4}(\d+)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)% draft acceptance")
_COMMAND = re.compile(r"--speculative|speculative-config|speculative_config")
_SERVER = re.compile(r"launch_server|sglang serve|vllm serve|trtllm-serve|--max-model-len|--context-length")
_RATE = re.compile(r"accept_rate=(\d\.\d+)")
_RANGE = re.compile(r"accept len (\d+\.\d+)-(\d+\.\d+)")
_RATIO = re.compile(r"ITL/TPOT=(\d+(?:\.\d+)?)")
_LIMIT = re.compile(r"disabled above (\d+) tok")


#: word in the cell → method, first match
_METHODS = {
    "dspark": "dspark",
    "eagle3": "eagle3",
    "mtp": "mtp",
    "nextn": "mtp",
    "draft model": "draft-model",
    "draft-model": "draft-model",
    "eagle": "eagle",
}


def _method(text: str) -> str | None:
    return next((method for word, method in _METHODS.items() if word in text), None)


def read_speculation(cell: str, notes: str, acceptance: Tokens | None, context: Tokens | None) -> Speculation:
    """Return the speculation of a row; ``unknown`` if the row says nothing.

    The notes may carry the server command; ``none`` if it has no speculative option. `context` is the real context:
    some servers stop drafting above a limit.

    Examples
    --------
    >>> read_speculation("EAGLE3 3-1-4", "", None, None)
    Speculation(state='yes', method='eagle3', draft_tokens=3, verify_tokens=4, acceptance_length=None,
    acceptance_range=None, simulated=False)
    >>> read_speculation("eagle3-3 (disabled above 7000 tok)", "", None, 10480).state
    'none'
    """
    said = cell.strip().lower()
    limit = _LIMIT.search(said)
    if said.startswith("none") or (limit and context is not None and context > float(limit.group(1))):
        return Speculation("none")
    if said in ("unknown", "yes", ""):
        command = notes.lower()
        if not _COMMAND.search(command):
            if said == "" and acceptance is None and _SERVER.search(command):
                return Speculation("none")
            return Speculation("yes" if said == "yes" or acceptance else "unknown", acceptance_length=acceptance)
        said = command[_COMMAND.search(command).start() :]  # type: ignore[union-attr]
    steps, draft, chain, count = (pattern.search(said) for pattern in (_STEPS, _DRAFT, _CHAIN, _COUNT))
    if chain and not steps:
        tokens, verify = int(chain.group(1)), int(chain.group(3))
    elif steps:
        tokens, verify = int(steps.group(1)), int(draft.group(1)) if draft else int(steps.group(1)) + 1
    elif count:
        tokens = int(count.group(1) or count.group(2))
        verify = tokens + 1
    else:
        return Speculation("yes", _method(said), None, None, acceptance)
    if match := _RANGE.search(said):
        # the column repeats the low end of the page's range for every cell
        span = (float(match.group(1)), float(match.group(2)))
        return Speculation("yes", _method(said), tokens, verify, None, span)
    if acceptance is None and (rate := _RATE.search(notes)):
        acceptance = round(float(rate.group(1)) * verify, 3)  # SGLang: accepted length over draft tokens
    if acceptance is None and (share := _SHARE.search(f"{said} {notes}")):
        acceptance = 1 + tokens * float(share.group(1)) / 100
    if acceptance is None and (ratio := _RATIO.search(notes)):
        acceptance = float(ratio.group(1))
    return Speculation("yes", _method(said), tokens, verify, acceptance, simulated="simulated" in said)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: configuration, load and metrics. None: the table does not say."""

    id: str
    model: str  # canonical name; `model_given` as written
    accelerator: str  # canonical name; `accelerator_given` as written
    campaign: str | None = None
    measured_on: str | None = None
    source: str | None = None
    trust: str | None = None  # A (audited) to D (a claim)
    model_given: str = ""
    checkpoint: str | None = None
    weights: str | None = None
    weights_bits: float | None = None  # stored bits of a weight, where file size and parameters are given
    kv_cache: str | None = None
    accelerator_given: str = ""
    host: str | None = None  # machine around it
    accelerator_count: int | None = None
    nodes: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    dcp: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    engine_release: tuple[int, ...] | None = None
    backend: str | None = None  # build of llama.cpp (`rocm-7_2_3`, `vulkan_radv`)
    attention_backend: str | None = None
    moe_backend: str | None = None
    graphs: bool | None = None  # decode ran from captured graphs
    speculation: Speculation = field(default_factory=Speculation)
    power_limit_w: float | None = None  # of each accelerator
    phase: str = "serving"
    protocol: str = "other"
    scenario: str = ""
    recipe: str | None = None  # by which its server was launched, see `glmplan.io.runs.settings`
    concurrency: float | None = None  # requests in flight
    running_limit: int | None = None  # requests that the server ran at once
    memory_fraction: float | None = None  # given to the engine
    max_num_seqs: int | None = None  # this and the next two: settings of one data-parallel rank
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    request_rate_per_s: float | None = None
    num_requests: int | None = None  # in all
    input_tokens: float | None = None
    output_tokens: float | None = None
    context_depth: float | None = None  # cached context of a request [token]
    length_range: tuple[float, float] = (1.0, 1.0)  # lengths are uniform between these shares of the stated ones
    context_is_label: bool = False  # prompt and context count characters / 4; the real prompt is shorter
    shared_prompt: bool = False  # all requests sent one prompt
    prefix_cached: bool = False  # the prompt was in the cache already
    offload: bool = False  # experts ran in host memory
    total_in_request_column: bool = False  # the per-request column held the total of all sequences (already moved here)
    uncertainty_pct: float | None = None  # half width of the reading error
    observed: dict[str, float] = field(default_factory=dict)  # metric → value, units in the name
    #: metric → reason for which it does not mean what its column says; not in `observed`
    withheld: dict[str, str] = field(default_factory=dict)
    unusable: str | None = None  # reason for which nothing in the row may be fitted
    error: str | None = None  # bad cell for which the row has no prediction
    notes: str = ""
    cells: dict[str, str] = field(default_factory=dict)  # row as it was, without empty cells


@dataclass(frozen=True, slots=True)
class Runs:
    """Table of runs."""

    path: Path
    columns: tuple[str, ...]  # header, unknown columns included
    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()  # ignored contents of the table

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    def column(self, name: str) -> Any:
        """Return a field or metric of every run as an array, NaN: missing."""
        import numpy as np

        values = (r.observed.get(name) for r in self.runs) if name in FIGURES else (getattr(r, name) for r in self.runs)
        return np.array([math.nan if value is None else value for value in values], dtype=float)
