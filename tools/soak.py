"""Ask a service a great many questions and see that its memory stays flat: ``python tools/soak.py``.

The mix is that of people and sheets: most questions were asked before, some are new and computed, some are wrong, some
come from where they may not. Memory of the service and of the processes that compute is read from its own `/metrics`.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlencode

PLANS = (("llama-3.1-8b", "1xh100-sxm"), ("llama-3.1-8b", "1xh200-sxm"), ("qwen3-32b", "2xh100-sxm"))
JSON = {"content-type": "application/json"}


def question(rng: random.Random, new: float) -> tuple[str, str, bytes | None, dict[str, str], tuple[int, ...]]:
    """One request: method, address, body, headers, and the statuses that are right."""
    model, on = rng.choice(PLANS)
    # what is new has lengths that nobody asked for before
    fresh = rng.random() < new
    plan = {"model": model, "on": on, "input": rng.randrange(100, 30_000) if fresh else 1024, "output": 64}
    kind = rng.random()

    def post(address: str, body: object, *right: int) -> tuple[str, str, bytes, dict[str, str], tuple[int, ...]]:
        return "POST", address, json.dumps(body).encode(), JSON, right

    if kind < 0.35:
        return post("/v1/fit", plan | {"users": [1, rng.choice((2, 4, 8))]}, 200)
    if kind < 0.65:
        name = rng.choice(("tokens_per_s", "ttft_ms", "safe_users", "verdict,layout"))
        return "GET", "/v1/value?" + urlencode(plan | {"users": 8, "get": name}), None, {}, (200,)
    if kind < 0.72:
        return post("/v1/cost", plan | {"users": rng.choice((1, 8))}, 200)
    if kind < 0.76:
        return post("/v1/links", {"on": on, "tp": 1}, 200)
    if kind < 0.77:
        return post("/v1/simulate", plan | {"traffic": "closed:2", "requests": 20, "ranges": False}, 200, 422)
    if kind < 0.85:
        wrong = rng.choice(({"engine": f"engine{rng.randrange(10**6)}"}, {"user": 1}, {"tp": -1}, {"model": "../../x"}))
        return post("/v1/fit", plan | wrong, 422)
    if kind < 0.88:
        return "GET", f"/v1/jobs/{rng.randrange(10**9)}", None, {}, (404,)
    if kind < 0.90:
        return "GET", "/v1/values", None, {"host": "evil.example"}, (421,)
    if kind < 0.98:
        return "GET", rng.choice(("/", "/page/main.js", "/page/page.css", "/v1/values", "/health")), None, {}, (200,)
    return "GET", rng.choice(("/v1/catalogue", "/openapi.json", "/metrics")), None, {}, (200,)


#: digests of the first answer to each question; every thread compares with what another was told
FIRST: dict[tuple[str, bytes | None], bytes] = {}


def judged(method: str, address: str, body: bytes | None, answer: tuple[int, bytes], right: tuple[int, ...]) -> str:
    """Say ``right``, or what is wrong with an answer."""
    status, said = answer
    if status not in right:
        return f"{method} {address[:40]}: {status}"
    if status != 200 or address == "/metrics":
        return "right"
    digest = hashlib.sha256(said).digest()
    same = FIRST.setdefault((address, body), digest) == digest
    return "right" if same else f"{method} {address[:40]}: not what it was the first time"


def client(port: int, count: int, seed: int, new: float, found: Counter[str], done: list[int]) -> None:
    """Ask so many questions over one connection."""
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    for _ in range(count):
        method, address, body, headers, right = question(rng, new)
        try:
            connection.request(method, address, body, headers)
            answer = connection.getresponse()
            said = answer.read()
        except (http.client.HTTPException, OSError) as error:
            found[f"broken: {type(error).__name__}"] += 1
            connection.close()
            continue
        found[judged(method, address, body, (answer.status, said), right)] += 1
        done[0] += 1


def memory(port: int) -> dict[str, float]:
    """What the service says it holds, by part [MiB]"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    sizes = re.findall(r'glmplan_resident_bytes\{part="(\w+)"\} (\S+)', text)
    return {part: float(size) / 2**20 for part, size in sizes}


def main() -> int:
    """Run the soak; 0 if every answer was right and memory stayed flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--new", type=float, default=0.01, help="share of questions that nobody asked before")
    said = parser.parse_args()
    words = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
    service = subprocess.Popen(
        [sys.executable, "-c", words, "serve", "--port", "0", "--quiet"], stderr=subprocess.PIPE, text=True
    )
    assert service.stderr is not None
    port = 0
    for line in service.stderr:
        if match := re.search(r":(\d+)/ ", line):
            port = int(match[1])
            break
    threading.Thread(target=lambda: [None for _ in service.stderr or ()], daemon=True).start()
    found: Counter[str] = Counter()
    done, started = [0], time.monotonic()
    each = -(-said.requests // said.clients)
    threads = [
        threading.Thread(target=client, args=(port, each, seed, said.new, found, done)) for seed in range(said.clients)
    ]
    for thread in threads:
        thread.start()
    readings: list[tuple[int, dict[str, float]]] = []
    while any(thread.is_alive() for thread in threads):
        threads[0].join(1)
        if done[0] >= said.requests * (len(readings) + 1) / 10 and len(readings) < 10:
            readings.append((done[0], memory(port)))
            parts = ", ".join(f"{part} {size:.0f} MiB" for part, size in readings[-1][1].items())
            print(f"{done[0]:>8,} requests, {time.monotonic() - started:6.0f} s: {parts}", flush=True)
    for thread in threads:
        thread.join()
    end = memory(port)
    seconds = time.monotonic() - started
    print(
        f"{done[0]:,} requests in {seconds:,.0f} s ({done[0] / seconds:,.0f}/s): "
        + ", ".join(f"{k} {v:.0f} MiB" for k, v in end.items())
    )
    print(f"{len(FIRST):,} of them different, each compared with its first answer")
    for words, count in found.most_common():
        print(f"  {count:>8,} {words}")
    service.send_signal(signal.SIGTERM)
    ended = service.wait(60)
    print(f"told to stop, it ended with {ended}")
    warm = readings[1][1] if len(readings) > 1 else end
    grown = {part: end[part] - warm.get(part, end[part]) for part in ("service", "quick")}
    print("since a fifth of it: " + ", ".join(f"{part} {size:+.1f} MiB" for part, size in grown.items()))
    flat = grown["service"] < 30 and grown["quick"] < 60
    return 0 if flat and set(found) == {"right"} and ended == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
