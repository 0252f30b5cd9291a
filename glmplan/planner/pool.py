"""Hold the KV pool of a plan in requests of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.units import TokenCount, Tokens

__all__ = ["Pool"]


@dataclass(frozen=True, slots=True)
class Pool:
    """KV pool of all decoding servers in requests of one length.

    Notes
    -----
    With windows, recurrent states or compressed caches a token of a short request takes more bytes than one of a long
    request. The record has no order, so that its tokens are not compared with those of another length.
    """

    length: TokenCount  # tokens of each request, [token]
    #: `tokens`, `low`, `high`: tokens of such requests with the 90 % interval, [token]
    tokens: Tokens
    low: Tokens = 0.0
    high: Tokens = 0.0
    #: `held`, `held_low`: whole requests, mean and lower bound, [-]
    held: float = np.inf
    held_low: float = np.inf

    def tokens_of(self, length: TokenCount) -> Tokens:
        """Return the tokens; raise ValueError for requests of another length.

        Examples
        --------
        >>> Pool(800, 4000.0).tokens_of(800)
        4000.0
        """
        if length != self.length:
            raise ValueError(f"a KV pool for requests of {self.length} tokens is used for requests of {length}")
        return self.tokens

    def of_server(self, servers: int) -> Pool:
        """Return the pool of one of several servers."""
        parts = (self.tokens, self.low, self.high, self.held, self.held_low)
        return Pool(self.length, *(one / servers for one in parts))
