"""Read start-up logs of engines, and the shipped table of them.

vLLM, SGLang, TensorRT-LLM and llama.cpp. A log becomes a `StartupLog`: settings of the launch, and the memory that the
engine reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from glmplan.catalog.files import data_folder, read_rows
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.importers.record import Imported, Importer, Source, by_text, notes, row_identifier
from glmplan.units import GIB, Bytes, Ratio, Tokens

__all__ = [
    "IMPORTERS",
    "LoggedStart",
    "StartupLog",
    "imported",
    "matches",
    "number",
    "read_llamacpp_log",
    "read_sglang_log",
    "read_trtllm_log",
    "read_vllm_log",
    "start_up_logs",
    "weights_of_method",
    "with_facts",
]


#: engine's name of a quantisation method → format; None: the name does not tell the format
_FORMATS = {
    "modelopt_fp4": "nvfp4",
    "modelopt": "fp8",
    "awq_marlin": "awq-int4",
    "awq": "awq-int4",
    "gptq_marlin": "gptq-int4",
    "gptq": "gptq-int4",
    "compressed-tensors": None,
}


_CACHED = re.compile(r"models--(.+?)--([^/]+)")


@dataclass(slots=True)
class StartupLog:
    """One engine start; bytes are those of one rank, None: not logged."""

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
    weights: Bytes | None = None  # fullest rank
    host_weights: Bytes | None = None
    kv_pool: Bytes | None = None  # on the rank with the smallest pool
    draft_pool: Bytes | None = None  # separate pool of a draft model on that rank
    kv_tokens: Tokens | None = None  # in the pool
    cells: Tokens | None = None  # requested cache of all slots together (llama.cpp's `n_ctx`)
    graphs: Bytes | None = None  # captured
    activations: Bytes | None = None  # peak, or the compute buffer
    outside_torch: Bytes | None = None
    graph_estimate: Bytes | None = None  # of the engine before capture
    total: Bytes | None = None  # of the accelerator as the engine sees it
    memory_utilization: Ratio | None = None  # limit of the engine
    max_context: Tokens | None = None
    max_concurrency: float | None = None  # longest requests that fit
    max_sequences: float | None = None  # requests in one batch
    max_batched_tokens: Tokens | None = None  # of one step
    graph_count: float | None = None  # captured
    graphs_taken: bool | None = None  # True: the launch takes its estimate of CUDA graphs from the pool
    #: True: every rank holds the full image tower (vLLM's `--mm-encoder-tp-mode data`, SGLang's `--mm-enable-dp-
    #: encoder`)
    whole_tower: bool | None = None
    lines: dict[str, int] = field(default_factory=dict)  # line of each field

    def put(self, name: str, value: Any, line: int, keep: str = "first") -> None:
        """Store a value; `keep` the first, last, max or min over ranks."""
        old = getattr(self, name)
        if value is None:
            return
        if name == "model" and (cached := _CACHED.search(value)):  # a folder of the Hugging Face cache
            value = f"{cached[1]}/{cached[2]}"
        better = old is None or keep == "last" or (keep == "max" and value > old) or (keep == "min" and value < old)
        if better:
            setattr(self, name, value)
            self.lines[name] = line

    def read(
        self,
        text: str,
        patterns: Iterable[tuple[str, str]],
        convert: Callable[[str], Any] = str,
        keep: str = "first",
    ) -> None:
        """Store the first group of each match, by pairs of field and pattern."""
        for name, pattern in patterns:
            for line, match in matches(text, pattern):
                self.put(name, convert(match[1]), line, keep)

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
                    for label, value in (
                        ("KV pool", self.kv_pool),
                        ("draft pool", self.draft_pool),
                        ("graphs", self.graphs),
                    )
                    if value is not None
                ),
            ),
        }

    def found(self) -> list[str]:
        """Return the names of the fields in the log."""
        return [f.name for f in fields(self) if f.name not in ("engine", "lines") and getattr(self, f.name) is not None]


def weights_of_method(method: str | None) -> str | None:
    """Return the weight format of an engine's quantisation method, or None.

    None: its name does not tell.

    Examples
    --------
    >>> weights_of_method("modelopt_fp4"), weights_of_method("fp8"), weights_of_method("compressed-tensors")
    ('nvfp4', 'fp8', None)
    """
    return _FORMATS.get(method or "", method)


def number(text: str) -> Ratio:
    """Return a number with thousands separators."""
    return float(text.replace(",", ""))


def matches(text: str, pattern: str) -> list[tuple[int, re.Match[str]]]:
    """Return line and match of a pattern.

    A line may hold several where output of ranks ran together.

    Examples
    --------
    >>> [(line, m[1]) for line, m in matches("a=1 a=2\\na=3", r"a=(\\d)")]
    [(1, '1'), (1, '2'), (2, '3')]
    """
    compiled = re.compile(pattern)
    return [(n, m) for n, line in enumerate(text.split("\n"), 1) for m in compiled.finditer(line)]


def imported(source: Source, log: StartupLog) -> Imported:
    """Return a log as `Imported`, with a problem for each missing main value."""
    from glmplan.io.runs.importers.record import Problem

    wanted = {"weights": "the memory the weights take", "kv_tokens": "the size of the KV pool in tokens"}
    missing = [
        Problem(0, name, f"expected {what}; the log ends or its level hides it")
        for name, what in wanted.items()
        if getattr(log, name) is None
    ]
    row = {"id": row_identifier(source.text, 0), **log.row()}
    return Imported("", [row] if len(missing) < len(wanted) else [], missing, log)


#: column of a run → field of `StartupLog`
_FACTS = {
    "engine_version": "version",
    "weights": "quantization",
    "memory_fraction": "memory_utilization",
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "max_batched_tokens",
    "max_model_len": "max_context",
    **{name: name for name in ("tp", "pp", "dp", "ep", "dcp", "kv_cache", "moe_backend", "attention_backend",
                               "speculative")},
}  # fmt: skip


def with_facts(log: StartupLog, facts: Mapping[str, Any]) -> StartupLog:
    """Return a log with further settings, which precede the logged ones.

    Examples
    --------
    >>> found = with_facts(StartupLog("vllm", version="0.19.0"), {"engine_version": "0.21.0", "concurrency": 8})
    >>> found.version
    '0.21.0'
    """
    return replace(log, **{_FACTS[name]: _read(name, value) for name, value in facts.items() if name in _FACTS})


def _read(name: str, value: Any) -> Any:
    column = COLUMNS[name]
    if column.kind == "text" or not isinstance(value, str):
        return value
    try:
        number = column.number(value)
    except ValueError as error:
        raise SpecError(str(error), field=name) from error
    return int(number) if column.kind == "count" else number


@dataclass(frozen=True, slots=True)
class LoggedStart:
    """One engine start of `calibration/memory/start-up-logs.csv`."""

    id: str
    source: str  # address of the log, with commit and file
    log: StartupLog
    model: str | None  # catalogue name, or None
    weights: str | None
    accelerator: str | None  # catalogue name; None: the source does not name it
    measured_on: str  # empty: no date
    multimodal: bool  # False: launched without images
    graphs: bool  # True: decode steps ran from captured graphs
    graph_requests: float | None  # largest batch with a graph, by its setting (SGLang's ``cuda_graph_max_bs``)
    draft: Bytes | None  # separate weights of a draft model
    outside_torch: Bytes | None
    graph_estimate: Bytes | None
    total: Bytes | None
    free: Bytes | None  # before weights
    #: `glmplan.prediction.deployment.Settings` that may have been set, but are not in the source; others are the
    #: engine's default, because engines print their settings
    unstated: frozenset[str]
    not_scored: str  # reason for which no prediction is compared with it; empty: compared
    note: str

    @property
    def origin(self) -> str:
        """Return the repository or thread: its logs have one vote together."""
        return self.source.split(" ")[0]


#: column → field of `StartupLog`, numbers [-] and [token]
_NUMBERS = {
    "memory_fraction": "memory_utilization",
    "max_model_len": "max_context",
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "max_batched_tokens",
    "pool_tokens": "kv_tokens",
}
#: column [GiB] → field of `StartupLog` [B]
_BYTES = {"weights_gib": "weights", "pool_gib": "kv_pool", "graphs_gib": "graphs", "activation_gib": "activations"}
#: column → field of `StartupLog`, text
_TEXT = {"engine_version": "version", "checkpoint": "model", "kv_cache": "kv_cache", "moe_backend": "moe_backend"}
_LAYOUT = ("tp", "pp", "dp", "ep", "dcp")


def start_up_logs(path: str | Path | None = None) -> list[LoggedStart]:
    """Return the start-up logs of the shipped table or of such a file.

    Examples
    --------
    >>> found = start_up_logs()
    >>> len(found), {one.log.engine for one in found} == {"vllm", "sglang"}
    (100, True)
    """
    file = Path(path) if path is not None else data_folder("calibration") / "memory" / "start-up-logs.csv"
    return [_start(row, file) for row in read_rows(file)]


def _start(row: dict[str, str], file: Path) -> LoggedStart:
    if not row["source"]:
        raise SpecError("has no source", file=file, field=row["id"])

    def number(column: str) -> float | None:
        try:
            return float(row[column]) if row[column] else None
        except ValueError:
            raise SpecError("is not a number", file=file, field=f"{row['id']}, {column}", value=row[column]) from None

    def size(column: str) -> float | None:
        result = number(column)
        return None if result is None else result * GIB

    log = StartupLog(row["engine"], speculative=None if row["speculative"] in ("", "none") else row["speculative"])
    for column, name in _TEXT.items():
        setattr(log, name, row[column] or None)
    for name in _LAYOUT:
        degree = number(name)
        setattr(log, name, None if degree is None else int(degree))
    for column, name in _NUMBERS.items():
        setattr(log, name, number(column))
    for column, name in _BYTES.items():
        setattr(log, name, size(column))
    log.accelerator = row["accelerator"] or None
    return LoggedStart(
        id=row["id"],
        source=row["source"],
        log=log,
        model=row["model"] or None,
        weights=row["weights"] or None,
        accelerator=row["accelerator"] or None,
        measured_on=row["measured_on"],
        multimodal=row["multimodal"] != "off",
        graphs=row["cuda_graphs"] != "no",
        graph_requests=number("graph_requests"),
        draft=size("draft_gib"),
        outside_torch=size("outside_torch_gib"),
        graph_estimate=size("graph_estimate_gib"),
        total=size("total_gib"),
        free=size("free_gib"),
        unstated=frozenset(row["unstated"].split()),
        not_scored=row["not_scored"],
        note=row["note"],
    )


KIND_VLLM_LOG = "vllm startup log"
#: arguments of the engine line and their fields; the last group of the pattern is the value
_ARGUMENTS = (
    ("tp", r"tensor_parallel_size['\"]?[=:] ?(\d+)"),
    ("pp", r"pipeline_parallel_size['\"]?[=:] ?(\d+)"),
    ("dp", r"data_parallel_size['\"]?[=:] ?(\d+)"),
    ("dcp", r"decode_context_parallel_size['\"]?[=:] ?(\d+)"),
)
recognise_vllm_log = by_text(r"vLLM API server version|LLM engine \(v|GPU KV cache size:|# GPU blocks: |gpu_worker\.py")
#: settings that the log prints; of several entries for a field the later one supplements
_WORDS = (
    ("version", r"LLM engine \(v([^)]+)\)"),
    ("version", r"API server version:? (\S+)"),
    ("version", r"█ +version (\S+)"),
    ("version", r"\] +version (\d\S*)"),
    ("model", r"with config: model='([^']+)'"),
    ("model", r"█ +model +(\S+)"),
    ("model", r"\] +model +(\S+)$"),
    ("model", r"non-default args: \{.*?'model(?:_tag)?': '([^']+)'"),
    ("quantization", r"[( ]quantization=(?!None)'?([\w-]+)"),
    ("kv_cache", r"Using DeepSeek's (\w+) KV cache format"),
    ("kv_cache", r"kv_cache_dtype['\"]?[=:] ?'?(\w+)"),
    ("attention_backend", r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend(?: out of|\.| on)"),
    ("attention_backend", r"Using (Flash ?\w*|Triton\w*|FlashMLA|XFormers) (?:attention )?backend"),
    ("moe_backend", r"Using '?([\w ]+?)'? \w+ MoE backend"),
    ("speculative", r"'speculative_config': \{[^}]*'method': '(\w+)'"),
    ("speculative", r"speculative_config=(?!None)(?:SpeculativeConfig\()?(?:method='?(\w+))"),
)
_SETTINGS = (
    ("memory_utilization", r"gpu_memory_utilization'?[=:] ?\(?([\d.]+)"),
    ("memory_utilization", r"gpu_memory_utilization \(([\d.]+)\)"),
    ("max_context", r"(?:max_seq_len=|Using max model len )(\d+)"),
    ("max_sequences", r"max_num_seqs'?[=:] ?(\d+)"),
    ("max_batched_tokens", r"max_num_batched_tokens'?[=:] ?(\d+)"),
)
#: memory besides weights and pool, in GiB; old versions print GB and mean GiB
_SIZES = (
    ("graphs", r"CUDA graph pool memory: ([\d.]+) GiB \(actual\)"),
    ("graphs", r"Graph capturing finished in .*?took ([\d.]+) Gi?B"),
    ("activations", r"activation peak memory takes ([\d.]+) ?Gi?B"),
    ("activations", r"([\d.]+) GiB for peak activation"),
    ("outside_torch", r"non_torch_memory takes ([\d.]+) ?Gi?B"),
    ("outside_torch", r"([\d.]+) GiB for non-torch memory"),
    ("graph_estimate", r"Estimated CUDA graph memory: ([\d.]+) GiB"),
    ("total", r"total_gpu_memory \(([\d.]+) ?Gi?B\)"),
    ("total", r"Free memory on device \S*\s?\([\d.]+/([\d.]+) GiB\)"),
)
_POOLS = (
    ("kv_pool", r"(?:Available KV cache memory:|reserved for KV Cache is) (-?[\d.]+) ?Gi?B"),
    ("kv_pool", r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache"),
)


def _gib(text: str) -> Bytes:
    return float(text) * GIB


def read_vllm_log(source: Source) -> Imported:
    """Read a startup log of vLLM, V0 or V1, one or many ranks.

    Old versions print GiB as GB; both are binary here. Each rank prints its own line: the weights of the fullest rank
    and the smallest pool count, for all pools are as large as the smallest.

    Examples
    --------
    >>> read_vllm_log(Source("", "GPU KV cache size: 341,504 tokens")).rows[0]["kv_pool_tokens"]
    341504.0
    """
    text, log = source.text, StartupLog("vllm")
    log.read(text, _WORDS)
    log.read(text, _ARGUMENTS, int, "max")
    for line, _ in matches(text, r"enable_expert_parallel['\"]?[=:] ?(True)"):
        log.put("ep", (log.tp or 1) * (log.dp or 1), line)
    loaded = r"(?:Model loading took|Loading model weights took|model weights take) ([\d.]+) ?Gi?B"
    log.read(text, [("weights", loaded)], _gib, "max")
    log.read(text, _POOLS, _gib, "min")
    if log.quantization is None and "quantization=None" in text:
        # not quantised: the weights are in the compute precision
        for line, match in matches(text, r"dtype=torch\.(bfloat16|float16|float32)"):
            log.put("quantization", {"bfloat16": "bf16", "float16": "f16", "float32": "fp32"}[match[1]], line)
    log.read(text, [("kv_tokens", r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens")], number, "min")
    block = next((int(m[1]) for _, m in matches(text, r"block_size=(\d+)")), 16)
    for line, match in matches(text, r"# (?:GPU|cuda) blocks: (\d+)"):
        log.put("kv_tokens", float(match[1]) * block, line, "min")
    for line, match in matches(text, r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"):
        log.put("max_concurrency", float(match[2]), line)
        log.put("max_context", number(match[1]), line)
    for line, match in matches(text, r"CUDA graph memory: PIECEWISE=(\d+).*?FULL=(\d+)"):
        log.put("graph_count", float(match[1]) + float(match[2]), line)
    log.read(text, [("graphs_taken", r"CUDA graph memory profiling is (enabled|disabled)")], "enabled".__eq__)
    log.read(text, [("whole_tower", r"mm[_-]encoder[_-]tp[_-]mode['\"]?[=: ] ?'?(data|weights)")], "data".__eq__)
    for line, _ in matches(text, r"Falling back to `--mm-encoder-tp-mode weights`"):
        log.put("whole_tower", False, line, "last")
    log.read(text, _SIZES, _gib, "max")
    log.read(text, _SETTINGS, float)
    return imported(source, log)


KIND_SGLANG_LOG = "sglang startup log"
recognise_sglang_log = by_text(r"server_args=ServerArgs\(|Load weight end\.|max_total_num_tokens=\d")


def read_sglang_log(source: Source) -> Imported:
    """Read a start-up log of SGLang; every size here is GiB.

    SGLang divides by 2^30 and prints GB. With DP attention `tp_size` spans the replicas, so TP of the attention is
    `tp_size / dp_size`.

    Examples
    --------
    >>> log = "KV Cache is allocated. #tokens: 1000, K size: 2.00 GB, V size: 2.00 GB"
    >>> read_sglang_log(Source("", log)).logged.kv_pool / 2**30
    4.0
    """
    text, log = source.text, StartupLog("sglang")
    words = (
        ("version", r"(?:sglang[_ ]version|SGLang version)['\"=: ]+v?([\w.+]+)"),
        ("model", r"model_path='([^']+)'"),
        ("quantization", r"[( ]quantization='(\w+)'"),
        ("kv_cache", r"KV Cache is allocated\. dtype: (?:torch\.)?(\w+)"),
        ("kv_cache", r"kv_cache_dtype='(?!auto)(\w+)'"),
        ("attention_backend", r"[( ]attention_backend='(\w+)'"),
        ("attention_backend", r"[Uu]se (\w+)(?: attention)? backend(?: by default)?"),
        ("moe_backend", r"moe_runner_backend='(?!auto)(\w+)'"),
        ("speculative", r"speculative_algorithm='(\w+)'"),
    )
    log.read(text, words)
    log.read(text, [(name, rf"[( ]{name}_size=(\d+)") for name in ("tp", "pp", "dp", "ep")], int)
    if log.tp and log.dp and "enable_dp_attention=True" in text:
        log.tp = max(log.tp // log.dp, 1)
    used = (
        ("weights", r"Load weight end\..*?mem usage=([\d.]+) GB"),
        ("graphs", r"Capture cuda graph end\..*?mem usage=([\d.]+) GB"),
    )
    log.read(text, used, _gib, "max")
    ranks: set[str] = set()
    for line, match in matches(text, r"^(.*?)KV Cache is allocated\..*?#tokens: (\d+)(.*)"):
        rank = " ".join(re.findall(r"\b(?:TP|DP|PP|EP)\d+", match[1]))
        sizes = re.findall(r"(?:KV|K|V) size: ([\d.]+) GB", match[3])
        size = sum(map(float, sizes)) * GIB if sizes else None
        if log.speculative is not None and rank in ranks:  # a rank makes the pool of the draft model after its own
            log.put("draft_pool", size, line, "min")
            continue
        ranks.add(rank)
        log.put("kv_tokens", float(match[2]), line, "min")
        log.put("kv_pool", size, line, "min")
    log.read(text, [("kv_tokens", r"max_total_num_tokens=(\d+)")], float, "min")
    settings = (
        ("memory_utilization", r"mem_fraction_static=([\d.]+)"),
        ("max_context", r"context_len=(\d+)"),
        ("max_sequences", r"max_running_requests=(\d+)"),
        ("max_batched_tokens", r"chunked_prefill_size=(\d+)"),
    )
    log.read(text, settings, float)
    log.read(text, [("whole_tower", r"mm_enable_dp_encoder=(True|False)")], "True".__eq__)
    if log.kv_tokens and log.max_context:
        log.max_concurrency = log.kv_tokens / log.max_context
    return imported(source, log)


KIND_TRTLLM_LOG = "trtllm startup log"
recognise_trtllm_log = by_text(r"\[TensorRT-LLM\]|\[TRT-LLM\]")
#: settings that the log prints; the first match counts
_WORDS_TRTLLM_LOG = (
    ("version", r"TensorRT[- ]LLM version:? v?(\S+)"),
    ("model", r"trtllm-serve for model (\S+)"),
    ("model", r"\bmodel='([^']+)'"),
    ("model", r"hub/models--(\S+?)/snapshots/"),
    ("quantization", r"quant_algo=<QuantAlgo\.(\w+)"),
    ("kv_cache", r"kv_cache_quant_algo=<QuantAlgo\.(\w+)"),
    ("kv_cache", r"\bkv_cache_dtype='(?!auto)(\w+)'"),
    ("attention_backend", r"\battn_backend='(\w+)'"),
    ("moe_backend", r"\bmoe_backend='(?!AUTO)(\w+)'"),
    ("speculative", r"\bdecoding_type='(\w+)'"),
)
_LAYOUT_TRTLLM_LOG = (
    ("tp", r"\b(?:tensor_parallel_size|tp_size)[=:] ?(\d+)"),
    ("pp", r"\b(?:pipeline_parallel_size|pp_size)[=:] ?(\d+)"),
    ("ep", r"\b(?:moe_expert_parallel_size|moe_ep_size)[=:] ?(\d+)"),
)
_SETTINGS_TRTLLM_LOG = (
    ("memory_utilization", r"fraction is set ([\d.]+)"),
    ("memory_utilization", r"\bfree_gpu_memory_fraction[=:] ?([\d.]+)"),
    ("max_context", r"max_seq_len is not specified, using inferred value (\d+)"),
    ("max_context", r"\bmax_seq_len[=:] ?(\d+)"),
    ("max_sequences", r"\bmax_num_requests[=:] ?(\d+)"),
    ("max_sequences", r"\bmax_batch_size[=:] ?(\d+)"),
    ("max_batched_tokens", r"\bmax_num_tokens[=:] ?(\d+)"),
)
#: memory that the PyTorch backend's trial run and the C++ runtime print, in GiB
_SIZES_TRTLLM_LOG = (
    ("weights", r"\bUse ([\d.]+) GB for model weights\."),
    ("activations", r"during inference \(inside torch\) in memory usage profiling: ([\d.]+) GiB"),
    ("activations", r"Allocated ([\d.]+) GiB for execution context memory"),
    ("total", r"device total memory ([\d.]+) GiB"),
    ("total", r"calculating max tokens in paged kv cache: total: ([\d.]+) GiB"),
)


def read_trtllm_log(source: Source) -> Imported:
    """Read a start-up log of TensorRT-LLM, of either runtime.

    The PyTorch backend, or the C++ runtime of built engines. The PyTorch backend makes a small pool for its trial run
    and the final one after it: the last pool of a rank counts, of several ranks the smallest [1]_. Its memory outside
    torch includes the small pool, which is subtracted.

    References
    ----------
    .. [1] NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/_util.py (KvCacheCreator), in 1.1, 1.2 and 1.3.
    .. [2] The same, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp.

    Examples
    --------
    >>> log = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720)."
    >>> read_trtllm_log(Source("", log)).rows[0]["kv_pool_tokens"]
    86720.0
    """
    text, log = source.text, StartupLog("trtllm")
    for name, pattern in _WORDS_TRTLLM_LOG:
        for line, match in matches(text, pattern):
            log.put(name, _plain(name, match[1]), line)
    log.read(text, _LAYOUT_TRTLLM_LOG, int, "max")
    if "enable_attention_dp=True" in text and log.tp:  # every rank attends for requests of its own
        log.dp, log.tp = log.tp, 1
    log.read(text, _SETTINGS_TRTLLM_LOG, float)
    log.read(text, _SIZES_TRTLLM_LOG, _gib, "max")
    if not log.weights:  # with what the executor itself has allocated by then
        inside = r"weights \(inside torch\) in memory usage profiling: ([\d.]+) GiB"
        log.read(text, [("weights", inside)], _gib, "max")
    for line, match in matches(text, r"\bLoaded engine size: (\d+) MiB"):
        log.put("weights", float(match[1]) * 2.0**20, line, "max")
    small = matches(text, r"(?:tmp kv_mem|cache memory during profiling) ([\d.]+) GiB")
    trial = max((float(match[1]) for _, match in small), default=0.0)
    for line, match in matches(text, r"used outside torch \([^)]*\) in memory usage profiling: ([\d.]+) GiB"):
        log.put("outside_torch", (float(match[1]) - trial) * GIB, line, "max")
    _pool(text, log)
    return imported(source, log)


def _plain(name: str, said: str) -> str:
    """Return a name as other logs write it.

    A cache folder names its model, an algorithm is in lower case.
    """
    if name == "model":
        return said.replace("--", "/")
    return said.lower() if name in ("quantization", "kv_cache") else said


def _pool(text: str, log: StartupLog) -> None:
    """Store the smallest pool of the ranks after the last trial run."""
    begin = max((n for n, _ in matches(text, r"Estimated max memory in KV cache")), default=0)
    for line, match in matches(text, r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)"):
        if line >= begin:
            log.put("kv_pool", float(match[1]) * GIB, line, "min")
            log.put("kv_tokens", float(match[2]), line, "min")
    for line, match in matches(text, r"Estimated max memory in KV cache : ([\d.]+) GiB"):
        if log.kv_pool is None:
            log.put("kv_pool", float(match[1]) * GIB, line)


KIND_LLAMACPP_LOG = "llama.cpp startup log"
_MIB = 2.0**20
recognise_llamacpp_log = by_text(r"llama_model_loader:|llm_load_tensors:|load_tensors:|llama_kv_cache|llama_context:")


def read_llamacpp_log(source: Source) -> Imported:
    """Read a start-up log of llama.cpp: server, CLI and bench.

    Old and new prefixes are known. Buffers are summed over the devices and divided by their number, for llama.cpp
    splits layers, not tensors. Weights mapped on the host while devices hold others are counted separately. The pool is
    that of the device with the largest caches and holds the cells of the largest cache: a sliding-window model has a
    second, smaller one.
    """
    text, log = source.text, StartupLog("llama.cpp")
    words = (
        ("version", r"build(?:_info)?: +(?:b)?(\d+)"),
        ("version", r"build_info: +b?(\S+)"),
        ("model", r"general\.name +(?:str +)?= +(.+?)\s*$"),
        ("model", r"loading model '([^']+)'"),
        ("quantization", r"(?:file type|model ftype) += +(\S+)"),
        ("kv_cache", r"K \((\w+)\):"),
        ("accelerator", r"Device 0: ([^,]+),"),
        ("accelerator", r"using device \S+ \(([^)]+)\)"),
    )
    log.read(text, words)
    log.read(text, [("pp", r"found (\d+) \w+ devices")], int)
    weights = _buffers(text, r"(\S+) model buffer size += +([\d.]+) MiB")
    devices = {name: size for name, size in weights.items() if not name.startswith(("CPU", "CUDA_Host"))}
    line = max((n for n, _ in matches(text, r"model buffer size")), default=0)
    if weights:
        used = devices or weights
        log.put("weights", sum(used.values()) / (len(used) if devices else 1), line)
        if devices and len(devices) < len(weights):
            log.put("host_weights", sum(weights.values()) - sum(devices.values()), line)
    # newer builds first try the fit in a pass that prints the same lines: only the last pass counts
    begin = max((n for n, _ in matches(text, r"llama_context: n_ctx +=")), default=0)
    caches = [
        (n, m)
        for n, m in matches(text, r"size += +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +\d+(?:/ *(\d+))? seqs")
        if n >= begin
    ]
    for line, match in caches:
        # cells are those of one stream; sequences that share nothing have a stream each
        log.put("kv_tokens", float(match[2]) * float(match[4] or 1), line, "max")
        log.put("kv_pool", _fullest(text, begin) or sum(float(m[1]) for _, m in caches) * _MIB, line)
    log.read(text, [("max_context", r"llama_context: n_ctx_seq += +(\d+)")], float)
    for line, match in matches(text, r"KV self size += +([\d.]+) MiB"):
        log.put("kv_pool", float(match[1]) * _MIB, line)
    for line, match in matches(text, r"llama_(?:context|new_context_with_model|init_from_model): n_ctx += +(\d+)"):
        log.put("max_context", float(match[1]), line)
        log.put("kv_tokens", float(match[1]), line)
        log.put("cells", float(match[1]), line, "last")
    limits = (
        ("max_sequences", r"n_seq_max += +(\d+)"),
        ("max_sequences", r"n_slots += +(\d+)"),
        ("max_batched_tokens", r"\bn_batch += +(\d+)"),
    )
    log.read(text, limits, number)
    compute = _buffers(text, r"(\S+) compute buffer size += +([\d.]+) MiB")
    if compute:
        log.put("activations", max(compute.values()), max(n for n, _ in matches(text, r"compute buffer size")))
    for line, match in matches(text, r"flash_attn += +(\w+)|Flash Attention was auto, set to (\w+)"):
        on = (match[1] or match[2]) in ("1", "on", "enabled")
        log.put("attention_backend", "flash attention" if on else None, line, "last")
    return imported(source, log)


def _fullest(text: str, begin: int) -> float:
    """Return the largest cache bytes of a device in the last pass, or 0."""
    held: dict[str, float] = {}
    for line, match in matches(text, r"(\S+) (?:KV|RS) buffer size += +([\d.]+) MiB"):
        if line >= begin and not match[1].startswith(("CPU", "CUDA_Host")):
            held[match[1]] = held.get(match[1], 0.0) + float(match[2]) * _MIB
    return max(held.values(), default=0.0)


def _buffers(text: str, pattern: str) -> dict[str, float]:
    """Return the last size printed for each buffer.

    A fitting pass prints some of them before the real one.
    """
    result: dict[str, float] = {}
    for _, match in matches(text, pattern):
        result[match[1]] = float(match[2]) * _MIB
    return result


IMPORTERS = (
    Importer(KIND_VLLM_LOG, recognise_vllm_log, read_vllm_log),
    Importer(KIND_SGLANG_LOG, recognise_sglang_log, read_sglang_log),
    Importer(KIND_TRTLLM_LOG, recognise_trtllm_log, read_trtllm_log),
    Importer(KIND_LLAMACPP_LOG, recognise_llamacpp_log, read_llamacpp_log),
)
