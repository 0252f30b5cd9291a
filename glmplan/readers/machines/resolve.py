"""From what somebody types for a machine to its accelerators, their number and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from glmplan.errors import GlmplanError, SpecError, UnknownFact
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.hosts import implied_host, load_machine
from glmplan.physics.step.group_link import link_of
from glmplan.physics.step.structure import LinkPeak

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator
    from glmplan.facts.schema.host import Host

__all__ = ["Machine", "resolve_machine"]


@dataclass(frozen=True)
class Machine:
    """A machine with equal accelerators.

    Attributes
    ----------
    text : str
        What was typed.
    host : Host
        The machine.
    accelerator : Accelerator
        Its part.
    count : int
        How many of them, [-]
    named : bool
        Whether a host was named, not only a number of accelerators.
    notes : tuple of str
        What was taken for granted.
    """

    text: str
    host: Host
    accelerator: Accelerator
    count: int
    named: bool
    notes: tuple[str, ...]

    @property
    def per_node(self) -> int:
        """Accelerators that reach each other without a network between machines, [-]"""
        scale_up = self.host.scale_up
        domain = scale_up.domain if scale_up is not None and scale_up.topology != "bridge" else 0
        return max(self.host.accelerators_per_node, domain)

    def with_count(self, count: int) -> Machine:
        """The same part in another number, each accelerator on its own.

        Parameters
        ----------
        count : int
            How many, [-]

        Returns
        -------
        Machine
            The machine that ``NxACCELERATOR`` means.

        Raises
        ------
        SpecError
            If the part does not come in that number.
        """
        part = self.accelerator
        host = implied_host(part, count)
        return Machine(f"{count}x{part.name}", host, part, count, False, host.assumptions)

    def link(self, ranks: int) -> LinkPeak:
        """The link that a group of accelerators crosses.

        Parameters
        ----------
        ranks : int
            Size of the group, [-]

        Returns
        -------
        LinkPeak
            Peak of one direction for each rank. Where a host is named, payload and latency are changed by as much as
            all-reduces on its tree differ from those of the machine that the number of accelerators alone would mean.

        Raises
        ------
        UnknownFact
            If the group spans machines and the network between them is not known.
        """
        plain = link_of(self.accelerator, ranks)
        if ranks > self.per_node:
            if self.host.fabric is None:
                raise UnknownFact(f"{self.host.name}: unknown: network between nodes")
            return LinkPeak("fabric", self.host.fabric.bandwidth)
        if not self.named or ranks == 1 or plain.kind != "pcie":
            return plain
        slower, later = self._against_plain(ranks)
        return LinkPeak(plain.kind, plain.bandwidth / slower, later)

    @cached_property
    def _plain_host(self) -> Host:
        return implied_host(self.accelerator, self.count)

    def _against_plain(self, ranks: int) -> tuple[float, float]:
        """How many times as long a large and a small all-reduce take as on the plain machine, [-]"""
        from glmplan.physics.network.collectives import all_reduce_time
        from glmplan.physics.network.links import link_for_group

        try:
            here, plain = link_for_group(self.host, ranks), link_for_group(self._plain_host, ranks)
        except GlmplanError:
            return 1.0, 1.0
        large, small = (
            float(
                all_reduce_time(message_bytes=size, ranks=ranks, link=here)
                / all_reduce_time(message_bytes=size, ranks=ranks, link=plain)
            )
            for size in (_LARGE, _SMALL)
        )
        return large, small


#: messages of prefill and of decode: a chunk of 8,192 tokens, a step of one token (both with hidden size 6,144) [B]
_LARGE, _SMALL = 100e6, 12_288.0


def resolve_machine(text: str) -> Machine:
    """Resolve a machine: ``NxACCELERATOR``, a host name, or a TOML file.

    Parameters
    ----------
    text : str
        What was typed.

    Returns
    -------
    Machine
        The machine; of hosts with several kinds of parts the kind that most slots hold.

    Raises
    ------
    UnknownName
        If it is none of these; the nearest names are listed and nothing is substituted.
    SpecError
        If the number is zero, or a file is wrong.

    Examples
    --------
    >>> machine = resolve_machine("6xrtx-pro-6000-ws")
    >>> machine.count, machine.accelerator.name, machine.link(2).kind
    (6, 'rtx-pro-6000-ws', 'pcie')
    >>> resolve_machine("hgx-b200-8").count
    8
    """
    if not text.strip():
        raise SpecError("is empty", field="--on", value=text)
    try:
        host = load_machine(text)
        part = load_accelerator(host.accelerator)
    except SpecError as error:
        if error.field is None and error.file is None:
            raise type(error)(error.message, field="--on", value=error.value or text, choices=error.choices) from None
        raise
    named = host.name != f"{host.accelerator_count}x{part.name}"
    same = host.accelerator_names.count(host.accelerator) * host.nodes
    notes = list(host.assumptions)
    if same < host.accelerator_count:
        notes.append(f"{host.accelerator_count - same} accelerators of another kind are left out")
    return Machine(text, host, part, same, named, tuple(notes))
