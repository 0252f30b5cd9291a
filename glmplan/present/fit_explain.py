"""Write the arithmetic of a `fit` answer, and the answer as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import TextWrapper
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.tables import csv_lines
from glmplan.costs.blocks.stack import checkpoint_bytes, model_parameters
from glmplan.costs.memory.pool import stage_pools
from glmplan.costs.points import StepPoints
from glmplan.costs.step.model import COMPONENTS, GPU_COMPONENTS, PARAMETERS, FrontPoints, step_time
from glmplan.costs.step.work import SLOTS
from glmplan.planner.capacity import Holding
from glmplan.planner.plan import USER_FIGURES, UserRow, user_rows
from glmplan.planner.pool import MEMORY_COLUMNS, memory_rows
from glmplan.planner.question import Asked
from glmplan.planner.ranking import load_on
from glmplan.planner.users import predictions_of
from glmplan.prediction.effects import keys_of, load_effects
from glmplan.prediction.load import metrics_of
from glmplan.prediction.power import limited
from glmplan.prediction.predict import front_of
from glmplan.prediction.replicas import split_users
from glmplan.prediction.step_models import (
    runs_on_accelerators,
    site_calibration,
    step_model_of,
    step_parameters,
    step_tables,
)
from glmplan.present.answer_text import fit_text, lengths_words, pool_lines
from glmplan.present.json_answers import users_at
from glmplan.present.text import LIMITS, WIDTH
from glmplan.units import GIB, Seconds, number

if TYPE_CHECKING:
    from glmplan.planner.make_plan import FitAnswer
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.predict import Figure

__all__ = [
    "CSV_COLUMNS",
    "Paragraph",
    "Term",
    "arithmetic_parts",
    "arithmetic_text",
    "fit_csv",
    "fit_explanation",
    "fit_markdown",
]


#: title of each column of the work table
_SLOT_WORDS = {
    "host": "engine steps",
    "layer": "layers",
    "moe_layer": "layers with experts",
    "state_layer": "latent and recurrent layers",
    "request": "tokens of decoding requests, in each layer",
    "activation": "hidden states",
    "gemm_fixed": "dense products: start",
    "gemm_bytes": "dense products: weights read",
    "gemm_flop": "dense products: arithmetic",
    "expert_fixed": "experts: start",
    "expert_bytes": "experts: weights read",
    "expert_flop": "experts: arithmetic",
    "attention_fixed": "attention: start",
    "cache": "attention: cache read",
    "prefill_attention": "attention of prompts",
    "collective": "collectives: latency",
    "collective_bytes": "collectives: payload",
}


@dataclass(frozen=True)
class Term:
    """One component of a time."""

    name: str
    #: work by the kernel benchmark; empty without a fit by kernel
    work: str
    #: fitted time of a piece of the work, or factor on its time
    fitted: str
    seconds: Seconds


@dataclass(frozen=True)
class Paragraph:
    """A step of the arithmetic, and the components of its time."""

    #: 0 for a paragraph that continues the one before
    number: int
    text: str
    terms: tuple[Term, ...] = ()

    @property
    def seconds(self) -> Seconds:
        """Return the sum of the components."""
        return sum(one.seconds for one in self.terms)


def fit_explanation(answer: FitAnswer) -> str:
    """Return the arithmetic of an answer as text.

    It has parameters, bytes on a rank, cache per token, pool, step time and first token by component.
    """
    return arithmetic_text(arithmetic_parts(answer))


def arithmetic_text(parts: Mapping[str, Paragraph]) -> str:
    """Return the paragraphs of the arithmetic as one text."""
    out = "\nThe arithmetic\n"
    wrapper = TextWrapper(WIDTH, initial_indent="  ", subsequent_indent="     ", break_on_hyphens=False)
    for one in parts.values():
        out += wrapper.fill(f"{one.number}. {one.text}" if one.number else f"   {one.text}") + "\n"
        if any(term.fitted for term in one.terms):
            out += f"     {'':32}{'work':>12}{'fitted':>18}{'ms':>9}{'share':>7}\n"
        for term in one.terms:
            share = term.seconds / one.seconds
            out += f"     {term.name:32}{term.work:>12}{term.fitted:>18}{term.seconds * 1e3:9.2f}{share:7.0%}\n"
    return out


def arithmetic_parts(answer: FitAnswer) -> dict[str, Paragraph]:
    """Return the paragraphs of the arithmetic by name.

    The name of a paragraph about a concurrency ends with it, as in ``step 8``, ``tpot 8`` and ``ttft 8``.
    """
    asked, holding, deployment = answer.asked, answer.holding, answer.deployment
    found: dict[str, Paragraph | None] = {"parameters": _parameters(asked)}
    if holding is not None:
        found["weights"] = _rank(answer, holding)
        found["cache"] = _cache(asked, holding)
        found["pool"] = _pool(asked, holding, lengths_words(answer))
    if deployment is not None:
        shown = [row for row in answer.users if row.users in (asked.users[0], asked.users[-1])]
        with site_calibration(asked.calibration):
            for row in shown:
                found[f"step {row.users}"], found[f"tpot {row.users}"] = _step(answer, deployment, row)
            found["ttft"] = alone = _prompt(answer, deployment)
        found |= {f"ttft {row.users}": _first_token(row, alone, bool(asked.prefill)) for row in shown}
        found["interval"] = _interval(answer)
    return {name: one for name, one in found.items() if one is not None}


def _parameters(asked: Asked) -> Paragraph:
    count = model_parameters(asked.model)
    size = checkpoint_bytes(asked.model, asked.checkpoint)
    draft = f", draft layers {count.mtp / 1e9:.2f} billion" if count.mtp else ""
    text = (
        f"parameters: {count.total / 1e9:.2f} billion, {count.active / 1e9:.2f} active per token, "
        f"{count.routed / 1e9:.1f} in routed experts{draft}; stored as {asked.checkpoint.name}: {size / 1e9:,.1f} GB "
        f"= {size / GIB:,.1f} GiB"
    )
    return Paragraph(1, text)


def _rank(answer: FitAnswer, holding: Holding) -> Paragraph:
    rows = answer.ranks
    fullest = max(rows, key=lambda row: sum(row.weights.values()))
    terms = holding.terms
    parts = sorted(fullest.weights.items(), key=lambda one: -one[1])
    listed = ", ".join(f"{name.replace('_', ' ')} {size / GIB:.2f}" for name, size in parts)
    total = sum(fullest.weights.values())
    text = f"weights of the fullest rank ({terms.name}; {fullest.label}): {listed}; {total / GIB:.2f} GiB"
    return Paragraph(2, text)


def _cache(asked: Asked, holding: Holding) -> Paragraph:
    stage = holding.memory.stages[holding.stage]
    per_token = float(stage.per_token[holding.point])
    layers = float(stage.layers[holding.point])
    state = float(stage.state[holding.point])
    text = f"cache ({holding.terms.kv}): {per_token:,.0f} B per token on a rank of stage {holding.stage}"
    text += f" ({layers:.0f} layers)" if per_token else ""
    for window, held in stage.windows:
        size, tokens = float(held[holding.point]), float(window[holding.point])
        text += f", and {size:,.0f} B per token of a window of {tokens:,.0f}"
    text += f", and {state / 2**20:,.1f} MiB per sequence" if state else ""
    need = float(stage.request_bytes(float(asked.full_request))[holding.point])
    return Paragraph(3, text + f"; one request of {asked.full_request:,} tokens: {need / GIB:.2f} GiB")


def _pool(asked: Asked, holding: Holding, lengths: str) -> Paragraph:
    stage = holding.memory.stages[holding.stage]
    terms = stage_pools(holding.memory, holding.part)[holding.stage]
    place = holding.point
    weights = float(stage.weight_bytes[place])
    limit, pool = float(terms.limit[place]), float(terms.pool[place])
    beside = {
        "weights": weights,
        "activations": float(stage.activation[place]),
        "context and buffers": float(terms.context[place]),
        "beyond": float(terms.remainder[place]),
    }
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in beside.items())
    rule = holding.memory.settings.rule
    text = (
        f"pool on stage {holding.stage}: the rule of {asked.engine} ({rule.pool.replace('_', ' ')}) lets it use "
        f"{limit / GIB:.2f} GiB of {holding.part.total / GIB:.2f}; beside {listed} GiB it leaves "
        f"{pool / GIB:.2f} GiB ± {float(terms.deviation(-1.0)[place]) / GIB:.2f}: {holding.pool.tokens:,.0f} tokens"
        f"{lengths} in whole blocks, all replicas together"
    )
    return Paragraph(4, text)


def _step(answer: FitAnswer, deployment: Deployment, row: UserRow) -> tuple[Paragraph, Paragraph | None]:
    """Return a decode step of the fullest server, and what TPOT adds."""
    asked, servers = answer.asked, answer.holding.terms.decoding if answer.holding else 1
    context = asked.input_tokens + asked.output_tokens / 2
    parts = split_users(np.array([row.running]), servers)
    steps = [_decode_step(deployment, int(users), context) for users in parts.users]
    seconds, terms = steps[0]
    running = int(parts.users[0])
    words = f"{running:,} user{'s' * (running > 1)}"
    if servers > 1:
        words += f" on the fullest of {servers} servers"
    factor = "; time factor: fitted over kernel benchmark, below 1 is faster" * runs_on_accelerators(deployment)
    text = (
        f"decode step of {words} at {context:,.0f} tokens: {seconds * 1e3:.2f} ms for "
        f"{deployment.tokens_per_step:.2f} tokens each{factor}"
    )
    step = Paragraph(5, text, _shown(terms, seconds))
    if row.tpot is None:
        return step, None
    weights = parts.users * parts.replicas
    mean = float(weights @ [one for one, _ in steps] / weights.sum()) / deployment.tokens_per_step
    decoding, tpot = round(mean * 1e3, 2), round(row.tpot.value * 1e3, 2)
    why = "prompts beside it add time, requests that do not decode yet save some"
    if row.tpot.best is not None and row.tpot.value <= row.tpot.best * (1.0 + 1e-9):
        why = "raised to the least time that the memory bandwidth allows"
    return step, Paragraph(
        0,
        f"TPOT of {row.users:,} user{'s' * (row.users > 1)}: {decoding:.2f} ms of decoding for a token "
        f"{'-' if decoding > tpot else '+'} {abs(tpot - decoding):.2f} ms ({why}) = {tpot:.2f} ms",
    )


def _shown(terms: list[Term], seconds: Seconds) -> tuple[Term, ...]:
    """Return the terms of at least 0.5 %, and the sum of the others."""
    shown = [term for term in terms if abs(term.seconds) >= 0.005 * seconds]
    small = seconds - sum(term.seconds for term in shown)
    return (*shown, *([Term("smaller parts", "", "", small)] if len(shown) < len(terms) else []))


def _decode_step(deployment: Deployment, users: int, context: float) -> tuple[Seconds, list[Term]]:
    """Return the time of a decode step and of its components, [s]."""
    one = np.ones(1)
    points = StepPoints(one * users, one * context, one * 0.0, one * 0.0)
    front = FrontPoints(one * 0.0, one * 0.0)
    return _components(deployment, points, front, one)


def _components(
    deployment: Deployment, points: StepPoints, front: FrontPoints, weights: np.ndarray
) -> tuple[Seconds, list[Term]]:
    """Return the weighted sum of steps and of their components, [s]."""
    if not runs_on_accelerators(deployment) or deployment.stages:
        model = step_model_of(deployment)
        step = model.times(points, front)
        spent = (weights * step.seconds) @ step.shares
        named = [Term(name, "", "", float(spent[list(places)].sum())) for name, places in model.components.items()]
        return float(weights @ step.seconds), named
    total, _ = load_effects(deployment.engine).sum_of(keys_of(deployment))
    parameters = step_parameters(deployment, total)
    [(_, table)] = step_tables([deployment], [points], [front])
    step = step_time(table, parameters)
    seconds = float(weights @ step.seconds)
    worked, spent = weights @ table, (weights * step.seconds) @ step.shares
    terms = []
    for slot in (slot for slots in COMPONENTS.values() for slot in slots):
        place = SLOTS.index(slot)
        amount, fitted = float(worked[place]), float(np.exp(parameters[place]))
        counted = PARAMETERS[place].endswith("_seconds")
        left = f"{number(amount)}" if counted else f"{number(amount * 1e3)} ms"
        right = f"× {number(fitted * 1e6)} µs" if counted else f"time factor {number(fitted)}"
        title = _SLOT_WORDS.get(slot, slot.replace("_", " "))
        terms.append(Term(title, left, right, float(spent[place])))
    part, limit = deployment.rated
    if limit is not None:
        slower = limited(step, GPU_COMPONENTS["compute"], points.decode_requests, part, limit)
        slow = float(weights @ slower.seconds)
        terms.append(Term(f"lower clock at {limit:,.0f} W", "", "", slow - seconds))
        seconds = slow
    return seconds, terms


def _prompt(answer: FitAnswer, deployment: Deployment) -> Paragraph | None:
    """Return the TTFT of a request alone; None if it is unknown."""
    asked, holding = answer.asked, answer.holding
    if holding is None or all(row.ttft is None for row in answer.users):
        return None
    alone: Seconds = predictions_of(asked, holding, (1,))[1].figures["ttft"].value
    load = load_on(asked, deployment, holding, 1)
    seen = metrics_of(load)
    seconds, terms = _components(deployment, seen.points, front_of(seen, load), seen.figures["ttft"].weights)
    terms.append(Term("correction fitted to TTFT", "", "", alone - seconds))
    where = " on a prefill server" if asked.prefill else ""
    text = f"first token of 1 user{where}: {alone * 1e3:,.2f} ms for a prompt of {asked.input_tokens:,} tokens"
    return Paragraph(6, text, _shown(terms, alone))


def _first_token(row: UserRow, alone: Paragraph | None, handed_over: bool) -> Paragraph | None:
    """Return the mean TTFT as that of a request alone and its wait.

    `handed_over`: A prefill server sends the KV cache of the prompt to a decode server.
    """
    if row.ttft is None or alone is None or (row.users == 1 and not handed_over):
        return None
    before, ttft = round(alone.seconds * 1e3, 2), round(row.ttft.value * 1e3, 2)
    why = (
        "mean of the simulated requests" + ", with the transfer of the KV cache" * handed_over
        if row.simulated
        else "for running steps and the prompts before it"
    )
    text = (
        f"TTFT of {row.users:,} user{'s' * (row.users > 1)}: {before:,.2f} ms alone {'-' if ttft < before else '+'} "
        f"{abs(ttft - before):,.2f} ms of waiting ({why}) = {ttft:,.2f} ms"
    )
    return Paragraph(0, text)


def _interval(answer: FitAnswer) -> Paragraph:
    row = answer.users[0]
    figure, what = (row.tpot, "decode times") if row.tpot is not None else (row.ttft, "TTFT")
    assert figure is not None
    text = (
        f"90 % interval ({answer.basis}): measured over predicted {what} between "
        f"{figure.low / figure.value:.2f} and {figure.high / figure.value:.2f}"
    )
    return Paragraph(7, text)


# The answer of `glmplan fit` as CSV (the table over users, then the memory of every rank) and as Markdown.

#: columns of the CSV, in order
CSV_COLUMNS: tuple[str, ...] = (
    "model", "checkpoint", "accelerator", "accelerator_count", "engine", "verdict", "layout", "kv", "users", "running",
    *(f"{name}{end}" for name in USER_FIGURES for end in ("", "_low", "_high")),
    "context_each_tokens", "kv_pool_tokens", "kv_pool_tokens_low", "kv_pool_tokens_high", "kv_pool_gib",
    "kv_pool_host_gib", "safe_users", "users_at_95", "users_at_80", "users_at_50", "basis", "out_of_domain",
    "simulated", "preemptions_per_request",
    "kv_why", "rank", *MEMORY_COLUMNS,
)  # fmt: skip


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value


def fit_csv(answer: FitAnswer) -> str:
    """Return the answer as CSV with the columns `CSV_COLUMNS`.

    The table over users comes first, or one line with the verdict without speeds. One line per rank follows, with a
    cell in `rank` and none in `users`.
    """
    asked, holding = answer.asked, answer.holding
    layout, kv = (holding.terms.name, holding.terms.kv) if holding else ("", "")
    common = {
        "model": asked.model.name,
        "checkpoint": asked.checkpoint.name,
        "accelerator": asked.machine.accelerator.name,
        "accelerator_count": asked.machine.count,
        "engine": asked.engine,
        "verdict": answer.verdict,
        "layout": layout,
        "kv": kv,
        "kv_why": answer.kv_why,
        "safe_users": answer.safe.users if answer.safe else "",
        **(users_at(answer.safe) if answer.safe else {}),
        "basis": answer.basis,
    }
    if holding:
        for name, value in (("", holding.pool.tokens), ("_low", holding.pool.low), ("_high", holding.pool.high)):
            common[f"kv_pool_tokens{name}"] = f"{value:.0f}"
        for name, size in (("kv_pool_gib", holding.pool_bytes), ("kv_pool_host_gib", holding.host_pool)):
            common[name] = f"{size / GIB:.6g}"
    rows = [*(user_rows(answer.users) or [{}]), *memory_rows(answer.ranks)]
    cells = [common | {name: _cell(value) for name, value in row.items()} for row in rows]
    return csv_lines([CSV_COLUMNS, *([row.get(name, "") for name in CSV_COLUMNS] for row in cells)])


#: width of lines that Markdown wraps itself [-]
_UNWRAPPED = 1 << 20


def fit_markdown(answer: FitAnswer) -> str:
    """Return the answer as Markdown, with tables."""
    lines = fit_text(answer, _UNWRAPPED).splitlines()
    title, rest = lines[0], lines[1:]
    out = [f"# {title}", ""]
    section: list[str] = []
    name = ""
    for line in [*rest, ""]:
        if line and not line.startswith(" ") and section and not section[-1]:
            out += _section(answer, name, section)
            name, section = line, []
            continue
        section.append(line)
    out += _section(answer, name, section)
    return "\n".join(out).rstrip() + "\n"


def _section(answer: FitAnswer, name: str, lines: list[str]) -> list[str]:
    body = [line for line in lines if line.strip()]
    if not body and not name:
        return []
    head = [f"## {name}", ""] if name and not name.isupper() else [name] if name else []
    if name.startswith("Users,"):
        return [*head, *_users(answer), ""]
    if name.startswith("Memory"):
        return [*head, *_memory(answer), ""]
    if name.startswith("Start it"):
        return [*head, "```", *[line.removeprefix("  ") for line in body], "```", ""]
    if answer.safe is not None and name.startswith("Safe users: "):
        marks = {answer.safe.limit: " (the smallest)"}
        limits = [
            f"- {LIMITS[one.name]}{marks.get(one.name, '')}: {one.users:,}; {one.words}" for one in answer.safe.limits
        ]
        return [*head, *limits, ""]
    # lines that belong to the one above are indented further
    nested = [(max(len(line) - len(line.lstrip()) - 2, 0) * " ", line) for line in body]
    return [*head, *(f"{gap}- {line.strip()}" if line[0] == " " else f"**{line}**" for gap, line in nested), ""]


def _users(answer: FitAnswer) -> list[str]:
    names = ("users", "running", "TTFT, s", "decode tok/s", "tok/s total", "per user", "context each")
    rows = [f"| {' | '.join(names)} |", "|" + "--:|" * len(names)]
    for row in answer.users:
        first = _span(row.ttft) if row.ttft else "unknown"
        decode = _span(row.user_rate) if row.user_rate else "-"
        cells = (first, decode, _span(row.total_rate), number(row.each_rate.value), f"{row.context:,}")
        rows.append(f"| {row.users} | {row.running} | {' | '.join(cells)} |")
    return rows


def _span(figure: Figure) -> str:
    return f"{number(figure.value)} ({number(figure.low)}-{number(figure.high)})"


def _memory(answer: FitAnswer) -> list[str]:
    names = ("weights", "activations", "graphs", "buffers", "reserve", "KV cache", "capacity")
    rows = [f"| rank | {', GiB | '.join(names)}, GiB |", "|---|" + "--:|" * len(names)]
    for row in answer.ranks:
        used = (row.activation, row.graphs, row.communication, row.reserve, row.cache, row.capacity)
        cells = (sum(row.weights.values()), *used)
        rows.append(f"| {row.label} | " + " | ".join(f"{value / GIB:.1f}" for value in cells) + " |")
    before: dict[str, float] = {}
    for row in answer.ranks:
        if row.weights != before:
            parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in row.weights.items())
            rows += ["", f"Weights of {row.label} by class, GiB: {parts}"]
        before = row.weights
    return [*rows, *(line for text in pool_lines(answer) for line in ("", text))]
