"""How many of a machine do: the fewest are found by looking at as few numbers as possible."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.sizing.size_answer import share_of
from glmplan.sizing.size_question import SizeQuestion

__all__ = ["Numbers", "numbers_of"]


@dataclass(slots=True, eq=False)
class Numbers:
    """Which numbers of one machine keep a promise; a smaller share of the load is never kept less surely.

    Attributes
    ----------
    each : list of int
        Numbers to look at, ascending, [-]
    month : float
        The cheapest month of one machine, [USD]
    fails, keeps : int
        Place of the largest that is known not to do, and of the smallest that is known to do, [-]
    stride : int
        How many places further it is looked next while none is known to do, [-]

    Examples
    --------
    >>> counts, looked = Numbers([1, 2, 3, 4, 5, 6, 7, 8], 100.0), []
    >>> while not counts.found:
    ...     looked.append(counts.next)
    ...     counts.tell(counts.next, does=counts.next >= 5)
    >>> looked, counts.first, counts.least
    ([1, 2, 4, 8, 6, 5], 5, 500.0)
    """

    each: list[int]
    month: float
    fails: int = -1
    keeps: int | None = None
    stride: int = 1

    @property
    def first(self) -> int | None:
        """The fewest that may do, [-]; None where none does."""
        return self.each[self.fails + 1] if self.fails + 1 < len(self.each) else None

    @property
    def least(self) -> float:
        """The cheapest month of what may do, [USD]"""
        return self.each[self.fails + 1] * self.month

    @property
    def found(self) -> bool:
        """Whether the fewest that do are known."""
        return self.keeps == self.fails + 1

    @property
    def next(self) -> int:
        """The number to look at next, [-]"""
        if self.keeps is not None:
            return self.each[(self.fails + self.keeps) // 2]
        return self.each[min(self.fails + self.stride, len(self.each) - 1)]

    def tell(self, number: int, *, does: bool) -> None:
        """Take in whether a number does.

        Parameters
        ----------
        number : int
            One of `each`, [-]
        does : bool
            Whether it keeps the promise.
        """
        place = self.each.index(number)
        if does:
            self.keeps = place
        else:
            self.stride = 1 if self.fails < 0 else 2 * self.stride
            self.fails = place


def numbers_of(asked: SizeQuestion) -> list[int]:
    """Numbers of machines that share the load otherwise than one machine less does.

    Parameters
    ----------
    asked : SizeQuestion
        The question.

    Returns
    -------
    list of int
        From one on, up to those that are allowed, [-]

    Examples
    --------
    >>> from glmplan.sizing.size_question import read_size
    >>> numbers_of(read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=9, machines=8))
    [1, 2, 3, 5]
    """
    shares = [share_of(asked.traffic, one) for one in range(1, asked.most_machines + 1)]
    return [place + 1 for place, share in enumerate(shares) if not place or share != shares[place - 1]]
