"""Define `glmplan serve`: the commands over HTTP, and a web page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli.screen import say

__all__ = ["command"]

#: environment variable of the token; an option would show it in process lists and shell history
_VARIABLE = "GLMPLAN_SERVE_TOKEN"


def command(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to bind; any but loopback needs a token.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the token; else {_VARIABLE}, else a generated token is printed.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration of your site, from `calibrate --from`, for every answer.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Concurrent answers, and concurrent jobs.")] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(help="SQLite file of jobs; by default jobs-PORT.sqlite in the state folder."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log requests.")] = False,
) -> None:
    """Serve fit, predict, simulate, safe, sweep, size and compare over HTTP.

    The server offers a web page and JSON. Ctrl-C stops it after the running requests.
    """
    import signal
    from dataclasses import replace

    from glmplan.extras import check_extra

    check_extra("fastapi", field="serve")
    check_extra("uvicorn", field="serve")
    from glmplan.service.guard import Limits, is_loopback
    from glmplan.service.server import bound, server

    token = _token(token_file)
    shown = ""
    if not token and not is_loopback(host):
        import secrets

        token = secrets.token_urlsafe(24)
        shown = f"#token={token}"
    limits = Limits() if workers is None else replace(Limits(), quick_workers=workers, job_workers=workers)
    if calibration is not None:
        from glmplan.prediction.step_models import site_calibration

        with site_calibration(calibration):  # an invalid file is reported before the server starts
            limits = replace(limits, calibration=str(calibration.resolve()))
    taken = bound(host, port)
    limits = replace(limits, job_file=_job_file(jobs, port))
    name = f"[{host}]" if ":" in host else host

    def ready() -> None:
        say(f"glmplan answers on http://{name}:{taken.getsockname()[1]}/{shown} (Ctrl-C ends it)", err=True)

    _log(quiet)
    # uvicorn raises the signal again after its shutdown: no work is left then
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda number, frame: None)
    server(host, limits=limits, token=token, ready=ready).run(sockets=[taken])


def _job_file(given: Path | None, port: int) -> str:
    """Return the path of the file of jobs; empty if it cannot be written."""
    from glmplan.errors import SpecError
    from glmplan.service.jobs import JobFile

    if given is None and not port:
        return ""  # the next service has another port and cannot find the file
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = str((given or Path(state, "glmplan", f"jobs-{port}.sqlite")).resolve())
    try:
        JobFile(path).close()
    except SpecError as error:
        if given is not None:
            raise
        say(f"jobs do not survive a restart: {path} {error.message}", err=True)
        return ""
    return path


def _token(file: Path | None) -> str:
    if file is None:
        return os.environ.get(_VARIABLE, "").strip()
    from glmplan.catalog.files import read_text

    return read_text(file, most=4096).strip()


def _log(quiet: bool) -> None:
    import logging

    from glmplan.service.server import JsonLines

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("glmplan.service", logging.WARNING if quiet else logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
