"""What one step holds at its widest layer, tensor by tensor."""

from __future__ import annotations

import pytest

from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, LayerKind
from glmplan.costs.blocks.stack import activation_bytes

HIDDEN, INNER, TOPK, TOKENS = 7168, 2048, 8, 4096
EXPERTS = LayerKind(mixer=None, ffn=(ExpertsFfn(experts=256, topk=TOPK, inner=INNER),))


def held(kind: LayerKind, **degrees: float) -> float:
    return float(activation_bytes((kind,), HIDDEN, tokens=float(TOKENS), **({"tp": 1, "dp": 1, "ep": 1} | degrees)))


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_experts_hold_the_routed_copies_of_the_tokens_of_all_replicas(dp):
    # BF16: hidden state and residual; each routed copy as input (or the wider gate and up) and between the two
    # products, for the tokens of every replica, because a replica's experts serve all; the sum that comes back
    copies = TOPK * dp * TOKENS * (HIDDEN + INNER)
    assert held(EXPERTS, dp=dp, ep=dp) == pytest.approx(2.0 * (2 * TOKENS * HIDDEN + copies + TOKENS * HIDDEN))


def test_replicas_of_a_dense_layer_hold_their_own_tokens_only():
    dense = LayerKind(mixer=None, ffn=(DenseFfn(inner=18432),))
    assert held(dense, dp=8) == held(dense, dp=1) == 2.0 * TOKENS * (2 * HIDDEN + 3 * 18432 + HIDDEN)


def test_tensor_parallelism_splits_what_lies_between_the_products_and_not_the_hidden_states():
    # four ranks: gate and up of a copy are 1,024 values, less than its 7,168 of input
    copies = TOPK * TOKENS * (HIDDEN + INNER / 4)
    assert held(EXPERTS, tp=4) == pytest.approx(2.0 * (2 * TOKENS * HIDDEN + copies + TOKENS * HIDDEN))
