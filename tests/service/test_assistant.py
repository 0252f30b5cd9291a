"""`glmplan mcp` with the client of the official SDK, over pipes and over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import anyio
import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
pytest.importorskip("mcp", reason="the extra mcp is not installed")
import jsonschema
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

import glmplan
from glmplan.service.assistant import TOOLS

CODE = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
QUESTION = {"model": "llama-3.1-8b", "on": "1xh100-sxm"}


def _conversation(server):
    async def talk():
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = [
                await client.call_tool("fit", QUESTION),
                await client.call_tool("fit", QUESTION | {"on": "/etc/passwd"}),
                await client.call_tool("fit", QUESTION | {"usrs": [1]}),
                await client.call_tool("fit", QUESTION | {"model": "llama-3.1-8c"}),
                await client.call_tool("delete", {}),
                await client.call_tool("models", {"search": "llama-3.1"}),
                await client.call_tool("hardware", {"search": "RTX PRO 6000"}),
                await client.call_tool("explain", QUESTION | {"users": 8}),
                await client.call_tool("fit", QUESTION | {"model": "glm-5.1"}),
            ]
        return tools, answers

    return anyio.run(talk)


def _check(tools, answers):
    assert {tool.name for tool in tools} == set(TOOLS)
    fit = next(tool for tool in tools if tool.name == "fit")
    assert fit.input_schema["required"] == ["model", "on"] and fit.annotations.read_only_hint
    planned, *refused, models, hardware, explained, short = answers
    for name, one in (
        ("fit", planned),
        ("models", models),
        ("hardware", hardware),
        ("explain", explained),
        ("fit", short),
    ):
        schema = next(tool.output_schema for tool in tools if tool.name == name)
        jsonschema.Draft202012Validator(schema).validate(one.structured_content)
        assert not one.is_error and {"type": "object"}.items() <= schema.items() and len(schema) > 1
    assert {one["name"] for one in models.structured_content["models"]} >= {"llama-3.1-8b", "llama-3.1-70b"}
    assert all("llama-3.1" in one["name"] for one in models.structured_content["models"])
    assert "rtx-pro-6000-ws" in {one["name"] for one in hardware.structured_content["hardware"]}
    assert "weights" in explained.structured_content["text"]
    assert short.structured_content["verdict"] == "does_not_fit"
    own = glmplan.fit("llama-3.1-8b", "1xh100-sxm")
    assert not planned.is_error and planned.structured_content["verdict"] == own.verdict
    assert all(one.is_error for one in refused)
    errors = [one.structured_content["error"] for one in refused]
    assert [error["field"] for error in errors] == ["on", "usrs", "model", "name"]
    assert errors[1]["nearest"][0] == "users" and "llama-3.1-8b" in errors[2]["nearest"]


def test_tools_answer_over_pipes():
    environment = {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
    parameters = StdioServerParameters(command=sys.executable, args=["-c", CODE, "mcp"], env=environment)
    _check(*_conversation(parameters))


def test_tools_answer_over_http():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-c", CODE, "mcp", "--port", str(port)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert str(port) in server.stderr.readline()
            _wait_for(port)
            _check(*_conversation(f"http://127.0.0.1:{port}/mcp"))
        finally:
            server.terminate()


def _wait_for(port):
    for _ in range(200):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        anyio.run(anyio.sleep, 0.1)
    raise AssertionError("the server does not listen")
