"""Engine walls before a layout: what the engine does instead, and whether anything lifts the wall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from glmplan.facts.engines.conditions import conditions_of, host_options
from glmplan.facts.engines.options import OPTIONS
from glmplan.facts.engines.walls import Conditions, judge, load_engine
from glmplan.physics.blocks.features import model_features
from glmplan.plan.question import Asked
from glmplan.prediction.deployment import keeps_indexer, runs_sparse

if TYPE_CHECKING:
    from glmplan.facts.schema.engine import Wall

__all__ = ["Obstacles", "Terms", "layout_name"]

#: a wall of these kinds changes what runs; others are advice, followed where nothing else was asked
_FORCED = ("error", "fallback")
#: options that follow from the machine and the layout, see `glmplan.facts.engines.conditions.host_options`
_FROM_HOST = frozenset({"dual-socket", "pcie-switch", "display-on-the-fabric", "force-p2p", "nccl-xml"})
#: judgements of one question that are kept [-]
_REMEMBERED = 10_000
#: numbers of a layout and of its load that walls may ask for
_OF_LAYOUT = ("tp", "pp", "dp", "ep", "dcp", "count", "mtp", "users")
_SEVERITIES = ("error", "unknown", "fallback", "quality", "memory", "slow")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a layout runs with once the walls have had their say.

    Attributes
    ----------
    tp, pp, dp, ep, dcp : int
        Layout of one server, [-]
    kv : str
        KV cache format.
    graphs : bool
        Whether steps run from captured CUDA graphs.
    mtp : int
        Drafted tokens, [-]
    sparse : bool
        Whether sparse attention runs.
    indexer : bool
        Whether its indexer is loaded and its keys are cached; engines that attend densely may keep it or not.
    walls : tuple of Wall
        Walls that stand, the hardest first.
    blocked : Wall or None
        A wall that nothing lifts.
    replicas : int
        Servers of this layout, each with its own accelerators, behind a router, [-]
    prefill : int
        How many of them only compute prompts and hand keys and values over, [-]
    """

    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    kv: str
    graphs: bool
    mtp: int
    sparse: bool
    indexer: bool = True
    walls: tuple[Wall, ...] = ()
    blocked: Wall | None = None
    replicas: int = 1
    prefill: int = 0

    @property
    def decoding(self) -> int:
        """Servers that decode: all, or those that the ones for prompts hand over to, [-]"""
        return self.replicas - self.prefill

    @property
    def server(self) -> int:
        """Accelerators of one server, [-]"""
        return self.tp * self.pp * self.dp

    @property
    def accelerators(self) -> int:
        """Accelerators used, [-]"""
        return self.server * self.replicas

    @property
    def layout(self) -> tuple[int, int, int, int, int]:
        """The degrees of one server, [-]"""
        return self.tp, self.pp, self.dp, self.ep, self.dcp

    @property
    def name(self) -> str:
        """The layout in words."""
        if self.prefill:
            return f"{self.prefill} prefill + {self.decoding} decode × {layout_name(*self.layout)}"
        return layout_name(*self.layout, self.replicas)


def layout_name(tp: int, pp: int, dp: int = 1, ep: int = 1, dcp: int = 1, replicas: int = 1) -> str:
    """Write a layout: TP and PP always, the others where they are more than one.

    Parameters
    ----------
    tp, pp, dp, ep, dcp : int
        Degrees, [-]
    replicas : int
        Servers of that layout, [-]

    Returns
    -------
    str
        As in ``TP2×PP3``, and of several servers ``2 × TP2×PP3``.

    Examples
    --------
    >>> layout_name(2, 3), layout_name(1, 1, 8, 8), layout_name(4, 1, replicas=2)
    ('TP2×PP3', 'TP1×PP1×DP8 EP8', '2 × TP4×PP1')
    """
    more = "".join(f"×{word}{degree}" for word, degree in (("DP", dp),) if degree > 1)
    apart = "".join(f" {word}{degree}" for word, degree in (("EP", ep), ("DCP", dcp)) if degree > 1)
    return f"{replicas} × " * (replicas > 1) + f"TP{tp}×PP{pp}{more}{apart}"


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Walls by what decides them: those that stand whatever the layout, those that a layout decides, and how."""

    always: tuple[Wall, ...]
    sometimes: tuple[tuple[Wall, Callable[[Conditions], object]], ...]
    judged: dict[tuple[str, object], bool]


@lru_cache(maxsize=256)
def _sorted(base: Conditions, options: frozenset[str]) -> _Sorted:
    """The walls before all layouts of one question, and of others on the same machine with the same words."""
    every = (*load_engine(base.engine).walls, *load_engine("any").walls)
    loose = replace(base, count=None, options=options)
    # what the model, the part and the version already decide need not be asked again for every layout
    alive = [(wall, _varying(wall)) for wall in every if judge(wall, loose) != "absent"]
    always = tuple(wall for wall, asks in alive if not asks and judge(wall, base) == "stands")
    return _Sorted(always, tuple((wall, attrgetter(*asks)) for wall, asks in alive if asks), {})


class Obstacles:
    """The walls of one engine before one model on one machine, sorted once for all layouts.

    Parameters
    ----------
    asked : Asked
        The question.
    options : frozenset of str, optional
        Keys of `glmplan.facts.engines.options.OPTIONS` that hold.
    """

    def __init__(self, asked: Asked, options: frozenset[str] = frozenset()) -> None:
        self.asked = asked
        named = f"{asked.settings.attention_backend.lower()}-attention-backend"
        self.options = options = options | ({named} & set(OPTIONS))
        version = asked.runs_as
        found = conditions_of(
            asked.machine.host,
            asked.model,
            engine=asked.engine,
            features=model_features(asked.model),
            options=options,
            engine_version=version,
            weights=_weights_name(asked),
            files=asked.checkpoint.form,
            context=asked.full_request if asked.context else None,
        )
        self.base = replace(found, memory_fraction=asked.settings.memory_fraction)
        self.sorted = _sorted(self.base, options)
        self.known: dict[Conditions, tuple[Wall, ...]] = {}

    def conditions(self, terms: Terms, *, users: int = 1) -> Conditions:
        """The conditions of a layout.

        Parameters
        ----------
        terms : Terms
            The layout.
        users : int, optional
            Requests in flight, [-]

        Returns
        -------
        Conditions
            What the walls ask for.
        """
        return replace(
            self.base,
            options=self.options | host_options(self.asked.machine.host, terms.tp),
            count=terms.server,
            tp=terms.tp,
            pp=terms.pp,
            dp=terms.dp,
            ep=terms.ep,
            dcp=terms.dcp,
            kv=terms.kv,
            graphs=terms.graphs,
            mtp=terms.mtp,
            users=users,
        )

    def standing(self, terms: Terms, *, users: int = 1) -> tuple[Wall, ...]:
        """Walls that stand before a layout.

        Parameters
        ----------
        terms : Terms
            The layout.
        users : int, optional
            Requests in flight, [-]

        Returns
        -------
        tuple of Wall
            The walls, the hardest first.
        """
        given = self.conditions(terms, users=users)
        if given not in self.known:
            found, judged = list(self.sorted.always), self.sorted.judged
            for wall, asks in self.sorted.sometimes:
                key = (wall.id, asks(given))
                if key not in judged:
                    if len(judged) >= _REMEMBERED:
                        judged.clear()
                    judged[key] = judge(wall, given) == "stands"
                if judged[key]:
                    found.append(wall)
            self.known[given] = tuple(sorted(found, key=lambda wall: _SEVERITIES.index(wall.severity)))
        return self.known[given]

    def settle(self, terms: Terms, *, mtp_given: bool = True, ep_given: bool = False) -> Terms:
        """Apply what the engine does instead, until nothing changes.

        Parameters
        ----------
        terms : Terms
            What was wanted.
        mtp_given, ep_given : bool, optional
            Whether they were asked for; advice does not overrule what was asked.

        Returns
        -------
        Terms
            What runs, with the walls met on the way.
        """
        met: dict[str, Wall] = {}
        for _ in range(4):
            before = terms
            for wall in self.standing(terms):
                met.setdefault(wall.id, wall)
                terms = _instead(wall, terms, mtp_given, ep_given)
            if terms == before:
                break
        blocked = next((wall for wall in met.values() if _final(wall)), None)
        ordered = sorted(met.values(), key=lambda wall: _SEVERITIES.index(wall.severity))
        return replace(terms, walls=tuple(ordered), blocked=blocked)

    def wanted(self, layout: tuple[int, int, int, int, int], kv: str, replicas: int = 1) -> Terms:
        """What a layout would run with if there were no walls.

        Parameters
        ----------
        layout : tuple of int
            tp, pp, dp, ep, dcp, [-]
        kv : str
            KV cache format.
        replicas : int, optional
            Servers of the layout, [-]

        Returns
        -------
        Terms
            The terms before `settle`.
        """
        asked = self.asked
        patched = "sparse" if "sm120-sparse-mla" in self.options else ""
        backend = f"{asked.settings.attention_backend} {patched}"
        sparse = runs_sparse(asked.machine.accelerator, backend, engine=asked.engine, version=asked.runs_as)
        indexer = keeps_indexer(asked.engine, sparse)
        return Terms(
            *layout,
            kv=kv,
            graphs=asked.settings.graphs,
            mtp=asked.mtp,
            sparse=sparse,
            indexer=indexer,
            replicas=replicas,
            prefill=asked.prefill,
        )


def _instead(wall: Wall, terms: Terms, mtp_given: bool, ep_given: bool) -> Terms:
    say, forced = wall.instead, wall.severity in _FORCED
    if say.attention == "dense":
        terms = replace(terms, sparse=False, indexer=terms.indexer and say.indexer != "dropped")
    if say.graphs is False:
        terms = replace(terms, graphs=False)
    if say.kv is not None and forced:
        terms = replace(terms, kv=say.kv)
    if say.mtp is not None and terms.mtp > say.mtp and (forced or not mtp_given):
        terms = replace(terms, mtp=say.mtp)
    if say.ep is not None and (forced or not ep_given):
        terms = replace(terms, ep=say.ep)
    if say.dcp is not None and forced:
        terms = replace(terms, dcp=say.dcp)
    return terms


def _varying(wall: Wall) -> tuple[str, ...]:
    """Fields of the conditions that a wall asks for and that differ between the layouts of one question."""
    when = wall.when
    found = [field for field in (*_OF_LAYOUT, "kv", "graphs") if getattr(when, field) not in (None, ())]
    if when.options or set(when.unless) & _FROM_HOST:
        found.append("options")
    return tuple(found)


def _final(wall: Wall) -> bool:
    """Whether the engine never runs the model on the silicon, or never reads its files: nothing lifts the wall."""
    when = wall.when
    silicon = bool(when.compute_capability or when.accelerators)
    of_model = bool(when.models or when.features or when.weights) and silicon or bool(when.files)
    # an engine without a backend for a vendor's parts runs no model on them
    of_model = of_model or bool(when.vendors or when.without_vendors or when.kinds)
    lifted = bool(when.unless or when.options or wall.until or wall.fixed_by)
    return wall.severity == "error" and of_model and not lifted and not wall.instead.model_dump(exclude_none=True)


def _weights_name(asked: Asked) -> str:
    checkpoint = asked.checkpoint
    return checkpoint.name if checkpoint.file_bits_per_weight is not None else checkpoint.bulk
