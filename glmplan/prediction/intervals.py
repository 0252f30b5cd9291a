"""The 90 % interval of a prediction, from the errors that fits made on runs they had not seen.

What was known of a deployment gives the base interval; how widely its like scattered gives a factor on the width. A
deployment that was measured itself takes the factors of its engine, part, model, format and load; of others, where
such factors do not carry over, those of the load and the prompt, of the link between accelerators, of the kinds of
attention and feed-forward blocks, and of drafting. Of TTFT there are three kinds: where many requests are in flight, it
is how long a prompt waits for the others, which errs more, and to one side; and where their prompts are in the cache,
nothing but that wait is left.
"""

from __future__ import annotations

from bisect import bisect_right

from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import Effects, kind_of, shape_of
from glmplan.prediction.load import Load

__all__ = [
    "BANDS",
    "MEASURED_FEATURES",
    "OTHER_FEATURES",
    "PROMPTS",
    "band_of",
    "factor_key",
    "features_of",
    "interval_of",
    "kind_at",
]

#: upper ends of the bands of concurrency, [-]
BANDS: tuple[float, ...] = (1.5, 4.5, 16.5, 64.5, 256.5)
#: upper ends of the bands of prompts: of short ones the front end and launches cost most, [token]
PROMPTS: tuple[float, ...] = (300.0, 1500.0, 5000.0, 20000.0)
#: what the width of a measured deployment depends on
MEASURED_FEATURES: tuple[str, ...] = ("engine", "accelerator", "model", "format", "load of engine", "model of engine")
#: bands in which first tokens are a kind of their own
_MANY: tuple[str, ...] = ("65-256", "257 and more")
#: what the width of any other depends on
OTHER_FEATURES: tuple[str, ...] = ("load", "prompt", "link", "blocks", "drafting")


def band_of(concurrency: float) -> str:
    """Band of a concurrency.

    Parameters
    ----------
    concurrency : float
        Requests in flight, [-]

    Returns
    -------
    str
        Its name.

    Examples
    --------
    >>> band_of(1), band_of(32), band_of(4096)
    ('1', '17-64', '257 and more')
    """
    return ("1", "2-4", "5-16", "17-64", "65-256", "257 and more")[bisect_right(BANDS, concurrency)]


def features_of(deployment: Deployment, load: Load) -> dict[str, str]:
    """What the width of an interval may depend on.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    load : Load
        What is asked of it.

    Returns
    -------
    dict of str to str
        Feature → its value.
    """
    band, model = band_of(load.concurrency), shape_of(deployment)
    prompt = bisect_right(PROMPTS, load.input_tokens + load.context)
    return {
        "engine": deployment.engine,
        "accelerator": deployment.accelerator.name,
        "model": model,
        "format": deployment.weights,
        "load of engine": f"{deployment.engine} {band}",
        "model of engine": f"{deployment.engine} {model}",
        "load": band,
        "prompt": (*(f"to {end:.0f}" for end in PROMPTS), "longer")[prompt],
        "link": deployment.link.experts.kind if deployment.tp * deployment.dp > 1 else "none",
        "blocks": kind_of(deployment),
        "drafting": "yes" if deployment.draft_tokens else "no",
        "cached": "yes" if load.prefix_cached else "no",
    }


def kind_at(kind: str, load: str, cached: str = "no") -> str:
    """Kind of interval at a load.

    Parameters
    ----------
    kind : str
        ``decode``, ``ttft`` or ``prefill``.
    load : str
        Band of the concurrency, as `band_of` names it.
    cached : str, optional
        ``yes`` where prompts are in the cache already.

    Returns
    -------
    str
        ``ttft_many`` for first tokens with more than 64 requests in flight, ``ttft_many_cached`` where their prompts
        are in the cache, else the same kind.

    Examples
    --------
    >>> kind_at("ttft", "17-64"), kind_at("ttft", "65-256"), kind_at("decode", "65-256")
    ('ttft', 'ttft_many', 'decode')
    """
    if kind != "ttft" or load not in _MANY:
        return kind
    return "ttft_many_cached" if cached == "yes" else "ttft_many"


def factor_key(kind: str, feature: str, value: str) -> str:
    """Name of a factor in the table of factors.

    Parameters
    ----------
    kind : str
        As `kind_at` names it.
    feature, value : str
        As in `features_of`.

    Returns
    -------
    str
        The name.

    Examples
    --------
    >>> factor_key("ttft", "engine", "vllm")
    'ttft engine: vllm'
    """
    return f"{kind} {feature}: {value}"


def interval_of(effects: Effects, knowledge: str, kind: str, features: dict[str, str]) -> tuple[float, float]:
    """Interval of measured over predicted.

    Parameters
    ----------
    effects : Effects
        The fit.
    knowledge : str
        Class of what is known, one of `glmplan.prediction.effects.KNOWN_AS`.
    kind : str
        ``decode``, ``ttft`` or ``prefill``.
    features : dict of str to str
        As `features_of` gives them.

    Returns
    -------
    float, float
        Ends of the 90 % interval in logarithms, [-]
    """
    ends, here = effects.intervals[knowledge], kind_at(kind, features["load"], features["cached"])
    # an older fit has one kind of first tokens
    kind = here if here in ends else kind
    low, high = ends[kind]
    if knowledge == "site":
        return low, high
    names = MEASURED_FEATURES if knowledge == "configuration" else OTHER_FEATURES
    factor = 1.0
    for name in names:
        factor *= effects.widths.get(factor_key(kind, name, features[name]), 1.0)
    return low * factor, high * factor
