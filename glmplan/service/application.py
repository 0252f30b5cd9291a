"""HTTP routes: questions, jobs, single values, page, health, metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException

from glmplan.catalog.files import read_bytes
from glmplan.errors import SpecError, nearest, printable
from glmplan.service import questions as q
from glmplan.service.answers import OLD_VALUES, QUESTIONS, VALUES
from glmplan.service.dispatcher import Busy, Dispatcher, Job
from glmplan.service.form import with_fields
from glmplan.service.guard import App, Guard, Limits, Metrics
from glmplan.service.questions import first_fault, refusal_record

__all__ = ["Asset", "Refusal", "Wrong", "application", "page_assets"]


#: media types of the files of the page
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page.

    Attributes
    ----------
    content : bytes
        Content of the file.
    kind : str
        Media type.
    """

    content: bytes
    kind: str


@cache
def page_assets() -> dict[str, Asset]:
    """Return the files of the page by name.

    No other file is sent.

    Examples
    --------
    >>> "index.html" in page_assets()
    True
    """
    folder = Path(__file__).parent / "page"
    files = {path.name: read_bytes(path) for path in sorted(folder.iterdir()) if path.suffix in _KINDS}
    files["index.html"] = with_fields(files["index.html"].decode()).encode()
    return {name: Asset(content, _KINDS[Path(name).suffix]) for name, content in files.items()}


class Wrong(BaseModel):
    """The error of a refused question."""

    model_config = ConfigDict(extra="allow")

    kind: str
    message: str
    file: str | None = None
    field: str | None = None
    value: str | None = None
    nearest: list[str] = []


class Refusal(BaseModel):
    """A question that is invalid or too large."""

    error: Wrong


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
        lifespan=lifespan,
        responses=_WRONG,
    )
    app.state.metrics = metrics
    app.add_exception_handler(RequestValidationError, _invalid_question)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _no_address)  # type: ignore[arg-type]
    app.include_router(_QUESTIONS)
    app.include_router(_JOBS)
    app.include_router(_SERVICE)
    routes = (*_QUESTIONS.routes, *_JOBS.routes, *_SERVICE.routes)
    posts = [route.path_regex for route in routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())]
    return Guard(app, limits or Limits(), metrics, token, lambda path: any(post.match(path) for post in posts))


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
    """Return the first error as a response, as `refusal_record` states it."""
    first, field = first_fault(errors)
    message = str(first["msg"]).removeprefix("Value error, ")
    given = first.get("input")
    value = None if isinstance(given, dict | list) or given is None else printable(given)[:300]
    close: list[str] = []
    if first["type"] == "extra_forbidden" and field:
        form = QUESTIONS.get(path.rpartition("/")[2])
        close = nearest(field.rpartition(".")[2], form.model_fields if form is not None else ())
        message = "is not a field of this question" + (f"; nearest: {', '.join(close)}" if close else "")
    words = f"{field}: {message}" if field else message
    return _error(422, "SpecError", printable(words), file=None, field=printable(field), value=value, nearest=close)


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


_QUESTIONS = APIRouter(prefix="/v1", tags=["questions"])


@_QUESTIONS.post("/fit", name="fit")
async def _fit(question: q.FitQuestion, request: Request) -> Response:
    """Plan a model on a machine: fit, speed, safe users, useful changes."""
    return await _answered(request, "fit", question)


@_QUESTIONS.post("/explain", name="explain")
async def _explain(question: q.FitQuestion, request: Request) -> Response:
    """Return the arithmetic of a plan as text."""
    return await _answered(request, "explain", question)


@_QUESTIONS.post("/predict", name="predict")
async def _predict(question: q.PredictQuestion, request: Request) -> Response:
    """Predict a plan at each concurrency, with intervals; times in seconds."""
    return await _answered(request, "predict", question)


@_QUESTIONS.post("/predict-table", name="predict table")
async def _predict_table(question: q.TableQuestion, request: Request) -> Response:
    """Predict every row of a table of runs."""
    return await _answered(request, "predict-table", question)


@_QUESTIONS.post("/simulate", name="simulate")
async def _simulate(question: q.SimulateQuestion, request: Request) -> Response:
    """Simulate a plan under traffic: latencies, throughput, batch, KV cache."""
    return await _answered(request, "simulate", question)


@_QUESTIONS.post("/safe", name="safe")
async def _safe(question: q.SafeQuestion, request: Request) -> Response:
    """Find the largest load that meets an SLO: users and request rate.

    The answer names the target that is missed first.
    """
    return await _answered(request, "safe", question)


@_QUESTIONS.post("/sweep", name="sweep")
async def _sweep(question: q.SweepQuestion, request: Request) -> Response:
    """Predict combinations of models, machines, layouts and loads."""
    return await _answered(request, "sweep", question)


@_QUESTIONS.post("/size", name="size")
async def _size(question: q.SizeQuestion, request: Request) -> Response:
    """Find machines to buy or rent for a model, a load and an SLO."""
    return await _answered(request, "size", question)


@_QUESTIONS.post("/compare", name="compare")
async def _compare(question: q.CompareQuestion, request: Request) -> Response:
    """Compare two to four plans, with the causes of differences."""
    return await _answered(request, "compare", question)


@_QUESTIONS.post("/cost", name="cost")
async def _cost(question: q.CostQuestion, request: Request) -> Response:
    """Return the costs of a plan, bought and rented, against an API."""
    return await _answered(request, "cost", question)


@_QUESTIONS.post("/links", name="links")
async def _links(question: q.LinksQuestion, request: Request) -> Response:
    """Return the links of a machine, and their load under a layout."""
    return await _answered(request, "links", question)


@_QUESTIONS.post("/workbook", name="workbook")
async def _workbook(question: q.CostQuestion, request: Request) -> Response:
    """Return a plan as a workbook with live formulas, in base64."""
    return await _answered(request, "workbook", question)


@_QUESTIONS.post("/check", name="check record")
async def _check_record(question: q.CheckQuestion, request: Request) -> Response:
    """Compare a benchmark's record with its predictions."""
    return await _answered(request, "check", question)


@_QUESTIONS.get("/catalogue", name="catalogue")
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
    asked = q.FitQuestion.model_validate(question.model_dump(exclude={"get", "form", "token"}))
    answer = await _answered(request, "values", asked)
    if answer.status_code != 200:
        return answer
    record = json.loads(bytes(answer.body))
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


_JOBS = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@_JOBS.post("", status_code=202, responses=_WRONG, name="begin")
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
        return _error(429, "Busy", "too many jobs: cancel one, or try again later")
    return JSONResponse(found.record(), 202, {"location": f"/v1/jobs/{found.name}"})


def _job(request: Request, name: str) -> Job:
    dispatcher: Dispatcher = request.app.state.dispatcher
    found = dispatcher.jobs.get(name)
    if found is None:
        raise HTTPException(404, "the job does not exist or has been deleted")
    return found


@_JOBS.get("/{job}", responses=_NO_JOB, name="look")
async def _look(job: str, request: Request) -> JSONResponse:
    """Return the state and progress of a job."""
    return JSONResponse(_job(request, job).record())


@_JOBS.get("/{job}/answer", responses=_NO_JOB | _NOT_YET, name="collect")
async def _collect(job: str, request: Request) -> Response:
    """Return the answer of a finished job."""
    found = _job(request, job)
    if found.state in ("waiting", "running", "cancelled"):
        return _error(409, "NotDone", f"the job is {found.state}")
    status = 200 if found.state == "done" else 422
    return Response(found.answer, status, media_type="application/json")


@_JOBS.delete("/{job}", responses=_NO_JOB, name="cancel")
async def _cancel(job: str, request: Request) -> JSONResponse:
    """Stop a job."""
    found = _job(request, job)
    dispatcher: Dispatcher = request.app.state.dispatcher
    dispatcher.jobs.cancel(found)
    return JSONResponse(found.record())


_SERVICE = APIRouter()


@_SERVICE.get("/health", tags=["service"], name="health")
async def _health() -> dict[str, str]:
    """Return that the service is running."""
    return {"status": "ok"}


@_SERVICE.get("/metrics", response_class=PlainTextResponse, tags=["service"], name="metrics")
async def _metrics(request: Request) -> PlainTextResponse:
    """Return metrics in the text format of Prometheus."""
    state = request.app.state
    return PlainTextResponse(state.metrics.text(state.dispatcher.gauges()), media_type="text/plain; version=0.0.4")


@_SERVICE.get("/", include_in_schema=False, name="page")
async def _page() -> Response:
    """Return the page."""
    return _file_of_the_page("index.html")


@_SERVICE.get("/buy", include_in_schema=False, name="buy")
async def _buy() -> Response:
    """Return the page that finds a machine."""
    return _file_of_the_page("buy.html")


@_SERVICE.get("/check", include_in_schema=False, name="check")
async def _check() -> Response:
    """Return the page that compares measurements with predictions."""
    return _file_of_the_page("check.html")


@_SERVICE.get("/page/{name}", include_in_schema=False, name="asset")
async def _asset(name: str) -> Response:
    """Return a file of the page."""
    return _file_of_the_page(name)


def _file_of_the_page(name: str) -> Response:
    found = page_assets().get(name)
    if found is None:
        raise HTTPException(404, "the file does not exist")
    return Response(found.content, media_type=found.kind, headers={"cache-control": "no-cache"})
