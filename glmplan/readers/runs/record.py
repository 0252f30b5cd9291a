"""The record of one measured run and the table of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmplan.readers.runs.figures import FIGURES
from glmplan.readers.runs.speculation import Speculation

__all__ = ["Run", "Runs"]


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
        The recipe by which its server was launched, see `glmplan.readers.runs.settings`.
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

        Parameters
        ----------
        name : str
            A numeric field of `Run` or the column of a figure.

        Returns
        -------
        ndarray
            Shape (runs,), [unit of the name]
        """
        import numpy as np

        values = (r.observed.get(name) for r in self.runs) if name in FIGURES else (getattr(r, name) for r in self.runs)
        return np.array([math.nan if value is None else value for value in values], dtype=float)
