"""Find entries of a folder by name, alias or path.

Each is a TOML file. Nothing is ever substituted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import rtoml

from glmplan.catalog.files import data_folder, plain_name, read_bytes

__all__ = ["Catalog"]

Entry = TypeVar("Entry")
# each alias list is one line, so that names are found without parsing every file
_ALIASES = re.compile(rb"^aliases = (\[.*\])$", re.MULTILINE)


class Catalog(Generic[Entry]):
    """Entries of a folder, each read once.

    Examples
    --------
    >>> hosts = Catalog("hardware_db/hosts", lambda file: file.stem)
    >>> "hgx-b200-8" in hosts.names, hosts.aliases["dgx-h100"], hosts.find("DGX_H100"), hosts.find("dgx")
    (True, 'hgx-h100-8', 'hgx-h100-8', None)
    """

    def __init__(self, folder: str, read: Callable[[Path], Entry]) -> None:
        self._place = folder
        self.read = read
        self.read_once = cache(read)
        # names come from requests of clients
        self._find_once = lru_cache(maxsize=1024)(self._named)

    @cached_property
    def folder(self) -> Path:
        """Return the folder."""
        top, *below = self._place.split("/")
        return data_folder(top).joinpath(*below)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of all entries, sorted."""
        return tuple(sorted(file.stem for file in self.folder.glob("*.toml")))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Return alias → name."""
        aliases: dict[str, str] = {}
        for name in self.names:
            match = _ALIASES.search(read_bytes(self.folder / f"{name}.toml"))
            if match:
                line = f"aliases = {match[1].decode()}"
                aliases.update({plain_name(alias): name for alias in rtoml.loads(line)["aliases"]})
        return aliases

    def find(self, name: str | Path) -> Entry | None:
        """Return the entry of a name, an alias or a TOML file, else None."""
        if str(name).endswith(".toml"):
            return self.read(Path(name))
        return self._find_once(str(name))

    def _named(self, name: str) -> Entry | None:
        stem = plain_name(name)
        known = stem if stem in self.names else self.aliases.get(stem)
        return self.read_once(self.folder / f"{known}.toml") if known else None
