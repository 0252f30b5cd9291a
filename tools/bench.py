"""Measure how fast glmplan itself is: `make bench`. All in one run on one machine, so that ratios mean something.

python tools/bench.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHELL_RUNS = 7
POINTS = 100_000
RUNS = 2_000
ALONE = 200
SERVED = 200


def median_seconds(action: Callable[[], object], runs: int) -> float:
    """Median wall time of an action [s], after one run to warm the file cache."""
    action()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def shell(*words: str) -> Callable[[], object]:
    """A command as a user starts it, who keeps compiled modules, its output thrown away."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run(
        words, cwd=ROOT, env=given, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )


def from_shell_to_answer() -> None:
    """Print the time of `glmplan fit` beside that of the interpreter alone."""
    command = Path(sys.executable).with_name("glmplan")
    alone = median_seconds(shell(sys.executable, "-c", "pass"), SHELL_RUNS)
    numpy = median_seconds(shell(sys.executable, "-c", "import numpy"), SHELL_RUNS)
    answer = median_seconds(shell(str(command), "fit", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws"), SHELL_RUNS)
    print("From shell to answer (median of 7)")
    print(f"  python alone                {alone:8.3f} s     1.0 x")
    print(f"  python with numpy           {numpy:8.3f} s  {numpy / alone:6.1f} x")
    print(f"  glmplan fit                 {answer:8.3f} s  {answer / alone:6.1f} x   goal: under 0.5 s")


def predictions_per_second() -> None:
    """Print how many points of a table are predicted in a second: all at once, one by one, and whole runs."""
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.hosts import implied_host
    from glmplan.catalog.entries.models import load_model
    from glmplan.costs.network.links import links_of_layout
    from glmplan.io.models.checkpoints import checkpoint_for
    from glmplan.prediction.deployment import Deployment, runs_sparse
    from glmplan.prediction.load import Load
    from glmplan.prediction.predict import predict_many, step_seconds

    model, part = load_model("glm-5.1"), load_accelerator("b200-sxm")
    deployment = Deployment(
        model=model,
        checkpoint=checkpoint_for(model, "nvfp4"),
        accelerator=part,
        count=8,
        tp=8,
        pp=1,
        dp=1,
        ep=1,
        dcp=1,
        kv="fp8",
        engine="vllm",
        release=None,
        draft_tokens=0,
        acceptance=None,
        sparse=runs_sparse(part, None),
        link=links_of_layout(implied_host(part, 8), tp=8),
    )
    rng = np.random.default_rng(1)
    table = {
        "decode_requests": rng.integers(1, 512, POINTS).astype(float),
        "decode_context": rng.uniform(100.0, 100_000.0, POINTS),
        "prefill_tokens": rng.integers(0, 8192, POINTS).astype(float),
        "prefill_context": rng.uniform(100.0, 100_000.0, POINTS),
    }
    seconds = step_seconds(deployment)

    def one_by_one() -> list[float]:
        return [float(seconds(**{name: row[n : n + 1] for name, row in table.items()})[0]) for n in range(ALONE)]

    assert np.allclose(seconds(**table)[:ALONE], one_by_one(), rtol=1e-12), "a table and its rows disagree"
    whole = median_seconds(lambda: seconds(**table), 3)
    alone = median_seconds(one_by_one, 3) / ALONE
    users, context = table["decode_requests"], table["decode_context"]
    decoding: list[tuple[Deployment, Load, str | None]] = [
        (deployment, Load(users[n], context[n], 200.0, phase="decode"), None) for n in range(RUNS)
    ]
    serving: list[tuple[Deployment, Load, str | None]] = [
        (deployment, Load(users[n] % 64 + 1, context[n] / 20, 200.0, phase="serving"), None) for n in range(ALONE)
    ]
    decode = median_seconds(lambda: predict_many(decoding), 3) / RUNS
    # every benchmark run is another one, so that nothing is remembered
    start = time.perf_counter()
    predict_many(serving)
    serve = (time.perf_counter() - start) / ALONE
    print("\nPredictions for GLM-5.1 on eight B200, one core")
    print(f"  step times, one by one      {1 / alone:12,.0f} /s      1.0 x")
    print(
        f"  step times, 100,000 at once {POINTS / whole:12,.0f} /s  {alone * POINTS / whole:7.1f} x   goal: 500,000 /s"
    )
    print(f"  TPOT with its interval      {1 / decode:12,.0f} /s  {alone / decode:7.1f} x")
    print(f"  whole closed-loop runs      {1 / serve:12,.0f} /s  {alone / serve:7.1f} x")


def points_of_a_sweep() -> None:
    """Print how long a million points of a sweep take with their intervals, then as a table, and their frontier."""
    from glmplan.purchase.axes import read_sweep
    from glmplan.purchase.frontier import frontier
    from glmplan.purchase.sweep import csv_parts, rows_of, swept

    sweep = read_sweep({
        "model": "glm-5.1-fp8,qwen3.8-27b,gpt-oss-120b,llama-3.1-70b,llama-3.1-8b",
        "on": "8xh100-sxm,8xh200-sxm,8xb200-sxm,8xb300-sxm,8xrtx-pro-6000-ws", "kv": "bf16,fp8",
        "engine": "vllm,sglang", "users": "1..100", "input": "512..8192*10", "output": "100..1000*10",
    })  # fmt: skip
    times = [time.process_time()]
    found = swept(sweep)
    times.append(time.process_time())
    columns = found.columns()
    for _ in csv_parts(columns):
        pass
    times.append(time.process_time())
    names = ("user_tokens_per_s", "output_tokens_per_s")
    frontier({name: np.asarray(rows_of(columns[name])) for name in names}, names)
    times.append(time.process_time())
    works = int(found.possible.sum())
    print(f"\nSweep of {sweep.points:,} points, {sweep.structures} combinations, {works:,} possible, on one core")
    for name, start, end in zip(("figures with intervals", "CSV", "frontier"), times, times[1:], strict=False):
        print(f"  {name:26s} {end - start:8.1f} s")
    print(f"  {'together':26s} {times[-1] - times[0]:8.1f} s   goal: under 10 s")


def search_for_machines() -> None:
    """Print how long `glmplan size` takes that looks at every machine."""
    words = ("--users", "50", "--input", "4000", "--output", "500", "--slo", "ttft p95 < 5 s, tpot p95 < 50 ms")
    command = str(Path(sys.executable).with_name("glmplan"))
    found = median_seconds(shell(command, "size", "--model", "gpt-oss-120b", *words), 3)
    print("\nSearch for machines, gpt-oss-120b for 50 users, from shell to answer (median of 3)")
    print(f"  glmplan size                {found:8.1f} s   goal: under 10 s")


def service_under_load() -> None:
    """Print how long `fit` takes over HTTP while others ask too, and how long the page takes to its first answer."""
    import http.client
    import json
    import re
    import signal
    import threading

    command = str(Path(sys.executable).with_name("glmplan"))
    service = subprocess.Popen(
        (command, "serve", "--port", "0", "--quiet", "--workers", "1"), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert service.stderr is not None
    line = next((line for line in service.stderr if "answers on" in line), "")
    found = re.search(r":(\d+)/", line)
    if found is None:
        print("\nThe service did not start")
        return
    port, times = int(found[1]), list[float]()

    def ask(model: str, on: str, tokens: int) -> float:
        """Seconds of one question that nobody asked before."""
        body = json.dumps({"model": model, "on": on, "users": [8], "input": tokens, "output": 256})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        start = time.perf_counter()
        connection.request("POST", "/v1/fit", body, {"content-type": "application/json"})
        connection.getresponse().read()
        return time.perf_counter() - start

    def several(first: int) -> None:
        times.extend(ask("llama-3.1-8b", "1xh100-sxm", first + 7 * number) for number in range(SERVED // 2))

    ask("llama-3.1-8b", "1xh100-sxm", 99)
    clients = [threading.Thread(target=several, args=(1000 * (1 + number),)) for number in range(2)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    times.sort()
    ask("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", 999)
    page = [ask("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", 1000 + number) for number in range(5)]
    print(f"\nService: fit over HTTP, one process, two clients at once, {len(times)} questions, none asked before")
    print(f"  llama-3.1-8b, median        {1000 * times[len(times) // 2]:8.0f} ms   goal: under 50 ms")
    print(f"  llama-3.1-8b, 99 of 100     {1000 * times[int(0.99 * len(times))]:8.0f} ms   goal: under 200 ms")
    print(f"  first answer of the page    {1000 * statistics.median(page):8.0f} ms   goal: under 300 ms")
    typed_in_the_page(f"http://127.0.0.1:{port}/")
    service.send_signal(signal.SIGTERM)
    service.wait(60)


def typed_in_the_page(address: str) -> None:
    """Print the time from an empty page to the answer of a typed question, and that of changed users."""
    import shutil

    try:
        from playwright.sync_api import Page, sync_playwright
    except ImportError:
        print("  Playwright is not installed: the page is not measured")
        return

    def answered(page: Page, question: str) -> None:
        done = "document.body.dataset.done === location.pathname + location.search"
        while not page.evaluate(f"{done} && location.search.includes({question!r})"):
            page.wait_for_timeout(5)

    # field → typed text, 120 ms for each key
    question = {"model": "qwen3-32b", "part": "5090", "cards": "2", "users": "4", "rate": "15"}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        start, times = time.perf_counter(), list[float]()
        page.goto(address)
        for field, text in question.items():
            page.locator(f"#{field}").click()
            page.keyboard.press("Control+a")
            page.keyboard.type(text, delay=120)
            page.keyboard.press("Enter")
        answered(page, "model=qwen3-32b&on=2xrtx-5090&users=4&rate=15")
        typed = time.perf_counter() - start
        assert page.locator("#verdict").inner_text().startswith("✓ Yes for 4 people"), "another answer"
        for users in range(5, 12):
            page.locator("#users").fill(str(users))
            begun = time.perf_counter()
            page.locator("#users").press("Enter")
            answered(page, f"users={users}&")
            times.append(time.perf_counter() - begun)
        browser.close()
    print(f"  empty page to own answer    {typed:8.1f} s    goal: under 30 s, with {len(question)} of 6 actions")
    print(f"  change of the users         {1000 * statistics.median(times):8.0f} ms   goal: under 150 ms")


def main() -> int:
    """Run all benches."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores\n")
    from_shell_to_answer()
    predictions_per_second()
    points_of_a_sweep()
    search_for_machines()
    service_under_load()
    simulator = ROOT / "tools/bench_simulator.py"
    if simulator.is_file():
        print("\nSimulator", flush=True)
        return subprocess.run([sys.executable, str(simulator)], cwd=ROOT, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
