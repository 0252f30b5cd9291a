"""Resolve the text of a machine: accelerators, their number and links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import BaseModel

from glmplan.catalog.caching import remembered
from glmplan.catalog.entries.accelerators import (
    in_one_line,
    load_accelerator,
    outside_catalog,
    split_count,
    taken_memory,
)
from glmplan.catalog.entries.hosts import implied_host, load_machine
from glmplan.catalog.files import plain_name, toml_pairs
from glmplan.costs.memory.settings import PartMemory, part_memory
from glmplan.costs.network.links import LayoutLinks, links_of_layout
from glmplan.errors import SpecError
from glmplan.units import GIB, Bytes, BytesPerSecond, Watts

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.host import Host

__all__ = ["HostMemory", "Machine", "over_all_sockets", "record_toml", "resolve_machine"]


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory and cores of each machine, all its sockets together.

    None where the host states them.
    """

    size: Bytes | None = None
    bandwidth: BytesPerSecond | None = None
    cores: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is given as text."""
        size = "" if self.size is None else f" {self.size / GIB:,.0f} GiB"
        rate = "" if self.bandwidth is None else f" {self.bandwidth / 1e9:,.0f} GB/s"
        memory = (f"host memory{','.join(text for text in (size, rate) if text)}, as given",) if size or rate else ()
        return memory if self.cores is None else (*memory, f"{self.cores} cores, as given")

    def of(self, host: Host) -> Host:
        """Return a host with this memory in equal parts on its sockets."""
        stated = {"memory_size": self.size, "memory_bandwidth": self.bandwidth}
        given = {name: value for name, value in stated.items() if value is not None}
        if not given and self.cores is None:
            return host
        from glmplan.catalog.schema.host import Socket

        before = host.sockets or (Socket(name="cpu0"),)
        parts: dict[str, float] = {name: value / len(before) for name, value in given.items()}
        if self.cores is not None:
            parts["cores"] = max(self.cores // len(before), 1)
        sockets = tuple(socket.model_copy(update=parts) for socket in before)
        unknown = tuple(one for one in host.unknown if one != "host memory" or self.size is None)
        return host.model_copy(update={"sockets": sockets, "unknown": unknown})


@dataclass(frozen=True, repr=False)
class Machine:
    """Machine with equal accelerators."""

    text: str  # as typed
    host: Host
    accelerator: Accelerator
    count: int
    named: bool  # a host was named, not only a number of accelerators
    notes: tuple[str, ...]  # assumptions
    given: HostMemory = HostMemory()  # memory of the processors, as given
    kinds: tuple[tuple[str, int], ...] = ()  # of the host's accelerators and their number, if there are several
    shares: tuple[float, ...] = ()  # of the layers, by accelerator, where all kinds are one after the other
    taken: tuple[str, ...] = ()  # memory of names that are sold with several sizes
    stages: tuple[str, ...] = ()  # accelerator of each pipeline stage, where the stages are of several kinds

    def __repr__(self) -> str:
        return f"<Machine {self.text}: {self.count} × {self.accelerator.name}>"

    @property
    def mixed(self) -> bool:
        """Return True if accelerators of several kinds work together."""
        return bool(self.shares or self.stages)

    @property
    def memory(self) -> PartMemory:
        """Return the memory of an accelerator, of each stage if they differ."""
        if not self.stages:
            return part_memory(self.accelerator)
        first, *rest = (part_memory(load_accelerator(name)) for name in self.stages)
        return replace(first, stages=(first, *rest))

    @property
    def hosts(self) -> list[Host]:
        """Return the host with each kind of accelerator that has stages."""
        if not self.stages:
            return [self.host]
        from glmplan.io.machines.mixed import only_kind

        return [only_kind(self.host, name) for name in dict.fromkeys(self.stages)]

    @property
    def part(self) -> str:
        """Return the accelerator's name, or the file that describes it."""
        own = self.host.accelerator
        return own if outside_catalog(own) else self.accelerator.name

    @property
    def per_node(self) -> int:
        """Return the accelerators that share a node."""
        scale_up = self.host.scale_up
        domain = scale_up.domain if scale_up is not None and scale_up.topology != "bridge" else 0
        return max(self.host.accelerators_per_node, domain)

    def with_count(self, count: int) -> Machine:
        """Return the same accelerator in another number, each without neighbours."""
        part = load_accelerator(self.part) if self.mixed else self.accelerator
        host = implied_host(part, count, file=self.part if outside_catalog(self.part) else "")
        host = self.given.of(host)
        return Machine(f"{count}x{self.part}", host, part, count, False, host.assumptions, self.given)

    def limit_of(self, each: Watts | None) -> Watts | None:
        """Return the power limit of what is planned as one accelerator.

        `each`: that of each card; a card of a lower rating keeps its rating.
        """
        if each is None or not self.shares:
            return each
        ratings = [(load_accelerator(name).tdp or each, count) for name, count in self.kinds]
        return sum(min(each, rating) * count for rating, count in ratings)

    @property
    def left_out(self) -> str:
        """Return the accelerators of other kinds as text, or an empty text."""
        others = ", ".join(f"{count} × {name}" for name, count in self.kinds[1:])
        return others if not self.mixed else ""

    @property
    def beside(self) -> str:
        """Return the accelerators beside those of a layout, as an addition."""
        return f" × {self.accelerator.name} beside {self.left_out} ({ONE_KIND})" if self.left_out else ""

    def in_stages(self, width: int) -> Machine:
        """Return all kinds of accelerators, each pipeline stage on one kind.

        `width`: accelerators of a stage. The same machine if one kind does not fill its stages, or lacks a rate.
        """
        parts = [load_accelerator(name) for name, _ in self.kinds]
        known = all(part.memory and part.memory_bandwidth and "bf16" in part.peak for part in parts)
        whole = all(count % width == 0 for _, count in self.kinds)
        if len({part.vendor for part in parts}) > 1 or self.host.nodes > 1 or not (known and whole):
            return self
        from glmplan.io.machines.mixed import by_kind, of_stages

        host = by_kind(load_machine(self.text), [name for name, _ in self.kinds])
        stages = host.accelerator_names[::width]
        named = (f"{count} × " * (count > 1) + load_accelerator(name).full_name for name, count in self.kinds)
        part = of_stages(tuple((name, 1) for name in stages)).model_copy(update={"full_name": " + ".join(named)})
        notes = (*host.assumptions, f"pipeline stages in this order: {', '.join(stages)}")
        return replace(self, host=self.given.of(host), accelerator=part, count=len(host.slots), notes=notes,
                       stages=stages)  # fmt: skip

    def one_after_another(self, beside: Bytes) -> Machine:
        """Return all kinds of accelerators as one, which has layers of each.

        `beside`: memory that each needs for itself.
        """
        if len(self.kinds) < 2 or self.host.nodes > 1:
            return self
        parts = [load_accelerator(name) for name, count in self.kinds for _ in range(count)]
        if any(part.memory is None or part.memory_bandwidth is None for part in parts):
            return self
        from glmplan.io.machines.mixed import in_sequence, only_kind

        together, shares = in_sequence(parts, beside)
        host = only_kind(self.host, self.kinds[0][0], 1)
        sizes = " + ".join(f"{part.need('memory') / GIB:.0f}" for part in parts)
        said = f"layers are dealt to {len(parts)} accelerators by memory ({sizes} GiB), one works after the other"
        notes = (*self.host.assumptions, said)
        return replace(self, host=host, accelerator=together, count=1, notes=notes, shares=shares)

    def links(self, *, tp: int, pp: int = 1, dp: int = 1, dcp: int = 1) -> LayoutLinks:
        """Return the links that the groups of a layout cross on the host."""
        return links_of_layout(self.host, tp=tp, pp=pp, dp=dp, dcp=dcp)


@remembered(records=1, most=64)
def _processor(part: Accelerator, memory: Bytes) -> Accelerator:
    """Return a processor with the memory that its machine holds."""
    return part.model_copy(update={"memory": memory, "memory_note": "as given"})


def over_all_sockets(part: Accelerator, sockets: int) -> str:
    """Return the options of one server over all sockets, or an empty text.

    Each further socket adds a fitted share of the first one's bandwidth.
    """
    if part.memory is None or part.memory_bandwidth is None or part.kind != "cpu-socket" or sockets < 2:
        return ""
    from glmplan.costs.offload.work import load_offload_fit

    memory = part.memory * sockets
    rate = part.memory_bandwidth * (1.0 + load_offload_fit().next_socket * (sockets - 1))
    return f"--on all --part all:memory={memory / 1e9:g}GB,bandwidth={rate / 1e9:.0f}GB/s,kind=cpu-socket"


def _named_part(text: str, part: str | None) -> str:
    """Return the text of a machine with the data sheet of `part` for its name."""
    if part is None:
        return text
    if not in_one_line(part):
        from glmplan.catalog.entries.own_parts import EXAMPLE

        example = EXAMPLE.format(name="name")
        raise SpecError(f"is no data sheet in one line; write it as {example}", field="--part", value=part)
    name = part.partition(":")[0].strip()
    count, called = split_count(text)
    if plain_name(called) != plain_name(name):
        raise SpecError(f"describes {name}, and --on names {called!r}; write --on {name}", field="--part", value=name)
    return f"{count}x{part.strip()}"


def resolve_machine(text: str, part: str | None = None, memory: HostMemory = HostMemory()) -> Machine:
    """Resolve ``NxACCELERATOR``, a host name, or a TOML file.

    The kind with most memory counts if a host has several. `part` is the data sheet of the accelerator in one
    line, `memory` that of all sockets of a machine.

    Examples
    --------
    >>> machine = resolve_machine("6xrtx-pro-6000-ws")
    >>> machine.count, machine.accelerator.name, machine.links(tp=2).tensor.kind
    (6, 'rtx-pro-6000-ws', 'pcie')
    >>> resolve_machine("hgx-b200-8").count
    8
    >>> own = resolve_machine("2xown", part="own:memory=48GB,bandwidth=1008GB/s,bf16=165T")
    >>> own.count, own.accelerator.memory
    (2, 48000000000.0)
    """
    text = _named_part(text, part)
    if not text.strip():
        raise SpecError("is empty", field="--on", value=text)
    try:
        host = load_machine(text)
        accelerator = load_accelerator(host.accelerator)
    except SpecError as error:
        if error.field is None and error.file is None:
            raise type(error)(error.message, field="--on", value=error.value or text, choices=error.choices) from None
        raise
    named = host.name != f"{host.accelerator_count}x{accelerator.name}"
    notes = list(host.assumptions)
    kinds: dict[str, int] = {}
    if len(set(host.accelerator_names)) > 1:
        from glmplan.io.machines.mixed import kinds_of, only_kind

        kinds = kinds_of(host)
        host = only_kind(host, next(iter(kinds)))
        accelerator = load_accelerator(host.accelerator)
    if memory.notes:
        option = "--host-memory" if memory.size is not None else "--host-memory-bandwidth"
        option = option if memory.size is not None or memory.bandwidth is not None else "--host-cores"
        if host.unified_memory and accelerator.kind != "cpu-socket":
            raise SpecError("is no choice: accelerator and processor share one memory", field=option, value=text)
        if accelerator.kind == "cpu-socket":
            if memory.bandwidth is not None or memory.cores is not None:
                raise SpecError(
                    f"is no choice: {accelerator.name} has that of its data sheet (--part describes another)",
                    field="--host-cores" if memory.bandwidth is None else "--host-memory-bandwidth", value=text,
                )  # fmt: skip
            notes += memory.notes
            memory = HostMemory((memory.size or 0.0) / host.accelerator_count)
            accelerator = _processor(accelerator, memory.size or 0.0)
            if options := over_all_sockets(accelerator, host.accelerator_count):
                notes.append(f"a server on each socket, with equal parts of this memory; one over all: {options}")
        else:
            notes += memory.notes
        host = memory.of(host)
    count, pairs = host.accelerator_count, tuple(kinds.items())
    typed = [split_count(one)[1] for one in text.split("+")] if "+" in text or not named else []
    sizes = (taken_memory(one, load_accelerator(one)) for one in typed if not outside_catalog(one))
    taken = tuple(size for size in sizes if size is not None)
    machine = Machine(text, host, accelerator, count, named, tuple(notes), memory, pairs, taken=taken)
    if not machine.left_out:
        return machine
    return replace(machine, notes=(*notes, f"{machine.left_out} left out: {ONE_KIND}"))


#: reason for accelerators without work
ONE_KIND = "one layout takes accelerators of one kind; llama.cpp deals layers to all, vllm and sglang with --pp"


def record_toml(record: BaseModel, *, leave_out: tuple[str, ...] = ("name",)) -> str:
    """Return a host or accelerator as TOML in the form of `hardware_db/`.

    Defaults are left out. The catalogue reads it back to an equal record. The name of an entry is the name of its file.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> print(record_toml(load_host("strix-halo")).splitlines()[-1])
    accelerator = "ryzen-ai-max-395"
    """
    content = record.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    lines: list[str] = []
    tables: list[str] = []
    for key, value in content.items():
        if key in leave_out:
            continue
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *toml_pairs(value)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                tables += ["", f"[[{key}]]", *toml_pairs(entry)]
        else:
            lines += toml_pairs({key: value})
    return "\n".join([*lines, *tables]) + "\n"
