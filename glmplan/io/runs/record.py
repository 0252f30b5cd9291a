"""The record of one measured run and the table of them."""

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


# What a table of runs says of speculative decoding → method, drafted tokens, verified tokens, acceptance.


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a run drafted.

    Attributes
    ----------
    state : str
        ``none``, ``unknown`` (the source does not say) or ``yes``.
    method : str or None
        ``mtp``, ``eagle``, ``eagle3``, ``dspark`` or ``draft-model``.
    draft_tokens : int or None
        Draft passes for each step, [token]
    verify_tokens : int or None
        Tokens that each step verifies for each request, the last accepted one included, [token]
    acceptance_length : float or None
        Mean tokens that a step yields for each request, [token]
    acceptance_range : tuple of float or None
        Lowest and highest value of a whole page where the run has none of its own, [token]
    """

    state: str = "unknown"
    method: str | None = None
    draft_tokens: int | None = None
    verify_tokens: int | None = None
    acceptance_length: float | None = None
    acceptance_range: tuple[float, float] | None = None


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
    """Read what a row says of speculative decoding.

    - `notes`: The notes, which may carry the server command.
    - `context`: Real context of the run: some servers stop drafting above a limit.
    - Returns: What is known. A row whose server command has no speculative option is ``none``; a row that says
      nothing is ``unknown``.

    Examples
    --------
    >>> read_speculation("EAGLE3 3-1-4", "", None, None)
    Speculation(state='yes', method='eagle3', draft_tokens=3, verify_tokens=4, acceptance_length=None,
    acceptance_range=None)
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
    if found := _RANGE.search(said):
        # the column repeats the low end of the page's range for every cell
        span = (float(found.group(1)), float(found.group(2)))
        return Speculation("yes", _method(said), tokens, verify, None, span)
    if acceptance is None and (rate := _RATE.search(notes)):
        acceptance = round(float(rate.group(1)) * verify, 3)  # SGLang: accepted length over draft tokens
    if acceptance is None and (share := _SHARE.search(f"{said} {notes}")):
        acceptance = 1 + tokens * float(share.group(1)) / 100
    if acceptance is None and (ratio := _RATIO.search(notes)):
        acceptance = float(ratio.group(1))
    return Speculation("yes", _method(said), tokens, verify, acceptance)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what was run, on what, how, and what was seen. What a table does not say is None.

    Attributes
    ----------
    id, campaign, measured_on, source, trust : str or None
        Where the row comes from; trust is A (audited) to D (a claim).
    model, model_given, checkpoint : str or None
        Canonical name, the name as written, and the checkpoint.
    weights, kv_cache : str or None
        Formats.
    weights_bits : float or None
        Stored bits for each weight where file size and parameters are given, [bit]
    accelerator, accelerator_given, host : str or None
        Canonical part, as written, and the machine around it.
    accelerator_count, nodes, tp, pp, dp, ep, dcp : int or None
        Layout, [-]
    engine, engine_version, engine_release, backend, attention_backend, moe_backend : str, tuple or None
        Engine; the release is numeric; the backend is the build of llama.cpp (`rocm-7_2_3`, `vulkan_radv`).
    graphs : bool or None
        Whether decode ran from captured graphs.
    speculation : Speculation
        How it drafted.
    power_limit_w : float or None
        Power limit of each accelerator, [W]
    phase, protocol, scenario : str
        What was measured and how.
    recipe : str or None
        The recipe by which its server was launched, see `glmplan.io.runs.settings`.
    concurrency, running_limit, request_rate_per_s, num_requests : float or int or None
        Load: requests in flight [-], requests the server ran at once [-], arrivals [1/s], requests in all [-]
    memory_fraction : float or None
        Share of the memory that the engine was given, [-]
    max_num_seqs, max_num_batched_tokens, max_model_len : int or None
        What one data-parallel rank was told: requests at once [-], tokens of a step, longest request [token]
    input_tokens, output_tokens, context_depth : float or None
        Prompt, output and cached context of a request, [token]
    length_range : tuple of float
        Lengths are uniform between these shares of the stated ones, [-]
    context_is_label : bool
        Prompt and context are labels that count characters / 4; the real prompt is shorter.
    shared_prompt, prefix_cached, offload : bool
        All requests sent one prompt; it was in the cache already; experts ran in host memory.
    total_in_request_column : bool
        The table's per-request column held the total of all sequences (already moved here).
    uncertainty_pct : float or None
        Half width of the reading error, [%]
    observed : dict
        Figure → value, units in the name.
    withheld : dict
        Figure → why it does not mean what its column says; such figures are not in `observed`.
    unusable : str or None
        Why nothing in the row may be fitted.
    error : str or None
        The bad cell that makes the row unanswerable.
    cells : dict
        The row as it was, empty cells left out.
    """

    id: str
    model: str
    accelerator: str
    campaign: str | None = None
    measured_on: str | None = None
    source: str | None = None
    trust: str | None = None
    model_given: str = ""
    checkpoint: str | None = None
    weights: str | None = None
    weights_bits: float | None = None
    kv_cache: str | None = None
    accelerator_given: str = ""
    host: str | None = None
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
    backend: str | None = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    graphs: bool | None = None
    speculation: Speculation = field(default_factory=Speculation)
    power_limit_w: float | None = None
    phase: str = "serving"
    protocol: str = "other"
    scenario: str = ""
    recipe: str | None = None
    concurrency: float | None = None
    running_limit: int | None = None
    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    request_rate_per_s: float | None = None
    num_requests: int | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    context_depth: float | None = None
    length_range: tuple[float, float] = (1.0, 1.0)
    context_is_label: bool = False
    shared_prompt: bool = False
    prefix_cached: bool = False
    offload: bool = False
    total_in_request_column: bool = False
    uncertainty_pct: float | None = None
    observed: dict[str, float] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    unusable: str | None = None
    error: str | None = None
    notes: str = ""
    cells: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Runs:
    """A table of runs.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    columns : tuple of str
        Its header, unknown columns included.
    runs : tuple of Run
        One for each row.
    warnings : tuple of str
        What of the table was ignored.
    """

    path: Path
    columns: tuple[str, ...]
    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    def column(self, name: str) -> Any:
        """Return a field or an observed figure of every run as an array, NaN where it is missing.

        - `name`: A numeric field of `Run` or the column of a figure.
        - Returns: Shape (runs,), [unit of the name].
        """
        import numpy as np

        values = (r.observed.get(name) for r in self.runs) if name in FIGURES else (getattr(r, name) for r in self.runs)
        return np.array([math.nan if value is None else value for value in values], dtype=float)
