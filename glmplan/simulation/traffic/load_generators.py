"""Read traffic from the settings of load generators.

References
----------
.. [1] inference-perf, https://github.com/kubernetes-sigs/inference-perf docs/config.md and docs/loadgen.md (`load` with
   its type and stages, `data` with the distributions of lengths).
.. [2] AIPerf, https://github.com/ai-dynamo/aiperf docs/cli-options.md and `src/aiperf/config/templates` (`dataset` and
   `profiling`, or `benchmark` around them).
"""

from __future__ import annotations

import shlex
from typing import Any

from glmplan.catalog.files import parse_json, read_text
from glmplan.errors import SpecError
from glmplan.extras import wanted
from glmplan.units import finite_number

__all__ = ["aiperf_command", "load_file"]

#: longest file [B], and values in it with those that aliases repeat [-]
_MOST_OF_A_FILE, _MOST_VALUES = 2**20, 10_000
#: settings of the load of inference-perf without effect on it
_NEUTRAL = (
    "base_seed", "circuit_breakers", "interval", "num_workers", "request_retries", "request_retry_backoff_sec",
    "request_timeout", "worker_max_concurrency", "worker_max_tcp_connections", "stages.duration", "stages.num_requests",
)  # fmt: skip
#: options of AIPerf, with the names of the same settings in its file
_OPTIONS = {
    "concurrency": "profiling.concurrency", "request-rate": "profiling.rate", "request-rate-mode": "profiling.type",
    "arrival-pattern": "profiling.type", "arrival-smoothness": "profiling.smoothness",
    "isl": "dataset.isl.mean", "isl-stddev": "dataset.isl.stddev", "osl": "dataset.osl.mean",
    "osl-stddev": "dataset.osl.stddev", "prompt-input-tokens-mean": "dataset.isl.mean",
    "prompt-input-tokens-stddev": "dataset.isl.stddev", "prompt-output-tokens-mean": "dataset.osl.mean",
    "prompt-output-tokens-stddev": "dataset.osl.stddev", "synthetic-input-tokens-mean": "dataset.isl.mean",
    "synthetic-input-tokens-stddev": "dataset.isl.stddev", "output-tokens-mean": "dataset.osl.mean",
    "shared-system-prompt-length": "dataset.prefixPrompts.sharedSystemLength",
    "conversation-turn-mean": "dataset.turns.mean", "conversation-turn-delay-mean": "dataset.turnDelay.mean",
}  # fmt: skip
#: options of AIPerf without effect on the load
_OTHERS = (
    "m", "model", "model-names", "u", "url", "endpoint", "custom-endpoint", "endpoint-type", "streaming", "tokenizer",
    "tokenizer-trust-remote-code", "api-key", "request-count", "num-requests", "benchmark-duration", "num-sessions",
    "benchmark-grace-period", "random-seed", "ui", "ui-type", "artifact-dir", "output-artifact-dir", "goodput",
    "conversation-num", "warmup-request-count", "num-warmup-requests", "extra-inputs", "num-dataset-entries",
)  # fmt: skip


class _Settings(dict[str, Any]):
    """Settings by their names, as load.type; those left are refused."""

    file: str

    def number(self, name: str, default: float | None = None) -> float | None:
        value = self.pop(name, None)
        if isinstance(value, list):
            raise self.wrong(name, "is a list: a sweep takes one run for each of its values")
        return default if value is None else finite_number(value, f"{self.file}: {name}")

    def wrong(self, name: str, message: str, value: object = None) -> SpecError:
        shown = (
            str(value)[:40] if isinstance(value, str | int | float) else None
        )  # aliases make long lists of short files
        return SpecError(message, file=self.file, field=name, value=shown)

    def all_read(self, *neutral: str) -> None:
        for name, value in self.items():
            if name not in neutral:
                raise self.wrong(name, "is not read: leave it out if it does not change the load", value)


def _flat(tree: Any, file: str, parts: tuple[str, ...]) -> _Settings:
    """Return the settings of a tree; a list of one entry is that entry."""
    found = _Settings()
    found.file = file
    waiting, seen = [(part, tree.get(part)) for part in parts], 0
    while waiting:
        name, value = waiting.pop()
        seen += 1
        if seen > _MOST_VALUES:
            raise SpecError(f"holds more than {_MOST_VALUES:,} values", file=file)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif value is not None:
            found[name] = value
    return found


def load_file(path: str) -> dict[str, Any]:
    """Return the fields of `Traffic` from a file of inference-perf or AIPerf.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "load.json"
    >>> _ = file.write_text('{"load": {"type": "poisson", "stages": [{"rate": 5, "duration": 60}]}}')
    >>> load_file(str(file))
    {'kind': 'poisson', 'rate': 5.0}
    """
    text = read_text(path, most=_MOST_OF_A_FILE)
    if path.endswith(".json"):
        tree = parse_json(text, file=path)
    else:
        yaml = wanted("yaml", field="--traffic")
        try:
            tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise SpecError(f"is no YAML: {' '.join(str(error).split())[:160]}", file=path) from None
    if not isinstance(tree, dict):
        raise SpecError("is not a table of settings, as load: ...", file=path)
    if "load" in tree:
        return _inference_perf(_flat(tree, path, ("load", "data")))
    inner = tree.get("benchmark")
    merged = {**tree, **inner} if isinstance(inner, dict) else tree
    if "profiling" not in merged or "dataset" not in merged:
        raise SpecError("has neither load (inference-perf) nor dataset and profiling (AIPerf)", file=path)
    return _aiperf(_flat(merged, path, ("dataset", "profiling")))


def aiperf_command(words: str) -> dict[str, Any]:
    """Return the fields of `Traffic` from a command line of AIPerf.

    Examples
    --------
    >>> aiperf_command("aiperf profile -m x --request-rate 5 --isl 550 --osl 128 --streaming")
    {'kind': 'poisson', 'rate': 5.0, 'input': 550, 'output': 128}
    """
    found = _flat({}, "--traffic", ())
    try:
        said = shlex.split(words)
    except ValueError as error:
        raise SpecError(f"is no command line: {error}", field="--traffic", value=words[:40]) from None
    if said[:2] != ["aiperf", "profile"]:
        raise SpecError("must begin with aiperf profile", field="--traffic", value=words[:40])
    name = ""
    for word in said[2:]:
        if word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            if name not in _OPTIONS and name not in _OTHERS:
                raise SpecError("is not read: leave it out if it does not change the load", field="--traffic",
                                value=word[:40], choices=tuple(f"--{one}" for one in _OPTIONS))  # fmt: skip
        else:
            value = word
        if value and name in _OPTIONS:
            found[_OPTIONS[name]] = value
    return _aiperf(found)


def _length(settings: _Settings, place: str, mean: float, wide: float, fields: dict[str, Any], name: str) -> None:
    if mean < 1 or wide < 0:
        raise settings.wrong(place, "must be at least 1 token, with a spread of at least 0", mean)
    fields[name] = round(mean)
    if wide:
        fields[f"{name}_cv"] = wide / mean


def _distribution(settings: _Settings, place: str) -> tuple[float, float]:
    """Return mean and deviation, by default those of inference-perf."""
    kind = settings.pop(f"{place}.type", "normal")
    least, most, mean, wide = (
        settings.number(f"{place}.{name}", default) or 0.0
        for name, default in (("min", 10.0), ("max", 1024.0), ("mean", 512.0), ("std_dev", 200.0))
    )
    variance = settings.number(f"{place}.variance")
    settings.pop(f"{place}.total_count", None)
    if kind not in ("normal", "lognormal", "uniform", "fixed", "poisson"):
        raise settings.wrong(f"{place}.type", "is not simulated", kind)
    if kind == "uniform":
        return (least + most) / 2, max(most - least, 0.0) / 12**0.5
    if kind in ("fixed", "poisson"):
        return mean, 0.0 if kind == "fixed" else max(mean, 0.0) ** 0.5
    return mean, wide if variance is None else max(variance, 0.0) ** 0.5


def _inference_perf(settings: _Settings) -> dict[str, Any]:
    kind, holds = settings.pop("load.type", "constant"), settings.pop("data.type", "mock")
    if "load.stages" in settings:
        raise settings.wrong("load.stages", "must be one stage: simulate one file for each, or give --sweep-rate")
    if kind not in ("constant", "poisson", "concurrent"):
        raise settings.wrong("load.type", "is not simulated: constant, poisson and concurrent are", kind)
    fields: dict[str, Any] = {"kind": "closed" if kind == "concurrent" else kind}
    load, name = ("users", "concurrency_level") if kind == "concurrent" else ("rate", "rate")
    fields[load] = settings.number(f"load.stages.{name}")
    if holds in ("synthetic", "random"):
        for side in ("input", "output"):
            _length(settings, side, *_distribution(settings, f"data.{side}_distribution"), fields, side)
    elif holds == "shared_prefix":
        place = "data.shared_prefix"
        for name in ("num_groups", "num_unique_system_prompts"):
            if settings.number(f"{place}.{name}", 1.0) != 1.0:
                raise settings.wrong(f"{place}.{name}", "is more than the one shared prefix that is simulated")
        shared = settings.number(f"{place}.system_prompt_len", 100.0) or 0.0
        for side, inner, beside in (("input", "question", shared), ("output", "output", 0.0)):
            mean, wide = settings.number(f"{place}.{inner}_len", 50.0) or 0.0, 0.0
            if any(name.startswith(f"{place}.{inner}_distribution.") for name in settings):
                mean, wide = _distribution(settings, f"{place}.{inner}_distribution")
            _length(settings, f"{place}.{inner}_len", mean + beside, wide, fields, side)
        fields["shared_prefix"] = int(shared)
        for name in ("num_prompts_per_group", "num_users_per_system_prompt", "max_model_len"):
            settings.pop(f"{place}.{name}", None)
    elif holds != "mock":
        raise settings.wrong("data.type", "is not simulated: synthetic, random and shared_prefix are", holds)
    settings.all_read(*(f"load.{name}" for name in _NEUTRAL))
    return fields


def _aiperf(settings: _Settings) -> dict[str, Any]:
    users, rate = settings.number("profiling.concurrency"), settings.number("profiling.rate")
    kind, smooth = settings.pop("profiling.type", "concurrency"), settings.number("profiling.smoothness", 1.0) or 0.0
    fields: dict[str, Any] = {"kind": "closed", "users": users or 1}
    if rate is not None:
        if users is not None:
            raise settings.wrong("concurrency", "limits requests in flight beside a rate, which is not simulated")
        fields = {"kind": "poisson" if kind == "concurrency" else kind, "rate": rate}
        if kind == "gamma" and smooth > 0:
            fields["cv"] = smooth**-0.5
    if kind not in ("concurrency", "poisson", "constant", "gamma") or (kind != "concurrency" and rate is None):
        raise settings.wrong(
            "profiling.type", "is not simulated: concurrency, or poisson, constant and gamma at a rate", kind
        )
    for name, key in (("input", "isl"), ("output", "osl")):
        for place in (f"dataset.prompts.{key}", f"dataset.{key}"):
            mean = settings.number(place, settings.number(f"{place}.mean"))
            wide = settings.number(f"{place}.stddev", 0.0) or 0.0
            if mean is not None:
                _length(settings, place, mean, wide, fields, name)
    shared = settings.number("dataset.prefixPrompts.sharedSystemLength")
    turns, pause = settings.number("dataset.turns.mean", 1.0) or 1.0, settings.number("dataset.turnDelay.mean", 0.0)
    if turns > 1:
        if rate is not None:
            raise settings.wrong("dataset.turns", "is not read beside a rate: give sessions:RATE/s with --turns")
        fields |= {"kind": "sessions", "turns": round(turns), "tool_wait": (pause or 0.0) / 1000}
    if shared:
        fields["shared_prefix"] = int(shared)
        if turns <= 1:  # the system prompt comes before the prompt
            fields["input"] = fields.get("input", 550) + int(shared)
    if (holds := settings.pop("dataset.type", "synthetic")) != "synthetic":
        raise settings.wrong("dataset.type", "is not read: give trace:FILE for a data set", holds)
    others = ("requests", "duration", "gracePeriod", "sessions")
    settings.all_read("dataset.entries", *(f"profiling.{name}" for name in others))
    return fields
