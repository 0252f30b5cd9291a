"""The cost of a month in the language of a sheet; `glmplan.sizing.cost` has the same ones, a test compares."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["cost_formulas", "token_formulas"]


def cost_formulas(at: Mapping[str, str]) -> dict[str, str]:
    """Formulas, without the equals sign, of what a month costs.

    Parameters
    ----------
    at : mapping of str to str
        Where things stand: ``way``, ``machines``, ``accelerators``, ``hosts``, ``rest``, ``rating``, ``price``
        and ``rent`` of the option, and every term by its name.

    Returns
    -------
    dict of str to str
        ``kw``, ``purchase``, ``write_off``, ``power``, ``rent``, ``other`` and ``month``; what they need is worked out
        inside of each, so that one alone can be entered anywhere.

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

    Parameters
    ----------
    rate : str
        Where the answer tokens of a second stand.
    at : mapping of str to str
        Where ``utilisation``, ``hours_per_month``, ``prompt_tokens``, ``answer_tokens``, ``reuse_share``,
        ``api_input``, ``api_output`` and ``api_cached`` stand.

    Returns
    -------
    dict of str to str
        ``outputs`` and ``tokens`` of a month in millions, ``api_month`` in money, ``api_price`` of a million tokens.
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
