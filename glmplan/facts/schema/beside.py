"""What stands beside mixers and feed-forward blocks: residual streams, tables that are looked up, a drafting head."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from glmplan.facts.schema.validation import Frozen

__all__ = ["DraftHead", "HyperConnections", "LookupTable"]


class HyperConnections(Frozen):
    """Several residual streams instead of one: each block reads a mix of them and writes to all.

    `form` says how the mix is made of the streams: ``manifold`` (2 n + n² weights for each of them, normalised to a
    doubly stochastic matrix; DeepSeek-V4), ``plain`` (2 n weights; Hy4), ``low_rank`` (through `rank` values; the
    preview of Qwen4). `folded` says that weights of their own make one state of them after the last layer.
    """

    streams: PositiveInt
    form: Literal["manifold", "plain", "low_rank"] = "manifold"
    rank: PositiveInt | None = None
    folded: bool = False

    @model_validator(mode="after")
    def _rank_where_needed(self) -> HyperConnections:
        if (self.form == "low_rank") != (self.rank is not None):
            raise ValueError("rank is stated for form low_rank and only there")
        return self


class LookupTable(Frozen):
    """A table that a layer looks up by a hash of the last few tokens, which may lie in host memory.

    `rows` of `width` values, of which a token reads `reads` (a few for each length of n-gram). The values read are
    projected to a value and one key for each residual stream; `convolution` tokens of the result are mixed, `norms`
    norms are as wide as all streams (Engram of DeepSeek-V4.1; n-gram table of the preview of Qwen4).
    """

    rows: PositiveInt
    width: PositiveInt
    reads: PositiveInt
    streams: PositiveInt
    norms: int = Field(2, ge=0)
    convolution: int = Field(0, ge=0)


class DraftHead(Frozen):
    """An EAGLE-3 head trained for the model and published apart, in BF16: one layer of kind `layer` with its own head.

    Its layer reads the joined embedding and state, so the products that make queries and keys are twice as wide; once a
    step a projection joins three states of the model. It shares the embedding of the model; `own_embedding` says that
    its files hold one with other values (of the model that it was trained with), which some engines keep.
    """

    repository: str
    layer: str
    source: str
    own_embedding: bool = False
    note: str | None = None
