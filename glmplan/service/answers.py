"""Answers of the service: functions from a checked question to a record.

They run in a separate process (`glmplan.service.worker`) and do not depend on HTTP. Records are those of the command
line with ``--format json``, so both have equal numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.schema.host import Host, PcieLink
from glmplan.costs.network.topology import Placement, place, plan_loads
from glmplan.errors import GlmplanError, SpecError
from glmplan.planner.ask import Deployed, predict
from glmplan.planner.slo_layouts import safe_under_limits
from glmplan.prediction.step_models import site_calibration
from glmplan.present.host_drawing import network_lines
from glmplan.purchase.cost import HOURS, break_even_month, break_even_tokens, per_million
from glmplan.purchase.money import Money, Offer, Way, market_of, offers_of, wall_words, watts_of, ways_of
from glmplan.request.option import MOST_USERS
from glmplan.service import questions as q
from glmplan.units import GIB, TokensPerSecond, whole_number

if TYPE_CHECKING:
    from glmplan.planner.make_plan import FitAnswer
    from glmplan.purchase.money import Money

__all__ = [
    "ANSWERS",
    "OLD_VALUES",
    "QUESTIONS",
    "VALUES",
    "CatalogueQuestion",
    "Progress",
    "cost_record",
    "costs_of",
    "links_record",
    "money_of_question",
    "values_of",
]


#: predicted points that take about the time of one simulated load [-]
_SIMULATED = 1000
#: called with the finished and the total amount of work
Progress = Callable[[int, int], None]


def _fit(question: q.FitQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.present.deployment_files import deployment_files
    from glmplan.present.json_answers import fit_record

    planned = _planned(question)
    files = {} if question.deploy is None else {"deployment_files": deployment_files(planned, question.deploy)}
    return fit_record(planned) | files


def _planned(question: q.ExplainQuestion) -> FitAnswer:
    from glmplan.planner.make_plan import fit_answer
    from glmplan.planner.traffic_search import read_traffic
    from glmplan.request.plan import PlanRequest

    users = {} if question.users is None else {"users": question.users}
    words = PlanRequest(question.model, question.on, **question.words(), **users)
    arrivals = question.arrivals()
    if question.traffic is None and (shape := arrivals.keys() - {"input", "output"}):
        raise SpecError("is of traffic: give traffic too", field=min(shape))
    arriving = question.traffic and read_traffic(question.traffic, **arrivals)
    return fit_answer(words, arriving or None, changes=question.changes)


def _explain(question: q.ExplainQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.present.fit_explain import arithmetic_parts, arithmetic_text

    parts = arithmetic_parts(_planned(question))
    return {"text": arithmetic_text(parts), "parts": {name: asdict(one) for name, one in parts.items()}}


def _values(question: q.FitQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:

    return values_of(_fit(question, progress, limits))


def _predict(question: q.PredictQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.planner.ask import deployment, predict

    counts = question.users if isinstance(question.users, list) else [question.users]
    planned = deployment(question.model, question.on, **question.words())
    rows = []
    for count in counts:
        found = predict(planned, users=count)
        figures = {name: asdict(one) for name, one in found.figures.items()}
        rows.append({"users": count, "figures": figures, "evidence_level": found.knowledge, "basis": found.basis})
    return {
        "layout": planned.holding.terms.name,
        "engine": planned.asked.engine,
        "units": {"ttft": "s", "tpot": "s", "rates": "1/s"},
        "users": rows,
    }


def _predict_table(question: q.TableQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    import csv
    import io

    import pandas as pd

    from glmplan.io.runs.ledger import with_known_names
    from glmplan.io.runs.table import runs_of_frame
    from glmplan.prediction.table import predict_runs, rows_as_csv

    if len(question.rows) > limits["rows"]:
        raise SpecError(f"are more than the {limits['rows']:,} rows of one question", field="rows",
                        value=len(question.rows))  # fmt: skip
    table = with_known_names(runs_of_frame(pd.DataFrame(question.rows)))
    text = rows_as_csv(predict_runs(table, progress=progress))
    rows = [{name: _number(cell) for name, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]
    return {"rows": rows, "warnings": list(table.warnings)}


def _number(cell: str) -> str | float | None:
    try:
        return float(cell)
    except ValueError:
        return cell or None


def _simulate(question: q.SimulateQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.planner.traffic_search import described_under
    from glmplan.present.json_answers import simulate_record
    from glmplan.request.plan import PlanRequest
    from glmplan.simulation.load_trial import default_requests, default_warmup
    from glmplan.simulation.simulate import SimulationOptions, simulate
    from glmplan.simulation.traffic.slo import parse_slo
    from glmplan.simulation.traffic.spec import parse_traffic

    targets = parse_slo(question.slo) if question.slo else ()
    words = PlanRequest(question.model, question.on, **_without_lengths(question))
    kind = parse_traffic(question.traffic, **question.arrivals())
    described, [arriving] = described_under(words, [kind], slo=question.slo)
    requests = question.requests
    if requests is None:
        requests = min(default_requests(arriving), max(limits["requests"] // question.replications, 1))
    total = requests * question.replications
    if total > limits["requests"]:
        message = f"are more than the {limits['requests']:,} requests that the service simulates"
        raise SpecError(message, field="requests", value=total)
    warmup = default_warmup(arriving, targets, requests) if question.warmup is None else question.warmup
    done = [0]

    def finished(count: int) -> None:
        done[0] += count
        progress(done[0], total)

    outcome = simulate(
        described.service,
        arriving,
        requests=requests,
        seed=question.seed,
        warmup=warmup,
        options=SimulationOptions(replications=question.replications, targets=targets, progress=finished),
    )
    ranges = {}
    if question.ranges and outcome.summary["requests"]:
        ranges = described.ranges(arriving, outcome.summary, requests=requests, warmup=warmup, seed=question.seed)
    return simulate_record(outcome, targets=targets, basis=described.basis, ranges=ranges)


def _without_lengths(question: q.PlanQuestion) -> dict[str, Any]:
    """Return the options of a plan without lengths, which traffic sets."""
    return {name: value for name, value in question.words().items() if name not in ("input", "output")}


def _safe(question: q.SafeQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.planner.service import loads_at, searched_traffic
    from glmplan.planner.traffic_search import described_under
    from glmplan.prediction.distribution import probability_asked
    from glmplan.present.json_answers import safe_record
    from glmplan.request.plan import PlanRequest
    from glmplan.simulation.traffic.slo import parse_slo
    from glmplan.simulation.traffic.spec import parse_traffic

    specs, usual = searched_traffic(question.traffic)
    kinds = [parse_traffic(spec, **question.arrivals()) for spec in specs]
    words = PlanRequest(question.model, question.on, **_without_lengths(question))
    described, arriving = described_under(words, kinds, usual=usual, slo=question.slo)
    slo = question.slo or described.slo
    targets, found = parse_slo(slo), []
    wanted = probability_asked(question.probability)
    for number, kind in enumerate(arriving):
        progress(number, len(arriving))
        found.append(loads_at(described, kind, targets, probability=wanted, most=question.most, seed=question.seed))
    return safe_record(found, slo, described.basis)


def money_of_question(question: q.MoneyQuestion) -> Money:
    """Return the prices and terms of a question."""
    from glmplan.purchase.money import kinds_of, money_of

    today = date.fromisoformat(question.today) if question.today else date.today()
    money = money_of(question.price, question.term, today=today, region=question.region,
                     rent_term=question.rent_term, rates=question.rates)  # fmt: skip
    return replace(money, kinds=kinds_of(question.kind))


def _sweep(question: q.SweepQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.purchase.axes import read_sweep
    from glmplan.purchase.sweep import swept

    other = {"exact", *q.MoneyQuestion.model_fields}
    most = limits["points"] if question.traffic is None else max(limits["points"] // _SIMULATED, 1)
    instead = f"at most {most:,} here, or use the command line"
    sweep = read_sweep(question.model_dump(exclude=other, exclude_none=True), most=most, instead=instead)
    paid = money_of_question(question)
    found = swept(sweep, money=paid, exact=question.exact, progress=progress)
    rows = json.loads(found.to_frame().to_json(orient="records", double_precision=6))
    return {"points": len(rows), "rows": rows, "notes": list(paid.terms.notes)}


def _size(question: q.SizeQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.present.acceptance import acceptance_test, check_acceptance
    from glmplan.present.size_text import size_content, size_record
    from glmplan.purchase.size import sized_each
    from glmplan.purchase.size_question import read_sizes

    other = {"model", "slo", "answers", "acceptance_test", *q.MoneyQuestion.model_fields}
    options = question.model_dump(exclude=other, exclude_none=True) | {"kind": question.kind}
    each = read_sizes(question.model, question.slo, rent_term=question.rent_term, rates=question.rates, **options)
    if len(each) > limits["models"]:
        message = f"are more than the {limits['models']:,} models of one question"
        raise SpecError(message, field="model", value=len(each))
    if question.acceptance_test:
        check_acceptance(each)
    first, *others = sized_each(each, money_of_question(question), answers=question.answers, progress=progress)
    record = size_record([size_content(one) for one in (first, *others)])
    if question.acceptance_test and first.options:
        record["acceptance_test"] = acceptance_test(first.options[0], first)
    return record


def _compare(question: q.CompareQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.present.json_answers import compare_record
    from glmplan.purchase.compare import compared

    paid = money_of_question(question)
    options = [{name: one for name, one in plan.words().items() if one is not False} for plan in question.plans]
    common = {name: one for name, one in options[0].items() if all(own.get(name) == one for own in options)}
    plans = [
        (plan.model, plan.on, {name: one for name, one in own.items() if name not in common})
        for plan, own in zip(question.plans, options, strict=True)
    ]
    return compare_record(compared(plans, paid, users=question.users, **common), paid.terms.utilisation)


def _cost(question: q.CostQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.planner.ask import deployment

    planned = deployment(question.model, question.on, users=(question.users,), **question.words())
    return cost_record(planned, question.users, money_of_question(question))


def _links(question: q.LinksQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:

    return links_record(question.on, tp=question.tp, pp=question.pp)


def _workbook(question: q.CostQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    import base64
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("glmplan.present.sheets") is None:
        raise SpecError("are not in this installation: use the JSON or the command line", field="workbooks")
    book = import_module("glmplan.present.sheets.plan_book")
    option = import_module("glmplan.present.sheets.option")
    if question.power_limit is not None:
        raise SpecError("is not supported in workbooks, whose cells compute with the rated power", field="power_limit")
    options = {name: value for name, value in question.words().items() if name not in ("input", "output", "context")}
    options = {name: value for name, value in options.items() if value is not False}
    load = book.load_of_words(question.users, question.input, question.output, question.context, reuse=0, growth=0)
    wanted = option.read_wanted(None, question.on, question.model)
    found = book.plan_book(
        question.model, wanted, load, money_of_question(question), said=options, progress=progress
    )  # fmt: skip
    return {"xlsx": base64.b64encode(found.content()).decode()}


def _check(question: q.CheckQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.service.checking import checked_record

    return checked_record(question.text, question.name, question.facts)


class CatalogueQuestion(BaseModel):
    """The catalogue; the question has no fields."""


def _catalogue(question: CatalogueQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.catalog.engines.limitations import engine_names, load_engine
    from glmplan.catalog.formats import KV_FORMATS
    from glmplan.planner.ask import hardware, models

    titles = _titles()
    engines = [{"name": name, "newest": load_engine(name).newest} for name in engine_names()]
    return {
        "models": [
            row | {"title": titles.get(row["name"], row["name"])} | _formats_and_names(row["name"])
            for row in models().rows
        ],
        "hardware": [row | {"title": titles.get(row["name"], row["name"])} for row in hardware().rows],
        "engines": engines,
        "kv_formats": sorted(KV_FORMATS),
    }


def _formats_and_names(name: str) -> dict[str, Any]:
    """Return the bits of a weight by checkpoint, and further names."""
    from glmplan.catalog.entries.models import load_model
    from glmplan.planner.formats import bits_of

    model = load_model(name)
    also = [model.hugging_face] if model.hugging_face else []
    return {
        "bits": {one.name: round(bits_of(one), 2) for one in model.checkpoints},
        "aliases": [*also, *model.aliases],
    }


def _titles() -> dict[str, str]:
    """Return the name that a person reads of each model, accelerator and host."""
    from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
    from glmplan.catalog.entries.hosts import host_names, load_host
    from glmplan.catalog.entries.models import load_model, model_names

    published = {name: load_model(name).hugging_face or "" for name in model_names()}
    return {
        **{name: address.rpartition("/")[2] for name, address in published.items() if address},
        **{name: load_accelerator(name).full_name for name in accelerator_names()},
        **{name: load_host(name).title for name in host_names()},
    }


#: name of a question → its fields
QUESTIONS: dict[str, type[BaseModel]] = {
    "fit": q.FitQuestion,
    "explain": q.ExplainQuestion,
    "values": q.FitQuestion,
    "predict": q.PredictQuestion,
    "predict-table": q.TableQuestion,
    "simulate": q.SimulateQuestion,
    "safe": q.SafeQuestion,
    "sweep": q.SweepQuestion,
    "size": q.SizeQuestion,
    "compare": q.CompareQuestion,
    "cost": q.CostQuestion,
    "links": q.LinksQuestion,
    "workbook": q.CostQuestion,
    "check": q.CheckQuestion,
    "catalogue": CatalogueQuestion,
}
#: name of a question → function that answers it
ANSWERS: dict[str, Callable[[Any, Progress, Mapping[str, Any]], dict[str, Any]]] = {
    "fit": _fit,
    "explain": _explain,
    "values": _values,
    "predict": _predict,
    "predict-table": _predict_table,
    "simulate": _simulate,
    "safe": _safe,
    "sweep": _sweep,
    "size": _size,
    "compare": _compare,
    "cost": _cost,
    "links": _links,
    "workbook": _workbook,
    "check": _check,
    "catalogue": _catalogue,
}


def cost_record(planned: Deployed, users: int, money: Money) -> dict[str, Any]:
    """Return the costs of a plan: bought, rented, and the cheapest API.

    Per way of payment: cost per month and per million tokens [USD], and the break-even with the API. None if a price is
    unknown.

    Notes
    -----
    Tokens per month are those at this concurrency times the utilisation, and at most those at the users who meet the
    SLO of `fit` at the probability of the question, as in `glmplan size`. The price of an output token is that of
    `glmplan compare`.
    """
    asked, terms = planned.asked, money.terms
    rate = predict(planned, users=users).figures["output_rate"].value
    outputs = rate * terms.utilisation * HOURS * 3600
    inputs = outputs * asked.input_tokens / asked.output_tokens
    offer, missing = _offer(planned, money, inputs, outputs)
    watts, _ = watts_of(asked.machine, money, asked.power_limit)
    return {
        "machine": asked.machine.text,
        "users": users,
        "output_tokens_per_s": rate,
        "currency": terms.currency,
        "utilisation": terms.utilisation,
        "horizon_months": terms.horizon_months,
        "residual_share": terms.residual_share,
        "million_input_tokens_month": inputs / 1e6,
        "million_output_tokens_month": outputs / 1e6,
        "million_tokens_month_most": (inputs + outputs) * _most_rate(planned) / rate / 1e6,
        "kw": None if watts is None else watts / 1000,
        "kw_words": "" if watts is None else wall_words(asked.machine, terms=terms, limit=asked.power_limit),
        "ways": [
            _way(one, money, offer, inputs, outputs) for one in ways_of(asked.machine, money, limit=asked.power_limit)
        ],
        "api": None if offer is None else _api(offer, inputs, outputs),
        "api_missing": missing,
        "notes": list(terms.notes),
    }


def _most_rate(planned: Deployed) -> TokensPerSecond:
    """Return the output rate of the most users who meet the SLO.

    Disaggregated servers have no such number: theirs is that of the users in the KV pool.
    """
    asked, users = planned.asked, int(planned.holding.held)
    if not asked.prefill:
        with site_calibration(asked.calibration):
            safe, _ = safe_under_limits(asked, planned.holding)
        users = safe.users
    return predict(planned, users=min(users, MOST_USERS)).figures["output_rate"].value if users else 0.0


def _offer(planned: Deployed, money: Money, inputs: float, outputs: float) -> tuple[Offer | None, str]:
    try:
        offers = offers_of(planned.asked.model.name, money.prices, today=money.today)
        return market_of(offers, inputs, outputs).offer, ""
    except GlmplanError as error:
        return None, str(error)


def _api(offer: Offer, inputs: float, outputs: float) -> dict[str, Any]:
    return {
        "seller": offer.seller,
        "usd_per_million_input_tokens": offer.input,
        "usd_per_million_output_tokens": offer.output,
        "usd_month": offer.bill(inputs, outputs),
        "date": offer.date,
        "stale": offer.stale,
        "source": offer.source,
    }


def _way(way: Way, money: Money, offer: Offer | None, inputs: float, outputs: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "paid": way.paid,
        "usd_month": way.usd,
        "usd_month_low": way.low,
        "usd_month_high": way.high,
        "usd_purchase": way.purchase.value if way.purchase is not None else None,
        "month_lines": {} if way.month is None else {name: float(one) for name, one in way.month.lines},
        "price_missing": way.missing,
        "price_assumed": list(way.assumed),
        "price_stale": list(way.stale),
        "usd_per_million_output_tokens": None,
        "usd_per_million_tokens": None,
        "break_even_million_tokens": None,
        "break_even_month": None,
    }
    if way.usd is None:
        return found
    rate = outputs / (HOURS * 3600)
    found["usd_per_million_output_tokens"] = float(per_million(way.usd, rate))
    found["usd_per_million_tokens"] = way.usd / (inputs + outputs) * 1e6
    if offer is None:
        return found
    found["break_even_million_tokens"] = float(break_even_tokens(way.usd, offer.mixed(inputs, outputs))) / 1e6
    if way.purchase is not None and way.month is not None and way.purchase.value is not None:
        months = float(break_even_month(way.purchase.value, way.month.running, offer.bill(inputs, outputs)))
        found["break_even_month"] = months if math.isfinite(months) else None
    return found


def costs_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the single values of an answer of `cost`; None without a price."""
    api = record["api"] or {}
    tokens = record["million_input_tokens_month"] + record["million_output_tokens_month"]
    paid = [one for one in record["ways"] if one["usd_month"] is not None]
    found = {"usd_month_api": api.get("usd_month"), "usd_per_million_tokens_api": api and api["usd_month"] / tokens}
    for kind in ("buy", "rent"):
        ways = [one for one in paid if one["paid"].startswith(kind)]
        way: dict[str, Any] = min(ways, key=lambda one: one["usd_month"], default={})
        found |= {f"{name}_{kind}": way.get(name) for name in ("usd_month", "usd_per_million_tokens", "usd_purchase")}
    found["usd_purchase"] = found.pop("usd_purchase_buy")
    return {name: found[name] or None for name in COST_VALUES}


#: metrics at the largest requested concurrency: name of the value → field of the row
_METRICS = {
    "tokens_per_s": "output_tokens_per_s",
    "user_tokens_per_s": "output_tokens_per_s_per_request",
    "ttft_ms": "ttft_mean_ms",
    "tpot_ms": "tpot_mean_ms",
}
_PAID = {"buy": "bought", "rent": "rented", "api": "served by the cheapest API"}
#: name of a single value of the costs → description with unit
COST_VALUES = {
    **{f"usd_month_{kind}": f"Cost of a month, {words} [USD]" for kind, words in _PAID.items()},
    **{f"usd_per_million_tokens_{kind}": f"Cost of a million tokens, {words} [USD]" for kind, words in _PAID.items()},
    "usd_purchase": "Price of the machine [USD]",
}
#: name of a single value for spreadsheets → description with unit
VALUES: dict[str, str] = {
    "verdict": "fits, tight, does_not_fit or unknown",
    "headline": "The verdict in one sentence",
    "weights": "Format of the weights",
    "layout": "Layout, such as TP2×PP3",
    "tokens_per_s": "Output tokens per second of all users at the largest requested concurrency",
    "user_tokens_per_s": "Output tokens per second of each user at that concurrency",
    "ttft_ms": "Mean time to the first token [ms]",
    "tpot_ms": "Mean time per output token after the first [ms]",
    **{
        f"{name}_{end}": f"{bound} bound of the 90 % interval of {name}"
        for name in _METRICS
        for end, bound in (("low", "Lower"), ("high", "Upper"))
    },
    "safe_users": "Largest number of users that meets every limit at the asked probability",
    **{
        f"users_at_{percent}": f"Largest number of users that meets every limit with {percent} % probability"
        for percent in (95, 80, 50)
    },
    "expected_users": "Largest number of users that meets every limit in expectation",
    "limit": "Limit that is reached first: kv, tpot, queue or hazard",
    "context_tokens": "Longest single request that fits",
    "kv_pool_tokens": "Tokens of the KV cache pool",
    "requests_held": "Requests of the given length that the pool holds",
    "weights_gib": "Weights on the fullest rank [GiB]",
    "engine": "Engine",
    "evidence_level": "Level of the measurements behind the speeds",
    "command": "Command that starts the engine",
    **COST_VALUES,
}

#: names of the previous release, still read → names of this one
OLD_VALUES = {"knowledge": "evidence_level"}


def values_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an answer of `fit`, without costs."""
    plan, memory, safe = record["plan"] or {}, record["memory"] or {}, record["safe"] or {}
    found: dict[str, Any] = {name: record[name] for name in ("verdict", "headline", "evidence_level", "command")}
    found |= {"layout": plan.get("layout"), "engine": record["question"]["engine"]}
    found["weights"] = record["question"]["checkpoint"]
    row: dict[str, Any] = max(record["users"], key=lambda one: one["users"], default={})
    for name, field in _METRICS.items():
        figure = row.get(field) or {}
        found |= {name: figure.get("value"), f"{name}_low": figure.get("low"), f"{name}_high": figure.get("high")}
    ranks = memory.get("ranks", ())
    found |= {
        "safe_users": safe.get("users"),
        **{name: safe.get(name) for name in ("users_at_95", "users_at_80", "users_at_50")},
        "expected_users": safe.get("expected"),
        "limit": safe.get("limit"),
        "context_tokens": record["context"]["one_request_tokens"],
        "kv_pool_tokens": memory.get("kv_pool_tokens", {}).get("value"),
        "requests_held": memory.get("requests_held"),
        "weights_gib": max((rank["weights_total_gib"] for rank in ranks), default=None),
    }
    return {name: found[name] for name in VALUES if name not in COST_VALUES}


def links_record(on: str, *, tp: int | None = None, pp: int | None = None) -> dict[str, Any]:
    """Return the devices and links of one node of a machine.

    Each device comes after its parent. With a layout: the load of each link by phase, and the placement or the reason
    why there is none.

    Examples
    --------
    >>> found = links_record("workstation-direct-2", tp=2)
    >>> [part["kind"] for part in found["parts"]]
    ['socket', 'root', 'root', 'accelerator', 'accelerator']
    """
    try:
        host = load_machine(on)
    except SpecError as error:
        raise type(error)(error.message, field="on", value=error.value or on, choices=error.choices) from None
    ranks, stages = (1 if one is None else whole_number(one, name) for one, name in ((tp, "tp"), (pp, "pp")))
    placement, missing = _placed(host, ranks, stages)
    loads: dict[str, list[dict[str, Any]]] = {}
    if placement is not None and ranks * stages > 1:
        for phase, found in plan_loads(host, placement.stages).items():
            loads[phase] = [
                {
                    "start": one.start,
                    "end": one.end,
                    "gb_per_s": one.load / 1e9,
                    "capacity_gb_per_s": one.capacity / 1e9,
                    "share": one.load / one.capacity if one.capacity else 0.0,
                    "transfers": one.flows,
                }
                for one in found
            ]
    return {
        "host": host.name,
        "title": host.title,
        "nodes": host.nodes,
        "parts": _parts(host, placement.stages if placement is not None else ()),
        "scale_up": _scale_up(host),
        "between": network_lines(host, joined=" to ", said=": "),
        "loads": loads,
        "missing": missing,
        "stages": [list(stage) for stage in placement.stages] if placement is not None else [],
        "visible_devices": placement.visible_devices if placement is not None else "",
        "gain_over_worst_order": placement.gain if placement is not None else None,
        "orders_tried": placement.tried if placement is not None else 0,
    }


def _scale_up(host: Host) -> dict[str, Any] | None:
    """Return the scale-up network and the number of accelerators in it."""
    inside = host.scale_up
    if inside is None or inside.domain < 2:
        return None
    joined = 2 if inside.topology == "bridge" else inside.domain
    return {
        "kind": inside.kind,
        "topology": inside.topology,
        "joined": joined,
        "gb_per_s": inside.bandwidth / 1e9,
    }


def _placed(host: Host, tp: int, pp: int) -> tuple[Placement | None, str]:
    try:
        return place(host, tp=tp, pp=pp), ""
    except GlmplanError as error:
        return None, str(error)


def _part(key: str, parent: str | None, kind: str, label: str, link: PcieLink | None = None) -> dict[str, Any]:
    words = f"Gen{link.generation} x{link.lanes}" if link is not None else ""
    rate = link.bandwidth / 1e9 if link is not None else None
    return {"key": key, "parent": parent, "kind": kind, "label": label, "link": words, "gb_per_s": rate, "stage": None}


def _parts(host: Host, stages: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    found = []
    for socket in host.sockets:
        memory = f", {socket.memory_size / GIB:,.0f} GiB" if socket.memory_size else ""
        found.append(_part(socket.name, None, "socket", f"{socket.cpu or 'CPU unknown'}{memory}"))
    for root in host.roots:
        found.append(_part(root.name, root.socket, "root", root.address or ""))
    for switch in host.switches:
        found.append(_part(switch.name, switch.parent, "switch", switch.model or "switch", switch.uplink))
    for device in host.devices:
        found.append(_part(device.name, device.parent, device.kind, device.address or "", device.link))
    role = {slot: (stage, rank) for stage, slots in enumerate(stages) for rank, slot in enumerate(slots)}
    for number, card in enumerate(host.slots):
        name = card.accelerator.rsplit("/", 1)[-1].removesuffix(".toml")
        part = _part(f"accelerator {number}", card.parent, "accelerator", name, card.link)
        part["stage"], part["rank"] = role.get(number, (None, None))
        found.append(part)
    return found
