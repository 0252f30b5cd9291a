"""HTTP routes: questions, jobs, single values, page, health, metrics."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from glmplan.errors import SpecError
from glmplan.service import questions as q
from glmplan.service.answer_schemas import ANSWER_SCHEMAS, Infeasible, JobState, Refusal
from glmplan.service.answers import COST_VALUES, OLD_VALUES, QUESTIONS, VALUES, costs_of
from glmplan.service.dispatcher import Dispatcher
from glmplan.service.form import page_assets
from glmplan.service.guard import App, Guard, Limits, Metrics
from glmplan.service.jobs import Busy, Job, Jobs
from glmplan.service.questions import invalid_record, refusal_record

__all__ = ["EXAMPLES", "application", "openapi_document"]


_WRONG: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "The body is not JSON or is incomplete."},
    401: {"model": Refusal, "description": "The token is missing or wrong."},
    403: {"model": Refusal, "description": "The request comes from a page of another site."},
    413: {"model": Refusal, "description": "The body is too large."},
    415: {"model": Refusal, "description": "The content type is not JSON."},
    421: {"model": Refusal, "description": "The Host header does not name this service."},
    422: {"model": Refusal, "description": "Invalid question, with field, value and nearest choices; or too large."},
    429: {"model": Refusal, "description": "Too many questions are waiting."},
    503: {"model": Refusal, "description": "The service is shutting down."},
}
_NO_JOB: dict[int | str, dict[str, Any]] = {
    404: {"model": Refusal, "description": "The job does not exist or has been deleted."}
}
_NOT_YET: dict[int | str, dict[str, Any]] = {409: {"model": Refusal, "description": "The job is not finished."}}
_TEXT = {
    200: {
        "content": {"text/plain": {}, "text/csv": {}},
        "description": "The value, or a line of names and one of values.",
    }
}
_ABOUT = """Capacity planning of language models: memory, speed, safe users and cost.

Answers are those of the command line with `--format json`. An invalid question is 4xx with field, value and nearest
choice; "does not fit" is an answer and therefore 200.
"""


def application(limits: Limits | None = None, token: str = "") -> App:
    """Return the ASGI application of the service.

    `token`: Token of each question; empty for a service on loopback.

    Examples
    --------
    >>> app = application()
    """
    metrics = Metrics()
    started: list[Dispatcher] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        started.append(Dispatcher(limits or Limits(), metrics))
        app.state.dispatcher = started[0]
        await started[0].start()
        yield
        await started[0].close()

    app = FastAPI(
        title="glmplan",
        version=_version(),
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.state.metrics = metrics
    app.add_exception_handler(RequestValidationError, _invalid_question)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _no_address)  # type: ignore[arg-type]
    app.include_router(_QUESTIONS)
    app.include_router(_JOBS)
    app.include_router(_SERVICE)
    app.state.document = cache(lambda: openapi_document(token=bool(token)))
    routes = (*_QUESTIONS.routes, *_JOBS.routes, *_SERVICE.routes)
    posts = [route.path_regex for route in routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())]
    return Guard(app, limits or Limits(), metrics, token, lambda path: any(post.match(path) for post in posts))


#: question that the document shows for each route
_PLAN = {"model": "llama-3.1-8b", "on": "1xh100-sxm"}
EXAMPLES: dict[str, dict[str, Any]] = {
    "fit": _PLAN | {"users": [1, 8, 32]},
    "explain": _PLAN | {"users": [8]},
    "predict": _PLAN | {"users": [1, 8]},
    "predict-table": {"rows": [{"model": "llama-3.1-8b", "accelerator": "h100-sxm", "engine": "vllm",
                                "concurrency": 8, "input_tokens": 1024, "output_tokens": 128}]},
    "simulate": _PLAN | {"traffic": "poisson:2/s", "requests": 100, "input": 1024, "output": 128},
    "safe": _PLAN | {"slo": "ttft p95 < 2 s, tpot p95 < 50 ms", "traffic": "closed:1", "input": 1024, "output": 64},
    "sweep": _PLAN | {"users": [1, 8], "kv": ["bf16", "fp8"]},
    "size": {"model": "llama-3.1-8b", "users": 16, "slo": "tpot p95 < 50 ms", "only": "h100-sxm", "answers": 1},
    "compare": {"plans": [_PLAN, _PLAN | {"kv": "fp8"}], "users": 8},
    "cost": _PLAN | {"users": 8},
    "links": {"on": "6xrtx-pro-6000-ws", "tp": 2},
    "workbook": _PLAN | {"users": 8},
    "check": {"text": "id,model,accelerator,accelerator_count,engine,concurrency,input_tokens,output_tokens,"
                      "tpot_mean_ms\na,llama-3.1-8b,h100-sxm,1,vllm,8,1024,128,7.5\n"},
    "jobs": {"ask": "simulate", "question": _PLAN | {"traffic": "closed:8", "requests": 100}},
}  # fmt: skip


def openapi_document(*, token: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document: questions, answers, examples, tokens.

    `token`: The service requires a token.

    Examples
    --------
    >>> openapi_document()["paths"]["/v1/fit"]["post"]["summary"]
    'Fit'
    """
    routes = (*_QUESTIONS.routes, *_JOBS.routes, *_SERVICE.routes)
    found = get_openapi(title="glmplan", version=_version(), description=_ABOUT, routes=routes)
    for ask, example in EXAMPLES.items():
        body = found["paths"][f"/v1/{ask}"]["post"]["requestBody"]["content"]["application/json"]
        body["example"] = example
    found["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "query": {"type": "apiKey", "in": "query", "name": "token", "description": "For functions of spreadsheets."},
    }
    found["security"] = [{"bearer": []}, {"query": []}, *([] if token else [{}])]
    for path in ("/health",):
        found["paths"][path]["get"]["security"] = []
    return found


def _version() -> str:
    try:
        return version("glmplan")
    except PackageNotFoundError:
        return "0"


def _error(status: int, kind: str, message: str, **more: Any) -> JSONResponse:
    return JSONResponse({"error": {"kind": kind, "message": message, **more}}, status)


async def _invalid_question(request: Request, error: RequestValidationError) -> JSONResponse:
    return _invalid(list(error.errors()), request.url.path)


def _invalid(errors: list[Any], path: str) -> JSONResponse:
    record = invalid_record(errors, QUESTIONS.get(path.rpartition("/")[2]))
    return JSONResponse(record, 422)


async def _no_address(request: Request, error: HTTPException) -> JSONResponse:
    kinds = {404: "NoAddress", 405: "NoMethod"}
    found = _error(error.status_code, kinds.get(error.status_code, "Refused"), str(error.detail))
    found.headers.update(error.headers or {})
    return found


async def _answered(request: Request, ask: str, question: BaseModel) -> Response:
    dispatcher: Dispatcher = request.app.state.dispatcher
    status, body = await dispatcher.answer(ask, question.model_dump(mode="json", exclude_none=True))
    headers = {"retry-after": "2"} if status == 429 else {}
    return Response(body, status, headers, media_type="application/json")


_QUESTIONS = APIRouter(prefix="/v1", tags=["questions"], responses=_WRONG)


def _told(ask: str) -> dict[int | str, dict[str, Any]]:
    """Return the description of the answer to a question, for the document."""
    model: Any = ANSWER_SCHEMAS[ask]
    if ask not in ("catalogue", "workbook", "links", "check"):
        model = model | Infeasible
    return {200: {"model": model, "description": (ANSWER_SCHEMAS[ask].__doc__ or ask).partition("\n")[0]}}


def _add_question(ask: str, text: str) -> None:
    async def answered(question: Any, request: Request) -> Response:
        return await _answered(request, ask, question)

    answered.__annotations__["question"] = QUESTIONS[ask]
    answered.__doc__ = text
    name = ask.replace("-", " ")
    _QUESTIONS.post(f"/{ask}", name=name, responses=_told(ask))(answered)


#: question → its description in the document
_TEXTS = {
    "fit": "Plan a model on a machine: fit, speed, safe users, useful changes.",
    "explain": "Return the arithmetic of a plan as text.",
    "predict": "Predict a plan at each concurrency, with intervals; times in seconds.",
    "predict-table": "Predict every row of a table of runs.",
    "simulate": "Simulate a plan under traffic: latencies, throughput, batch, KV cache.",
    "safe": "Find the largest load that meets an SLO, users and request rate, and the target that is missed first.",
    "sweep": "Predict combinations of models, machines, layouts and loads.",
    "size": "Find machines to buy or rent for a model, a load and an SLO.",
    "compare": "Compare two to four plans, with the causes of differences.",
    "cost": "Return the costs of a plan, bought and rented, against an API.",
    "links": "Return the links of a machine, and their load under a layout.",
    "workbook": "Return a plan as a workbook with live formulas, in base64.",
    "check": "Compare the record of a benchmark with its predictions.",
}
for _ask, _text in _TEXTS.items():
    _add_question(_ask, _text)


@_QUESTIONS.get("/catalogue", name="catalogue", responses=_told("catalogue"))
async def _catalogue(request: Request) -> Response:
    """List models, machines, engines and formats of the catalogue."""
    return await _answered(request, "catalogue", QUESTIONS["catalogue"]())


@_QUESTIONS.get("/values", name="values")
async def _values() -> dict[str, str]:
    """List the single values with their descriptions."""
    return VALUES


@_QUESTIONS.get("/value", response_class=PlainTextResponse, responses=_TEXT, name="value")  # type: ignore[arg-type]
async def _value(question: Annotated[q.ValueQuestion, Query()], request: Request) -> Response:
    """Return single values as text or CSV for spreadsheet functions."""
    names = [OLD_VALUES.get(name.strip(), name.strip()) for name in question.get.split(",") if name.strip()]
    for name in names or [question.get]:
        if name not in VALUES:
            error = SpecError("is not a value", field="get", value=name, choices=VALUES)
            return JSONResponse(refusal_record(error), 422)
    plan = question.model_dump(exclude={"get", "form", "token"}, exclude_none=True)
    answer = await _answered(request, "values", q.FitQuestion.model_validate(plan | {"changes": False}))
    if answer.status_code != 200:
        return answer
    record = json.loads(bytes(answer.body))
    if not COST_VALUES.keys().isdisjoint(names) and record["verdict"] in ("fits", "tight"):
        # the format that `fit` chose
        cost = q.CostQuestion.model_validate(plan | {"weights": record["weights"]})
        answer = await _answered(request, "cost", cost)
        if answer.status_code != 200:
            return answer
        record |= costs_of(json.loads(bytes(answer.body)))
    cells = [_cell(record, name) for name in names]
    form = question.form or ("text" if len(names) == 1 else "csv")
    if form == "text":
        return PlainTextResponse("\n".join(cells))
    lines = (",".join(names), ",".join(_quoted(cell) for cell in cells))
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/csv")


def _cell(record: dict[str, Any], name: str) -> str:
    """Return a value as a cell; the verdict if there is no value."""
    found = record.get(name)
    if found is None:
        return str(record["verdict"]) if record["verdict"] in ("does_not_fit", "unknown") else "unknown"
    return repr(found) if isinstance(found, int | float) else str(found)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n\r') else cell


_JOBS = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=_WRONG)
_STATE = {"model": JobState, "description": "The job."}
_ANY = {"model": Any, "description": "The answer, as the route of the question has it."}


@_JOBS.post("", status_code=202, responses={202: _STATE}, name="begin")
async def _begin(job: q.JobQuestion, request: Request) -> Response:
    """Start a job for a long question; the answer has the address of the job."""
    try:
        question = QUESTIONS[job.ask].model_validate(job.question)
    except ValidationError as error:
        return _invalid(list(error.errors()), job.ask)
    dispatcher: Dispatcher = request.app.state.dispatcher
    try:
        found = dispatcher.jobs.begin(job.ask, question.model_dump(mode="json", exclude_none=True))
    except Busy:
        return _error(429, "Busy", "too many jobs: cancel or delete one, or try again later")
    except sqlite3.Error as error:
        return _error(503, "NotWritten", f"the file of jobs cannot be written: {error}")
    return JSONResponse(dispatcher.jobs.record(found), 202, {"location": f"/v1/jobs/{found.name}"})


def _job(request: Request, name: str) -> tuple[Jobs, Job]:
    dispatcher: Dispatcher = request.app.state.dispatcher
    found = dispatcher.jobs.get(name)
    if found is None:
        raise HTTPException(404, "the job does not exist or has been deleted")
    return dispatcher.jobs, found


@_JOBS.get("/{job}", responses=_NO_JOB | {200: _STATE}, name="look")
async def _look(job: str, request: Request) -> JSONResponse:
    """Return the state of a job, its place in the queue and its progress."""
    jobs, found = _job(request, job)
    return JSONResponse(jobs.record(found))


@_JOBS.get("/{job}/answer", responses=_NO_JOB | _NOT_YET | {200: _ANY}, name="collect")
async def _collect(job: str, request: Request) -> Response:
    """Return the answer of a finished job."""
    _, found = _job(request, job)
    if found.state in ("waiting", "running", "cancelled"):
        return _error(409, "NotDone", f"the job is {found.state}")
    status = 200 if found.state == "done" else 422
    return Response(found.answer, status, media_type="application/json")


@_JOBS.delete("/{job}", responses=_NO_JOB | {200: _STATE}, name="cancel")
async def _cancel(job: str, request: Request) -> JSONResponse:
    """Stop a job; delete one that has ended."""
    jobs, found = _job(request, job)
    jobs.cancel(found)
    return JSONResponse(jobs.record(found))


_SERVICE = APIRouter(responses=_WRONG)


@_SERVICE.get("/health", tags=["service"], name="health")
async def _health() -> dict[str, str]:
    """Return that the service is running."""
    return {"status": "ok"}


@_SERVICE.get("/metrics", response_class=PlainTextResponse, tags=["service"], name="metrics")
async def _metrics(request: Request) -> PlainTextResponse:
    """Return metrics in the text format of Prometheus."""
    state = request.app.state
    return PlainTextResponse(state.metrics.text(state.dispatcher.gauges()), media_type="text/plain; version=0.0.4")


@_SERVICE.get("/openapi.json", include_in_schema=False, name="document")
async def _document(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.state.document())


def _add_page(path: str, name: str, file: str) -> None:
    async def shown() -> Response:
        return _file_of_the_page(file)

    _SERVICE.get(path, include_in_schema=False, name=name)(shown)


for _path, _name, _file in (
    ("/docs", "docs", "docs.html"),
    ("/", "page", "index.html"),
    ("/buy", "buy", "buy.html"),
    ("/check", "check", "check.html"),
):
    _add_page(_path, _name, _file)


@_SERVICE.get("/page/{name}", include_in_schema=False, name="asset")
async def _asset(name: str) -> Response:
    """Return a file of the page."""
    return _file_of_the_page(name)


def _file_of_the_page(name: str) -> Response:
    found = page_assets().get(name)
    if found is None:
        raise HTTPException(404, "the file does not exist")
    return Response(found.content, media_type=found.kind, headers={"cache-control": "no-cache"})
