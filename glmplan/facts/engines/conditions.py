"""From a machine and a model to the conditions that walls ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.engines.walls import Conditions

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host
    from glmplan.facts.schema.model import ModelSpec

__all__ = ["conditions_of", "host_options"]


def host_options(host: Host, group: int) -> frozenset[str]:
    """Return the options of walls that follow from a machine.

    Parameters
    ----------
    host : Host
        The machine.
    group : int
        Accelerators of one TP group, [-]

    Returns
    -------
    frozenset of str
        Of `dual-socket`, `pcie-switch`, `display-on-the-fabric`, `force-p2p`, `nccl-xml`.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> sorted(host_options(load_machine("1xdgx-spark"), 1))
    []
    """
    above = {switch.name: switch.parent for switch in host.switches}
    sockets = {root.name: root.socket for root in host.roots}

    def root_of(parent: str | None) -> str | None:
        while parent in above:
            parent = above[parent]
        return parent

    roots = [root_of(slot.parent) for slot in host.slots]
    on_socket = [sockets.get(root) for root in roots if root is not None]
    found: set[str] = set()
    if host.scale_up is None and len(set(on_socket)) > 1:
        largest = max(on_socket.count(socket) for socket in on_socket)
        found |= {"dual-socket"} if group > largest else set()
    if any(slot.parent in above for slot in host.slots):
        found.add("pcie-switch")
    shown = {root_of(device.parent) for device in host.devices if device.kind == "display"} - {None}
    if shown & set(roots):
        found.add("display-on-the-fabric")
    if host.conditions.p2p == "direct":
        found.add("force-p2p")
    if host.conditions.nccl_graph == "tuned":
        found.add("nccl-xml")
    return frozenset(found)


def conditions_of(
    host: Host,
    model: ModelSpec | None = None,
    *,
    engine: str,
    features: frozenset[str] | None,
    options: frozenset[str] = frozenset(),
    **said: Any,
) -> Conditions:
    """Return the conditions of a plan on a machine.

    Parameters
    ----------
    host : Host
        The machine.
    model : ModelSpec, optional
        The model.
    engine : str
        Name of the engine.
    features : frozenset of str or None
        What the model has (`glmplan.physics.blocks.features.model_features`); None when not said.
    options : frozenset of str, optional
        Keys of `glmplan.facts.engines.options.OPTIONS` that hold, besides those the machine implies.
    **said
        Other fields of `Conditions`; what is None or left out counts as not said.

    Returns
    -------
    Conditions
        The conditions.

    Raises
    ------
    UnknownName
        If the accelerator of the machine is not in the catalogue.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> features = frozenset({"mla", "dsa", "moe", "mtp"})
    >>> plan = conditions_of(
    ...     load_machine("6xrtx-pro-6000-ws"), load_model("glm-5.1"), engine="vllm", features=features, tp=2, pp=3)
    >>> plan.compute_capability, plan.link, plan.count
    ('12.0', 'pcie', 6)
    """
    part = load_accelerator(host.accelerator)
    known: dict[str, Any] = {
        "accelerator": part.name,
        "same_chip": part.same_chip,
        "compute_capability": part.compute_capability,
        "vendor": part.vendor,
        "part_kind": part.kind,
        "lacks": frozenset(part.unsupported),
        "count": host.accelerator_count,
        "link": "nvlink" if host.scale_up is not None and host.scale_up.topology != "bridge" else part.link_kind,
        "model": model.name if model else None,
        "features": features,
    }
    known |= {field: value for field, value in said.items() if value is not None}
    group = known.get("tp") or host.accelerators_per_node
    return Conditions(engine=engine, options=options | host_options(host, group), **known)
