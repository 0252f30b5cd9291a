"""Draft tokens of speculative decoding: how many of them are accepted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.errors import SpecError
from glmplan.units import Tokens, TokensArray

__all__ = ["Acceptance", "check_whole"]


def check_whole(value: object, name: str, least: int = 1) -> None:
    """Refuse what is no whole number of at least so many.

    Examples
    --------
    >>> check_whole(0, "replicas")
    Traceback (most recent call last):
    glmplan.errors.SpecError: replicas: 0 must be a whole number of at least 1
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"must be a whole number of at least {least}", field=name, value=value)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Number of tokens of a speculative step.

    The first counts always, each draft token while all before it are accepted.

    Examples
    --------
    >>> round(Acceptance(draft_tokens=3, probability=0.8).mean, 3)
    2.952
    >>> Acceptance.of_mean(3, 2.952).probability
    0.8
    """

    draft_tokens: int  # tokens drafted for each step, [-]
    probability: float  # chance that a drafted token is accepted when all before it were, [-]

    def __post_init__(self) -> None:
        check_whole(self.draft_tokens, "draft_tokens")
        if not 0 <= self.probability <= 1:
            raise SpecError("must be between 0 and 1", field="acceptance probability", value=self.probability)

    @classmethod
    def of_mean(cls, draft_tokens: int, mean: Tokens) -> Acceptance:
        """Find the probability that gives a measured mean acceptance length.

        `mean`: Tokens that a step yields in the mean.
        """
        check_whole(draft_tokens, "draft_tokens")
        if not 1 <= mean <= 1 + draft_tokens:
            raise SpecError(f"must be between 1 and {1 + draft_tokens}", field="acceptance length", value=mean)
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if cls(draft_tokens, middle).mean < mean else (low, middle)
        return cls(draft_tokens, round(high, 9))

    @property
    def chances(self) -> np.ndarray:
        """Probability of 1, 2, … 1 + draft_tokens tokens in a step, [-]"""
        reached = self.probability ** np.arange(self.draft_tokens + 1)
        return np.append(reached[:-1] - reached[1:], reached[-1])

    @property
    def mean(self) -> float:
        """Tokens that a step yields in the mean, [token]"""
        return float(np.sum(self.probability ** np.arange(self.draft_tokens + 1)))

    def steps(self, tokens: TokensArray, generator: np.random.Generator) -> np.ndarray:
        """Draw how many steps it takes to yield given numbers of tokens.

        Up to 64 tokens each step is drawn; beyond that the count is drawn from the normal limit of a renewal process.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        steps = self.steps_at(tokens, generator.standard_normal(len(tokens)))
        short = np.flatnonzero((tokens <= 64) & (tokens > 0))
        if len(short):
            sizes = np.arange(1, self.draft_tokens + 2)
            drawn = generator.choice(sizes, size=(len(short), int(tokens[short].max())), p=self.chances).cumsum(axis=1)
            steps[short] = (drawn < tokens[short, None]).sum(axis=1) + 1
        return steps

    def steps_at(self, tokens: TokensArray, normal: np.ndarray) -> np.ndarray:
        """Return how many steps it takes to yield given numbers of tokens.

        `normal`: Place of each in the normal limit of a renewal process: 0 for the mean, 1 for one deviation more.

        Examples
        --------
        >>> Acceptance.of_mean(3, 3.0).steps_at(np.array([300, 300]), np.array([0.0, 1.0])).tolist()
        [100, 104]
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        sizes = np.arange(1, self.draft_tokens + 2)
        mean = self.mean
        variance = float(self.chances @ sizes**2) - mean**2
        limit = np.rint(
            tokens / mean
            + 0.5 * (variance / mean**2 + 1)
            - 0.5
            + np.sqrt(np.maximum(variance, 0.0) * tokens / mean**3) * normal
        )
        steps: np.ndarray = np.clip(limit, -(-tokens // sizes[-1]), tokens).astype(np.int64)
        return steps
