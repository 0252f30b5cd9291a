"""The nouns of a load step: what is offered, what is running, what was measured."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from glmplan.measure.statistics import Tally

__all__ = ["Arrival", "Lengths", "Measured", "Running"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts and answers are.

    Parameters
    ----------
    input_tokens, output_tokens : int
        The longest, [token]
    shortest : float, optional
        Lengths are uniform from this share of the longest up, as InferenceX draws them (0.8), [-]
    shared : int, optional
        Tokens at the beginning that all prompts share, [token]
    """

    input_tokens: int
    output_tokens: int
    shortest: float = 1.0
    shared: int = 0

    def draw(self, chance: random.Random) -> tuple[int, int]:
        """Draw the lengths of one request.

        Parameters
        ----------
        chance : random.Random
            Source of chance.

        Returns
        -------
        tuple of int
            Tokens of the prompt and of the answer, [token]

        Examples
        --------
        >>> Lengths(64, 32).draw(random.Random(0))
        (64, 32)
        """
        low = [max(round(self.shortest * n), 1) for n in (self.input_tokens, self.output_tokens)]
        return chance.randint(low[0], max(self.input_tokens, 1)), chance.randint(low[1], max(self.output_tokens, 1))


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of an open loop.

    Parameters
    ----------
    at : float
        When it is sent, from the begin of the step, [s]
    input_tokens, output_tokens : int
        Its lengths, [token]
    """

    at: float
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Measured:
    """What one step of the load gave.

    Parameters
    ----------
    tally : Tally
        Requests that count.
    everything : Tally
        All requests of the step, transient and faults included.
    wall : float
        Length of what counts, [s]
    output_rate, input_rate : float
        Tokens while it was counted, [token/s]
    output_error : float
        Standard error of the output rate, [token/s]
    transient : float
        How long the start-up took that does not count, [s]
    steady : bool
        Whether the step reached a steady state (always true where a number of requests was asked for).
    mean_running : float
        Requests in flight on average, [-]
    """

    tally: Tally = field(default_factory=Tally)
    everything: Tally = field(default_factory=Tally)
    wall: float = 0.0
    output_rate: float = 0.0
    input_rate: float = 0.0
    output_error: float = 0.0
    transient: float = 0.0
    steady: bool = True
    mean_running: float = 0.0


@dataclass(slots=True)
class Running:
    """The running figures of a step, for a progress bar.

    Parameters
    ----------
    elapsed, share : float
        Time since the step began [s] and how far it is [-]
    done, faults : int
        Requests so far, [-]
    rate : float
        Output tokens in the last seconds, [token/s]
    ttft : float
        Of the last requests, [s]
    state : str
        `starting`, `measuring` or `draining`.
    """

    elapsed: float = 0.0
    share: float = 0.0
    done: int = 0
    faults: int = 0
    rate: float = 0.0
    ttft: float = 0.0
    state: str = "starting"
