"""Offer the service's questions over the Model Context Protocol (MCP).

Answers are computed in the service's worker processes, so its limits on time, memory and size hold here too. Files
cannot be named. The protocol is that of the official SDK (https://modelcontextprotocol.io).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mcp.server import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from pydantic import BaseModel, ValidationError

from glmplan.errors import SpecError
from glmplan.service.answers import QUESTIONS
from glmplan.service.dispatcher import Dispatcher
from glmplan.service.guard import Limits, Metrics
from glmplan.service.questions import invalid_record, refusal_record

__all__ = ["TOOLS", "assistant_server"]

#: name of a tool → name of the question, and what it answers
TOOLS: dict[str, tuple[str, str]] = {
    "fit": (
        "fit",
        "Plan a model on a machine: verdict, memory, speed with intervals, safe users, command, sources.",
    ),
    "safe": ("safe", "Find the highest concurrency or request rate that meets an SLO."),
    "size": ("size", "Find the cheapest machines to buy or rent for a model, a load and an SLO."),
    "compare": ("compare", "Compare plans: speed, memory and cost of each."),
    "simulate": ("simulate", "Simulate a service under traffic: TTFT, TPOT and E2E latency, throughput, KV cache."),
    "predict": ("predict", "Predict TTFT, TPOT and rates of one layout at given concurrencies."),
    "cost": ("cost", "Compute the cost of a plan bought, rented and through an API."),
    "links": ("links", "List the devices and links of a machine, with their load by layout."),
    "catalogue": ("catalogue", "List models, hardware, engines and KV cache formats that questions may name."),
}
_ABOUT = (
    "Capacity planning of language models. Figures carry 90 % intervals and the evidence behind them; report both. "
    "Call `catalogue` for names. 'Does not fit' is an answer, not an error."
)


def assistant_server(limits: Limits | None = None) -> Server[Dispatcher]:
    """Return the MCP server, to be run over stdio or HTTP.

    Examples
    --------
    >>> assistant_server().name
    'glmplan'
    """
    return Server(
        "glmplan",
        version=_version(),
        instructions=_ABOUT,
        lifespan=lambda server: _workers(limits or Limits()),
        on_list_tools=_listed,
        on_call_tool=_called,
    )


def _version() -> str:
    try:
        return version("glmplan")
    except PackageNotFoundError:
        return "0"


@asynccontextmanager
async def _workers(limits: Limits) -> AsyncIterator[Dispatcher]:
    """Start the worker processes of one server and end them with it."""
    dispatcher = Dispatcher(limits, Metrics())
    await dispatcher.start()
    try:
        yield dispatcher
    finally:
        await dispatcher.close()


async def _listed(context: Any, parameters: Any) -> ListToolsResult:
    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    found = [
        Tool(
            name=name,
            description=text,
            input_schema=QUESTIONS[ask].model_json_schema(),
            output_schema={"type": "object"},
            annotations=hints,
        )
        for name, (ask, text) in TOOLS.items()
    ]
    return ListToolsResult(tools=found)


async def _called(context: Any, parameters: Any) -> CallToolResult:
    if parameters.name not in TOOLS:
        unknown = SpecError("is not a tool", field="name", value=parameters.name, choices=list(TOOLS))
        return _result(422, refusal_record(unknown))
    ask, _ = TOOLS[parameters.name]
    try:
        question: BaseModel = QUESTIONS[ask].model_validate(parameters.arguments or {})
    except ValidationError as error:
        return _result(422, invalid_record(list(error.errors()), QUESTIONS[ask]))
    dispatcher: Dispatcher = context.lifespan_context
    status, body = await dispatcher.answer(ask, question.model_dump(exclude_unset=True))
    return _result(status, json.loads(body))


def _result(status: int, record: dict[str, Any]) -> CallToolResult:
    """Return an answer as text and as a record; an error names what to change."""
    text = TextContent(type="text", text=json.dumps(record, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=record, is_error=status != 200)
