"""The form of `calibration/sources.toml`; that of the tables beside it is `glmplan.readers.runs.columns`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Source"]

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class Source(BaseModel):
    """Where a campaign comes from: an entry of `sources.toml`, named like the campaign in the rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(pattern=r"^[a-z0-9.\-]+\.csv$")]
    rows: Count
    address: Text
    measured: Text
    licence: Text
    trust: Literal["A", "B", "C", "D", "A-D", "B-D"]
    how: Text
    traps: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _address_is_one(self) -> Source:
        if not self.address.startswith(("https://", "each row")):
            raise ValueError("address must be a URL, or say 'each row' when every row has its own source")
        return self
