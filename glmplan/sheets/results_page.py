"""The sheets of options and of their results."""

from __future__ import annotations

from glmplan.facts.catalogue.prices import Quotation
from glmplan.sheets.book import Book, Rule
from glmplan.sheets.money_formulas import cost_formulas, token_formulas
from glmplan.sheets.option import Option
from glmplan.sheets.places import FIRST, cell, columns_of
from glmplan.sizing.terms import Terms

__all__ = ["FIT_RULES", "named_terms", "option_cells", "write_options", "write_results"]

_TITLES = {
    "number": "#", "name": "Name", "machine": "Machine", "accelerators": "Cards in it", "weights": "Weights",
    "engine": "Engine", "layout": "Layout", "machines": "Machines", "cache": "KV cache", "way": "Buy or rent",
    "price": "Price of a machine [{}]", "price_low": "lowest published", "price_high": "highest published",
    "rent": "Rent of a card [{}/h]", "rent_low": "lowest published", "rent_high": "highest published",
    "rating": "Power limit of a card [W]", "hosts": "Hosts in it", "rest": "Host draws beside the cards (1 or 0)",
    "evidence": "What the speed rests on", "prices_from": "Where prices come from", "note": "What is missing",
}  # fmt: skip
_OPTION_WIDTHS = (4, 30, 26, 8, 12, 12, 14, 10, 10, 10, 13, 12, 12, 12, 10, 10, 11, 8, 12, 30, 44, 44)
_RESULT_TITLES = {
    "name": ("Option", "", "wrap"),
    "fit": ("Fits", "", "text"),
    "held": ("Users that the KV cache holds", "users", "whole"),
    "held_low": ("at its low end", "users", "whole"),
    "rate": ("Tokens in a second", "tok/s", "whole"),
    "rate_low": ("90 % from", "tok/s", "whole"),
    "rate_high": ("to", "tok/s", "whole"),
    "each": ("For one user", "tok/s", "one"),
    "each_low": ("90 % from", "tok/s", "one"),
    "each_high": ("to", "tok/s", "one"),
    "wait": ("First token, about", "s", "two"),
    "gap": ("Between tokens", "ms", "one"),
    "safe": ("Safe users", "users", "whole"),
    "limit": ("which is limited by", "", "wrap"),
    "kw": ("Draw at the wall", "kW", "two"),
    "purchase": ("Purchase", "{}", "whole"),
    "write_off": ("Write-off and capital", "{}/month", "whole"),
    "power": ("Power and colocation", "{}/month", "whole"),
    "rent": ("Rent", "{}/month", "whole"),
    "other": ("Support, licences, staff", "{}/month", "whole"),
    "month": ("Month", "{}/month", "whole"),
    "tokens": ("Tokens of a month", "million", "whole"),
    "per_million": ("A million tokens", "{}", "two"),
    "per_million_low": ("at the fast end", "{}", "two"),
    "per_million_high": ("at the slow end", "{}", "two"),
    "per_output": ("A million answer tokens, all costs", "{}", "two"),
    "api_month": ("The same from an API", "{}/month", "whole"),
    "break_even": ("Break-even", "million tokens a month", "whole"),
    "paid_back": ("Purchase paid back against the API", "months", "one"),
    "outgrown": ("Until growth reaches the safe users", "months", "one"),
    "why": ("Why there is no speed", "", "small"),
}
#: colours of what fits
FIT_RULES = (("fits", "good"), ("tight", "fair"), ("does not fit", "bad"))
_BY_NAME = (
    *("prompt_tokens", "answer_tokens", "reuse_share", "utilisation", "hours_per_month", "electricity", "pue"),
    *("colocation", "horizon_months", "residual_share", "capital_rate", "network_share", "power_share", "rest_watts"),
    *("supply_efficiency", "licence_per_accelerator_year", "staff_per_month", "support_share", "api_input"),
    *("api_output", "api_cached"),
)
_OF_OPTION = ("way", "machines", "accelerators", "hosts", "rest", "rating", "price", "rent")


def named_terms() -> dict[str, str]:
    """Assumptions by their names, for `cost_formulas` and `token_formulas`.

    Returns
    -------
    dict of str to str
        Name → name of its cell.
    """
    return {name: name for name in _BY_NAME}


def option_cells(option: int) -> dict[str, str]:
    """Where the facts of an option stand, for `cost_formulas`.

    Parameters
    ----------
    option : int
        Its number, from 0, [-]

    Returns
    -------
    dict of str to str
        Name → address.
    """
    return {name: cell("Options", name, option) for name in _OF_OPTION}


def _said(quoted: Quotation) -> str:
    stale = ", older than 180 days" if quoted.stale else ""
    return f"{' to '.join(dict.fromkeys(quoted.dates))}, {len(quoted.entries)} prices{stale}"


def write_options(book: Book, options: tuple[Option, ...], terms: Terms) -> None:
    """Fill the sheet of options.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    terms : Terms
        Currency.
    """
    page, names = book["Options"], columns_of("Options")
    page.put(0, 0, "Options", "title")
    page.put(1, 0, "A row for each. Yellow cells may be changed: number of machines, format of the KV cache, buying or "
                   "renting, prices, power limits.", "note")  # fmt: skip
    page.row(FIRST - 1, [_TITLES[name].format(terms.currency) for name in names], "header")
    page.heights[FIRST - 1] = 46
    for number, option in enumerate(options):
        option_row = _option_row(number, option)
        for name, (value, style) in option_row.items():
            put = page.say if isinstance(value, str) else page.put
            put(FIRST + number, names.index(name), value, style)
        line = FIRST + number
        page.choices[line, names.index("cache")] = [one.kv for one in option.cached]
        page.choices[line, names.index("way")] = ["buy", "rent"]
        page.bounds[line, names.index("machines")] = (1, 10_000, "Machines: 1 to 10,000")
        for name in ("price", "rent", "rating"):
            page.bounds[line, names.index(name)] = (0, 1e9, "A price or a power: 0 or more")
        texts = (
            (option_row[name][0], _OPTION_WIDTHS[names.index(name)]) for name in ("evidence", "prices_from", "note")
        )
        page.heights[line] = 12.0 * max(1 + int(1.1 * len(str(text)) / width) for text, width in texts) + 3
    page.widths |= dict(enumerate(_OPTION_WIDTHS))
    page.freeze = (FIRST, 2)


def _option_row(number: int, option: Option) -> dict[str, tuple[object, str]]:
    planned = option.planned
    machine, layout = planned.asked.machine, planned.holding.terms
    bought, rent = option.purchase, option.rent
    priced = bought is not None and not option.purchase_missing
    share = 1.0 + (bought.network_share if bought is not None else 0.0)
    prices = [
        None if not priced else end / share for end in ((bought.known, bought.low, bought.high) if bought else ())
    ]
    prices = prices or [None] * 3
    said = [f"{line.name}: {_said(line.quotation)}" for line in (bought.lines if bought else ()) if line.quotation]
    said += [f"rent {option.rent_term}: {_said(rent)}"] if rent is not None else []
    whole = machine.accelerator.kind in ("soc", "system")
    rents = (None,) * 3 if rent is None else (rent.value, rent.low, rent.high)
    missing = "; ".join(one for one in (option.purchase_missing, option.rent_missing) if one)
    if machine.accelerator.tdp is None:
        missing = "; ".join(filter(None, (missing, "the power of the card is not published: enter it")))
    return {
        "number": (number + 1, "text"),
        "name": (f"{option.wanted.machines} × {machine.text}", "text*"),
        "machine": (machine.text, "text"),
        "accelerators": (machine.count, "whole"),
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
        "rating": (machine.accelerator.tdp, "whole*"),
        "hosts": (machine.host.nodes, "whole"),
        "rest": (0 if whole else 1, "whole"),
        "evidence": (option.cached[0].surface.basis, "small"),
        "prices_from": ("; ".join(said), "small"),
        "note": (missing, "small"),
    }


def write_results(book: Book, options: tuple[Option, ...], terms: Terms) -> None:
    """Fill the sheet of results.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    terms : Terms
        Currency.
    """
    page, names = book["Results"], columns_of("Results")
    page.put(0, 0, "Results", "title")
    page.put(1, 0, "At the users, lengths and prices of the other sheets. Nothing to enter here.", "note")
    page.row(FIRST - 2, [_RESULT_TITLES[name][0] for name in names], "header")
    page.row(FIRST - 1, [_RESULT_TITLES[name][1].format(terms.currency) for name in names], "header")
    page.heights[FIRST - 2] = 46
    for number in range(len(options)):
        for name, formula in _formulas(number).items():
            page.put(FIRST + number, names.index(name), f"={formula}", _RESULT_TITLES[name][2])
    first, last = (FIRST, names.index("fit")), (FIRST + len(options) - 1, names.index("fit"))
    page.rules += [Rule(first, last, f'=$B{FIRST + 1}="{word}"', style) for word, style in FIT_RULES]
    wide = {"name": 30, "limit": 20, "why": 60, "fit": 13}
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
        "kw": f'IF(ISNUMBER({at["rating"]}),{costs["kw"]},"not known")',
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
    found["break_even"] = f'IF(AND({api},ISNUMBER({r("month")})),{r("month")}/({tokens["api_price"]}),"–")'
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
    word = f'IF(AND({at["inside"]},{share}<={at["most_users"]}),"does not fit","outside the surface")'

    def speed(formula: str) -> str:
        return f"IF({known},{formula},{word})"

    made = f"{machines}*{share}*answer_tokens"
    rate = f"{made}/{at['request']}"
    each = f"(answer_tokens-1)/{at['further']}"
    limits = {
        "KV cache": at["held_low"], "places in the engine": at["seats"],
        "tokens too slow": f"MIN({at['safe_gap']},{at['safe_gap_high']})",
        "first token too late": f"MIN({at['safe_wait']},{at['safe_wait_high']})",
    }  # fmt: skip
    least = f"MIN({','.join(limits.values())})"
    words = "".join(f'IF({limit}<={least},"{name}",' for name, limit in limits.items()) + '""' + ")" * len(limits)
    most = f'IF(AND({least}={at["most_users"]},{at["held_low"]}>{least}),"no more were looked at",{words})'
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
        "safe": f'IF({at["inside"]},IF(context_tokens>{at["longest_low"]},0,{machines}*{least}),"outside the surface")',
        "limit": f'IF({at["inside"]},IF(context_tokens>{at["longest_low"]},"context that must fit",{most}),"–")',
    }
