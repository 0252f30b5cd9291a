"""One request on its way through the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from glmplan.units import Seconds

__all__ = ["Request", "apart", "linked", "mark", "merged", "together"]


#: between requests that users send at the same instant, where a front end takes them in: as good as none beside a step
#: of an engine, yet one of them is the first [s]
_APART: Final = 1e-6
_NEVER: Final = float("inf")
_NOTHING: Final[Mapping[object, int]] = MappingProxyType({})


def apart(lag: Seconds) -> Seconds:
    """Time between two requests that are sent at the same instant.

    A front end hands requests over one after the other, so that an idle engine begins with the first alone, as in
    `glmplan.simulation.closed_run.ClosedLoop.late`.

    Examples
    --------
    >>> apart(0.0), apart(0.01)
    (0.0, 1e-06)
    """
    return _APART if lag else 0.0


class Request:
    """Lengths of a request, and its history, which engines write.

    Parameters
    ----------
    number : int
        Position in the order of creation.
    arrival : float
        When it reaches the service, [s]
    input_tokens : int
        Prompt length, [token]
    output_tokens : int
        Answer length, at least one, [token]
    steps : int
        Steps after the first token that the answer takes; fewer than its tokens with speculation, [-]
    runs : tuple of tuple
        Parts of the prompt, as (name of the content, tokens) in order; equal names are equal content.
    session, turn : int
        Which conversation, and where in it; -1 and 0 for single requests.

    Examples
    --------
    >>> Request(0, 0.0, 100, 10).steps
    9
    """

    __slots__ = (
        "arrival",
        "base",
        "cached",
        "done",
        "finish",
        "first",
        "images",
        "input",
        "joined",
        "key",
        "kv_ready",
        "leaves",
        "left",
        "lost",
        "most",
        "number",
        "output",
        "pins",
        "preemptions",
        "private",
        "priority",
        "prompt",
        "replica",
        "runs",
        "session",
        "shareable",
        "since",
        "staged",
        "started",
        "steps",
        "tenant",
        "then",
        "token",
        "turn",
    )
    # of a request that decodes, written when it begins: residue of the steps at which it needs a block, blocks at its
    # end, and when it began
    key: int
    most: int
    since: float

    def __init__(
        self,
        number: int,
        arrival: float,
        input_tokens: int,
        output_tokens: int,
        steps: int | None = None,
        runs: tuple[tuple[object, int], ...] = (),
        session: int = -1,
        turn: int = 0,
    ) -> None:
        self.number, self.arrival, self.output = number, arrival, output_tokens
        self.input = self.prompt = input_tokens
        self.steps = self.left = output_tokens - 1 if steps is None else steps
        self.runs, self.session, self.turn = runs, session, turn
        # `lost` is when a preempted request had got its last token; of priorities the lowest is the most urgent
        self.started = self.first = self.finish = self.lost = -1.0
        # all of `restart`, spared the call for each simulated request, and what engines count
        self.preemptions = self.cached = self.replica = self.priority = self.done = self.base = self.private = 0
        self.staged = 0  # blocks at the head of its prompt that were fetched into host memory for it
        self.images = 0  # in the prompt; negative when they have been encoded
        self.tenant = 0  # in a fleet whose request it is
        self.then: Request | None = None  # a further request that the end of the same one releases
        self.kv_ready = False
        self.leaves = _NEVER  # when its client closes the connection if no token has come by then
        self.shareable = 1 << 60  # prompt tokens that may be found in the cache
        self.pins = _NOTHING
        self.joined = self.token = -1

    def restart(self) -> None:
        """Reset the state that an engine keeps, before the next engine."""
        self.prompt = self.input  # tokens to prefill now: the prompt, after a preemption also what was generated
        self.left = self.steps  # decode steps after the next first token
        self.done = 0  # prompt tokens already in the cache
        self.base = 0  # blocks found in the prefix cache
        self.private = 0  # blocks of its own
        self.pins = _NOTHING  # shared content it holds, and how many blocks of it
        self.joined = self.token = -1
        self.images, self.staged = abs(self.images), 0


def linked(requests: Sequence[Request]) -> Request | None:
    """Return the first of the requests that one end releases.

    Each names the next in `then`.

    Examples
    --------
    >>> first = linked([Request(0, 0.0, 1, 1), Request(1, 0.0, 1, 1)])
    >>> [one.number for one in together(first)]
    [0, 1]
    """
    for one, following in zip(requests, requests[1:], strict=False):
        one.then = following
    return requests[0] if requests else None


def together(first: Request | None) -> list[Request]:
    """Return the requests that one end releases, linked no longer."""
    found: list[Request] = []
    while first is not None:
        found.append(first)
        following = first.then
        first.then = None
        first = following
    return found


def mark(request: Request, tenant: int, tenants: int, priority: int) -> Request:
    """Write the tenant of a fleet into a request, and return it.

    - `priority`: Added to its own.
    - Returns: The request, with a number that no other tenant has.

    Examples
    --------
    >>> one = mark(Request(3, 0.0, 100, 10), 1, 2, 5)
    >>> one.number, one.tenant, one.priority
    (7, 1, 5)
    """
    request.tenant = tenant
    request.number = request.number * tenants + tenant
    request.priority += priority
    if tenants > 1 and request.runs:
        request.runs = tuple([((tenant, name), tokens) for name, tokens in request.runs])
    return request


def merged(streams: Sequence[Iterator[Request]], priorities: Sequence[int], until: Seconds) -> Iterator[Request]:
    """Merge the requests of tenants by arrival, and mark them.

    - `until`: Last arrival.
    - Yields: Requests; of equal arrivals that of the first tenant first.

    Examples
    --------
    >>> streams = [iter([Request(0, 1.0, 1, 1), Request(1, 3.0, 1, 1)]), iter([Request(0, 1.0, 1, 1)])]
    >>> [(one.number, one.arrival) for one in merged(streams, [0, 0], 2.0)]
    [(0, 1.0), (1, 1.0)]
    """
    count = len(streams)
    heads: list[Request | None] = [next(one, None) for one in streams]
    times: list[float] = [_NEVER if one is None else one.arrival for one in heads]
    while True:
        first = 0
        for tenant in range(1, count):
            if times[tenant] < times[first]:
                first = tenant
        request = heads[first]
        if request is None or times[first] > until:
            return
        following = next(streams[first], None)
        heads[first] = following
        times[first] = _NEVER if following is None else following.arrival
        yield mark(request, first, count, priorities[first])
