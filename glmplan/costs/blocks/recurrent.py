"""Linear attention and state-space layers with a state of fixed size.

Gated DeltaNet, arXiv 2412.06464 (Qwen3-Next, Qwen3.5); Mamba-2, arXiv 2405.21060 (Nemotron-H);
Kimi Delta Attention, arXiv 2510.26692; Mamba-1, arXiv 2312.00752, in Jamba, arXiv 2403.19887; lightning attention,
arXiv 2501.08313 (MiniMax-Text-01); short convolutions of LFM2: transformers 5.24.0, `modeling_lfm2.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import assert_never

import numpy as np

from glmplan.catalog.schema.engine import CacheLayout
from glmplan.catalog.schema.model import Recurrent
from glmplan.costs.blocks.mixer import Core, CoreKernel, CoreStep, LayerCache, Mixer, heads_on_rank
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.counts import convolution_work, recurrent_decode_work, recurrent_prefill_work

__all__ = ["RecurrentMixer"]

#: convolution windows as engines keep them, BF16 [B]
_WINDOW_BYTES = 2.0
#: flavour → name of the family in limitations; other flavours have none but their own
_FAMILY = {"mamba1": "mamba", "mamba2": "mamba", "gated_delta": "gdn", "kimi_delta": "gdn"}


@dataclass(frozen=True, slots=True)
class RecurrentMixer(Mixer):
    """A recurrence with a state of fixed size.

    `token_core` is 0: nothing grows with the context, and the state is small beside weights in host memory.

    Examples
    --------
    A linear layer of Qwen3.5-397B-A17B:

    >>> gdn = RecurrentMixer(
    ...     Recurrent(flavour="gated_delta", key_heads=16, key_dim=128, value_heads=64, value_dim=128))
    >>> sum(t.parameters for t in gdn.tensors(4096)), gdn.state_values, gdn.conv_values, gdn.state_bytes()
    (118014208, 1048576, 36864, 4268032.0)
    """

    block: Recurrent

    @property
    def name(self) -> str:
        """Return ``recurrent``."""
        return self.block.kind

    @property
    def words(self) -> str:
        """Return the flavour, heads and their state."""
        block = self.block
        return f"{block.flavour}, {block.value_heads} heads of {block.value_dim} x {block.key_dim}"

    @property
    def features(self) -> frozenset[str]:
        """Return `recurrent` and its family: `mamba`, `gdn` or the flavour."""
        flavour = self.block.flavour
        return frozenset({"recurrent", _FAMILY.get(flavour, flavour)})

    @property
    def pieces(self) -> int:
        """Return the key heads, or groups of them of 128 columns."""
        block = self.block
        group = 128 // gcd(block.key_dim, block.value_dim * block.value_heads // block.key_heads, 128)
        return max(block.key_heads // group, 1)

    @property
    def extra_launches(self) -> float:
        """Return the launches of convolution, gates and norms."""
        return 1.0

    @property
    def state_values(self) -> int:
        """Return the values of the state of one sequence, all heads."""
        held = self.block.value_heads * self.block.value_dim * self.block.key_dim
        return 0 if self.block.flavour == "short_conv" else held

    @property
    def conv_channels(self) -> int:
        """Return the channels that the convolution mixes."""
        block = self.block
        values = block.value_heads * block.value_dim
        # only the values of Mamba-1 and of short convolutions are mixed
        keys = 0 if block.flavour in ("mamba1", "short_conv") else 2 * block.key_heads * block.key_dim
        return values + keys

    @property
    def conv_values(self) -> int:
        """Return the values of the convolution window of one sequence."""
        return self.conv_channels * (self.block.conv_kernel - 1)

    def cut_problem(self, tp: int, model: str) -> str | None:
        """Return why a degree splits heads or groups of a state, or None.

        Engines that serve a single group hold it on every rank [1]_; TensorRT-LLM does not [2]_.

        References
        ----------
        .. [1] wheel of vllm 0.33.0: vllm/model_executor/layers/mamba/mamba_mixer2.py (MambaMixer2.__init__) and
           gdn/qwen_gdn_linear_attn.py (num_k_heads // tp_size); wheels of sglang 0.5.10.post1 and 0.5.23:
           sglang/srt/layers/attention/mamba/mamba.py, models/qwen3_next.py, models/kimi_linear.py.
        .. [2] https://github.com/NVIDIA/TensorRT-LLM at 02140fd4, tensorrt_llm/_torch/modules/mamba/mamba2_mixer.py
           (tp_ngroups divides the width of the norm).
        """
        block = self.block
        if block.value_heads % tp:
            return f"does not divide the {block.value_heads} heads of the recurrent layers of {model}"
        if block.key_heads > 1 and block.key_heads % tp:
            kind = "groups" if block.flavour == "mamba2" else "key heads"
            return f"does not divide the {block.key_heads} {kind} of the recurrent layers of {model}"
        return None

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the input and output projections, convolution and gates."""
        match self.block.flavour:
            case "gated_delta":
                return _gated_delta(self.block, hidden)
            case "mamba2":
                return _mamba2(self.block, hidden)
            case "kimi_delta":
                return _kimi_delta(self.block, hidden)
            case "mamba1":
                return _mamba1(self.block, hidden)
            case "lightning":
                return _lightning(self.block, hidden)
            case "short_conv":
                return _short_conv(self.block, hidden)
            case flavour:
                assert_never(flavour)

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """Return queries, keys, values and gates, before and after convolution."""
        block = self.block
        wide = 2 * block.key_heads * block.key_dim + 2 * block.value_heads * block.value_dim
        result: np.ndarray = 2.0 * wide / np.minimum(tp, block.value_heads)
        return result

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """Return the state, split by heads; no tokens."""
        return LayerCache(state=self.state_bytes(conv=layout.convolution), units=self.block.value_heads)

    def state_bytes(self, *, state: float = 4.0, conv: float = 2.0) -> float:
        """Return the state and window of the convolution."""
        return self.state_values * state + self.conv_values * conv

    def state_page(self, *, tp: int, draft_tokens: int) -> float:
        """Return the state and window, which speculative tokens make longer."""
        channels = self.conv_channels if self.block.conv_kernel > 1 else 0
        drafted = channels * draft_tokens * _WINDOW_BYTES
        return (self.state_bytes(conv=_WINDOW_BYTES) + drafted) / min(tp, self.block.value_heads)

    def core(self, step: CoreStep) -> Core:
        """Return the state update, the convolution and the work of a prompt.

        Kernels of the gated delta rule stand for Mamba and lightning attention, which have no table.
        """
        block = self.block
        if block.flavour == "short_conv":
            return self._short_core(step)
        kernel = "kda" if block.flavour == "kimi_delta" else "recurrent"
        key_heads, value_heads = (heads_on_rank(item, step.degrees) for item in (block.key_heads, block.value_heads))
        shape = {"key_heads": key_heads, "value_heads": value_heads, "key_dim": block.key_dim,
                 "value_dim": block.value_dim}  # fmt: skip
        channels = 2.0 * block.key_dim * key_heads + block.value_dim * value_heads
        window = convolution_work(step.requests, step.verify, channels=channels)
        update = recurrent_decode_work(step.requests, queries=step.verify, **shape)
        scan = recurrent_prefill_work(1.0, step.prompt, **shape)
        before = convolution_work(1.0, step.prompt, channels=channels)
        return Core(
            decode=(CoreKernel(f"{kernel}-decode", update), CoreKernel("convolution-decode", window)),
            prompt=(CoreKernel(f"{kernel}-prefill", scan), CoreKernel("convolution-prefill", before)),
        )

    def _short_core(self, step: CoreStep) -> Core:
        """Return the convolution alone: no state is updated."""
        channels = self.block.value_dim * heads_on_rank(self.block.value_heads, step.degrees)
        window = convolution_work(step.requests, step.verify, channels=channels)
        before = convolution_work(1.0, step.prompt, channels=channels)
        return Core(
            decode=(CoreKernel("convolution-decode", window),), prompt=(CoreKernel("convolution-prefill", before),)
        )


def _gated_delta(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    keys, values, heads = block.key_heads * block.key_dim, block.value_heads * block.value_dim, block.value_heads
    conv = (2 * keys + values) * block.conv_kernel
    return (
        Tensor("linear_attn.in_proj_qkvz", "recurrent", 2 * keys + 2 * values, hidden, shard="heads", units=heads),
        Tensor("linear_attn.in_proj_ba", "recurrent", 2 * heads, hidden, shard="heads", units=heads),
        Tensor("linear_attn.conv1d", "norm", conv, 1, shard="heads", units=heads, matmul=False),
        Tensor("linear_attn.gates", "norm", 2 * heads, 1, shard="heads", units=heads, matmul=False),
        Tensor("linear_attn.norm", "norm", block.value_dim, 1, shard="replicated", matmul=False),
        Tensor("linear_attn.out_proj", "recurrent", hidden, values, shard="heads", units=heads, splits_input=True),
    )


def _mamba2(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    # in Mamba-2 terms: key heads are the groups of B and C, key_dim the state size, value_dim the head size
    keys, values, heads = block.key_heads * block.key_dim, block.value_heads * block.value_dim, block.value_heads
    conv = (values + 2 * keys) * (block.conv_kernel + 1)
    norm = (Tensor("mixer.norm", "norm", values, 1, shard="heads", units=heads, matmul=False),)
    return (
        Tensor("mixer.in_proj", "recurrent", 2 * values + 2 * keys + heads, hidden, shard="heads", units=heads),
        Tensor("mixer.conv1d", "norm", conv, 1, shard="heads", units=heads, matmul=False),
        Tensor("mixer.A_D_dt_bias", "norm", 3 * heads, 1, shard="heads", units=heads, matmul=False),
        *(norm if block.gate_norm else ()),
        Tensor("mixer.out_proj", "recurrent", hidden, values, shard="heads", units=heads, splits_input=True),
    )


def _kimi_delta(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    keys, values, heads = block.key_heads * block.key_dim, block.value_heads * block.value_dim, block.value_heads
    conv, low_rank = (2 * keys + values) * block.conv_kernel, block.value_dim
    gates: tuple[Tensor, ...]
    if block.full_decay:
        gates = (
            Tensor("self_attn.f_g_proj", "recurrent", keys + values, hidden, shard="heads", units=heads),
        )  # fmt: skip
    elif block.full_gate:
        gates = (
            Tensor("self_attn.f_a_proj", "recurrent", low_rank, hidden, shard="replicated"),
            Tensor("self_attn.f_b_proj", "recurrent", keys, low_rank, shard="heads", units=heads),
            Tensor("self_attn.g_proj", "recurrent", values, hidden, shard="heads", units=heads),
        )
    else:
        gates = (
            Tensor("self_attn.f_a_g_a_proj", "recurrent", 2 * low_rank, hidden, shard="replicated"),
            Tensor("self_attn.f_b_g_b_proj", "recurrent", keys + values, low_rank, shard="heads", units=heads),
        )
    return (
        Tensor("self_attn.qkv_proj", "recurrent", 2 * keys + values, hidden, shard="heads", units=heads),
        Tensor("self_attn.conv1d", "norm", conv, 1, shard="heads", units=heads, matmul=False),
        *gates,
        Tensor("self_attn.b_proj", "recurrent", heads, hidden, shard="heads", units=heads),
        Tensor("self_attn.gates", "norm", heads + keys, 1, shard="heads", units=heads, matmul=False),
        Tensor("self_attn.o_norm", "norm", block.value_dim, 1, shard="replicated", matmul=False),
        Tensor("self_attn.o_proj", "recurrent", hidden, values, shard="heads", units=heads, splits_input=True),
    )


def _mamba1(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    # `JambaMambaMixer` of transformers 5.24.0: norms of the time steps, B and C
    values, state, rank, heads = block.value_heads * block.value_dim, block.key_dim, block.rank or 1, block.value_heads
    return (
        Tensor("mamba.in_proj", "recurrent", 2 * values, hidden, shard="heads", units=heads),
        Tensor("mamba.conv1d", "norm", values * (block.conv_kernel + 1), 1, shard="heads", units=heads, matmul=False),
        Tensor("mamba.x_proj", "recurrent", rank + 2 * state, values, shard="heads", units=heads, splits_input=True),
        Tensor("mamba.dt_proj", "recurrent", values, rank, shard="heads", units=heads),
        Tensor("mamba.A_D_dt_bias", "norm", values * (state + 2), 1, shard="heads", units=heads, matmul=False),
        Tensor("mamba.norms", "norm", rank + 2 * state, 1, shard="replicated", matmul=False),
        Tensor("mamba.out_proj", "recurrent", hidden, values, shard="heads", units=heads, splits_input=True),
    )


def _lightning(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    # `MiniMaxLightningAttention` of transformers 5.24.0
    keys, values, heads = block.key_heads * block.key_dim, block.value_heads * block.value_dim, block.value_heads
    return (
        Tensor("self_attn.qkv_proj", "recurrent", 2 * keys + values, hidden, shard="heads", units=heads),
        Tensor("self_attn.output_gate", "recurrent", values, hidden, shard="heads", units=heads),
        Tensor("self_attn.norm", "norm", values, 1, shard="heads", units=heads, matmul=False),
        Tensor("self_attn.out_proj", "recurrent", hidden, values, shard="heads", units=heads, splits_input=True),
    )


def _short_conv(block: Recurrent, hidden: int) -> tuple[Tensor, ...]:
    # `Lfm2ShortConv` of transformers 5.24.0
    values, heads = block.value_heads * block.value_dim, block.value_heads
    return (
        Tensor("conv.in_proj", "recurrent", 3 * values, hidden, shard="heads", units=heads),
        Tensor("conv.conv", "norm", values * block.conv_kernel, 1, shard="heads", units=heads, matmul=False),
        Tensor("conv.out_proj", "recurrent", hidden, values, shard="heads", units=heads, splits_input=True),
    )
