"""Define `glmplan hybrid`: the cheapest mix of machines and APIs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

if TYPE_CHECKING:
    from glmplan.purchase.hybrid import Mix, Portfolio

__all__ = ["command"]


@o.with_options()
def command(
    portfolio: Annotated[Path, typer.Argument(help="TOML with [[classes]], [[local]] and [[api]].")],
    *,
    money: o.MoneyOptions = o.MoneyOptions(),
    form: o.Format = Form.text,
) -> None:
    """Find the cheapest mix of machines and APIs for request classes.

    The answer includes the value of one more machine.
    """
    from glmplan.cli.options import read_money
    from glmplan.purchase.hybrid import best_mix, break_even_scale, one_more, portfolio_of_offered, read_portfolio

    read = read_portfolio(portfolio, read_money(money))
    mix = best_mix(read)
    free = portfolio_of_offered(read)
    scale = break_even_scale(free) if free.locals and free.sellers and free.classes else None
    if form is Form.json:
        say(json.dumps({**asdict(mix), "one_more": one_more(read, mix), "break_even_scale": scale}, indent=2))
        return
    if form in (Form.csv, Form.md):
        _table(mix, form)
        return
    _text(read, mix)
    if free.locals and free.sellers and free.classes:
        _break_even(free, scale)


def _table(mix: Mix, form: Form) -> None:
    rows = [(name, server, share) for name, servers in mix.shares.items() for server, share in servers.items()]
    if form is Form.csv:
        say("class,server,share")
        say("\n".join(f"{name},{server},{share:.6g}" for name, server, share in rows))
        return
    say("| class | server | share |\n|---|---|---|")
    say("\n".join(f"| {name} | {server} | {share:.1%} |" for name, server, share in rows))


def _text(read: Portfolio, mix: Mix) -> None:
    from glmplan.purchase.hybrid import one_more

    saved = one_more(read, mix)
    owned = ", ".join(f"{count} × {name}" for name, count in mix.machines.items() if count) or "no machine"
    api = sum(mix.usd_api.values())
    say(f"{mix.usd_month:,.0f} USD/month: {owned} {mix.usd_local:,.0f} USD, APIs {api:,.0f} USD")
    for name, servers in mix.shares.items():
        say(f"  {name}: " + ", ".join(f"{share:.0%} {server}" for server, share in servers.items()))
    for seller in read.sellers:
        for name, why in seller.refused.items():
            say(f"  {name} is not sent to {seller.name}: {why}")
    for local in read.locals:
        carried = ", ".join(f"{rate:.3g}/s of {name}" for name, rate in local.carries.items())
        used = mix.used[local.name]
        busy = f"; utilisation {max(used):.0%} at the peak, {sum(used) / len(used):.0%} mean" if any(used) else ""
        say(f"  {local.name}: {local.usd_month:,.0f} USD/month ({local.paid}), capacity {carried}{busy}")
        worth = saved[local.name]
        if round(worth) > 0:
            allowed = "" if mix.machines[local.name] < local.most else f"; at most {local.most} are allowed"
            said = "more than it costs" if worth > local.usd_month else "not more than it costs"
            say(f"    one more machine would save {worth:,.0f} USD/month of API cost, {said}{allowed}")


def _break_even(free: Portfolio, scale: float | None) -> None:
    from glmplan.purchase.hybrid import SCALES, owns_at

    low, high = SCALES
    if scale is not None:
        text = f"a machine pays off from {scale:.3g} times today's volume"
    elif owns_at(free, low):
        text = f"a machine pays off even at {low:g} times today's volume"
    else:
        text = f"the API stays cheaper even at {high:,g} times today's volume"
    say(f"  requests that may go to an API: {text}")
