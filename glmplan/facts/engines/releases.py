"""Releases of engines that evidence covers: which is the newest, and whether a version that somebody names is one."""

from __future__ import annotations

from glmplan.errors import SpecError
from glmplan.facts.engines.walls import load_engine

__all__ = ["LATEST", "known_version"]

#: the word for the newest release that evidence covers
LATEST = "latest"


def known_version(engine: str, version: str | None) -> str | None:
    """Check a version of an engine that somebody names.

    Parameters
    ----------
    engine : str
        The engine.
    version : str or None
        A version, `LATEST` or None.

    Returns
    -------
    str or None
        The version; None for the newest, whatever it is called.

    Raises
    ------
    SpecError
        If it is no version, later than every release that evidence covers (patches of the newest count as it), or
        earlier and never published.

    Examples
    --------
    >>> known_version("vllm", "0.19.0"), known_version("vllm", "latest")
    ('0.19.0', None)
    >>> known_version("vllm", "9999.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    glmplan.errors.SpecError: '9999.0' is later than any release of vLLM that evidence covers; nearest: ...
    >>> known_version("trtllm", "0.33.0")
    Traceback (most recent call last):
    glmplan.errors.SpecError: '0.33.0' is no version of TensorRT-LLM that was published; nearest: 0.21.0
    """
    from glmplan.facts.schema.versions import version_key

    if version is None or version.strip().lower() == LATEST:
        return None
    key, known = version_key(version), load_engine(engine)
    newest = known.newest
    if newest is not None and newest.startswith("b") and "." in version:
        raise SpecError(f"is no build of {known.full_name}; nearest: {newest}", value=version)
    if newest is not None and key > version_key(newest):
        patch = newest.endswith(".0") and version.lstrip("vV").startswith(newest.removesuffix("0"))
        if not patch:
            message = f"is later than any release of {known.full_name} that evidence covers; nearest: {newest}"
            raise SpecError(message, value=version)
        return version
    if known.published is not None and not known.published.holds(version):
        before = [one for one in known.published.versions if version_key(one) <= key]
        nearest = before[-1] if before else known.published.versions[0]
        raise SpecError(f"is no version of {known.full_name} that was published; nearest: {nearest}", value=version)
    return version
