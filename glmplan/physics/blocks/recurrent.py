"""Linear attention and state-space layers: a state of fixed size for each sequence.

Gated DeltaNet, arXiv 2412.06464 (Qwen3-Next, Qwen3.5); Mamba-2, arXiv 2405.21060 (Nemotron-H);
Kimi Delta Attention, arXiv 2510.26692.
"""

from __future__ import annotations

from glmplan.facts.schema.model import Recurrent
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["conv_values", "state_values", "tensors"]


def tensors(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    """Weights of the block.

    Parameters
    ----------
    block : Recurrent
        Its shape.
    hidden : int
        Hidden size of the model, [-]

    Returns
    -------
    tuple of Tensor
        Input and output projections, convolution and gates.

    Examples
    --------
    >>> gdn = Recurrent(flavour="gated_delta", key_heads=16, key_dim=128, value_heads=64, value_dim=128)
    >>> sum(t.parameters for t in tensors(gdn, 4096))
    118014208
    """
    keys = block.key_heads * block.key_dim
    values = block.value_heads * block.value_dim
    heads = block.value_heads
    if block.flavour == "gated_delta":
        conv = 2 * keys + values
        return (
            Tensor("linear_attn.in_proj_qkvz", "recurrent", 2 * keys + 2 * values, hidden, shard="heads", units=heads),
            Tensor("linear_attn.in_proj_ba", "recurrent", 2 * heads, hidden, shard="heads", units=heads),
            Tensor("linear_attn.conv1d", "norm", conv * block.conv_kernel, 1, shard="heads", units=heads, matmul=False),
            Tensor("linear_attn.gates", "norm", 2 * heads, 1, shard="heads", units=heads, matmul=False),
            Tensor("linear_attn.norm", "norm", block.value_dim, 1, shard="replicated", matmul=False),
            Tensor("linear_attn.out_proj", "recurrent", hidden, values, shard="heads", units=heads),
        )
    if block.flavour == "mamba2":
        # in Mamba-2 terms: key heads are the groups of B and C, key_dim the state size, value_dim the head size
        conv = values + 2 * keys
        wide = 2 * values + 2 * keys + heads
        conv_rows = conv * (block.conv_kernel + 1)
        return (
            Tensor("mixer.in_proj", "recurrent", wide, hidden, shard="heads", units=heads),
            Tensor("mixer.conv1d", "norm", conv_rows, 1, shard="heads", units=heads, matmul=False),
            Tensor("mixer.A_D_dt_bias", "norm", 3 * heads, 1, shard="heads", units=heads, matmul=False),
            Tensor("mixer.norm", "norm", values, 1, shard="heads", units=heads, matmul=False),
            Tensor("mixer.out_proj", "recurrent", hidden, values, shard="heads", units=heads),
        )
    low_rank = block.value_dim
    return (
        Tensor("self_attn.qkv_proj", "recurrent", 2 * keys + values, hidden, shard="heads", units=heads),
        Tensor(
            "self_attn.conv1d",
            "norm",
            (2 * keys + values) * block.conv_kernel,
            1,
            shard="heads",
            units=heads,
            matmul=False,
        ),
        Tensor("self_attn.f_a_g_a_proj", "recurrent", 2 * low_rank, hidden, shard="replicated"),
        Tensor("self_attn.f_b_g_b_proj", "recurrent", keys + values, low_rank, shard="heads", units=heads),
        Tensor("self_attn.b_proj", "recurrent", heads, hidden, shard="heads", units=heads),
        Tensor("self_attn.gates", "norm", heads + keys, 1, shard="heads", units=heads, matmul=False),
        Tensor("self_attn.o_norm", "norm", block.value_dim, 1, shard="replicated", matmul=False),
        Tensor("self_attn.o_proj", "recurrent", hidden, values, shard="heads", units=heads),
    )


def state_values(block: Recurrent) -> int:
    """Values of the recurrent state of one sequence in this layer, all heads.

    Parameters
    ----------
    block : Recurrent
        Its shape.

    Returns
    -------
    int
        Values, [-]

    Examples
    --------
    >>> state_values(Recurrent(flavour="gated_delta", key_heads=16, key_dim=128, value_heads=64, value_dim=128))
    1048576
    """
    return block.value_heads * block.value_dim * block.key_dim


def conv_values(block: Recurrent) -> int:
    """Values of the convolution window of one sequence in this layer.

    Parameters
    ----------
    block : Recurrent
        Its shape.

    Returns
    -------
    int
        Values, [-]

    Examples
    --------
    >>> conv_values(Recurrent(flavour="gated_delta", key_heads=16, key_dim=128, value_heads=64, value_dim=128))
    36864
    """
    return (2 * block.key_heads * block.key_dim + block.value_heads * block.value_dim) * (block.conv_kernel - 1)
