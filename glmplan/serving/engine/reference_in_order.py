"""What runs is gone through in one order, request by request: part of the form that makes every step."""

from __future__ import annotations

from typing import Any

__all__ = ["go_through"]


def go_through(engine: Any) -> None:
    """Blocks for all that runs, preempting while they are too few; those that wait are admitted only if nobody was.

    In llama.cpp they have got slots before, as many as there are, and prompts are gone through in the order of these.

    Parameters
    ----------
    engine : SteppingEngine
        The replica, which imports this; its step is formed.

    References
    ----------
    .. [1] vLLM 0.33.0, `vllm/v1/core/sched/scheduler.py` (schedule).
    .. [2] llama.cpp b11434, `tools/server/server-context.cpp` (update_slots).

    Notes
    -----
    Not modelled: that a prompt which was begun before a request that decodes may leave it no token of the budget.
    """
    settings, size, preempted = engine.settings, engine.pool.block_size, False
    alone, threshold = len(engine.running) + len(engine.waiting) == 1, settings.long_prefill_token_threshold
    limit = threshold if threshold and not alone else 1 << 60
    if engine.slots is not None:
        for request in engine.slots.seat(engine.waiting):
            engine.running.append(request)
            engine.held[request.number] = -(-request.done // size)
    while True:
        decoding = [r for r in engine.running if r.joined >= 0]
        budget = settings.max_num_batched_tokens * settings.pipeline_stages
        budget -= len(decoding) * settings.tokens_per_decode
        takes, needs = [], [(r, engine._wants(r)) for r in decoding]
        prompts = [r for r in engine.running if r.joined < 0]
        for request in prompts if engine.slots is None else engine.slots.in_order(prompts):
            take = min(request.prompt - request.done, limit, budget)
            if take > 0:
                takes.append((request, take))
                needs.append((request, -(-(request.done + take) // size) - engine.held[request.number]))
                budget -= take
        if sum(blocks for _, blocks in needs) <= engine._available():
            break
        engine._preempt(engine._victim())
        preempted = True
    engine.decoding, engine.work = decoding, takes
    for request, _ in takes:
        if request.started < 0:
            request.started = engine.now
    for request, blocks in needs:
        engine._make_room(blocks)
        engine.held[request.number] += blocks
    if not preempted:
        engine._admit(budget, limit)
