"""Read facts that a server reports.

`/metrics`, `/get_server_info`, `/v1/models` (vLLM, SGLang), `/props` (llama.cpp).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from glmplan.catalog.files import parse_json
from glmplan.errors import NoServer, SpecError
from glmplan.measure.client import PAGE_SECONDS, Client, MalformedStream
from glmplan.units import Tokens

__all__ = ["ServerFacts", "changed", "parse_metrics", "read_gauges", "read_server"]

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+([-+0-9.eE]+|[+-]?Inf|NaN)(?:\s+\d+)?\s*$")
#: larger counts are errors [-]; largest number of GPUs and of listed models
_MOST, _MOST_PARTS, _MODELS = 1e15, 1 << 16, 1000
#: time limit of all pages together [s]
_PATIENCE = 30.0
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: our name → metrics of the engines; the first present one counts
_GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "kv_used": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_reqs"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "prefix_hit_rate": ("sglang:cache_hit_rate",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "acceptance_length": ("sglang:spec_accept_length",),
    "generated_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "steps": ("llamacpp:n_decode_total", "llamacpp:n_decode", "vllm:iteration_tokens_total_count"),
}
_COUNTERS = ("preemptions", "prefix_queries", "prefix_hits", "draft_tokens", "accepted_tokens", "drafts",
             "generated_tokens", "prompt_tokens", "steps")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts of a server; None if not reported."""

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    models: tuple[str, ...] = ()  # all served names
    max_context: Tokens | None = None  # longest request
    kv_tokens: Tokens | None = None  # KV pool
    max_sequences: float | None = None  # running requests
    layout: dict[str, int] = field(default_factory=dict)  # tp, pp, dp, ep as far as reported
    pages: tuple[str, ...] = ()  # that answered
    gauges: dict[str, float] = field(
        default_factory=dict
    )  # running and waiting requests, preemptions, acceptance, prefix hits


def parse_metrics(text: str) -> list[tuple[str, dict[str, str], float]]:
    r"""Return name, labels and value of each Prometheus sample.

    Malformed lines are skipped.

    Examples
    --------
    >>> parse_metrics('# TYPE a gauge\na{model="m"} 2.5\n')
    [('a', {'model': 'm'}, 2.5)]
    """
    samples = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and math.isfinite(value := _number(match[3])):
            samples.append((match[1], dict(_LABEL.findall(match[2] or "")), value))
    return samples


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _gauges(samples: list[tuple[str, dict[str, str], float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, _, value in samples:
        # ranks report the same counter: their sum is the server's
        sums[name] = sums.get(name, 0.0) + value
    return {ours: sums[n] for ours, names in _GAUGES.items() for n in names[::-1] if abs(sums.get(n, math.inf)) < _MOST}


async def read_gauges(client: Client) -> dict[str, float]:
    """Return the server's counters now; empty without a metrics page."""
    page = await _page(client, "/metrics")
    return _gauges(parse_metrics(page)) if isinstance(page, str) else {}


def changed(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return increases of counters and final values of gauges.

    A counter that fell (server restart) has none.

    Examples
    --------
    >>> changed({"preemptions": 2, "running": 1}, {"preemptions": 5, "running": 4})
    {'preemptions': 3, 'running': 4}
    """
    gained = {k: v - before.get(k, 0.0) if k in _COUNTERS else v for k, v in after.items()}
    return {k: v for k, v in gained.items() if k not in _COUNTERS or v >= 0}


async def read_server(client: Client) -> ServerFacts:
    """Return all facts that a server reports."""
    pages: dict[str, Any] = {}
    try:
        await client.page(f"{client.endpoint.url.rstrip('/')}/models")
    except MalformedStream:
        pass  # an unusable page still shows that there is a server
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
        late = isinstance(error, TimeoutError | httpx.TimeoutException)
        why = f"no whole page within {PAGE_SECONDS:g} s" if late else f"{type(error).__name__}: {error}"
        why = client.outside.clean(why.removesuffix(": "))
        raise NoServer(f"answers nothing: {why}", field="--url", value=client.endpoint.url) from None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            for path in ("/v1/models", "/metrics", "/get_server_info", "/server_info", "/props", "/slots", "/version"):
                page = await _page(client, path)
                if page is not None:
                    pages[path] = page
    return _facts(client, pages)


def _facts(client: Client, pages: dict[str, Any]) -> ServerFacts:
    """Return the plausible facts of the pages."""

    def text(*values: Any) -> str | None:
        found = next((v for v in values if isinstance(v, str) and v), None)
        # strip characters that start a formula in spreadsheet programs
        return None if found is None else client.outside.clean(found).lstrip("=+-@ ") or None

    metrics = pages.get("/metrics")
    samples = parse_metrics(metrics) if isinstance(metrics, str) else []
    listed = pages.get("/v1/models")
    data = listed.get("data") if isinstance(listed, dict) else None
    entries = [e for e in data[:_MODELS] if isinstance(e, dict)] if isinstance(data, list) else []
    mine = next((e for e in entries if e.get("id") == client.endpoint.model), entries[0] if entries else {})
    info = pages.get("/get_server_info") or pages.get("/server_info")
    info = info if isinstance(info, dict) else {}
    props: dict[str, Any] = held if isinstance(held := pages.get("/props"), dict) else {}
    settings = props.get("default_generation_settings")
    settings = settings if isinstance(settings, dict) else {}
    slots = pages.get("/slots") if isinstance(pages.get("/slots"), list) else []
    version = pages.get("/version")
    engine = _engine(mine, samples, info, props)
    cache: dict[str, str] = next((labels for name, labels, _ in samples if name == "vllm:cache_config_info"), {})
    sequences = _first(props.get("total_slots"), info.get("max_running_requests"), len(slots or []) or None)
    per_slot = _first(settings.get("n_ctx"))
    kv_tokens = _first(info.get("max_total_num_tokens"), _blocks(cache))
    if kv_tokens is None and per_slot is not None and engine == "llama.cpp":
        kv_tokens = per_slot * (sequences or 1)
    return ServerFacts(
        engine=engine,
        version=text(
            info.get("version"),
            props.get("build_info"),
            (version or {}).get("version") if isinstance(version, dict) else None,
        ),
        model=text(mine.get("root"), info.get("model_path"), props.get("model_path"), mine.get("id")),
        models=tuple(client.outside.clean(e.get("id")) for e in entries),
        max_context=_first(mine.get("max_model_len"), info.get("context_length"), per_slot),
        kv_tokens=kv_tokens,
        max_sequences=sequences,
        layout={ours: info[theirs] for ours, theirs in _SIZES.items() if _is_degree(info.get(theirs))},
        pages=tuple(pages),
        gauges=_gauges(samples),
    )


_SIZES = {"tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "ep": "ep_size"}


async def _page(client: Client, path: str) -> Any:
    for again in (True, False):
        try:
            status, content = await client.page(client.endpoint.root + path)
            break
        except (TimeoutError, MalformedStream):
            return None
        except (httpx.HTTPError, OSError):
            # a server may close a kept-alive connection just as it is reused
            if not again:
                return None
    if status != 200:
        return None
    if path == "/metrics":
        return content.decode(errors="replace")
    try:
        return parse_json(content)
    except SpecError:
        return None


def _is_degree(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_PARTS


def _engine(mine: dict[str, Any], samples: list[Any], info: dict[str, Any], props: dict[str, Any]) -> str | None:
    owner = str(mine.get("owned_by", "")).lower()
    prefixes = {name.partition(":")[0] for name, _, _ in samples if ":" in name}
    for engine, marks in (("vllm", ("vllm",)), ("sglang", ("sglang",)), ("llama.cpp", ("llamacpp",))):
        if owner in marks or prefixes & set(marks):
            return engine
    if "max_total_num_tokens" in info:
        return "sglang"
    return "llama.cpp" if "build_info" in props or "total_slots" in props else None


def _blocks(cache: dict[str, str]) -> float | None:
    return _first(_number(cache.get("num_gpu_blocks", "")) * _number(cache.get("block_size", "")))


def _first(*values: Any) -> float | None:
    numbers = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    return next((float(v) for v in numbers if 0 < v < _MOST), None)
