"""Where requests go: the address without what is secret in it, and what the server there understands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from glmplan.errors import SpecError
from glmplan.measure.outside import Outside, api_key

__all__ = ["Endpoint", "Prompt"]

#: A prompt is text, or token numbers where the server takes them.
Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go and what the server understands.

    Parameters
    ----------
    url : str
        Base address, such as `http://127.0.0.1:8000/v1`.
    model : str
        Name of the model as the server knows it.
    chat : bool, optional
        Chat completions instead of completions.
    ignore_eos : bool, optional
        Ask the server not to stop at the end token, so that lengths are those asked for.
    stream_usage : bool, optional
        Ask for `usage` in the stream.
    verify : bool, optional
        Check the server's certificate.
    login : str, optional
        User and password, `user:password`; taken out of the address if they stand there.

    Raises
    ------
    SpecError
        If the address is none; the message does not hold the password.
    """

    url: str
    model: str
    chat: bool = False
    ignore_eos: bool = True
    stream_usage: bool = True
    verify: bool = True
    login: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url.strip())
            login, _, place = parts.netloc.rpartition("@")
            bare = urlunsplit(parts._replace(netloc=place))
            known = parts.scheme in ("http", "https") and bool(httpx.URL(bare).host) and parts.port != 0
        except (ValueError, TypeError, httpx.InvalidURL):
            known, bare, login = False, "", ""
        if not known:
            shown = re.sub(r"[^/]*@", "***@", self.url) or "(missing)"
            raise SpecError("is not an address such as http://host:8000/v1", field="--url", value=shown)
        if parts.query or parts.fragment:
            raise SpecError("ends in a query or a fragment, which would go lost", field="--url", value=parts.netloc)
        object.__setattr__(self, "url", bare)
        object.__setattr__(self, "login", unquote(login) or self.login)

    def told(self) -> dict[str, Any]:
        """Return what a record may hold of it: everything but the login."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "login"}

    @property
    def outside(self) -> Outside:
        """What keeps the key and the login out of all that is kept of this server."""
        user, _, password = self.login.partition(":")
        return Outside(filter(None, (api_key(), self.login, password or user)))

    @property
    def root(self) -> str:
        """Address of the server without the version part, where engines put their own pages."""
        return self.url.rstrip("/").removesuffix("/v1")

    def body(self, prompt: Prompt, output_tokens: int) -> dict[str, Any]:
        """Return the JSON of one request.

        Parameters
        ----------
        prompt : str or list of int
            Text, or token numbers (completions only), [-]
        output_tokens : int
            Tokens to generate, [token]

        Returns
        -------
        dict
            The body.
        """
        body: dict[str, Any] = {"model": self.model, "max_tokens": output_tokens, "temperature": 0.0, "stream": True}
        if self.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.chat:
            return body | {"messages": [{"role": "user", "content": prompt}]}
        return body | {"prompt": prompt}
