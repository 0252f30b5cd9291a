"""What an engine says of itself while it starts: the record that the log readers fill."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from glmplan.readers.runs.importers.record import Imported, Source, row_identifier
from glmplan.readers.runs.importers.serving_columns import notes
from glmplan.units import GIB

__all__ = ["StartupLog", "imported", "matches", "number", "weights_of_method"]

#: How engines name a method of quantisation and how the tables name the format; None: the method says nothing of it.
_FORMATS = {
    "modelopt_fp4": "nvfp4",
    "modelopt": "fp8",
    "awq_marlin": "awq-int4",
    "awq": "awq-int4",
    "gptq_marlin": "gptq-int4",
    "gptq": "gptq-int4",
    "compressed-tensors": None,
}


@dataclass(slots=True)
class StartupLog:
    """One engine start. Bytes are those of one rank; None where the log does not say.

    Parameters
    ----------
    engine : str
        vllm, sglang, trtllm or llama.cpp.
    version, model, quantization, kv_cache, attention_backend, moe_backend, speculative : str or None
        As the log names them.
    accelerator : str or None
        Device name, if the log prints it.
    tp, pp, dp, ep, dcp : int or None
        Layout, [-]
    weights : float or None
        Weights in the memory of the fullest rank, [B]
    host_weights : float or None
        Weights left in host memory, [B]
    kv_pool : float or None
        Memory for the KV cache on the poorest rank, [B]
    kv_tokens : float or None
        Tokens the pool holds, [token]
    cells : float or None
        Tokens that the launch asks the cache to hold, all slots together (llama.cpp's `n_ctx`), [token]
    graphs : float or None
        Memory of captured graphs, [B]
    activations : float or None
        Peak of activations or the compute buffer, [B]
    outside_torch, graph_estimate : float or None
        Memory outside torch; what the engine expects graphs to take before it captures them, [B]
    total : float or None
        Memory of the part as the engine sees it, [B]
    memory_utilization : float or None
        Share of memory the engine may use, [-]
    max_context : float or None
        Longest request, [token]
    max_concurrency : float or None
        Requests of the longest length that fit, [-]
    max_sequences : float or None
        Requests in one batch, [-]
    max_batched_tokens : float or None
        Token budget of one step, [token]
    graph_count : float or None
        Graphs captured, [-]
    graphs_taken : bool or None
        Whether the launch takes its estimate of CUDA graphs from the pool, where the log says so.
    whole_tower : bool or None
        Whether every rank holds the whole image tower, where the log says so (vLLM's `--mm-encoder-tp-mode data`,
        SGLang's `--mm-enable-dp-encoder`).
    lines : dict of str to int
        Where each of these stands.
    """

    engine: str
    version: str | None = None
    model: str | None = None
    quantization: str | None = None
    kv_cache: str | None = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    speculative: str | None = None
    accelerator: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    dcp: int | None = None
    weights: float | None = None
    host_weights: float | None = None
    kv_pool: float | None = None
    kv_tokens: float | None = None
    cells: float | None = None
    graphs: float | None = None
    activations: float | None = None
    outside_torch: float | None = None
    graph_estimate: float | None = None
    total: float | None = None
    memory_utilization: float | None = None
    max_context: float | None = None
    max_concurrency: float | None = None
    max_sequences: float | None = None
    max_batched_tokens: float | None = None
    graph_count: float | None = None
    graphs_taken: bool | None = None
    whole_tower: bool | None = None
    lines: dict[str, int] = field(default_factory=dict)

    def put(self, name: str, value: Any, line: int, keep: str = "first") -> None:
        """Store a value. Ranks repeat themselves, so `keep` says which counts: the first, the last, the max or the min.

        Parameters
        ----------
        name : str
            Field.
        value : object
            Its value; None is ignored.
        line : int
            Where it stands, [-]
        keep : {"first", "last", "max", "min"}, optional
            Which of several counts.
        """
        old = getattr(self, name)
        if value is None:
            return
        better = old is None or keep == "last" or (keep == "max" and value > old) or (keep == "min" and value < old)
        if better:
            setattr(self, name, value)
            self.lines[name] = line

    def row(self) -> dict[str, Any]:
        """Return the log as a run of phase `memory`."""
        layout = [size for size in (self.tp, self.pp, self.dp) if size is not None]
        cards = None
        if layout:
            cards = (self.tp or 1) * (self.pp or 1) * (self.dp or 1)
        return {
            "checkpoint": self.model,
            "weights": weights_of_method(self.quantization),
            "kv_cache": self.kv_cache,
            "accelerator_count": cards,
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "ep": self.ep,
            "dcp": self.dcp,
            "engine": self.engine,
            "engine_version": self.version,
            "attention_backend": self.attention_backend,
            "moe_backend": self.moe_backend,
            "cuda_graphs": None if self.graphs is None else "yes",
            "speculative": self.speculative,
            "phase": "memory",
            "memory_fraction": self.memory_utilization,
            "max_num_seqs": self.max_sequences,
            "max_num_batched_tokens": self.max_batched_tokens,
            "max_model_len": self.max_context,
            "kv_pool_tokens": self.kv_tokens,
            "weights_gib_per_accelerator": None if self.weights is None else self.weights / GIB,
            "notes": notes(
                f"{self.engine} startup log",
                self.accelerator,
                *(
                    f"{label} {value / GIB:.2f} GiB"
                    for label, value in (("KV pool", self.kv_pool), ("graphs", self.graphs))
                    if value is not None
                ),
            ),
        }

    def found(self) -> list[str]:
        """Return the names of what the log told."""
        return [f.name for f in fields(self) if f.name not in ("engine", "lines") and getattr(self, f.name) is not None]


def weights_of_method(method: str | None) -> str | None:
    """Return the weight format behind an engine's name of a quantisation method.

    Parameters
    ----------
    method : str or None
        As engines name it.

    Returns
    -------
    str or None
        The format; None where the method does not say it.

    Examples
    --------
    >>> weights_of_method("modelopt_fp4"), weights_of_method("fp8"), weights_of_method("compressed-tensors")
    ('nvfp4', 'fp8', None)
    """
    return _FORMATS.get(method or "", method)


def number(text: str) -> float:
    """Read a number with thousands separators.

    Parameters
    ----------
    text : str
        Such as `341,504`.

    Returns
    -------
    float
        The number, [-]

    Examples
    --------
    >>> number("341,504")
    341504.0
    """
    return float(text.replace(",", ""))


def matches(text: str, pattern: str) -> list[tuple[int, re.Match[str]]]:
    """Find a pattern in each line of a text, also several times in a line where the ranks' lines ran together.

    Parameters
    ----------
    text : str
        The log.
    pattern : str
        Regular expression.

    Returns
    -------
    list of (int, match)
        Line numbers [-] and matches.

    Examples
    --------
    >>> [(line, m[1]) for line, m in matches("a=1 a=2\\na=3", r"a=(\\d)")]
    [(1, '1'), (1, '2'), (2, '3')]
    """
    compiled = re.compile(pattern)
    return [(n, m) for n, line in enumerate(text.split("\n"), 1) for m in compiled.finditer(line)]


def imported(source: Source, log: StartupLog) -> Imported:
    """Wrap a log as what an importer gives back, with a problem for each main figure that is missing.

    Parameters
    ----------
    source : Source
        The file.
    log : StartupLog
        What was read from it.

    Returns
    -------
    Imported
        One run of phase `memory`.
    """
    from glmplan.readers.runs.importers.record import Problem

    wanted = {"weights": "the memory the weights take", "kv_tokens": "the size of the KV pool in tokens"}
    missing = [
        Problem(0, name, f"expected {what}; the log ends or its level hides it")
        for name, what in wanted.items()
        if getattr(log, name) is None
    ]
    row = {"id": row_identifier(source.text, 0), **log.row()}
    return Imported("", [row] if len(missing) < len(wanted) else [], missing, log)
