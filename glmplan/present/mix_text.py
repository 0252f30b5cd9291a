"""Text of `glmplan hybrid`: machines and APIs, value of one more machine."""

from __future__ import annotations

from typing import Any

from glmplan.purchase.hybrid import SCALES, Mix, Portfolio, one_more, owns_at

__all__ = ["break_even_line", "mix_rows", "mix_text"]


def mix_rows(mix: Mix) -> list[dict[str, Any]]:
    """Return the share of each server in each class of requests."""
    return [
        {"class": name, "server": server, "share": share}
        for name, servers in mix.shares.items()
        for server, share in servers.items()
    ]


def mix_text(read: Portfolio, mix: Mix) -> str:
    """Return cost, shares, refused APIs, capacity and load of machines."""
    saved = one_more(read, mix)
    owned = ", ".join(f"{count} × {name}" for name, count in mix.machines.items() if count) or "no machine"
    api = sum(mix.usd_api.values())
    lines = [f"{mix.usd_month:,.0f} USD/month: {owned} {mix.usd_local:,.0f} USD, APIs {api:,.0f} USD"]
    for name, servers in mix.shares.items():
        lines.append(f"  {name}: " + ", ".join(f"{share:.0%} {server}" for server, share in servers.items()))
    for seller in read.sellers:
        lines += [f"  {name} is not sent to {seller.name}: {why}" for name, why in seller.refused.items()]
    for local in read.locals:
        carried = ", ".join(f"{rate:.3g}/s of {name}" for name, rate in local.carries.items() if rate > 0) or "none"
        missed = ", ".join(name for name, rate in local.carries.items() if rate <= 0)
        missed = f"; SLO of {missed} not met at any rate" if missed else ""
        used = mix.used[local.name]
        busy = f"; utilisation {max(used):.0%} at the peak, {sum(used) / len(used):.0%} mean" if any(used) else ""
        lines.append(
            f"  {local.name}: {local.usd_month:,.0f} USD/month ({local.paid}), capacity {carried}{missed}{busy}"
        )
        worth = saved[local.name]
        if round(worth) > 0:
            allowed = "" if mix.machines[local.name] < local.most else f"; at most {local.most} are allowed"
            cost = "more than it costs" if worth > local.usd_month else "not more than it costs"
            lines.append(f"    one more machine would save {worth:,.0f} USD/month of API cost, {cost}{allowed}")
    return "\n".join([*lines, *(f"  note: {text}" for local in read.locals for text in local.assumed)])


def break_even_line(free: Portfolio, scale: float | None) -> str:
    """Return the volume from which a machine pays off, as text."""
    low, high = SCALES
    if scale is not None:
        text = f"a machine pays off from {scale:.3g} times today's volume"
    elif owns_at(free, low):
        text = f"a machine pays off even at {low:g} times today's volume"
    else:
        text = f"the API stays cheaper even at {high:,g} times today's volume"
    return f"  requests that may go to an API: {text}"
