"""Versions of engines: how they are ordered, which were published, and which evidence covers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from glmplan.errors import SpecError
from glmplan.facts.schema.validation import Frozen

__all__ = ["Published", "Release", "UnnamedVersion", "version_key"]


@lru_cache(maxsize=1024)
def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Return a key that orders versions: `0.5.10rc0` < `0.5.10` < `0.5.10.post1` < `0.5.11`.

    Parameters
    ----------
    version : str
        `0.19.0`, `v0.5.10.post1`, `1.2.0rc6.post2`, `0.20.2rc1.dev249+local`, `b6918`.

    Returns
    -------
    tuple
        A sortable key.

    Raises
    ------
    SpecError
        If the text holds no version.

    Examples
    --------
    >>> version_key("0.5.10rc0") < version_key("0.5.10") < version_key("0.5.10.post1") < version_key("0.19.0")
    True
    """
    found = re.match(r"\s*[vVbB]?(\d+(?:\.\d+)*)(?:[-.]?(a|b|rc)(\d+))?(?:[-.]?post(\d+))?(?:[-.]?dev(\d+))?", version)
    if found is None:
        raise SpecError("is not a version, as in '0.19.0'", value=version)
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    if found[2]:
        stage, count = {"a": -3, "b": -2, "rc": -1}[found[2]], int(found[3])
    elif found[4] is None and found[5] is not None:
        stage, count = -4, int(found[5])
    else:
        stage, count = 0, 0
    return tuple(numbers), stage, count * 1000 + int(found[4] or 0)


def _ordered(version: str) -> str:
    version_key(version)
    return version


#: a version that can be ordered
_Version = Annotated[str, AfterValidator(_ordered)]


class Release(Frozen):
    """A release of an engine that evidence covers: a wheel that was read, a recipe, a start-up log, measured runs."""

    version: _Version
    date: str | None = Field(None, pattern=r"^20\d\d-\d\d(-\d\d)?$")
    note: str | None = None
    source: str


class Published(Frozen):
    """Versions of an engine that were published, or whole lines of them (`1.3`), without what came before a release.

    `source` says which list was read and when.
    """

    versions: tuple[str, ...] = Field(min_length=1)
    source: str

    @field_validator("versions")
    @classmethod
    def _are_ordered(cls, versions: tuple[str, ...]) -> tuple[str, ...]:
        keys = [version_key(one) for one in versions]
        if keys != sorted(set(keys)):
            raise SpecError("are not ordered, oldest first, each once", field="published.versions")
        return versions

    def holds(self, version: str) -> bool:
        """Whether a version was published: one of the list, all of a line, or something built before or after one.

        Parameters
        ----------
        version : str
            As `version_key` reads it. A candidate or build of a day (`0.19.2rc1.dev5`) may be of a version that never
            came, so its line decides.

        Returns
        -------
        bool
            True for the beginning of a version too (`0.24`).
        """
        found = re.match(r"\s*[vV]?(\d+(?:\.\d+)*)(.*)", version)
        if found is None:
            return False
        numbers, rest = found[1].split("."), found[2].lstrip(".-")
        if re.match(r"(a|b|rc|dev)\d|\+", rest):
            numbers = numbers[:2]
        listed = (one.split(".") for one in self.versions)
        return any(one[: len(numbers)] == numbers[: len(one)] for one in listed)


class UnnamedVersion(Frozen):
    """The version that a server counts as which was measured before a day and whose version nobody wrote down."""

    before: str = Field(pattern=r"^20\d\d-\d\d(-\d\d)?$")
    version: _Version
    note: str | None = None
    source: str
