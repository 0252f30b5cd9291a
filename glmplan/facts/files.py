"""Reading TOML with errors that name the file, and writing files so that a crash never leaves half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import rtoml

from glmplan.errors import SpecError

__all__ = ["read_entries", "read_toml", "write_atomically"]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    dict
        Its content.

    Raises
    ------
    SpecError
        If the file cannot be read or is not TOML; the message names the line.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.toml"
    >>> write_atomically(file, 'memory = "96 GiB"')
    >>> read_toml(file)
    {'memory': '96 GiB'}
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return rtoml.load(stream)
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=path) from None
    except (rtoml.TomlParsingError, UnicodeDecodeError) as error:
        raise SpecError(f"is not valid TOML: {error}", file=path) from None


def read_entries(path: str | Path, table: str, fields: Collection[str]) -> tuple[dict[str, Any], ...]:
    """Read the entries of a table of facts; each must have a source.

    Parameters
    ----------
    path : path
        The file.
    table : str
        Name of the table.
    fields : collection of str
        Fields that an entry may have besides ``source`` and ``in_view`` (`glmplan.facts.in_view`).

    Returns
    -------
    tuple of dict
        The entries, in the order of the file.

    Raises
    ------
    SpecError
        If the file cannot be read, an entry has another field, or has no source.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.toml"
    >>> write_atomically(file, '[[rules]]\\nengine = "vllm"\\nsource = "https://docs.vllm.ai"')
    >>> read_entries(file, "rules", {"engine"})
    ({'engine': 'vllm', 'source': 'https://docs.vllm.ai'},)
    """
    found = tuple(read_toml(path)[table])
    for entry in found:
        for field in entry:
            if field not in (known := {*fields, "source", "in_view"}):
                raise SpecError(f"is not a field of {table}", file=path, value=field, choices=known)
        if not entry.get("source"):
            raise SpecError("has no source", file=path, field=table, value=str(entry))
    return found


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file in one step: readers see the old content or the new, never a part.

    Parameters
    ----------
    path : path
        The file; missing parent folders are made.
    content : str or bytes
        What to write; text is encoded as UTF-8.

    Raises
    ------
    SpecError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "deep" / "a.txt"
    >>> write_atomically(file, "whole")
    >>> file.read_text()
    'whole'
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise SpecError(f"cannot be written: {error.strerror}", file=path) from None
