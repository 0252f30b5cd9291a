"""Run sweeps on a Dask cluster.

Blocks of lost workers are computed again; a cluster without workers is an error.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.purchase.axes import Arriving, Sweep
from glmplan.purchase.money import Money
from glmplan.purchase.sweep import Block, blocks_of

__all__ = ["blocks_on"]

#: combinations per task, which share their step histograms
_TOGETHER = 4
#: retries of a task whose worker died
_AGAIN = 10
_LOCAL = re.compile(r"local(?::(\d+))?")
#: timeout of the scheduler [s]
_PATIENCE = 10.0
#: longest time without any worker; processes start slowly on a busy machine [s]
_ALONE = 120.0
#: interval between checks for workers [s]
_LOOK = 2.0


def blocks_on(address: str) -> Callable[..., Generator[Block, None, None]]:
    """Yield the blocks of `blocks_of` on a cluster as they are done.

    `glmplan.purchase.sweep` has the function. `address`: ``local`` or ``local:WORKERS`` for processes of this machine,
    ``tcp://HOST:PORT`` for a scheduler.
    """
    if _LOCAL.fullmatch(address) is None and not re.match(r"\w+://", address):
        message = "is no cluster: write local, local:WORKERS or tcp://HOST:PORT"
        raise SpecError(message, field="--cluster", value=address)
    return partial(_blocks, address)


def _blocks(
    address: str, sweep: Sweep, numbers: Iterable[int], *, money: Money | None = None, exact: bool = False
) -> Generator[Block, None, None]:
    remaining = list(numbers)
    together = _TOGETHER if sweep.simulation is None else 1
    parts = [remaining[start : start + together] for start in range(0, len(remaining), together)]
    with _client(address) as client:
        # a task result and not scattered data, which would be lost with its worker
        shared = client.submit(_itself, (sweep, money, exact, _files(sweep)), retries=_AGAIN, pure=False)
        futures = [client.submit(_part, shared, part, retries=_AGAIN, pure=False) for part in parts]
        for blocks in _as_they_come(client, futures, address):
            yield from blocks


#: sweep, money, `exact`, and the content of the files of the traffic
_Given = tuple[Sweep, Money | None, bool, dict[str, bytes]]


def _files(sweep: Sweep) -> dict[str, bytes]:
    """Return the traffic files, which workers elsewhere do not have."""
    if sweep.simulation is None:
        return {}
    return sweep.simulation.files(Arriving(*load) for load in sweep.axes["load"])


def _itself(given: _Given) -> _Given:
    return given


def _part(shared: _Given, numbers: list[int]) -> list[Block]:
    sweep, money, exact, files = shared
    if not files or sweep.simulation is None:
        return list(blocks_of(sweep, numbers, money=money, exact=exact))
    with TemporaryDirectory() as folder:
        places = {}
        for number, (name, content) in enumerate(files.items()):
            places[name] = str(Path(folder) / f"{number}-{Path(name).name}")
            Path(places[name]).write_bytes(content)
        here = replace(sweep, simulation=replace(sweep.simulation, places=places))
        return list(blocks_of(here, numbers, money=money, exact=exact))


def _as_they_come(client: Any, futures: list[Any], address: str) -> Iterator[list[Block]]:
    """Yield results as they are done.

    SpecError if there is no worker for `_ALONE`.
    """
    from concurrent.futures import CancelledError

    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    coming = as_completed(futures)
    looked = seen = time.monotonic()
    try:
        while not coming.is_empty():
            for future in coming.next_batch(block=False):
                try:
                    blocks = future.result(timeout=_PATIENCE)
                except TimeoutError:  # its worker died: the task is computed again
                    coming.add(future)
                    continue
                yield blocks
            if coming.has_ready():
                continue
            time.sleep(0.05)
            if time.monotonic() - looked < _LOOK:
                continue
            looked = time.monotonic()
            if client.scheduler_info()["workers"]:
                seen = looked
            elif looked - seen > _ALONE:
                raise SpecError(f"has had no worker for {_ALONE:g} s", field="--cluster", value=address)
    except (CancelledError, KilledWorker, OSError) as error:
        raise SpecError(f"was lost: {error}", field="--cluster", value=address) from None


@contextmanager
def _client(address: str) -> Iterator[Any]:
    check_extra("distributed", field="--cluster")
    import dask
    from distributed import Client

    local = _LOCAL.fullmatch(address)
    # retry the tasks of a lost worker
    with dask.config.set({"distributed.scheduler.allowed-failures": _AGAIN}):
        if local is not None:
            with _local_cluster(address, int(local[1]) if local[1] else None) as cluster:
                yield from _connected(Client, cluster, address)
            return
        yield from _connected(Client, address, address)


@contextmanager
def _local_cluster(address: str, workers: int | None) -> Iterator[Any]:
    from distributed import LocalCluster

    if multiprocessing.current_process().daemon:
        message = (
            "cannot start processes from a process that is itself a daemon: start a scheduler and give its address"
        )
        raise SpecError(message, field="--cluster", value=address)
    # scaled afterwards: starting with workers waits for them without a timeout
    cluster = LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None)
    try:
        cluster.scale(workers or os.cpu_count() or 1)
        yield cluster
    finally:
        with suppress(TimeoutError, OSError):
            cluster.close(timeout=_PATIENCE)


def _connected(client_of: Callable[..., Any], where: Any, address: str) -> Iterator[Any]:
    try:
        client = client_of(where, timeout=_PATIENCE)
    except (OSError, TimeoutError, ValueError) as error:
        raise SpecError(f"cannot be reached: {error}", field="--cluster", value=address) from None
    try:
        try:
            client.wait_for_workers(1, timeout=_ALONE)
        except TimeoutError:
            raise SpecError(f"has had no worker for {_ALONE:g} s", field="--cluster", value=address) from None
        yield client
    finally:
        with suppress(TimeoutError, OSError):
            client.close(timeout=_PATIENCE)
