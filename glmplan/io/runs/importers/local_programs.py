"""Import timings of single requests from programs on one machine.

MLX-LM (`mlx_lm.benchmark`, `mlx_lm.generate`, 0.32.2), Ollama (`--verbose` and its API), KTransformers, llama.cpp
(timings of its programs, `timings` of llama-server's answers, the last line of llama-cli), LM Studio (`lms chat
--stats` and its API) and TabbyAPI, which serves ExLlamaV2 and ExLlamaV3 (common/gen_logging.py).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from glmplan.io.runs.importers.printed_results import NUMBER, numbers
from glmplan.io.runs.importers.record import (
    Fields,
    Imported,
    Importer,
    Problem,
    Source,
    by_keys,
    by_text,
    documents,
    milliseconds,
    notes,
    row_identifier,
)
from glmplan.units import Ratio, Tokens

__all__ = ["IMPORTERS", "TIMINGS"]

#: tokens and tokens per second of a phase of a request; None: not stated
_Phase = tuple[float | None, float | None]


def _two_phases(
    source: Source, kind: str, engine: str | None, phases: tuple[_Phase, _Phase], users: Ratio = 1.0, **more: Any
) -> Imported:
    """Return a decode and a prefill run of tokens and rates.

    `phases`: the prompt and the answer.
    """
    prompt, answer = phases
    about = {"engine": engine, "concurrency": users, "num_requests": users, "input_tokens": prompt[0],
             "notes": kind}  # fmt: skip
    rows: list[dict[str, Any]] = []
    if answer[1]:
        rows.append(about | more | {
            "phase": "decode", "output_tokens": answer[0], "output_tokens_per_s": answer[1],
            "tpot_mean_ms": 1e3 * users / answer[1],
        })  # fmt: skip
    if prompt[1]:
        rows.append(about | {"phase": "prefill", "prefill_tokens_per_s": prompt[1]})
    if not rows:
        return Imported("", [], [Problem(0, "", "expected a rate of tokens")])
    return Imported("", [{"id": row_identifier(source.text, at), **row} for at, row in enumerate(rows)])


def _median(phases: Sequence[_Phase]) -> _Phase:
    """Return the medians of the requests that state a phase."""
    known = [(count, rate) for count, rate in phases if count and rate]
    if not known:
        return None, None
    return statistics.median(count for count, _ in known), statistics.median(rate for _, rate in known)


def _requests(source: Source, kind: str, engine: str | None, found: Sequence[tuple[_Phase, _Phase]],
              **more: Any) -> Imported:  # fmt: skip
    """Return the medians of single requests."""
    several = f"medians of {len(found)} requests" if len(found) > 1 else ""
    prompt, answer = (_median([pair[at] for pair in found]) for at in (0, 1))
    return _two_phases(source, notes(kind, several), engine, (prompt, answer), **more)


def _accepted(answer: Tokens, accepted: Tokens) -> dict[str, float]:
    """Return the tokens of a step: its accepted tokens and one more."""
    return {"acceptance_length": answer / (answer - accepted)} if 0 < accepted < answer else {}


KIND_MLX_BENCHMARK, KIND_MLX_GENERATE = "mlx_lm.benchmark", "mlx_lm.generate"
_MLX_BATCH = r"prompt_tokens=(\d+), generation_tokens=(\d+), batch_size=(\d+)"
_MLX_MEAN = rf"^Averages: prompt_tps={NUMBER}, generation_tps={NUMBER}"


def _mlx_benchmark(source: Source) -> Imported:
    sizes, mean = re.search(_MLX_BATCH, source.text), re.search(_MLX_MEAN, source.text, re.MULTILINE)
    prompt, answer, users = (float(item) for item in sizes.groups()) if sizes else (None, None, 1.0)
    rates = [float(item.replace(",", "")) for item in mean.groups()] if mean else [None, None]
    return _two_phases(source, KIND_MLX_BENCHMARK, "mlx", ((prompt, rates[0]), (answer, rates[1])), users or 1.0)


_MLX_LINE = rf"^{{}}: {NUMBER} tokens, {NUMBER} tokens-per-sec"


def _mlx_generate(source: Source) -> Imported:
    pairs: list[_Phase] = []
    for name in ("Prompt", "Generation"):
        found = re.search(_MLX_LINE.format(name), source.text, re.MULTILINE)
        pairs.append((float(found[1].replace(",", "")), float(found[2].replace(",", ""))) if found else (None, None))
    return _two_phases(source, KIND_MLX_GENERATE, "mlx", (pairs[0], pairs[1]))


KIND_OLLAMA, KIND_OLLAMA_API = "ollama --verbose", "ollama api"
_OLLAMA = {"backend": "ollama"}


def _evaluated(source: Source) -> Imported:
    """Read the counts and rates of Ollama or KTransformers.

    Both print the same lines; only Ollama prints the time to load the model.
    """
    found = numbers(source.text, {
        "prompt": "prompt eval count", "answer": "eval count", "prefill": "prompt eval rate", "decode": "eval rate",
    })  # fmt: skip
    ollama = re.search(r"^(?:load|total) duration:", source.text, re.MULTILINE) is not None
    kind, engine = (KIND_OLLAMA, "llama.cpp") if ollama else ("ollama or ktransformers", None)
    phases = ((found.get("prompt"), found.get("prefill")), (found.get("answer"), found.get("decode")))
    result = _two_phases(source, kind, engine, phases)
    doubt = Problem(0, "engine", "Ollama and KTransformers print these lines: give the engine")
    rows = [row | (_OLLAMA if ollama else {}) for row in result.rows]
    return Imported("", rows, result.problems if ollama else [*result.problems, doubt])


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a record and all records in it."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _dictionaries(one)


def _answers(source: Source, key: str) -> tuple[list[Fields], list[Problem]]:
    """Return the records with a field, from all answers of a file."""
    found, problems = documents(source.text)
    records = [Fields(one, item.line, problems) for item in found for one in _dictionaries(item.value) if key in one]
    return records, problems


def _timed(one: Fields, count: str, time: str, units: float) -> _Phase:
    """Return the tokens of a phase and their rate, [-] and [1/s].

    `units`: Units of the time in a second.
    """
    tokens, spent = one.positive(count), one.positive(time)
    return tokens, tokens / spent * units if tokens and spent else None


def _ollama_api(source: Source) -> Imported:
    """Read answers of Ollama's API, whose durations are in nanoseconds."""
    records, problems = _answers(source, "eval_duration")

    def phase(one: Fields, name: str) -> _Phase:
        return _timed(one, f"{name}_count", f"{name}_duration", 1e9)

    found = [(phase(one, "prompt_eval"), phase(one, "eval")) for one in records]
    result = _requests(source, KIND_OLLAMA_API, "llama.cpp", found)
    name = next((one.text("model") for one in records if one.text("model")), None)
    rows = [row | _OLLAMA | {"checkpoint": name} for row in result.rows]
    return Imported("", rows, [*problems, *result.problems])


KIND_TIMINGS, KIND_SERVER, KIND_CLI = "llama-server timings", "llama-server answer", "llama-cli"
_TIMING = rf"{{}} time =\s*{NUMBER} ms /\s*(\d+) (?:tokens|runs)"
_ACCEPTED = r"draft acceptance rate = [\d.]+ \(\s*(\d+) accepted /\s*\d+ generated\)"


def _timings(source: Source) -> Imported:
    """Read the timings of single requests; of several, the medians."""
    phases: list[list[_Phase]] = []
    for name in ("prompt eval", r"(?<!prompt )\beval"):
        found = [(float(ms.replace(",", "")), float(count))
                 for ms, count in re.findall(_TIMING.format(name), source.text)]  # fmt: skip
        phases.append([(count, 1e3 * count / ms) for ms, count in found if ms > 0 and count > 0])
    accepted = sum(int(count) for count in re.findall(_ACCEPTED, source.text))
    answers = sum(count or 0 for count, _ in phases[1])
    return _two_phases(source, KIND_TIMINGS, "llama.cpp", (_median(phases[0]), _median(phases[1])),
                       **_accepted(answers, accepted))  # fmt: skip


def _server_answers(source: Source) -> Imported:
    records, problems = _answers(source, "predicted_ms")

    def phase(one: Fields, name: str) -> _Phase:
        return _timed(one, f"{name}_n", f"{name}_ms", 1e3)

    found = [(phase(one, "prompt"), phase(one, "predicted")) for one in records]
    answers, accepted = (sum(one.number(name) or 0 for one in records) for name in ("predicted_n", "draft_n_accepted"))
    result = _requests(source, KIND_SERVER, "llama.cpp", found, **_accepted(answers, accepted))
    return Imported("", result.rows, [*problems, *result.problems])


_CLI = re.compile(r"\[ *Prompt: *([\d.,]+) t/s \| Generation: *([\d.,]+) t/s *\]")


def _cli(source: Source) -> Imported:
    """Read the last line of llama-cli, without lengths.

    A locale may write a decimal comma.
    """
    prompt, answer = (
        statistics.median(float(item.replace(",", ".")) for item in column)
        for column in zip(*_CLI.findall(source.text), strict=True)
    )
    lengths = notes(KIND_CLI, "the line states no lengths: set input_tokens and output_tokens")
    return _two_phases(source, lengths, "llama.cpp", ((None, prompt), (None, answer)))


KIND_LM_STUDIO = "lm studio"
_AFTER_FIRST = "one request; speed taken as that after the first token, which no document of LM Studio says"


def _lms(source: Source) -> Imported:
    """Read `lms chat --stats` (lms-cli, displayVerboseStats)."""
    found = numbers(source.text, {"decode": "Tokens/Second", "first": "Time to First Token", "prompt": "Prompt Tokens",
                                  "answer": "Predicted Tokens"})  # fmt: skip
    return _studio(source, [found])


def _lm_studio_api(source: Source) -> Imported:
    """Read answers of LM Studio's API, with times in seconds.

    /api/v0 has `usage` beside `stats`, /api/v1 has `stats` alone.
    """
    records, problems = _answers(source, "stats")
    found: list[dict[str, float]] = []
    for one in records:
        stats, usage = one.inside("stats"), one.inside("usage")
        values = {
            "decode": stats.positive("tokens_per_second"),
            "first": stats.positive("time_to_first_token", "time_to_first_token_seconds"),
            "prompt": usage.positive("prompt_tokens") or stats.positive("input_tokens"),
            "answer": usage.positive("completion_tokens") or stats.positive("total_output_tokens"),
        }
        found.append({name: value for name, value in values.items() if value is not None})
    result = _studio(source, found)
    return Imported("", result.rows, [*problems, *result.problems])


def _studio(source: Source, found: Sequence[dict[str, float]]) -> Imported:
    """Return one run for each answer; the stated speed is that of one request.

    It is taken as the speed after the first token. The documents call it the generation speed and define it no further
    [1]_; of their two examples with a generation time, one is all tokens over this time, which is shorter than the time
    to the first token, and the other (53 tokens, 0.954 s, 51.4 tokens/s) fits with or without that time within 8 %.

    References
    ----------
    .. [1] https://github.com/lmstudio-ai/docs at c6854fb, 1_developer/2_rest/endpoints.mdx and chat.md.
    """
    rows: list[dict[str, Any]] = []
    for one in found:
        rate, first = one.get("decode"), one.get("first")
        rows.append({
            "id": row_identifier(source.text, len(rows)), "backend": "lm studio", "phase": "serving",
            "concurrency": 1.0, "num_requests": 1.0, "input_tokens": one.get("prompt"),
            "output_tokens": one.get("answer"),
            "ttft_mean_ms": milliseconds(first), "tpot_mean_ms": 1e3 / rate if rate else None,
            "output_tokens_per_s_per_request": rate, "notes": notes(KIND_LM_STUDIO, _AFTER_FIRST),
        })  # fmt: skip
    return Imported("", rows, [Problem(0, "engine", "LM Studio runs llama.cpp or MLX: give the engine")])


KIND_TABBY = "tabbyapi metrics"
_TABBY = re.compile(
    rf"{NUMBER} tokens generated in {NUMBER} seconds \(Queue: [\d.]+ s, Process: {NUMBER} cached tokens and {NUMBER} "
    rf"new tokens at ({NUMBER}|Indeterminate) T/s, Generate: {NUMBER} T/s"
)


def _tabby(source: Source) -> Imported:
    """Read TabbyAPI's metrics of single requests."""
    found: list[tuple[_Phase, _Phase]] = []
    for answer, _, cached, new, rate, _, decode in _TABBY.findall(source.text):
        prompt = float(cached) + float(new)
        # a prompt from the cache tells nothing about reading prompts
        prefill = float(rate) if rate != "Indeterminate" and not float(cached) else None
        found.append(((prompt, prefill), (float(answer), float(decode))))
    result = _requests(source, KIND_TABBY, None, found)
    doubt = Problem(0, "engine", "TabbyAPI runs ExLlamaV2 or ExLlamaV3: give the engine")
    return Imported("", result.rows, [*result.problems, doubt])


def _answer_with(*keys: str) -> Callable[[Source], bool]:
    """Return a test for JSON with keys, no log whose lines quote answers."""
    found = by_keys(*keys)
    return lambda source: source.text.lstrip()[:1] in ("{", "[") and found(source)


IMPORTERS = (
    Importer(KIND_MLX_BENCHMARK, by_text(_MLX_MEAN), _mlx_benchmark),
    Importer(KIND_MLX_GENERATE, by_text(_MLX_LINE.format("Generation")), _mlx_generate),
    Importer(KIND_OLLAMA, by_text(rf"^eval rate:\s+{NUMBER} tokens/s"), _evaluated),
    Importer(KIND_OLLAMA_API, _answer_with("eval_count", "eval_duration"), _ollama_api),
    Importer(KIND_SERVER, _answer_with("predicted_ms", "predicted_n"), _server_answers),
    Importer(KIND_LM_STUDIO, _answer_with("stats", "tokens_per_second"), _lm_studio_api),
    Importer(KIND_LM_STUDIO, by_text(r"^Prediction Stats:"), _lms),
    Importer(KIND_TABBY, by_text(_TABBY.pattern), _tabby),
    Importer(KIND_CLI, by_text(_CLI.pattern), _cli),
)  # fmt: skip

#: lines between a start-up log and the end of an engine, tried after start-up logs
TIMINGS = (Importer(KIND_TIMINGS, by_text(_TIMING.format("eval")), _timings),)
