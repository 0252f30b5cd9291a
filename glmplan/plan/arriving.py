"""Traffic and question say the same lengths: what one leaves open is taken from the other, for every command alike."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.plan.question import Asked, Words, read_words
from glmplan.units import counted_unit, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glmplan.serving.traffic.spec import Traffic

__all__ = ["asked_under", "mean_request", "read_traffic", "traffic_of", "traffic_words"]

#: requests of a trace, and draws of a file of lengths, that the mean request is taken from [-]
_LOOKED_AT = 20_000


def mean_request(traffic: Traffic) -> tuple[int, int, int]:
    """The mean request of a kind of traffic.

    Parameters
    ----------
    traffic : Traffic
        The spec.

    Returns
    -------
    int, int, int
        Prompt, answer, and how much of the prompt was in the conversation before, [token]

    Raises
    ------
    SpecError
        If a trace or a file of lengths cannot be read.

    Notes
    -----
    A session has a geometric number of turns with mean ``n``; a request drawn from all of them has ``n − 1`` turns
    before it in the mean, each of which left a prompt and an answer in the conversation. Of traces nothing is taken as
    found again: the simulator says it.

    Examples
    --------
    >>> from glmplan.serving.traffic.spec import Traffic
    >>> mean_request(Traffic(kind="sessions", users=1, input=1000, output=250, turns=9, shared_prefix=2000))
    (13000, 250, 12000)
    """
    if traffic.kind == "trace":
        inputs, outputs = _of_trace(str(traffic.file), traffic.output, _stamp(str(traffic.file)))
        return inputs, outputs, 0
    inputs, outputs = traffic.input, traffic.output
    if traffic.lengths:
        from glmplan.serving.traffic.arrivals import draw_lengths

        drawn = draw_lengths(traffic)(_LOOKED_AT, np.random.default_rng(0))
        inputs, outputs = (max(round(float(one.mean())), 1) for one in drawn)
    if traffic.kind != "sessions":
        return inputs, outputs, traffic.shared_prefix
    before = traffic.shared_prefix + traffic.start + (traffic.turns - 1) * (inputs + outputs)
    return before + inputs, outputs, before


def _stamp(path: str) -> float:
    """When a file was last changed; 0 where it is not there, which reading it will say."""
    file = Path(path)
    return file.stat().st_mtime if file.is_file() else 0.0


@lru_cache(maxsize=16)
def _of_trace(path: str, answer: int, changed: float) -> tuple[int, int]:
    from glmplan.serving.traffic.conversations import conversation_form, read_conversations
    from glmplan.serving.traffic.traces import read_trace

    lengths: Iterator[tuple[int, int]]
    if conversation_form(path):
        turns = (turn for one in read_conversations(path, answer) for turn in one.turns)
        lengths = ((turn.input_tokens, turn.output_tokens) for turn in turns)
    else:
        lengths = ((one.input, one.output) for one in read_trace(path))
    rows = list(islice(lengths, _LOOKED_AT))
    inputs, outputs = np.mean(rows, axis=0) if rows else (1.0, 1.0)
    return max(round(float(inputs)), 1), max(round(float(outputs)), 1)


def asked_under(words: Words, traffic: Traffic | None) -> Asked:
    """Read a question under a kind of traffic: the plan is made for its mean request.

    Parameters
    ----------
    words : Words
        The question as typed.
    traffic : Traffic, optional
        What arrives.

    Returns
    -------
    Asked
        The question. Lengths that the traffic states go before those of the words.

    Raises
    ------
    SpecError
        If the question or a file of the traffic is wrong.

    Examples
    --------
    >>> words = Words("llama-3.1-8b", "1xh100-sxm", input=1024)
    >>> from glmplan.serving.traffic.spec import parse_traffic
    >>> asked = asked_under(words, parse_traffic("sessions:4", input=1000, output=250, turns=5))
    >>> asked.input_tokens, asked.cached_tokens
    (6000, 5000)
    """
    if traffic is None:
        return read_words(words)
    if words.users is None and traffic.users is not None:
        # the rows of a table that tell most: one user alone, and those that were named
        return asked_under(replace(words, users=sorted({1, traffic.users})), traffic).but(users_given=False)
    if not (traffic.kind in ("trace", "sessions") or traffic.lengths):
        stated = {name: getattr(traffic, name) for name in ("input", "output") if name in traffic.model_fields_set}
        return read_words(replace(words, **stated)).but(cached_tokens=traffic.shared_prefix)
    inputs, outputs, before = mean_request(traffic)
    # a mean beyond what the model reads is cut: the simulator turns away what is longer
    plain = read_words(replace(words, input=None, output=None))
    limit = min(plain.longest_request, plain.context or plain.longest_request)
    outputs = min(outputs, max(limit - 1, 1))
    inputs = min(inputs, limit - outputs)
    return plain.but(
        input_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=min(before, inputs - 1),
        lengths_given=True,
        assumed=tuple(text for text in plain.assumed if not text.endswith("put tokens")),
    )


def read_traffic(spec: str, *, input: object = None, output: object = None, **fields: Any) -> Traffic:
    """Read traffic with the lengths of a question, typed or as numbers.

    Parameters
    ----------
    spec : str
        As `parse_traffic` takes it.
    input, output : int or str, optional
        Lengths, [token]; None leaves them open.
    **fields
        Further fields of `Traffic`; None is left out.

    Returns
    -------
    Traffic
        The spec.

    Raises
    ------
    SpecError
        If the traffic or a length is wrong.

    Examples
    --------
    >>> read_traffic("sessions:20", input="4000").output
    1000
    """
    lengths = {"input": input, "output": output}
    whole = {name: whole_number(one, f"--{name}") for name, one in lengths.items() if one is not None}
    from glmplan.serving.traffic.spec import parse_traffic

    return parse_traffic(spec, **whole, **fields)


def traffic_of(asked: Asked, spec: str | Traffic, **fields: Any) -> Traffic:
    """Read traffic; lengths that it does not state are those of the question.

    Parameters
    ----------
    asked : Asked
        The question.
    spec : str or Traffic
        As `parse_traffic` takes it.
    **fields
        Further fields of `Traffic`; None is left out.

    Returns
    -------
    Traffic
        The spec. Turns of a session take the lengths of the question only where it was asked with lengths and without
        sessions; else they have their own.

    Raises
    ------
    SpecError
        If the traffic is wrong.
    """
    from glmplan.serving.traffic.spec import Traffic, parse_traffic

    found = spec if isinstance(spec, Traffic) else parse_traffic(spec, **fields)
    if found.kind == "sessions":
        if isinstance(spec, Traffic) or asked.cached_tokens or not asked.lengths_given:
            return found
        return parse_traffic(spec, **({"input": asked.input_tokens, "output": asked.output_tokens} | fields))
    missing = {"input": asked.input_tokens, "output": asked.output_tokens}
    missing = {name: tokens for name, tokens in missing.items() if name not in found.model_fields_set}
    return Traffic.model_validate(found.model_dump(exclude_unset=True) | missing) if missing else found


def traffic_words(traffic: Traffic) -> str:
    """Say what arrives.

    Parameters
    ----------
    traffic : Traffic
        The spec.

    Returns
    -------
    str
        Its kind, how many or how fast, and the mean request.

    Examples
    --------
    >>> from glmplan.serving.traffic.spec import parse_traffic
    >>> traffic_words(parse_traffic("sessions:20", start=60000, turns=12, input=4000, output=1000))
    '20 sessions at once of 12 turns, from 60,000 tokens to 120,000; 4,000 new tokens and 1,000 answered in a turn'
    """
    if traffic.kind == "trace":
        return f"the trace {traffic.file}" + f", {traffic.speed:g} times as fast" * (traffic.speed != 1.0)
    lengths = f"{traffic.input:,} tokens in and {traffic.output:,} out"
    if traffic.kind == "sessions":
        many = f"{counted_unit(traffic.users, 'sessions')} at once" if traffic.users else f"{traffic.rate:g} sessions/s"
        first = traffic.shared_prefix + traffic.start
        last = first + traffic.turns * (traffic.input + traffic.output)
        turn = f"{traffic.input:,} new tokens and {traffic.output:,} answered in a turn"
        return f"{many} of {traffic.turns} turns, from {first:,} tokens to {last:,}; {turn}"
    many = counted_unit(traffic.users, "users") if traffic.users else f"{traffic.rate:g} requests/s ({traffic.kind})"
    if traffic.kind == "daily" and traffic.rate:
        many += f", {traffic.rate * traffic.peak:.3g} in the busiest part of the day, which is simulated"
    return f"{many}, {lengths}"
