"""Prompts and decoding on servers of their own: who can, over which link, and how sure that is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.facts.catalogue.names import engine_release
from glmplan.facts.engines.walls import load_engine
from glmplan.plan.offloaded import experts_on_host
from glmplan.prediction.effects import KNOWN_AS

if TYPE_CHECKING:
    from glmplan.plan.engine_limits import Terms
    from glmplan.plan.question import Asked
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.load import Load
    from glmplan.serving.engine.settings import TransferLink

__all__ = ["APART", "apart_basis", "check_apart", "kinds_of_servers", "known_apart", "not_together", "transfer_link"]

#: class of what is known, of `glmplan.prediction.effects.KNOWN_AS`, of servers that were not measured together
APART = "apart"
#: the class whose interval such servers have at least: one wider than that of the newest release
_AS_SURE_AS = "format"
#: classes of what was measured as it is asked, which servers apart never were
_TOGETHER = ("site", "configuration", "release", "group", "group_release", "pair")


def check_apart(asked: Asked) -> None:
    """Refuse servers for prompts alone where no source shows the engine serving so.

    Parameters
    ----------
    asked : Asked
        The question.

    Raises
    ------
    SpecError
        If the engine or its release has no such servers, or weights lie in host memory.
    """
    if not asked.prefill:
        return
    running = load_engine(asked.engine).running
    facts = None if running is None else running.apart
    text = f"{asked.prefill}:{(asked.replicas or 0) - asked.prefill}"
    if facts is None:
        message = f"is not known of {asked.engine}: no source shows it computing prompts on servers of their own"
        raise SpecError(message, field="--disaggregated", value=text)
    if experts_on_host(asked):
        message = "is not known with weights in host memory"
        raise SpecError(message, field="--disaggregated", value=text)
    release, first = engine_release(asked.runs_as), engine_release(facts.since)
    if release is not None and first is not None and release < first:
        message = f"is shown of {asked.engine} from {facts.since} on, not of {asked.runs_as}"
        raise SpecError(message, field="--disaggregated", value=text)


def transfer_link(asked: Asked, terms: Terms) -> TransferLink:
    """The link over which keys and values go from a server for prompts to one that decodes.

    Parameters
    ----------
    asked : Asked
        The question.
    terms : Terms
        The layout of every server.

    Returns
    -------
    TransferLink
        Bandwidth of all ranks that hold a conversation together, each towards the rank in its place, and the latency of
        one send.

    Raises
    ------
    UnknownFact
        If the link is not known.

    Notes
    -----
    The two servers are the first and the last of the machine, which are the farthest apart. Transfers of all servers
    follow each other on this one link: no two pairs are counted to send side by side, so that the link is rather too
    slow than too fast. Not modelled: layers that are sent while later ones are computed.
    """
    from glmplan.physics.network.links import link_of_transfers
    from glmplan.serving.engine.settings import TransferLink

    inside = max(min(asked.machine.per_node, asked.machine.count) // terms.server, 1)
    last = terms.replicas - 1
    start = last // inside * asked.machine.per_node + last % inside * terms.server
    if inside == 1:
        start = last * max(asked.machine.per_node, terms.server)
    start = min(start, asked.machine.count - terms.server)
    pairs = [(rank, start + rank) for rank in range(terms.server)]
    link = link_of_transfers(asked.machine.host, pairs)
    each = link.bandwidth * link.ring.efficiency
    return TransferLink(each * terms.tp * terms.pp, link.ring.launch + link.ring.hop)


def known_apart(asked: Asked, knowledge: str) -> str:
    """Class of what is known of a plan.

    Parameters
    ----------
    asked : Asked
        The question.
    knowledge : str
        Class of what is known of one of its servers, of `glmplan.prediction.effects.KNOWN_AS`.

    Returns
    -------
    str
        The same; of servers for prompts and for decoding `APART` where each alone is known as well or better.
    """
    return APART if asked.prefill and knowledge in _TOGETHER else knowledge


def apart_basis(asked: Asked, basis: str) -> str:
    """What times rest on, in words.

    Parameters
    ----------
    asked : Asked
        The question.
    basis : str
        What those of one server rest on.

    Returns
    -------
    str
        The same, and that servers for prompts and for decoding were not measured together.
    """
    return f"{KNOWN_AS[APART]}; of each: {basis}" if asked.prefill else basis


def not_together(
    asked: Asked, deployment: Deployment, load: Load, kind: str, ends: tuple[float, float]
) -> tuple[float, float]:
    """The interval of a time of servers that were never measured together.

    Parameters
    ----------
    asked : Asked
        The question.
    deployment : Deployment
        One of the servers.
    load : Load
        What it does.
    kind : str
        ``decode`` or ``ttft``.
    ends : tuple of float
        90 % interval of such a time relative to its prediction, of one server that does both, [-]

    Returns
    -------
    tuple of float
        At least as wide as that of a model and a part that were not measured together, nor the part in this format, [-]
    """
    if not asked.prefill:
        return ends
    from glmplan.prediction.effects import load_effects
    from glmplan.prediction.intervals import features_of, interval_of

    effects = load_effects(deployment.engine)
    low, high = interval_of(effects, _AS_SURE_AS, kind, features_of(deployment, load))
    return min(ends[0], math.exp(low)), max(ends[1], math.exp(high))


def kinds_of_servers(asked: Asked, terms: Terms) -> tuple[str, ...]:
    """What to know about the launch of servers for prompts and for decoding.

    Parameters
    ----------
    asked : Asked
        The question.
    terms : Terms
        The plan.

    Returns
    -------
    tuple of str
        How many of each kind, what each is told beside the command, what stands before them; empty where every server
        does both.
    """
    running = load_engine(asked.engine).running
    if not terms.prefill or running is None or running.apart is None:
        return ()
    facts, link = running.apart, transfer_link(asked, terms)
    rate = f"{link.bandwidth / 1e9:,.0f} GB/s"
    return (
        f"{terms.prefill} × for prompts: add {facts.prefill}",
        f"{terms.decoding} × for decoding: add {facts.decode}",
        f"before them: {facts.router}; keys and values go over at {rate}, one request after another",
    )
