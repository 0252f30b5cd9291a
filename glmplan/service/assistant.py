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
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glmplan.errors import SpecError
from glmplan.service.answer_schemas import ANSWER_SCHEMAS, EngineRow, HardwareRow, Infeasible, ModelRow, Refusal
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
    "explain": ("explain", "Write the arithmetic of a plan: each term, its facts and their sources."),
    "safe": ("safe", "Find the highest concurrency or request rate that meets an SLO."),
    "size": ("size", "Find the cheapest machines to buy or rent for a model, a load and an SLO."),
    "compare": ("compare", "Compare plans: speed with intervals, memory and cost of each."),
    "simulate": ("simulate", "Simulate a service under traffic: TTFT, TPOT and E2E latency, throughput, KV cache."),
    "predict": ("predict", "Predict TTFT, TPOT and rates of one layout at given concurrencies."),
    "cost": ("cost", "Compute the cost of a plan bought, rented and through an API."),
    "links": ("links", "List the devices and links of a machine, with their load by layout."),
    "models": ("catalogue", "List models whose name holds a text, with their sizes and checkpoints."),
    "hardware": ("catalogue", "List accelerators and hosts whose name holds a text, with engines and KV formats."),
}
#: tool → fields of the catalogue that it returns
_PARTS = {"models": ("models",), "hardware": ("hardware", "engines", "kv_formats")}


class _Wanted(BaseModel):
    """Entries of the catalogue by a part of their names."""

    model_config = ConfigDict(extra="forbid")

    search: str = Field("", max_length=100, description="Part of a name or title; empty for all entries.")


class _Models(BaseModel):
    """Models of the catalogue."""

    models: list[ModelRow]


class _Machines(BaseModel):
    """Accelerators, hosts, engines and KV cache formats of the catalogue."""

    hardware: list[HardwareRow]
    engines: list[EngineRow]
    kv_formats: list[str]


_LISTS: dict[str, type[BaseModel]] = {"models": _Models, "hardware": _Machines}
_ABOUT = (
    "Capacity planning of language models. Figures carry 90 % intervals and the evidence behind them; report both. "
    "Call `models` and `hardware` for names. 'Does not fit' is an answer, not an error."
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


def _form(tool: str) -> type[BaseModel]:
    return _Wanted if tool in _LISTS else QUESTIONS[TOOLS[tool][0]]


def _output(tool: str) -> dict[str, Any]:
    """Return the JSON schema of an answer, or of the reason why there is none."""
    answer: Any = _LISTS.get(tool) or ANSWER_SCHEMAS[TOOLS[tool][0]]
    return {"type": "object", **TypeAdapter(answer | Infeasible | Refusal).json_schema()}


async def _listed(context: Any, parameters: Any) -> ListToolsResult:
    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    found = [
        Tool(
            name=name,
            description=text,
            input_schema=_form(name).model_json_schema(),
            output_schema=_output(name),
            annotations=hints,
        )
        for name, (_, text) in TOOLS.items()
    ]
    return ListToolsResult(tools=found)


async def _called(context: Any, parameters: Any) -> CallToolResult:
    name = parameters.name
    if name not in TOOLS:
        unknown = SpecError("is not a tool", field="name", value=name, choices=list(TOOLS))
        return _result(422, refusal_record(unknown))
    try:
        question: BaseModel = _form(name).model_validate(parameters.arguments or {})
    except ValidationError as error:
        return _result(422, invalid_record(list(error.errors()), _form(name)))
    dispatcher: Dispatcher = context.lifespan_context
    asked = {} if isinstance(question, _Wanted) else question.model_dump(exclude_unset=True)
    status, body = await dispatcher.answer(TOOLS[name][0], asked)
    record = json.loads(body)
    if isinstance(question, _Wanted) and status == 200:
        word = question.search.lower()
        record = {part: record[part] for part in _PARTS[name]}
        record[name] = [one for one in record[name] if word in f"{one['name']} {one['title']}".lower()]
    return _result(status, record)


def _result(status: int, record: dict[str, Any]) -> CallToolResult:
    """Return an answer as text and as a record; an error names what to change."""
    text = TextContent(type="text", text=json.dumps(record, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=record, is_error=status != 200)
