"""Fill the sheets of options, results and sensitivity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glmplan.catalog.entries.prices import Quotation
from glmplan.present.sheets.book import Book, Chart, Rule, Sheet, address
from glmplan.present.sheets.input_pages import FIRST, LEVELS, Assumption, cell, columns_of, span
from glmplan.present.sheets.option import Option
from glmplan.purchase.cost import Terms
from glmplan.purchase.money import cards_of, server_draw
from glmplan.request.option import options_of
from glmplan.request.plan import PlanRequest

__all__ = [
    "FIT_RULES",
    "cost_formulas",
    "given_columns",
    "named_terms",
    "option_cells",
    "token_formulas",
    "write_options",
    "write_results",
    "write_sensitivity",
]


def cost_formulas(at: Mapping[str, str]) -> dict[str, str]:
    """Return the formulas of the monthly cost, without the equals sign.

    They are those of `glmplan.purchase.cost`.

    - `at`: Address of each field of `option_cells` and of each term.
    - Returns: ``kw``, ``purchase``, ``write_off``, ``power``, ``rent``, ``other`` and ``month``, each independent of
      the others.

    Examples
    --------
    >>> terms = ("network_share", "power_share", "rest_watts", "supply_efficiency", "capital_rate", "horizon_months",
    ...          "residual_share", "pue", "hours_per_month", "electricity", "colocation", "support_share",
    ...          "licence_per_accelerator_year", "staff_per_month")
    >>> option = ("way", "machines", "accelerators", "hosts", "rest", "tdp", "draw", "rating", "price", "rent")
    >>> cost_formulas({name: name for name in (*option, *terms)})["purchase"]
    'price*machines*(1+IF(machines*hosts>1,network_share,0))'
    """
    g = dict(at)
    # as `glmplan.purchase.money.wall_watts`: with and without a draw that the maker of the server states
    full = f"{g['power_share']}*{g['tdp']}"
    # a limit below the rating is reached, and a rating that is not published is entered as the limit
    loaded = f"IF({g['tdp']}>0,MIN({full},{g['rating']}),{g['power_share']}*{g['rating']})"
    stated = f"{g['accelerators']}*({g['power_share']}*{g['draw']}+({loaded}-{full})/{g['supply_efficiency']})"
    summed = f"({g['accelerators']}*{loaded}+{g['rest']}*{g['rest_watts']}*{g['hosts']})/{g['supply_efficiency']}"
    kw = f"{g['machines']}*IF({g['draw']}>0,{stated},{summed})/1000"
    purchase = f"{g['price']}*{g['machines']}*(1+IF({g['machines']}*{g['hosts']}>1,{g['network_share']},0))"
    written = (
        f"-PMT((1+{g['capital_rate']})^(1/12)-1,{g['horizon_months']},{purchase},-({purchase})*{g['residual_share']})"
    )
    licence = f"{g['machines']}*{g['accelerators']}*{g['licence_per_accelerator_year']}/12+{g['staff_per_month']}"
    buys = f'{g["way"]}="buy"'
    found = {
        "kw": kw,
        "purchase": purchase,
        "write_off": f"IF({buys},{written},0)",
        "power": f"IF({buys},{kw}*({g['pue']}*{g['hours_per_month']}*{g['electricity']}+{g['colocation']}),0)",
        "rent": f"IF({buys},0,{g['rent']}*{g['machines']}*{g['accelerators']}*{g['hours_per_month']})",
        "other": f"{licence}+IF({buys},({purchase})*{g['support_share']}/12,0)",
    }
    found["month"] = "+".join(f"({found[name]})" for name in ("write_off", "power", "rent", "other"))
    return found


def token_formulas(rate: str, at: Mapping[str, str]) -> dict[str, str]:
    """Return the formulas of monthly tokens and of their API cost.

    The equals sign is left out.

    - `rate`: Address of the output tokens per second.
    - Returns: ``outputs`` and ``tokens`` of a month in millions, ``api_month``, and ``api_price`` of a million tokens.
    """
    outputs = f"{rate}*{at['utilisation']}*{at['hours_per_month']}*0.0036"
    ratio = f"{at['prompt_tokens']}/{at['answer_tokens']}"
    prompts = f"{at['api_input']}*(1-{at['reuse_share']})+{at['api_cached']}*{at['reuse_share']}"
    mixed = f"({prompts})*{ratio}+{at['api_output']}"
    return {
        "outputs": outputs,
        "tokens": f"{outputs}*(1+{ratio})",
        "api_month": f"{outputs}*({mixed})",
        "api_price": f"({mixed})/(1+{ratio})",
    }


_TITLES = {
    "number": "#", "name": "Name", "machine": "Machine", "accelerators": "GPUs per machine", "weights": "Weights",
    "engine": "Engine", "layout": "Layout", "machines": "Machines", "cache": "KV cache", "way": "Buy or rent",
    "price": "Price per machine [{}]", "price_low": "lowest published", "price_high": "highest published",
    "rent": "Rent per GPU [{}/h]", "rent_low": "lowest published", "rent_high": "highest published",
    "rating": "Power limit per GPU [W]", "hosts": "Hosts per machine", "rest": "Host power counted (1 or 0)",
    "tdp": "GPU rating [W]", "draw": "Server power per GPU, stated by its maker [W]; 0: none",
    "evidence": "Evidence", "prices_from": "Price sources", "note": "Missing",
}  # fmt: skip
_OPTION_WIDTHS = (4, 30, 26, 8, 12, 12, 14, 10, 10, 10, 13, 12, 12, 12, 10, 10, 11, 8, 12, 8, 16, 30, 44, 44)
#: width of the column of an option that was given
_OWN_WIDTH = 14
_RESULT_TITLES = {
    "name": ("Option", "", "wrap"),
    "fit": ("Fits", "", "text"),
    "held": ("Users in the KV pool", "users", "whole"),
    "held_low": ("lower bound", "users", "whole"),
    "rate": ("Total throughput", "tok/s", "whole"),
    "rate_low": ("90 % from", "tok/s", "whole"),
    "rate_high": ("to", "tok/s", "whole"),
    "each": ("Speed per user", "tok/s", "one"),
    "each_low": ("90 % from", "tok/s", "one"),
    "each_high": ("to", "tok/s", "one"),
    "wait": ("Mean TTFT", "s", "two"),
    "gap": ("Mean TPOT", "ms", "one"),
    "safe": ('="Safe users at "&ROUND(100*probability,1)&" %"', "users", "whole"),
    "safe_95": ("Users at 95 % probability", "users", "whole"),
    "safe_80": ("at 80 %", "users", "whole"),
    "safe_50": ("at 50 %", "users", "whole"),
    "chance": ("Probability that the load meets the SLO", "", "chance"),
    "limit": ("limited by", "", "wrap"),
    "kw": ("Power at the wall", "kW", "two"),
    "purchase": ("Purchase", "{}", "whole"),
    "write_off": ("Depreciation and capital", "{}/month", "whole"),
    "power": ("Power and colocation", "{}/month", "whole"),
    "rent": ("Rent", "{}/month", "whole"),
    "other": ("Support, licences, staff", "{}/month", "whole"),
    "month": ("Total cost", "{}/month", "whole"),
    "tokens": ("Tokens", "million per month", "whole"),
    "per_million": ("Cost of a million tokens", "{}", "two"),
    "per_million_low": ("at the fastest", "{}", "two"),
    "per_million_high": ("at the slowest", "{}", "two"),
    "per_output": ("All costs per million output tokens", "{}", "two"),
    "api_month": ("API cost of the same tokens", "{}/month", "whole"),
    "break_even": ("Break-even against the API", "million tokens per month", "whole"),
    "paid_back": ("Payback time of the purchase against the API", "months", "one"),
    "outgrown": ("Growth reaches the safe users after", "months", "one"),
    "why": ("Reason without speed", "", "small"),
}
#: text of a cell whose load lies outside the grid of predictions
_OUTSIDE = "outside the calculated range"
#: of a break-even volume that the machine does not reach
_BEYOND = "above the safe users"
#: verdict → style
FIT_RULES = (("fits", "good"), ("tight", "fair"), ("does not fit", "bad"))
_BY_NAME = (
    *("prompt_tokens", "answer_tokens", "reuse_share", "utilisation", "hours_per_month", "electricity", "pue"),
    *("colocation", "horizon_months", "residual_share", "capital_rate", "network_share", "power_share", "rest_watts"),
    *("supply_efficiency", "licence_per_accelerator_year", "staff_per_month", "support_share", "api_input"),
    *("api_output", "api_cached"),
)
_OF_OPTION = ("way", "machines", "accelerators", "hosts", "rest", "tdp", "draw", "rating", "price", "rent")


def named_terms() -> dict[str, str]:
    """Return the named cells of the assumptions, for the formulas."""
    return {name: name for name in _BY_NAME}


def option_cells(option: int) -> dict[str, str]:
    """Return the addresses of the fields of an option, for `cost_formulas`."""
    return {name: cell("Options", name, option) for name in _OF_OPTION}


def _price_source(price: Quotation) -> str:
    stale = ", older than 180 days" if price.stale else ""
    return f"{' to '.join(dict.fromkeys(price.dates))}, {len(price.entries)} prices{stale}"


def write_options(book: Book, options: tuple[Option, ...], terms: Terms) -> None:
    """Fill the sheet of options."""
    page, names = book["Options"], columns_of("Options")
    page.put(0, 0, "Options", "title")
    page.put(1, 0, "Yellow cells may be changed: number of machines, format of the KV cache, buying or renting, "
                   "prices, power limits.", "note")  # fmt: skip
    own = given_columns([option.planned.asked.request for option in options])
    titles = [_TITLES[name].format(terms.currency) for name in names] + [title for title, _ in own]
    page.row(FIRST - 1, titles, "header")
    for number, option in enumerate(options):
        option_row = _option_row(number, option, terms)
        for name, (value, style) in option_row.items():
            put = page.say if isinstance(value, str) else page.put
            put(FIRST + number, names.index(name), value, style)
        for column, (_, values) in enumerate(own, len(names)):
            page.say(FIRST + number, column, values[number])
        line = FIRST + number
        page.choices[line, names.index("cache")] = [cached.kv for cached in option.cached]
        page.choices[line, names.index("way")] = ["buy", "rent"]
        page.bounds[line, names.index("machines")] = (1, 10_000, "Machines: 1 to 10,000")
        for name in ("price", "rent", "rating", "draw"):
            page.bounds[line, names.index(name)] = (0, 1e9, "A price or a power: 0 or more")
        texts = (
            (option_row[name][0], _OPTION_WIDTHS[names.index(name)]) for name in ("evidence", "prices_from", "note")
        )
        page.heights[line] = 12.0 * max(1 + int(1.1 * len(str(text)) / width) for text, width in texts) + 3
    page.widths |= dict(enumerate((*_OPTION_WIDTHS, *(_OWN_WIDTH for _ in own))))
    page.freeze = (FIRST, 2)


def given_columns(requests: Sequence[PlanRequest]) -> list[tuple[str, list[str]]]:
    """Return title and values of given options that nothing else shows.

    Examples
    --------
    >>> from glmplan.planner.ask import deployment
    >>> given_columns([deployment("llama-3.1-8b", "1xh100-sxm", max_num_seqs=64).asked.request])
    [('max num seqs', ['64'])]
    """
    columns = []
    for name, one in options_of(PlanRequest).items():
        if one.sheet or "sheet new" not in one.commands:
            continue
        values = [getattr(request, name) for request in requests]
        texts = ["" if value is None or value is False else str(value) for value in values]
        if any(texts):
            columns.append((name.replace("_", " ") + (f" [{one.unit}]" if one.unit else ""), texts))
    return columns


def _option_row(number: int, option: Option, terms: Terms) -> dict[str, tuple[object, str]]:
    planned = option.planned
    machine, layout = planned.asked.machine, planned.holding.terms
    bought, rent = option.purchase, option.rent
    priced = bought is not None and not option.purchase_missing
    share = 1.0 + (bought.network_share if bought is not None else 0.0)
    prices = [
        None if not priced else end / share for end in ((bought.known, bought.low, bought.high) if bought else ())
    ]
    prices = prices or [None] * 3
    lines = bought.lines if bought else ()
    sources = [line.note if line.assumed else f"{line.name}: {_price_source(line.quotation)}"
               for line in lines if line.quotation]  # fmt: skip
    sources += [f"rent {option.rent_term}: {_price_source(rent)}"] if rent is not None else []
    includes_host = machine.accelerator.kind in ("soc", "system")
    rents = (None,) * 3 if rent is None else (rent.value, rent.low, rent.high)
    missing = "; ".join(filter(None, (option.purchase_missing, option.rent_missing)))
    cards = [part for part, number in cards_of(machine) for _ in range(number)]
    # of several kinds the mean
    ratings = [part.tdp for part in cards if part.tdp is not None]
    rating = sum(ratings) / len(cards) if len(ratings) == len(cards) else None
    if rating is None:
        missing = "; ".join(filter(None, (missing, "the power of the GPU is not published: enter it")))
    return {
        "number": (number + 1, "text"),
        "name": (f"{option.wanted.machines} × {machine.text}", "text*"),
        "machine": (machine.text, "text"),
        "accelerators": (len(cards), "whole"),
        "weights": (planned.asked.checkpoint.name, "text"),
        "engine": (planned.asked.engine, "text"),
        "layout": (layout.name, "text"),
        "machines": (option.wanted.machines, "whole*"),
        "cache": (option.cached[0].kv, "text*"),
        "way": (option.way, "text*"),
        "price": (prices[0], "whole*"),
        "price_low": (prices[1], "whole"),
        "price_high": (prices[2], "whole"),
        "rent": (rents[0], "two*"),
        "rent_low": (rents[1], "two"),
        "rent_high": (rents[2], "two"),
        "rating": (planned.asked.power_limit or rating, "whole*"),
        "hosts": (machine.host.nodes, "whole"),
        "rest": (0 if includes_host else 1, "whole"),
        "tdp": (rating or 0, "whole"),
        "draw": (server_draw(machine, terms=terms) or 0, "one*"),
        "evidence": (option.cached[0].surface.basis, "small"),
        "prices_from": ("; ".join(sources), "small"),
        "note": (missing, "small"),
    }


def write_results(book: Book, options: tuple[Option, ...], terms: Terms) -> None:
    """Fill the sheet of results."""
    page, names = book["Results"], columns_of("Results")
    page.put(0, 0, "Results", "title")
    page.put(1, 0, "At the load and the prices of the other sheets. No inputs.", "note")
    page.row(FIRST - 2, [_RESULT_TITLES[name][0] for name in names], "header")
    page.row(FIRST - 1, [_RESULT_TITLES[name][1].format(terms.currency) for name in names], "header")
    for number in range(len(options)):
        for name, formula in _formulas(number).items():
            page.put(FIRST + number, names.index(name), f"={formula}", _RESULT_TITLES[name][2])
    first, last = (FIRST, names.index("fit")), (FIRST + len(options) - 1, names.index("fit"))
    page.rules += [Rule(first, last, f'=$B{FIRST + 1}="{word}"', style) for word, style in FIT_RULES]
    wide = {"name": 30, "limit": 20, "break_even": 18, "why": 60, "fit": 13, "chance": 14}
    page.widths |= {place: wide.get(name, 12) for place, name in enumerate(names)}
    page.freeze = (FIRST, 1)


def _formulas(n: int) -> dict[str, str]:
    def r(name: str) -> str:
        return cell("Results", name, n).partition("!")[2]

    def c(name: str) -> str:
        return cell("Calculation", name, n)

    at = option_cells(n) | named_terms()
    costs = cost_formulas(at)
    machines, way, share = at["machines"], at["way"], c("share")
    priced = f"""IF({way}="buy",AND(ISNUMBER({at["price"]}),ISNUMBER({at["rating"]})),ISNUMBER({at["rent"]}))"""
    missing, none = '"no price"', '"no speed"'
    found = _speed_formulas(c, machines, share)
    found |= {
        "kw": f'IF(ISNUMBER({at["rating"]}),{costs["kw"]},"unknown")',
        "purchase": f'IF({way}="buy",IF(ISNUMBER({at["price"]}),{costs["purchase"]},{missing}),0)',
    }
    found |= {name: f"IF({priced},{costs[name]},{missing})" for name in ("write_off", "power", "rent", "other")}
    found["month"] = f"IF({priced},{r('write_off')}+{r('power')}+{r('rent')}+{r('other')},{missing})"
    tokens = token_formulas(r("rate"), at)
    found["tokens"] = f"IF(ISNUMBER({r('rate')}),{tokens['tokens']},{none})"
    costed = f"AND(ISNUMBER({r('month')}),ISNUMBER({r('rate')}))"
    for name, rate in (("per_million", "rate"), ("per_million_low", "rate_high"), ("per_million_high", "rate_low")):
        found[name] = f'IF({costed},{r("month")}/({token_formulas(r(rate), at)["tokens"]}),"–")'
    found["per_output"] = f'IF({costed},{r("month")}/({tokens["outputs"]}),"–")'
    api = "AND(ISNUMBER(api_input),ISNUMBER(api_output),ISNUMBER(api_cached))"
    found["api_month"] = f'IF(AND({api},ISNUMBER({r("rate")})),{tokens["api_month"]},"–")'
    volume = f"{r('month')}/({tokens['api_price']})"
    # users who are served together get less each
    carried = token_formulas(f"({machines}*{c('safe')}*answer_tokens/{c('safe_request')})", at)["tokens"]
    most = f"MAX({r('tokens')},IF(ISNUMBER({r('safe')}),IF({r('safe')}>users,{carried},0),0))"
    found["break_even"] = (
        f'IF(AND({api},ISNUMBER({r("month")}),ISNUMBER({r("tokens")})),IF({volume}>{most},"{_BEYOND}",{volume}),"–")'
    )
    running = f"({r('power')}+{r('other')})"
    against = f'AND({way}="buy",ISNUMBER({r("api_month")}),ISNUMBER({r("month")}))'
    found["paid_back"] = (
        f'IF({against},IF({r("api_month")}>{running},{r("purchase")}/({r("api_month")}-{running}),"never"),"–")'
    )
    grown = f"MAX(LN({r('safe')}/users)/LN(1+growth),0)"
    found["outgrown"] = f'IF(ISNUMBER({r("safe")}),IF({r("safe")}<users,0,IF(growth>0,{grown},"never")),"–")'
    found["why"] = c("state")
    return found


def _speed_formulas(c: object, machines: str, share: str) -> dict[str, str]:
    at: dict[str, str] = {name: c(name) for name in columns_of("Calculation")}  # type: ignore[operator]
    known = f'{at["state"]}=""'
    text = f'IF(AND({at["inside"]},{share}<={at["most_users"]}),"does not fit","{_OUTSIDE}")'

    def speed(formula: str) -> str:
        return f"IF({known},{formula},{text})"

    made = f"{machines}*{share}*answer_tokens"
    rate = f"{made}/{at['request']}"
    each = f"(answer_tokens-1)/{at['further']}"
    limits = {
        "KV pool": at["pool"], "max running requests": at["seats"], "TPOT": at["gap"], "TTFT": at["wait"],
    }  # fmt: skip
    least = at["safe"]
    words = "".join(f'IF({limit}<={least},"{name}",' for name, limit in limits.items()) + '""' + ")" * len(limits)
    most = f'IF(AND({least}={at["most_users"]},{at["pool"]}>{least}),"calculated range",{words})'
    full = f"OR({share}>{at['held']},context_tokens>{at['longest']},{share}>{at['seats']})"
    tight = f"OR({share}>{at['held_low']},context_tokens>{at['longest_low']})"
    return {
        "name": at["name"],
        "fit": f'IF({full},"does not fit",IF({tight},"tight","fits"))',
        "held": f"{machines}*{at['held']}",
        "held_low": f"{machines}*{at['held_low']}",
        "rate": speed(rate),
        "rate_low": speed(f"{rate}*EXP(-{at['log_high']})"),
        "rate_high": speed(f"{made}/MAX({at['request']}*EXP({at['log_low']}),{at['least_request']})"),
        "each": speed(each),
        "each_low": speed(f"{each}*EXP(-{at['gap_high']})"),
        "each_high": speed(f"(answer_tokens-1)/MAX({at['further']}*EXP({at['gap_low']}),{at['least_further']})"),
        "wait": speed(at["first"]),
        "gap": speed(f"1000*{at['further']}/(answer_tokens-1)"),
        **{f"safe{level}": f'IF({at["inside"]},{machines}*{at[f"safe{level}"]},"{_OUTSIDE}")' for level in LEVELS},
        # rounded down, so that no load below the probability asked for is shown with it
        "chance": f'IF(AND({at["inside"]},{share}<={at["most_users"]}),INT(1000*{at["chance"]}+0.000001)/1000,"–")',
        "limit": f'IF({at["inside"]},IF(context_tokens>{at["longest_at"]},"longest request",{most}),"–")',
    }


# Sensitivity: cost of a million tokens of one option at both ends of each assumption.

_HEADERS = ("Assumption", "Low", "Now", "High", "Cost per million tokens at low", "now", "at high", "Difference")
#: assumptions without a published range → factors of their value
_FACTORS = {"electricity": (0.5, 2.0), "utilisation": (0.5, 1.5), "hours_per_month": (0.5, 1.0)}
_TOP = 7
_STYLES = {"rate": "one", "price": "whole", "rent": "two", "utilisation": "share"}
#: column with the sort keys of the chart; sorted names and effects stand beside it
_ORDER = 40
#: title, name, low, now and high of an assumption
_Move = tuple[str, str, object, str, object]


def write_sensitivity(
    book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]], currency: str
) -> None:
    """Fill the sheet of sensitivity; `rows` are the assumptions by heading."""
    page, count = book["Sensitivity"], len(options)
    page.put(0, 0, "Sensitivity", "title")
    page.put(1, 0, "Each assumption at both ends of its range, all others unchanged. Low and high may be changed.",
             "note")  # fmt: skip
    page.put(3, 0, "Number of the option")
    page.put(3, 1, 1, "whole*")
    page.bounds[3, 1] = (1, count, f"1 to {count}")
    page.put(3, 2, f"=INDEX({span('Results', 'name', count)},{address(3, 1)})")
    page.put(4, 0, f"{currency} per million tokens, input and output", "note")
    page.row(_TOP - 1, _HEADERS, "header")
    page.heights[_TOP - 1] = 32
    facts = [*option_cells(0), "rate", "rate_low", "rate_high", "price_low", "price_high", "rent_low", "rent_high"]
    left, here = 12, {}
    page.put(_TOP - 3, left, "Chosen option", "heading")
    for place, name in enumerate(facts):
        sheet = "Results" if name.startswith("rate") and name != "rating" else "Options"
        page.put(_TOP - 2, left + place, name, "small")
        held = f"INDEX({span(sheet, name, count)},{address(3, 1)})"
        page.put(_TOP - 1, left + place, f"={held}" if name == "way" else f'=IF(ISNUMBER({held}),{held},"–")', "exact")
        here[name] = address(_TOP - 1, left + place)
    moves = _moves(rows, here)
    _write_moves(page, moves, here)
    # rows are sorted by their effect on the first option; the chart is sorted by formulas
    known = book.calculator()
    effects = [known.value(page.name, _TOP + number, 7) for number in range(len(moves))]
    order = sorted(range(len(moves)), key=lambda number: -effects[number] if _is_number(effects[number]) else 1.0)
    _write_moves(page, [moves[number] for number in order], here)
    _write_chart(page, len(moves), currency)
    page.widths |= {0: 34, **{column: 14 for column in range(1, 8)}, **{column: 3 for column in range(8, 12)}}


def _is_number(value: object) -> bool:
    return isinstance(value, float)


def _write_moves(page: Sheet, moves: list[_Move], here: dict[str, str]) -> None:
    """Write a row for each assumption, with the cost at its bounds."""
    for number, (title, name, low, now, high) in enumerate(moves):
        line = _TOP + number
        page.put(line, 0, title)
        for column, value in ((1, low), (2, now), (3, high)):
            plain = _STYLES.get(name, "exact")
            style = plain if column == 2 or isinstance(value, str) else f"{plain}*"
            page.put(line, column, value, style)
        for column, end in ((4, 1), (5, 2), (6, 3)):
            at = here | named_terms() | {name: address(line, end)}
            tokens = token_formulas(at["rate"], at)["tokens"]
            known = f"AND(ISNUMBER({at['rate']}),ISNUMBER({address(line, end)}),ISNUMBER({_price(here)}))"
            page.put(line, column, f'=IF({known},({cost_formulas(at)["month"]})/({tokens}),"–")', "three")
        ends = ",".join(address(line, column) for column in (4, 5, 6))
        known = f"AND(ISNUMBER({address(line, 4)}),ISNUMBER({address(line, 6)}))"
        page.put(line, 7, f'=IF({known},MAX({ends})-MIN({ends}),"–")', "three")


def _write_chart(page: Sheet, count: int, currency: str) -> None:
    """Write the chart, with bars sorted by effect."""
    last = _TOP + count - 1
    keys = f"{address(_TOP, _ORDER)}:{address(last, _ORDER)}"
    page.put(_TOP - 1, _ORDER + 2, f"={address(_TOP - 1, 7)}", "small")
    for number in range(count):
        line = _TOP + number
        moved = address(line, 7)
        # equal effects keep their order
        page.put(line, _ORDER, f"=IF(ISNUMBER({moved}),{moved},0)-{number + 1}*0.000000001", "exact")
        where = f"MATCH(LARGE({keys},{number + 1}),{keys},0)"
        page.put(line, _ORDER + 1, f"=INDEX({address(_TOP, 0)}:{address(last, 0)},{where})")
        page.put(line, _ORDER + 2, f"=MAX(LARGE({keys},{number + 1}),0)", "three")
    names, values = (
        f"{address(_TOP, _ORDER + column, page.name)}:{address(last, _ORDER + column)}" for column in (1, 2)
    )
    page.charts.append(
        Chart((last + 2, 0), "bar", "Effect on the cost of a million tokens", "", currency,
              ((address(_TOP - 1, _ORDER + 2, page.name), names, values),), (860, 60 + 24 * count))
    )  # fmt: skip
    page.last_printed = (last + 6 + round(1.2 * count), 7)


def _price(here: dict[str, str]) -> str:
    return f'IF({here["way"]}="buy",{here["price"]},{here["rent"]})'


def _moves(rows: dict[str, list[Assumption]], here: dict[str, str]) -> list[_Move]:
    """Return the assumptions with a range, speed and prices first."""
    moves: list[_Move] = [
        (
            "Throughput, 90 % interval",
            "rate",
            f"={here['rate_low']}",
            f"={here['rate']}",
            f"={here['rate_high']}",
        ),
        ("Price per machine", "price", f"={here['price_low']}", f"={here['price']}", f"={here['price_high']}"),
        ("Rent per GPU", "rent", f"={here['rent_low']}", f"={here['rent']}", f"={here['rent_high']}"),
    ]
    for entry in (entry for entries in rows.values() for entry in entries):
        low, high, name = entry.low, entry.high, entry.name
        if (low is None or low == high) and name in _FACTORS and entry.value:
            low, high = (round(factor * entry.value, 6) for factor in _FACTORS[name])
            high = min(high, entry.most)
        if low is not None and high is not None and low < high and name in named_terms():
            moves.append((entry.title, name, low, f"={name}", high))
    return moves
