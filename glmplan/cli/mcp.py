"""Define `glmplan mcp`: the service's questions as tools for assistants."""

from __future__ import annotations

from typing import Annotated

import typer

from glmplan.cli.screen import say

__all__ = ["command"]


def command(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port on loopback for HTTP (path /mcp); else stdin and stdout.")
    ] = None,
) -> None:
    """Answer assistants over the Model Context Protocol (MCP).

    Without an option over standard input and output, as assistants start it. No file can be named.
    """
    from glmplan.extras import check_extra

    check_extra("mcp", field="mcp")
    import anyio

    from glmplan.service.assistant import assistant_server

    server = assistant_server()
    if port is None:
        from mcp.server.stdio import stdio_server

        async def over_pipes() -> None:
            async with stdio_server() as (reader, writer):
                await server.run(reader, writer, server.create_initialization_options())

        anyio.run(over_pipes)
        return
    import uvicorn

    say(f"glmplan answers assistants on http://127.0.0.1:{port}/mcp (Ctrl-C ends it)", err=True)
    uvicorn.run(server.streamable_http_app(stateless_http=True), host="127.0.0.1", port=port, log_level="warning")
