"""Fit the kernels of all accelerators.

Utilisation of each, pooled priors, changes against older fits, error page.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.calibrate.kernels.fit import Rows, errors, fit_collective, fit_rows, join, rows_of
from glmplan.calibrate.kernels.own_tables import own_section
from glmplan.calibrate.kernels.tables import PACKAGE, Campaign, all_reduces, campaigns, package_root, parts_in, readable
from glmplan.catalog.engines.kernels import misnamed_tables
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import archive_of, part_pieces, write_atomically, written_whole
from glmplan.costs.kernels.utilisation import CollectiveParams, KernelFit, KernelParams, fit_row
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = [
    "KernelCalibration",
    "calibrate_kernels",
    "kernel_changes",
    "kernels_page",
    "tables_of_wheel",
    "write_kernel_fits",
]


_POOL_ROWS = 80  # rows of each table in a prior
_SLOWEST_GEMM_FLOOR = 40e-6  # s; no accelerator takes so long to start a product
_NO_FORM = 0.4  # a fit with a larger median error would mislead
_HOST_RATIO = 1.7  # a decode block with this start relative to another engine's was launched kernel by kernel
_SMALL = 2e8  # B; a KV cache that may fit the accelerator's cache
_NO_PRIOR = "hyper-"  # fusions around a block depend on engine and accelerator: no prior


@dataclass(slots=True)
class _Measured:
    """One fitted table with sample rows for the priors."""

    fit: KernelFit
    part: str
    family: str
    few: Rows
    most_gain: float


@dataclass(slots=True)
class KernelCalibration:
    """Results of a kernel calibration."""

    parts: dict[str, list[KernelFit]] = field(default_factory=dict)  # accelerator → fits
    priors: list[KernelFit] = field(
        default_factory=list
    )  # pooled fits: engine `*` for all accelerators, `cc9` for a compute capability
    left_out: list[str] = field(default_factory=list)  # unused tables with reasons
    package: str = ""  # name and version


def _peaks(part: Accelerator, compute: str) -> tuple[float, float]:
    """Return the peak compute rate and the peak of memory or link.

    BF16 if the accelerator lacks the precision.
    """
    bandwidth, bf16 = part.need("scaleup_bandwidth" if compute == "link" else "memory_bandwidth", "peak.bf16")
    return float(part.peak.get(compute, bf16)), float(bandwidth)  # type: ignore[call-overload]


def _quality(log_errors: np.ndarray) -> tuple[float, float, float]:
    """Return log spread, median and 90th percentile of the absolute error."""
    low, high = np.quantile(log_errors, [0.16, 0.84])
    relative = np.abs(np.expm1(log_errors))
    spread, median, p90 = (high - low) / 2, np.median(relative), np.quantile(relative, 0.9)
    return round(float(spread), 4), round(float(median), 4), round(float(p90), 4)


def _most_gain(found: Sequence[Campaign], part: Accelerator) -> float:
    """Return the bound on cache over memory bandwidth: twice the measured one.

    Measured by attention over a small cache. Without it, a form that is too slow for small operands compensates with an
    impossible cache.
    """
    best = 0.5
    for campaign in found:
        if campaign.kernel == "decode-attention":
            small = campaign.resident < _SMALL
            share = np.asarray(campaign.work.bytes)[small] / campaign.seconds[small] / part.need("memory_bandwidth")
            best = max(best, float(np.quantile(share, 0.99)) if small.any() else 0.0)
    return 2.0 * best


def _fit_campaign(campaign: Campaign, part: Accelerator, most_gain: float) -> _Measured:
    peak_flop, peak_bandwidth = _peaks(part, campaign.compute)
    peaks = {"peak_flop": peak_flop, "peak_bandwidth": peak_bandwidth}
    count = len(campaign.seconds)
    train, test = (rows_of(campaign, slice(start, count, 2), **peaks) for start in (0, 1))
    fitted = fit_rows(campaign.kernel, campaign.precision, train, most_gain=most_gain)
    spread, median, p90 = _quality(errors(fitted, test))
    rows = np.nan_to_num(np.broadcast_to(np.asarray(campaign.work.rows, dtype=float), count), posinf=1.0)
    fit = KernelFit(
        kernel=campaign.kernel,
        engine=campaign.engine,
        precision=campaign.precision,
        backend=campaign.backend,
        params=fitted,
        log_sd=spread,
        part_log_sd=0.0,
        rows_low=float(f"{rows.min():.3g}"),
        rows_high=float(f"{rows.max():.3g}"),
        median=median,
        p90=p90,
        points=campaign.points,
        pooled=False,
    )
    capability = (part.compute_capability or part.vendor).split(".")[0].lower()
    few = rows_of(campaign, slice(1, 2 * _POOL_ROWS, 2), **peaks)
    return _Measured(fit, campaign.part, f"cc{capability}", few, most_gain)


def _host_timed(found: Sequence[Campaign]) -> dict[int, str]:
    """Return tables whose fastest row is the host's launch time."""
    fastest: dict[tuple[str, str], float] = defaultdict(lambda: np.inf)
    for campaign in found:
        key = campaign.kernel, campaign.precision
        fastest[key] = min(fastest[key], float(campaign.seconds.min()))
    why = {}
    for index, campaign in enumerate(found):
        least = float(campaign.seconds.min())
        limit = np.inf
        if campaign.kernel == "gemm":
            limit = _SLOWEST_GEMM_FLOOR
        elif campaign.kernel.endswith("decode-block"):
            limit = _HOST_RATIO * fastest[campaign.kernel, campaign.precision]
        if least > limit:
            why[index] = (
                f"{campaign.part} {campaign.kernel} {campaign.engine} {campaign.precision} ({campaign.backend}): its "
                f"fastest row takes {least * 1e6:.0f} µs, so the host was timed"
            )
    return why


def _misnamed(found: Sequence[Campaign]) -> dict[int, str]:
    """Return tables whose kernel is not the named one."""
    why = misnamed_tables()
    bad = {}
    for index, one in enumerate(found):
        reason = why.get((one.engine.split()[0], one.backend))  # engine names end in the version
        if reason is not None:
            bad[index] = f"{one.part} {one.kernel} {one.engine} {one.precision} ({one.backend}): {reason}"
    return bad


def _fit_collectives(root: Path, folder: str, part: Accelerator) -> list[KernelFit]:
    fits = []
    for table in all_reduces(root, folder):
        link = float(part.need("scaleup_bandwidth"))
        params, log_errors = fit_collective(table.bytes, table.ranks, table.seconds, link_bandwidth=link)
        spread, median, p90 = _quality(log_errors)
        fits.append(
            KernelFit(
                kernel="all-reduce",
                engine=table.engine,
                precision="bf16",
                backend=table.backend,
                params=params,
                log_sd=spread,
                part_log_sd=0.0,
                rows_low=float(table.ranks.min()),
                rows_high=float(table.ranks.max()),
                median=median,
                p90=p90,
                points=len(table.seconds),
                pooled=False,
            )
        )
    return fits


def _pooled(engine: str, members: Sequence[_Measured], *, alone: float = 0.5) -> KernelFit:
    """Return one prior: a joint fit and its error on left-out accelerators.

    `alone` is the error if there is a single one.
    """
    first = members[0].fit
    everything = join([member.few for member in members])
    gain = max(member.most_gain for member in members)
    fitted = fit_rows(first.kernel, first.precision, everything, most_gain=gain)
    spread, median, p90 = _quality(errors(fitted, everything))
    shifts = []
    for part in sorted({member.part for member in members}):
        others = [member.few for member in members if member.part != part]
        if not others:
            continue
        without = fit_rows(first.kernel, first.precision, join(others), start=fitted, most_gain=gain)
        shifts += [float(np.median(errors(without, m.few))) for m in members if m.part == part]
    between = round(float(np.sqrt(np.mean(np.square(shifts)))), 4) if shifts else alone
    return replace(
        first,
        engine=engine,
        backend="+".join(sorted({member.part for member in members})),
        params=fitted,
        log_sd=spread,
        part_log_sd=between,
        rows_low=min(member.fit.rows_low for member in members),
        rows_high=max(member.fit.rows_high for member in members),
        median=median,
        p90=p90,
        points=sum(member.fit.points for member in members),
        pooled=True,
    )


def _primary(members: Iterable[_Measured]) -> list[_Measured]:
    """Return the backend with most rows of each engine: usually its default."""
    best: dict[tuple[str, ...], _Measured] = {}
    for member in members:
        key = (member.part, member.fit.kernel, member.fit.engine.split()[0], member.fit.precision)
        if key not in best or member.fit.points > best[key].fit.points:
            best[key] = member
    return list(best.values())


def calibrate_kernels(
    parts: Sequence[str] = (),
    *,
    root: Path | None = None,
    package: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> KernelCalibration:
    """Return the fits of kernel tables and priors.

    `parts` are accelerators (default: all; priors need all), `root` the folder of tables and `package` its name and
    version (default: the installed package).
    """
    root = package_root() if root is None else root
    folders = {name: folder for folder, name in parts_in(root).items() if name is not None}
    for name in parts:
        if name not in folders:
            raise SpecError("has no kernel tables", field="--accelerator", value=name, choices=folders)
    calibration = KernelCalibration(package=package or _installed())
    everything: list[_Measured] = []
    for name, folder in folders.items():
        if parts and name not in parts:
            continue
        progress(name)
        accelerator = load_accelerator(name)
        tables = list(campaigns(root, folder))
        bad = _host_timed(tables) | _misnamed(tables)
        calibration.left_out += bad.values()
        gain = _most_gain(tables, accelerator)
        measured = [_fit_campaign(table, accelerator, gain) for index, table in enumerate(tables) if index not in bad]
        for fit in (m.fit for m in measured if m.fit.median > _NO_FORM):
            calibration.left_out.append(
                f"{name} {fit.kernel} {fit.engine} {fit.precision} ({fit.backend}): no form here follows it, its "
                f"median error is {fit.median:.0%}"
            )
        measured = [m for m in measured if m.fit.median <= _NO_FORM]
        everything += _primary(measured)
        ordered = sorted(
            (m.fit for m in measured), key=lambda f: (f.kernel, f.engine, f.precision, -f.points, f.backend)
        )
        calibration.parts[name] = ordered + _fit_collectives(root, folder, accelerator)
    if not parts:
        groups: dict[tuple[str, str], list[_Measured]] = defaultdict(list)
        for member in (one for one in everything if not one.fit.kernel.startswith(_NO_PRIOR)):
            groups[member.fit.kernel, member.fit.precision].append(member)
        for (kernel, precision), members in sorted(groups.items()):
            progress(f"prior of {kernel}, {precision}")
            everyone = _pooled("*", members)
            calibration.priors.append(everyone)
            for family in sorted({member.family for member in members} if not kernel.endswith("-block") else ()):
                relatives = [m for m in members if m.family == family]
                calibration.priors.append(_pooled(family, relatives, alone=everyone.part_log_sd))
    return calibration


def _installed() -> str:
    """Return name and version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return f"{PACKAGE} (unknown version)"


_HEADER = """\
# Utilisation of kernels, written by `glmplan calibrate kernels`; do not edit.
# Each row: class, engine, precision, backend, [parameters],
# [log_sd, part_log_sd, rows_low, rows_high, median, p90, points].
# Parameters: floor s, bandwidth, flop, rows_half, tiles_half, streams_half, side, sharpness, group s, cache_gain,
# cache_bytes B, block B/s, block_gain, key s;
# of all-reduce: latency s, hop s, one_shot, two_shot, two_shot_setup s, crowding. See docs/physics/kernels.md.
"""


def _toml(name: str, package: str, rows: Sequence[KernelFit], peaks: dict[str, Any]) -> str:
    source = f"kernel tables of {package} (Apache-2.0)"
    lines = [_HEADER, f"name = {json.dumps(name)}", f"source = {json.dumps(source)}"]
    lines += [f"{key} = {value}" for key, value in peaks.items()]
    body = ",\n".join("  " + json.dumps(fit_row(fit), ensure_ascii=False) for fit in rows)
    return "\n".join(lines) + f"\nfits = [\n{body}\n]\n"


def write_kernel_fits(found: KernelCalibration, folder: Path) -> list[Path]:
    """Write one TOML per accelerator and one of priors; return the paths."""
    written = []
    for name, fits in found.parts.items():
        accelerator = load_accelerator(name)
        peaks = {
            "memory_bandwidth": accelerator.need("memory_bandwidth"),
            "peak": json.dumps(accelerator.peak).replace(":", " ="),
        }
        written.append(folder / f"{name}.toml")
        write_atomically(written[-1], _toml(name, found.package, fits, peaks))
    if found.priors:
        written.append(folder / "priors.toml")
        write_atomically(written[-1], _toml("priors", found.package, found.priors, {}))
    return written


if TYPE_CHECKING:
    pass


#: part/family/engine/version/kernel_perf.parquet below the folder of tables; no name begins with a dot
_TABLE = re.compile(r"[^/]+/systems/data/((?:\w[\w.+-]*/){4}\w[\w.+-]*_perf\.parquet)")
_SHOWN = 6
#: a smaller change of the median error is no change [-]
_SAME = 0.005


@contextmanager
def tables_of_wheel(wheel: str | Path) -> Iterator[tuple[Path, str]]:
    """Unpack the kernel tables of a wheel; yield folder and package name.

    Nothing is installed or run. `pip download --no-deps` fetches the file.
    """
    readable()
    name, _, rest = Path(wheel).name.partition("-")
    package = f"{name} {rest.partition('-')[0]}"
    with archive_of(wheel, "wheel") as archive, tempfile.TemporaryDirectory() as folder:
        matches = [match for match in map(_TABLE.fullmatch, archive.namelist()) if match]
        if not matches:
            raise SpecError("holds no kernel tables (*/systems/data/**_perf.parquet)", file=wheel)
        for match in matches:
            with written_whole(Path(folder) / match[1]) as stream:
                stream.writelines(part_pieces(archive, match[0]))
        yield Path(folder), package


def _key(fit: KernelFit) -> tuple[str, str, str, str]:
    return fit.kernel, fit.engine, fit.precision, fit.backend


def _some(what: str, keys: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line with the first of a list."""
    if not keys:
        return []
    shown = "; ".join(" ".join(word for word in key if word) for key in keys[:_SHOWN])
    return [f"  {what}: {shown}" + f"; and {len(keys) - _SHOWN} more" * (len(keys) > _SHOWN)]


def _error(fits: Sequence[KernelFit]) -> str:
    return f"{100 * float(np.median([fit.median for fit in fits])):.1f} %" if fits else "none"


def kernel_changes(before: Mapping[str, Sequence[KernelFit]], found: KernelCalibration, root: Path) -> list[str]:
    """Return the changes against older fits as lines.

    Added, removed and changed fits of each accelerator with their median errors; then tables of unknown accelerators,
    and accelerators without tables, whose fits stay.
    """
    lines = []
    for part, fits in found.parts.items():
        old, new = ({_key(fit): fit for fit in some} for some in (before.get(part, ()), fits))
        came, gone = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
        moved = sorted(key for key in old.keys() & new.keys() if abs(old[key].median - new[key].median) > _SAME)
        error = (
            _error(fits)
            if _error(fits) == _error(list(old.values()))
            else f"{_error(list(old.values()))} → {_error(fits)}"
        )
        counts = f"{len(came)} new, {len(gone)} gone, {len(moved)} with another error"
        lines.append(f"{part}: {len(fits)} fits, {counts}; median error {error}")
        lines += [*_some("new", came), *_some("gone", gone), *_some("another error", moved)]
    folders = parts_in(root)
    unknown = sorted(folder for folder, name in folders.items() if name is None)
    if unknown:
        lines.append(f"not in the catalog, left out: {', '.join(unknown)} (add an alias of that name)")
    unchanged = sorted(before.keys() - set(folders.values()))
    if unchanged:
        lines.append(f"no tables, fits unchanged: {', '.join(unchanged)}")
    return lines


if TYPE_CHECKING:
    pass


_INTRO = """\
# Kernels: fits and their errors

Written by `glmplan calibrate kernels`; do not edit. The forms are explained in
[physics/kernels.md](physics/kernels.md).

Source: the kernel tables of {package} (Apache-2.0; <https://github.com/ai-dynamo/aiconfigurator>), read
in place and not copied. At most 1,600 evenly scattered rows of each table are used: every second one is fitted, the
others give the errors below (absolute relative error of the time, % median / 90th percentile; a cell is the median
over its fits). All-reduce tables are short and fitted completely. A prior is fitted to all accelerators; its *carried*
error is the spread of the median error on left-out accelerators.
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _percent(fits: Sequence[KernelFit]) -> str:
    median, p90 = (float(np.median([getattr(fit, name) for fit in fits])) * 100 for name in ("median", "p90"))
    return f"{median:.1f} / {p90:.0f}"


def _by(
    fits: Sequence[tuple[str, KernelFit]], column: Callable[[str, KernelFit], str]
) -> dict[str, dict[str, list[KernelFit]]]:
    cells: dict[str, dict[str, list[KernelFit]]] = defaultdict(lambda: defaultdict(list))
    for part, fit in fits:
        cells[fit.kernel][column(part, fit)].append(fit)
    return cells


def _summary(title: str, fits: Sequence[tuple[str, KernelFit]], column: Callable[[str, KernelFit], str]) -> str:
    cells = _by(fits, column)
    names = sorted({name for row in cells.values() for name in row})
    rows = [
        [kernel, *(_percent(row[name]) if name in row else "" for name in names), _percent(sum(row.values(), []))]
        for kernel, row in sorted(cells.items())
    ]
    return f"## {title}\n\n{_table(['class', *names, 'all'], rows)}\n"


def _parameters(fit: KernelFit) -> str:
    p = fit.params
    if isinstance(p, CollectiveParams):
        return (
            f"{p.latency * 1e6:.1f} µs + {p.hop * 1e6:.2f} µs a rank; one shot {p.one_shot:.0%}, "
            f"two shots {p.two_shot:.0%} + {p.two_shot_setup * 1e6:.1f} µs; crowding {p.crowding:.2f}"
        )
    assert isinstance(p, KernelParams)
    texts = [f"{p.floor * 1e6:.1f} µs", f"B {p.bandwidth:.0%}", f"F {p.flop:.0%}"]
    named = {"rows": p.rows_half, "tiles": p.tiles_half, "streams": p.streams_half}
    texts += [f"{name} {value:.3g}" for name, value in named.items() if value > 0.05]
    texts += [f"side {p.side:.0%}"] * (p.side != 1.0) + [f"s {p.sharpness:.1f}"]
    return ", ".join(texts + [f"{p.group * 1e9:.0f} ns a group"] * (p.group > 1e-9))


def _primary_page(fits: Iterable[KernelFit]) -> list[KernelFit]:
    """Return the largest backend of each engine, without prefill blocks."""
    first: dict[tuple[str, str, str], KernelFit] = {}
    for fit in fits:
        if not fit.kernel.endswith("prefill-block"):
            first.setdefault((fit.kernel, fit.engine, fit.precision), fit)
    return list(first.values())


def kernels_page(found: KernelCalibration) -> str:
    """Return the page `docs/kernels.md`: errors of the fitted forms."""
    fits = [(part, fit) for part, own in found.parts.items() for fit in own]
    text = [_INTRO.format(package=found.package)]
    points = sum(fit.points for _, fit in fits)
    text.append(f"{len(fits)} fits of {points:,} measured kernels on {len(found.parts)} accelerators.\n")
    text.append(_summary("By accelerator", fits, lambda part, _: part))
    text.append(_summary("By engine", fits, lambda _, fit: fit.engine.split()[0]))
    text.append(_summary("By format", fits, lambda _, fit: fit.precision.split("+")[0]))
    rows = [
        [f.kernel, f.precision, f"{f.median:.0%} / {f.p90:.0%}"]
        + [f"{f.log_sd:.2f}", f"{f.part_log_sd:.2f}", _parameters(f)]
        for f in found.priors
        if f.engine == "*"
    ]
    head = ["class", "format", "error", "spread of shapes", "carried", "parameters"]
    text.append(f"## Priors for unmeasured accelerators\n\nSpreads are of the logarithm.\n\n{_table(head, rows)}\n")
    if (beside := own_section(found.parts)) != "":
        text.append(beside)
    worst = sorted(fits, key=lambda pair: -pair[1].median)[:20]
    rows = [[p, f.kernel, f.engine, f.precision, f.backend, f"{f.median:.0%} / {f.p90:.0%}"] for p, f in worst]
    text.append(
        "## Largest errors\n\nOne form cannot follow a library that changes its kernel with the shape; see "
        f"[physics/kernels.md](physics/kernels.md).\n\n"
        f"{_table(['accelerator', 'class', 'engine', 'format', 'backend', 'error'], rows)}\n"
    )
    for part, own in found.parts.items():
        rows = [
            [f.kernel, f.engine, f.precision, f.backend, f"{f.rows_low:g}-{f.rows_high:g}", _parameters(f)]
            + [f"{f.median:.1%} / {f.p90:.0%}", f"{f.points:,}"]
            for f in _primary_page(own)
        ]
        head = ["class", "engine", "format", "backend", "rows", "parameters", "error", "points"]
        text.append(f"## {part}\n\n{_table(head, rows)}\n")
    if found.left_out:
        text.append("## Left out\n\n" + "\n".join(f"- {reason}." for reason in found.left_out) + "\n")
    return "\n".join(text)
