"""The normal equations of the joint fit, exact and small.

Runs of one cell (the same key on every level) share their effects, so that all of their figures together say as much
as one triangle of at most 22 rows. With ``n`` such rows the posterior of tens of thousands of effects needs one matrix
of ``n`` by ``n`` (the matrix inversion lemma): a Cholesky factor gives the effects that fit best and,
with its inverse the covariance of whatever is asked.

Effects stand in one table here, (keys, 22), the keys of all levels one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glmplan.calibrate.step.observations import Design
from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["Cells", "Normal", "cells_of", "normal_equations"]

#: singular value of what a cell says, in deviations of the prior by deviations of the noise, below which a direction
#: is left out: it knows the prior better by less than a part in a thousand million [-]
_SAYS_NOTHING = 3e-5


@dataclass(frozen=True)
class Cells:
    """Figures dealt out to cells: those of one cell have the same key on every level.

    Attributes
    ----------
    keys : (cells, levels) array of int
        Rows of the table of effects that add up to each cell, [-]
    of_figure : (m,) array of int
        Cell of each figure, [-]
    first : (levels + 1,) array of int
        Where the keys of each level begin, [-]
    """

    keys: np.ndarray
    of_figure: np.ndarray
    first: np.ndarray

    @cached_property
    def _shared(self) -> Any:
        """Cells by keys, 1 where a cell takes part in a key."""
        from scipy.sparse import csr_matrix

        cells, levels = self.keys.shape
        ones, ends = np.ones(self.keys.size), np.arange(0, self.keys.size + 1, levels)
        return csr_matrix((ones, self.keys.ravel(), ends), shape=(cells, int(self.first[-1])))

    @cached_property
    def _by_cell(self) -> Any:
        """Cells by figures, 1 where a figure is of a cell."""
        from scipy.sparse import csr_matrix

        count = len(self.of_figure)
        return csr_matrix((np.ones(count), (self.of_figure, np.arange(count))), shape=(len(self.keys), count))

    def added(self, values: np.ndarray) -> np.ndarray:
        """Values of figures added up for each cell.

        Parameters
        ----------
        values : (m, 22) array
            [-]

        Returns
        -------
        (cells, 22) array
            [-]
        """
        return np.asarray(self._by_cell @ values)

    @cached_property
    def members(self) -> tuple[np.ndarray, ...]:
        """Figures of each cell."""
        order = np.argsort(self.of_figure, kind="stable")
        return tuple(np.split(order, np.searchsorted(self.of_figure[order], np.arange(1, len(self.keys)))))

    def sums(self, table: np.ndarray) -> np.ndarray:
        """Sum of the effects of each cell.

        Parameters
        ----------
        table : (keys, 22) array
            Effects, [-]

        Returns
        -------
        (cells, 22) array
            [-]
        """
        return np.asarray(self._shared @ table)

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """Values of cells added up for each key: the transpose of `sums`.

        Parameters
        ----------
        values : (cells, 22) array
            [-]

        Returns
        -------
        (keys, 22) array
            [-]
        """
        return np.asarray(self._shared.T @ values)

    def split(self, table: np.ndarray) -> tuple[np.ndarray, ...]:
        """One table for each level.

        Parameters
        ----------
        table : (keys, 22) array
            Effects, [-]

        Returns
        -------
        tuple of (keys, 22) array
            By level, [-]
        """
        return tuple(table[low:high] for low, high in zip(self.first[:-1], self.first[1:], strict=True))


def cells_of(design: Design) -> Cells:
    """Deal the figures of a design out to cells.

    Parameters
    ----------
    design : Design
        The runs.

    Returns
    -------
    Cells
        In the order of their keys.
    """
    first = np.concatenate([[0], np.cumsum([len(names) for names in design.key_names])]).astype(int)
    keys, inside = np.unique((design.keys + first[:-1])[design.observation_run], axis=0, return_inverse=True)
    return Cells(keys, inside.ravel(), first)


@dataclass(frozen=True)
class Normal:
    """Figures as combined rows, their covariance factored.

    Attributes
    ----------
    cells : Cells
        Cells of the figures.
    cell : (n,) array of int
        Cell of each row, ascending, [-]
    turns : tuple of (k, r) array
        For each cell how its figures make up its rows, orthogonal, [-]
    rows : (n, 22) array
        Derivative of each row by the sum of effects, over its noise, [-]
    blocks : dict of int to ((k,) array of int, (k, 22) array)
        Key → places of its rows, and the rows times the prior deviation of the key, [-]
    sigma : (keys, 22) array
        Prior standard deviation of every effect, [-]
    factor : (n, n) array
        Lower Cholesky factor of the covariance of the rows, in units of the noise, [-]
    """

    cells: Cells
    cell: np.ndarray
    turns: tuple[np.ndarray, ...]
    rows: np.ndarray
    blocks: dict[int, tuple[np.ndarray, np.ndarray]]
    sigma: np.ndarray
    factor: np.ndarray

    def turned(self, values: np.ndarray) -> np.ndarray:
        """Combine values of figures as the rows do.

        Parameters
        ----------
        values : (m,) array
            One for each figure of the design, over its noise, [-]

        Returns
        -------
        (n,) array
            [-]
        """
        parts = [turn.T @ values[members] for members, turn in zip(self.cells.members, self.turns, strict=True)]
        return np.concatenate(parts)

    def forward(self, z: np.ndarray) -> np.ndarray:
        """What the rows come to.

        Parameters
        ----------
        z : (keys, 22) array
            Effects over their spread, [-]

        Returns
        -------
        (n,) array
            [-]
        """
        return np.asarray((self.rows * self.cells.sums(self.sigma * z)[self.cell]).sum(axis=1))

    def backward(self, pull: np.ndarray) -> np.ndarray:
        """Transpose of `forward`.

        Parameters
        ----------
        pull : (n,) array
            [-]

        Returns
        -------
        (keys, 22) array
            [-]
        """
        by_cell = np.zeros((len(self.cells.keys), len(COLUMNS)))
        starts = np.flatnonzero(np.diff(self.cell, prepend=-1))
        if len(starts):
            by_cell[self.cell[starts]] = np.add.reduceat(self.rows * pull[:, None], starts)
        return self.sigma * self.cells.gathered(by_cell)

    def solve(self, values: np.ndarray) -> np.ndarray:
        """Covariance of the rows, inverted, times something.

        Parameters
        ----------
        values : (n,) or (n, k) array
            [-]

        Returns
        -------
        (n,) or (n, k) array
            [-]
        """
        from scipy.linalg import cho_solve

        return np.asarray(cho_solve((self.factor, True), values, check_finite=False))

    def posterior_times(self, gradient: np.ndarray) -> np.ndarray:
        """Posterior covariance of the effects over their spread, times something.

        Parameters
        ----------
        gradient : (keys, 22) array
            [-]

        Returns
        -------
        (keys, 22) array
            ``(I + MᵀM)⁻¹`` of it, without that matrix, [-]
        """
        return gradient - self.backward(self.solve(self.forward(gradient)))

    @cached_property
    def inverse(self) -> np.ndarray:
        """The covariance of the rows, inverted, (n, n), [-]"""
        from scipy.linalg.lapack import dpotri

        found, failed = dpotri(self.factor, lower=1)
        assert not failed  # a unit matrix plus squares is positive definite
        lower = np.tril(found)
        return np.asarray(lower + np.tril(lower, -1).T)

    def leverages(self) -> np.ndarray:
        """How far each figure is bent by itself: posterior variance of its prediction over that of its noise.

        Returns
        -------
        (m,) array
            Between 0 and 1, [-]
        """
        found = np.zeros(len(self.cells.of_figure))
        for number, (members, turn) in enumerate(zip(self.cells.members, self.turns, strict=True)):
            low, high = np.searchsorted(self.cell, [number, number + 1])
            known = np.eye(high - low) - self.inverse[low:high, low:high]
            found[members] = np.einsum("ij,jk,ik->i", turn, known, turn)
        return found

    def covariance(self, one: int, two: int) -> np.ndarray:
        """Posterior covariance of the effects of two keys.

        Parameters
        ----------
        one, two : int
            Their rows in the table of effects, [-]

        Returns
        -------
        (22, 22) array
            [-]
        """
        wide = np.outer(self.sigma[one], self.sigma[two])
        unit = float(one == two) * np.eye(len(COLUMNS))
        if one not in self.blocks or two not in self.blocks:
            return unit * wide
        (first, left), (second, right) = self.blocks[one], self.blocks[two]
        return np.asarray((unit - left.T @ self.inverse[np.ix_(first, second)] @ right) * wide)


def normal_equations(cells: Cells, slope: np.ndarray, sigma: np.ndarray, *, least: float = 0.0) -> Normal:
    """Combine figures and factor their covariance.

    Parameters
    ----------
    cells : Cells
        Cells of the figures.
    slope : (m, 22) array
        Derivative of each figure by the sum of its effects, over its noise; zero for those not fitted, [-]
    sigma : (keys, 22) array
        Prior standard deviation of every effect, [-]
    least : float, optional
        Directions of a cell that say less than this are left out, in deviations of the prior by those of the noise: a
        search that starts from the equations needs only what matters, [-]

    Returns
    -------
    Normal
        The equations.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1
       and equation A.9.
    """
    wide = np.maximum(np.sqrt(cells.sums(sigma**2)), 1e-12)
    turns, parts = [], []
    for members, own in zip(cells.members, wide, strict=True):
        left, size, right = np.linalg.svd(slope[members] * own, full_matrices=False)
        says = size > max(least, _SAYS_NOTHING)
        turns.append(left[:, says])
        parts.append(size[says, None] * right[says] / own)
    cell = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return _factored(cells, cell, tuple(turns), np.concatenate(parts), sigma)


def _factored(
    cells: Cells, cell: np.ndarray, turns: tuple[np.ndarray, ...], rows: np.ndarray, sigma: np.ndarray
) -> Normal:
    """Factor the covariance of combined rows."""
    from scipy.linalg.lapack import dpotrf

    matrix = np.eye(len(rows))
    blocks = {}
    for level in range(len(LEVELS)):
        keys = cells.keys[cell, level]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for places in np.split(order, starts[1:]) if len(order) else []:
            key = int(keys[places[0]])
            scaled = rows[places] * sigma[key]
            blocks[key] = places, scaled
            there = slice(None) if len(places) == len(rows) else np.ix_(places, places)
            matrix[there] += scaled @ scaled.T
    factor, failed = dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    assert not failed  # a unit matrix plus squares is positive definite
    return Normal(cells, cell, turns, rows, blocks, sigma, factor)
