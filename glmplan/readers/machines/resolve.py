"""From what somebody types for a machine to its accelerators, their number and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.hosts import implied_host, load_machine
from glmplan.physics.network.groups import LayoutLinks, links_of_layout

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator
    from glmplan.facts.schema.host import Host

__all__ = ["Machine", "resolve_machine"]


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"<Machine {self.text}: {self.count} × {self.accelerator.name}>"

    @property
    def part(self) -> str:
        """What names the part in a question: its name, or the file that describes it."""
        own = self.host.accelerator
        return own if own.endswith(".toml") else self.accelerator.name

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
        host = implied_host(part, count, file=self.part if self.part.endswith(".toml") else "")
        return Machine(f"{count}x{self.part}", host, part, count, False, host.assumptions)

    def links(self, *, tp: int, pp: int = 1, dp: int = 1, dcp: int = 1) -> LayoutLinks:
        """The links that the groups of a layout cross on this machine.

        Parameters
        ----------
        tp, pp, dp, dcp : int, optional
            Degrees of the layout, [-]

        Returns
        -------
        LayoutLinks
            As the network finds them on the host that was named, or on the one that a number of accelerators implies.

        Raises
        ------
        SpecError
            If the layout has more ranks than the machine has accelerators.
        UnknownFact
            If a link that a group crosses is not known.
        """
        return links_of_layout(self.host, tp=tp, pp=pp, dp=dp, dcp=dcp)


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
    >>> machine.count, machine.accelerator.name, machine.links(tp=2).tensor.kind
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
