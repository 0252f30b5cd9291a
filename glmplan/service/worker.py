"""A process that answers questions, one after the other: ``python -m glmplan.service.worker MEMORY [CALIBRATION]``.

A line of JSON comes in: name of the question, the question, limits. Lines of JSON go out: how far it is, then status
and length of the answer, then the answer itself. Whoever waits too long ends the process; so a slow question blocks
nobody else, and nothing that it holds is left behind.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from pydantic import ValidationError

from glmplan.errors import GlmplanError, Infeasible
from glmplan.prediction.step_models import site_calibration
from glmplan.service.answers import ANSWERS, QUESTIONS
from glmplan.service.questions import first_fault, infeasible_record, refusal_record

__all__ = ["answered", "main"]

#: time between two reports of how far a question is [s]
_REPORT = 0.2
#: a question that a start asks itself, any will do: so the first user does not wait for files to be read
_WARM = {"model": "llama-3.1-8b-bf16", "on": "1xh100-sxm"}
_LOG = logging.getLogger("glmplan.service.worker")


def answered(ask: str, question: Mapping[str, Any], limits: Mapping[str, Any], report: Any) -> tuple[int, bytes]:
    """Answer one question.

    - `report`: Called with how much is done, and of how much.
    - `int`: Status of HTTP: 200 for an answer, 422 for what was asked wrongly, 500 for a fault of glmplan.

    Examples
    --------
    >>> answered("fit", {"model": "glm-9", "on": "8xh100-sxm"}, {}, print)[0]
    422
    """
    try:
        record = ANSWERS[ask](QUESTIONS[ask].model_validate(question), report, limits)
        status = 200
    except Infeasible as answer:
        status, record = 200, infeasible_record(answer)
    except GlmplanError as error:
        status, record = 422, refusal_record(error)
    except ValidationError as error:
        first, where = first_fault(error.errors())
        status, record = 422, {"error": {"kind": "SpecError", "message": first["msg"], "field": where}}
    except MemoryError:
        words = "needs more memory than an answer of this service may take: ask for less"
        status, record = 422, {"error": {"kind": "TooLarge", "message": words}}
    except Exception:
        # what was asked is not logged: it may hold names that are nobody's business
        _LOG.exception("fault in %s", ask)
        words = "glmplan failed on this question, which is a defect of it: see the log of the service"
        status, record = 500, {"error": {"kind": "Fault", "message": words}}
    return status, json.dumps(record, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Numbers of numpy as those of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _bound(memory: int) -> None:
    """Let this process have so much address space, where the system can."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def main() -> None:
    """Answer until the input ends."""
    lines, out = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # nobody prints; but if a library does, it is not taken for an answer
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    said = dict(enumerate(sys.argv))
    _bound(int(said.get(1, 1 << 62)))
    with site_calibration(said.get(2) or None):
        _answer_all(lines, out)


def _answer_all(lines: BinaryIO, out: BinaryIO) -> None:
    answered("fit", _WARM, {}, lambda done, total: None)
    # what was read once stays: it need not be looked at again by the collector
    gc.collect()
    gc.freeze()
    _send(out, {"ready": True})
    for line in lines:
        _answer(line, out)


def _answer(line: bytes, out: BinaryIO) -> None:
    asked = json.loads(line)
    last = [time.monotonic()]

    def report(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= _REPORT:
            last[0] = now
            _send(out, {"done": done, "total": total})

    status, body = answered(asked["ask"], asked["question"], asked["limits"], report)
    _send(out, {"status": status, "size": len(body)}, body)


def _send(out: BinaryIO, head: dict[str, Any], body: bytes = b"") -> None:
    out.write(json.dumps(head).encode() + b"\n" + body)
    out.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        main()
