"""The host beside accelerators: what its memory, cores and links offer to weights that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.files import read_toml
from glmplan.facts.folders import fits_folder
from glmplan.units import parse_quantity

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["HostSide", "OffloadFit", "host_side", "load_offload_fit"]


@dataclass(frozen=True, slots=True)
class HostSide:
    """The host as the offloaded part sees it.

    Attributes
    ----------
    bandwidth : float
        Data-sheet memory bandwidth of all sockets, [B/s]
    sockets : int
        CPU packages, [-]
    cores : int or None
        Cores that compute, all sockets; None leaves the CPU's rate out, [-]
    link : float
        Payload that all accelerators together get from host memory, [B/s]; 0 without accelerators
    kernel : str
        ``amx``, ``avx512`` or ``generic``, see `glmplan.facts.schema.hybrid_system.HostKernel`.
    numa_aware : bool
        Whether the engine keeps the weights of each socket's work in its own memory.
    """

    bandwidth: float
    sockets: int = 1
    cores: int | None = None
    link: float = 0.0
    kernel: str = "avx512"
    numa_aware: bool = True


@dataclass(frozen=True, slots=True)
class OffloadFit:
    """Fitted constants of offloading.

    Attributes
    ----------
    host_bandwidth : float
        Share of the data-sheet bandwidth of one socket that decoding reaches, [-]
    next_socket : float
        What each further socket adds, against the first, [-]
    layer_seconds : float
        Launch, hand-over and wait of one layer, [s]
    core_rate : dict of str to float
        FLOP rate of a core while decoding, by kernel, [FLOP/s]
    prefill_core_rate : dict of str to float
        FLOP rate of a core on many tokens, by kernel, [FLOP/s]
    copy : float
        Share of the host's data-sheet bandwidth at which weights are made ready for streaming, [-]
    accelerator_bandwidth, accelerator_cache, accelerator_flop : float
        Share of the accelerator's peaks reached by weights, by the KV cache and by FLOP, [-]
    unified_bandwidth : float
        Share of the bandwidth that decoding reaches on a machine with one memory, [-]
    unified_layer_seconds : float
        Launch of one layer there, [s]
    intervals : dict of str to (float, float)
        ``decode``, ``prefill``, ``unified`` → 90 % interval of measured over predicted on machines left out, in
        logarithms.
    machines : dict of str to dict of str to (float, float)
        Machine → kind → what its runs differ from the model by, and the half-width of a 90 % interval beside it, in
        logarithms; empty for machines that were never measured.
    """

    host_bandwidth: float
    next_socket: float
    layer_seconds: float
    core_rate: dict[str, float]
    prefill_core_rate: dict[str, float]
    copy: float
    accelerator_bandwidth: float
    accelerator_cache: float
    accelerator_flop: float
    unified_bandwidth: float
    unified_layer_seconds: float
    intervals: dict[str, tuple[float, float]]
    machines: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    def of_machine(self, name: str, kind: str) -> tuple[float, float, float]:
        """Correction and interval of measured over predicted rates.

        Parameters
        ----------
        name : str
            Machine.
        kind : str
            ``decode`` or ``prefill``.

        Returns
        -------
        tuple of (float, float, float)
            Correction, lower and upper end around it, in logarithms, [-]
        """
        known = self.machines.get(name, {}).get(kind)
        if known is None:
            return 0.0, *self.intervals[kind]
        return known[0], -known[1], known[1]


@cache
def load_offload_fit() -> OffloadFit:
    """Read `calibration/fits/offload.toml`.

    Returns
    -------
    OffloadFit
        The constants.

    Raises
    ------
    SpecError
        If the file is missing or lacks a constant.

    Examples
    --------
    >>> 0.1 < load_offload_fit().host_bandwidth < 1.0
    True
    """
    path = fits_folder() / "offload.toml"
    content = read_toml(path)
    try:
        constants = {name: entry["value"] for name, entry in content["constants"].items()}
        rates = {name: parse_quantity(text, "FLOP per second") for name, text in constants.items() if "_rate." in name}
        return OffloadFit(
            host_bandwidth=float(constants["host_bandwidth"]),
            next_socket=float(constants["next_socket"]),
            layer_seconds=parse_quantity(constants["layer_seconds"], "seconds"),
            core_rate={n.partition(".")[2]: r for n, r in rates.items() if n.startswith("core_rate.")},
            prefill_core_rate={n.partition(".")[2]: r for n, r in rates.items() if n.startswith("prefill_core_rate.")},
            copy=float(constants["copy"]),
            accelerator_bandwidth=float(constants["accelerator_bandwidth"]),
            accelerator_cache=float(constants["accelerator_cache"]),
            accelerator_flop=float(constants["accelerator_flop"]),
            unified_bandwidth=float(constants["unified_bandwidth"]),
            unified_layer_seconds=parse_quantity(constants["unified_layer_seconds"], "seconds"),
            intervals={name: (pair[0], pair[1]) for name, pair in content["intervals"].items()},
            machines={
                name: {kind: (pair[0], pair[1]) for kind, pair in kinds.items()}
                for name, kinds in content["machines"].items()
            },
        )
    except KeyError as error:
        raise SpecError("lacks this constant", file=path, field=str(error.args[0])) from None


def host_side(host: Host, count: int, *, cores: int | None = None, kernel: str = "avx512") -> HostSide:
    """What a machine offers to weights in its memory.

    Parameters
    ----------
    host : Host
        The machine.
    count : int
        Accelerators that transfer at once, [-]
    cores : int, optional
        Cores that compute; by default all of the host's sockets, unknown if they are, [-]
    kernel : str, optional
        Instructions of the CPU kernels.

    Returns
    -------
    HostSide
        Rates.

    Raises
    ------
    UnknownFact
        If the memory bandwidth of a socket, or a link on the way, is not known.

    Notes
    -----
    A machine with one memory for CPU and accelerator has nothing to offload; it is predicted as the part that it is.

    Examples
    --------
    >>> from glmplan.facts.schema.host import Host
    >>> host = Host(name="one", title="one card", source="an example", roots=[{"name": "r0", "socket": "cpu0"}],
    ...             sockets=[{"name": "cpu0", "memory_bandwidth": "460.8 GB/s", "cores": 64}],
    ...             cards=[{"accelerator": "l40s", "parent": "r0", "link": {"generation": 4, "lanes": 16}}])
    >>> side = host_side(host, 1)
    >>> side.cores, round(side.link / 1e9) < 32
    (64, True)
    """
    from glmplan.physics.network.host_transfers import host_transfer_rate

    if host.unified_memory:
        raise UnknownFact(f"{host.name} has one memory for CPU and accelerator: nothing is offloaded there")
    bandwidth = host.host_memory_bandwidth
    if bandwidth is None:
        raise UnknownFact(f"{host.name}: unknown: memory bandwidth of the host, which offloading needs")
    known = [socket.cores for socket in host.sockets]
    total = None if None in known else sum(number for number in known if number is not None)
    link = count * host_transfer_rate(host, count=count)
    return HostSide(bandwidth, len(host.sockets), cores or total, link, kernel)
