"""Matrices of a layer that run as one product, and those of one format together, which one kernel computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glmplan.facts.formats import WeightFormat
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["Product", "Products", "in_groups"]

#: matrices of shared experts; projections around routed ones are of their class and come before and after them
_SHARED = "mlp.shared_experts"


@dataclass(frozen=True)
class Product:
    """Matrices of one layer that run as one product: they share input, format and sharding.

    Attributes
    ----------
    tensor : Tensor
        One of them, for its class and its cut.
    format : WeightFormat
        How they are stored.
    rows, columns : float
        Outputs and inputs of the product on one rank without tensor parallelism, [-]
    """

    tensor: Tensor
    format: WeightFormat
    rows: float
    columns: float


@dataclass(frozen=True, eq=False)
class Products:
    """Products of one format, with what their kernel sees of each as a line of an array.

    Attributes
    ----------
    format : WeightFormat
        How their weights are stored.
    each : tuple of (Product, int)
        Product, and how often it runs, [-]
    """

    format: WeightFormat
    each: tuple[tuple[Product, int], ...]

    def _lines(self, values: list[float]) -> np.ndarray:
        return np.array(values, dtype=float)[:, None]

    @cached_property
    def rows(self) -> np.ndarray:
        """Outputs without tensor parallelism, (k, 1), [-]"""
        return self._lines([one.rows for one, _ in self.each])

    @cached_property
    def columns(self) -> np.ndarray:
        """Inputs without tensor parallelism, (k, 1), [-]"""
        return self._lines([one.columns for one, _ in self.each])

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each runs, (k, 1), [-]"""
        return self._lines([count for _, count in self.each])

    @cached_property
    def splits_input(self) -> np.ndarray:
        """Whether tensor parallelism splits inputs and not outputs, (k, 1)"""
        return self._lines([one.tensor.splits_input for one, _ in self.each]) > 0.0

    @cached_property
    def shared(self) -> np.ndarray:
        """Whether it is of shared experts, (k, 1)"""
        return self._lines([one.tensor.name.startswith(_SHARED) for one, _ in self.each]) > 0.0

    def share(self, *, tp: np.ndarray, ep: np.ndarray, expert_ranks: np.ndarray) -> np.ndarray:
        """Fraction of each that the fullest rank holds.

        Parameters
        ----------
        tp, ep, expert_ranks : (n,) array
            Degrees, as `glmplan.physics.blocks.tensor.Tensor.share` takes them, [-]

        Returns
        -------
        (k, n) array
            Share of the weights on the fullest rank, [-]

        Examples
        --------
        >>> from glmplan.facts.formats import weight_format
        >>> bf16 = weight_format("bf16")
        >>> up = Product(Tensor("up", "mlp", 8192, 4096), bf16, 8192.0, 4096.0)
        >>> Products(bf16, ((up, 1),)).share(tp=np.array([1, 4]), ep=np.ones(2), expert_ranks=np.ones(2))
        array([[1.  , 0.25]])
        """
        found = np.empty((len(self.each), len(tp)))
        for line, (one, _) in zip(found, self.each, strict=True):
            line[:] = one.tensor.share(tp=tp, ep=ep, expert_ranks=expert_ranks)
        return found


def in_groups(products: Mapping[Product, int]) -> tuple[Products, ...]:
    """Put products of one format together, which the same kernel computes.

    Parameters
    ----------
    products : mapping of Product to int
        Products, and how often each runs, [-]

    Returns
    -------
    tuple of Products
        In the order in which formats come first.
    """
    groups: dict[WeightFormat, list[tuple[Product, int]]] = {}
    for one, count in products.items():
        groups.setdefault(one.format, []).append((one, count))
    return tuple(Products(form, tuple(group)) for form, group in groups.items())
