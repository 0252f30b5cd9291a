"""The sheets of options and of their results."""

from __future__ import annotations

from collections.abc import Mapping

from glmplan.catalog.entries.prices import Quotation
from glmplan.present.sheets.book import Book, Chart, Rule, Sheet, address
from glmplan.present.sheets.input_pages import FIRST, Assumption, cell, columns_of, span
from glmplan.present.sheets.option import Option
from glmplan.purchase.cost import Terms

__all__ = [
    "FIT_RULES",
    "cost_formulas",
    "named_terms",
    "option_cells",
    "token_formulas",
    "write_options",
    "write_results",
    "write_sensitivity",
]


# The cost of a month in the language of a sheet; `glmplan.purchase.cost` has the same ones, a test compares.


def cost_formulas(at: Mapping[str, str]) -> dict[str, str]:
    """Formulas, without the equals sign, of what a month costs.

    - `at`: Where things stand: ``way``, ``machines``, ``accelerators``, ``hosts``, ``rest``, ``rating``, ``price``
      and ``rent`` of the option, and every term by its name.
    - Returns: ``kw``, ``purchase``, ``write_off``, ``power``, ``rent``, ``other`` and ``month``; what they need is
      worked out inside of each, so that one alone can be entered anywhere.

    Examples
    --------
    >>> terms = ("network_share", "power_share", "rest_watts", "supply_efficiency", "capital_rate", "horizon_months",
    ...          "residual_share", "pue", "hours_per_month", "electricity", "colocation", "support_share",
    ...          "licence_per_accelerator_year", "staff_per_month")
    >>> option = ("way", "machines", "accelerators", "hosts", "rest", "rating", "price", "rent")
    >>> cost_formulas({name: name for name in (*option, *terms)})["purchase"]
    'price*machines*(1+IF(machines*hosts>1,network_share,0))'
    """
    g = dict(at)
    kw = (
        f"{g['machines']}*({g['accelerators']}*{g['power_share']}*{g['rating']}+{g['rest']}*{g['rest_watts']}"
        f"*{g['hosts']})/{g['supply_efficiency']}/1000"
    )
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
    """Formulas, without the equals sign, of the tokens of a month and of what an API takes for them.

    - `rate`: Where the answer tokens of a second stand.
    - `at`: Where ``utilisation``, ``hours_per_month``, ``prompt_tokens``, ``answer_tokens``, ``reuse_share``,
      ``api_input``, ``api_output`` and ``api_cached`` stand.
    - Returns: ``outputs`` and ``tokens`` of a month in millions, ``api_month`` in money, ``api_price`` of a million
      tokens.
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
    """Assumptions by their names, for `cost_formulas` and `token_formulas`."""
    return {name: name for name in _BY_NAME}


def option_cells(option: int) -> dict[str, str]:
    """Where the facts of an option stand, for `cost_formulas`."""
    return {name: cell("Options", name, option) for name in _OF_OPTION}


def _said(quoted: Quotation) -> str:
    stale = ", older than 180 days" if quoted.stale else ""
    return f"{' to '.join(dict.fromkeys(quoted.dates))}, {len(quoted.entries)} prices{stale}"


def write_options(book: Book, options: tuple[Option, ...], terms: Terms) -> None:
    """Fill the sheet of options."""
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
    """Fill the sheet of results."""
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


# The sheet of sensitivity: what a million tokens of one option costs when one assumption moves to its ends.

_HEADERS = ("What moves", "Low", "Now", "High", "A million tokens at low", "now", "at high", "Difference")
#: assumptions that move although no source gives a range → factors of what they are
_FACTORS = {"electricity": (0.5, 2.0), "utilisation": (0.5, 1.5), "hours_per_month": (0.5, 1.0)}
_TOP = 7
#: how what moves is written
_STYLES = {"rate": "one", "price": "whole", "rent": "two", "utilisation": "share"}
#: column where the order of effects is worked out, with names and effects in that order beside it [-]
_ORDER = 40
#: title, name, low, now and high of something that moves
_Move = tuple[str, str, object, str, object]


def write_sensitivity(
    book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]], currency: str
) -> None:
    """Fill the sheet of sensitivity.

    `rows`: Assumptions by heading: those with a range move to its ends.
    """
    page, count = book["Sensitivity"], len(options)
    page.put(0, 0, "Sensitivity", "title")
    page.put(1, 0, "One assumption at a time moves to the ends that sources or the interval give it; all else stays. "
                   "Low and high may be changed.", "note")  # fmt: skip
    page.put(3, 0, "Number of the option")
    page.put(3, 1, 1, "whole*")
    page.bounds[3, 1] = (1, count, f"1 to {count}")
    page.put(3, 2, f"=INDEX({span('Results', 'name', count)},{address(3, 1)})")
    page.put(4, 0, f"{currency} for a million tokens, prompts and answers", "note")
    page.row(_TOP - 1, _HEADERS, "header")
    page.heights[_TOP - 1] = 32
    facts = [*option_cells(0), "rate", "rate_low", "rate_high", "price_low", "price_high", "rent_low", "rent_high"]
    left, here = 12, {}
    page.put(_TOP - 3, left, "The option that was chosen", "heading")
    for place, name in enumerate(facts):
        sheet = "Results" if name.startswith("rate") and name != "rating" else "Options"
        page.put(_TOP - 2, left + place, name, "small")
        held = f"INDEX({span(sheet, name, count)},{address(3, 1)})"
        page.put(_TOP - 1, left + place, f"={held}" if name == "way" else f'=IF(ISNUMBER({held}),{held},"–")', "exact")
        here[name] = address(_TOP - 1, left + place)
    moves = _moves(rows, here)
    _write_moves(page, moves, here)
    # what moves the first option most stands at the top; the chart follows whatever is changed
    known = book.calculator()
    effects = [known.value(page.name, _TOP + number, 7) for number in range(len(moves))]
    order = sorted(range(len(moves)), key=lambda number: -effects[number] if _is_number(effects[number]) else 1.0)
    _write_moves(page, [moves[number] for number in order], here)
    _write_chart(page, len(moves), currency)
    page.widths |= {0: 34, **{column: 14 for column in range(1, 8)}, **{column: 3 for column in range(8, 12)}}


def _is_number(value: object) -> bool:
    return isinstance(value, float)


def _write_moves(page: Sheet, moves: list[_Move], here: dict[str, str]) -> None:
    """A row for everything that moves, with what a million tokens then costs."""
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
    """Bars in the order of their effect, which a column beside the page works out."""
    last = _TOP + count - 1
    keys = f"{address(_TOP, _ORDER)}:{address(last, _ORDER)}"
    page.put(_TOP - 1, _ORDER + 2, f"={address(_TOP - 1, 7)}", "small")
    for number in range(count):
        line = _TOP + number
        moved = address(line, 7)
        # rows that move as far as each other keep their order
        page.put(line, _ORDER, f"=IF(ISNUMBER({moved}),{moved},0)-{number + 1}*0.000000001", "exact")
        where = f"MATCH(LARGE({keys},{number + 1}),{keys},0)"
        page.put(line, _ORDER + 1, f"=INDEX({address(_TOP, 0)}:{address(last, 0)},{where})")
        page.put(line, _ORDER + 2, f"=MAX(LARGE({keys},{number + 1}),0)", "three")
    names, values = (
        f"{address(_TOP, _ORDER + column, page.name)}:{address(last, _ORDER + column)}" for column in (1, 2)
    )
    page.charts.append(
        Chart((last + 2, 0), "bar", "How far a million tokens moves", "", currency,
              ((address(_TOP - 1, _ORDER + 2, page.name), names, values),), (860, 60 + 24 * count))
    )  # fmt: skip
    page.last_printed = (last + 6 + round(1.2 * count), 7)


def _price(here: dict[str, str]) -> str:
    return f'IF({here["way"]}="buy",{here["price"]},{here["rent"]})'


def _moves(rows: dict[str, list[Assumption]], here: dict[str, str]) -> list[_Move]:
    """Title, name, low, now and high of everything that moves."""
    found: list[_Move] = [
        (
            "Speed, within its 90 % interval",
            "rate",
            f"={here['rate_low']}",
            f"={here['rate']}",
            f"={here['rate_high']}",
        ),
        ("Price of a machine", "price", f"={here['price_low']}", f"={here['price']}", f"={here['price_high']}"),
        ("Rent of a card", "rent", f"={here['rent_low']}", f"={here['rent']}", f"={here['rent_high']}"),
    ]
    for one in (one for some in rows.values() for one in some):
        low, high = one.low, one.high
        if (low is None or low == high) and one.name in _FACTORS and one.value:
            low, high = (round(factor * one.value, 6) for factor in _FACTORS[one.name])
            high = min(high, one.most)
        if low is not None and high is not None and low < high and one.name in named_terms():
            found.append((one.title, one.name, low, f"={one.name}", high))
    return found
