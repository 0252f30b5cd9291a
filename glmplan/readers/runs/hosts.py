"""The machine behind a row of a table: the host that it names, or the one that its accelerators imply."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.hosts import host_aliases, host_names, implied_host, load_host
from glmplan.facts.files import read_entries, read_toml
from glmplan.facts.folders import data_folder, plain_name

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["described_hosts", "host_of_row"]

#: conditions of a machine that a table may tell of a run, beside its name
_CONDITIONS = ("p2p", "nccl_graph")


@cache
def described_hosts() -> dict[str, dict[str, Any]]:
    """Return what tables of runs call their machines → what that means, from `calibration/hosts.toml`.

    Returns
    -------
    dict
        Text of the column `host` → its entry.

    Raises
    ------
    SpecError
        If a text stands there twice.

    Examples
    --------
    >>> described_hosts()["dual Turin, NCCL graph XML"]["host"]
    'turin-2s-direct-8-tuned'
    """
    file = data_folder("calibration") / "hosts.toml"
    found: dict[str, dict[str, Any]] = {}
    for entry in read_toml(file)["hosts"]:
        for text in entry["names"]:
            if text in found:
                raise SpecError("stands in two entries", file=file, field="names", value=text)
            found[text] = entry
    return found


@cache
def _words() -> tuple[dict[str, Any], ...]:
    """What is said of a set-up in texts that name no machine: entries with a pattern."""
    file = data_folder("calibration") / "hosts.toml"
    return read_entries(file, "words", {"pattern", "why", *_CONDITIONS})


def host_of_row(text: str | None, accelerator: str, count: int) -> tuple[Host, str]:
    """Return the machine behind a row.

    Parameters
    ----------
    text : str or None
        The row's column `host`: a name or alias of the catalogue, or free text that `described_hosts` knows.
    accelerator : str
        Name of the part.
    count : int
        How many of them the row's layout takes or the row states, [-]

    Returns
    -------
    Host, str
        The machine, and what had to be assumed; empty if nothing beyond what a plan for as many parts assumes.

    Raises
    ------
    SpecError
        If the part does not come in that number.

    Examples
    --------
    >>> host_of_row("hgx-b200-8", "b200-sxm", 8)[0].name
    'hgx-b200-8'
    >>> host, assumed = host_of_row("a machine of mine", "rtx-pro-6000-ws", 4)
    >>> host.name, assumed
    ('4xrtx-pro-6000-ws', "host 'a machine of mine' as 4xrtx-pro-6000-ws")
    """
    find = _find.__wrapped__ if accelerator.endswith(".toml") else _find  # a file may change
    return find(text or "", accelerator, count)


@lru_cache(maxsize=4096)
def _find(text: str, accelerator: str, count: int) -> tuple[Host, str]:
    entry = described_hosts().get(text, {})
    known = plain_name(text) in host_names() or plain_name(text) in host_aliases()
    name = entry.get("host") or (text if known else "")
    host = load_host(name) if name else implied_host(load_accelerator(accelerator), count)
    said = [entry] if known or entry else [one for one in _words() if re.search(one["pattern"], text)]
    told = {field: one[field] for one in said for field in _CONDITIONS if field in one}
    if told:
        host = host.model_copy(update={"conditions": host.conditions.model_copy(update=told)})
    return host, "" if known or entry or not text else f"host {text!r} as {host.name}"
