"""A sweep on a Dask cluster: the same blocks, computed by several processes, and again where a worker dies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.sizing.axes import Sweep
from glmplan.sizing.money import Money
from glmplan.sizing.sweep import Block, Swept, blocks_of

__all__ = ["swept_on"]

#: combinations that are handed out at once: loads are made into matrices once for each of them [-]
_TOGETHER = 4
#: how often a combination is computed again when its worker dies [-]
_AGAIN = 10
_LOCAL = re.compile(r"local(?::(\d+))?")
#: longest wait for a scheduler [s]
_PATIENCE = 10


def swept_on(
    address: str,
    sweep: Sweep,
    *,
    money: Money | None = None,
    exact: bool = False,
    done: Sequence[Block] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    keep: Callable[[Block], None] = lambda block: None,
) -> Swept:
    """Compute a sweep on a cluster.

    Parameters
    ----------
    address : str
        ``local`` or ``local:WORKERS`` for processes of this machine, ``tcp://HOST:PORT`` for a scheduler that runs.
    sweep : Sweep
        The question.
    money, exact, done, progress, keep
        As in `glmplan.sizing.sweep.swept`.

    Returns
    -------
    Swept
        What came out, the same as on one core.

    Raises
    ------
    SpecError
        If the extra is not installed, the address is none, or no scheduler answers there.
    """
    blocks = {one.number: one for one in done}
    left = [number for number in range(sweep.structures) if number not in blocks]
    with _client(address) as client:
        from distributed import as_completed

        progress(len(blocks), sweep.structures)
        parts = [left[start : start + _TOGETHER] for start in range(0, len(left), _TOGETHER)]
        shared = client.scatter((sweep, money, exact), broadcast=True)
        futures = [client.submit(_part, shared, part, retries=_AGAIN, pure=False) for part in parts]
        for future in as_completed(futures):
            for block in future.result():
                blocks[block.number] = block
                keep(block)
            progress(len(blocks), sweep.structures)
    return Swept(sweep, tuple(blocks[number] for number in sorted(blocks)))


def _part(shared: tuple[Sweep, Money | None, bool], numbers: list[int]) -> list[Block]:
    sweep, money, exact = shared
    return list(blocks_of(sweep, numbers, money=money, exact=exact))


@contextmanager
def _client(address: str) -> Iterator[Any]:
    check_extra("distributed", field="--cluster")
    import dask
    from distributed import Client, LocalCluster

    local = _LOCAL.fullmatch(address)
    if local is None and not re.match(r"\w+://", address):
        message = "is no cluster: write local, local:WORKERS or tcp://HOST:PORT"
        raise SpecError(message, field="--cluster", value=address)
    # a worker that is lost must not take its combinations with it
    with dask.config.set({"distributed.scheduler.allowed-failures": _AGAIN}):
        if local is not None:
            workers = int(local[1]) if local[1] else None
            with (
                LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
                Client(cluster) as client,
            ):
                yield client
            return
        try:
            client = Client(address, timeout=_PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            raise SpecError(f"cannot be reached: {error}", field="--cluster", value=address) from None
        with client:
            yield client
