"""Return the tokens of a speculative step from the shipped prior.

Steps with a measurement use that. A chain of ``k`` speculative tokens, the i-th accepted with chance ``p_i`` after
those
before it, yields ``1 + p_1 + p_1 p_2 + … + p_1⋯p_k`` tokens. The logit of ``p_i`` is a sum of effects of the draft
method, the model's family, the kind of text and the branches of a draft tree, less ``decay · ln i``: later tokens are
harder to guess. An effect without measurement adds its spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from glmplan.catalog.files import fits_folder, read_toml
from glmplan.errors import SpecError
from glmplan.units import Ratio, TokenCount, Tokens

__all__ = ["EFFECTS", "TEXTS", "acceptance_prior", "branches", "text_kind", "yielded"]

#: groups of effects on the logit of the acceptance
EFFECTS: tuple[str, ...] = ("method", "family", "text")
#: kinds of text
TEXTS: tuple[str, ...] = ("random", "chat", "one prompt")
#: words of a source → kind of text; SGLang's `random` data set cuts ShareGPT text to length, vLLM's draws token ids
_TEXT_WORDS: dict[str, str] = {
    "random tokens": "random",
    "vllm-bench-random": "random",
    "inferencex": "random",
    "sglang random": "chat",
    "sglang-bench-random": "chat",
    "sharegpt": "chat",
    "decode bench, one prompt": "one prompt",
    "decode-grid": "one prompt",
}


def text_kind(words: str) -> str:
    """Return a protocol's kind of text, one of `TEXTS`; empty: unknown.

    Examples
    --------
    >>> text_kind("ShareGPT"), text_kind("inferencex"), text_kind("other")
    ('chat', 'random', '')
    """
    said = words.strip().lower()
    return said if said in TEXTS else _TEXT_WORDS.get(said, "")


def yielded(logit: Ratio, draft_tokens: TokenCount, decay: Ratio = 0.0) -> Tokens:
    """Return the mean tokens of a step with a speculative chain.

    The model's own token included. `logit` of the first acceptance; `decay`: fall of the logit with the logarithm of
    the position [1]_.

    References
    ----------
    .. [1] Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023,
       equation 1, which has one chance for all places.

    Examples
    --------
    >>> yielded(0.0, 2)
    1.75
    """
    places = np.arange(1, draft_tokens + 1)
    chances = 1.0 / (1.0 + np.exp(-(logit - decay * np.log(places))))
    return 1.0 + float(np.cumprod(chances).sum())


def branches(draft_tokens: TokenCount, verify_tokens: TokenCount) -> Ratio:
    """Return log of verified tokens for each depth of a draft tree.

    0 verified tokens: unknown.

    Examples
    --------
    >>> branches(3, 4)
    0.0
    """
    return float(np.log(max(verify_tokens / (draft_tokens + 1.0), 1.0)))


@dataclass(frozen=True, slots=True, eq=False)
class _Prior:
    """Fit of the acceptance prior.

    Effects by name, their covariance, spreads of unknown effects, residual noise, and the decay.
    """

    names: dict[str, int]
    value: np.ndarray
    covariance: np.ndarray
    spread: dict[str, float]
    noise: float
    decay: float


@lru_cache(maxsize=1)
def _read() -> _Prior:
    path = fits_folder() / "acceptance.toml"
    table = read_toml(path)
    try:
        names = {name: place for place, name in enumerate(table["covariance"]["of"])}
        value = np.array([table["effects"][name] for name in names])
        return _Prior(
            names, value, np.array(table["covariance"]["rows"]), dict(table["spread"]), table["noise"], table["decay"]
        )
    except KeyError as error:
        raise SpecError(f"has no {error}: run `glmplan calibrate`", file=path) from None


def acceptance_prior(
    family: str,
    method: str = "",
    draft_tokens: TokenCount = 3,
    text: str = "",
    *,
    verify_tokens: TokenCount | None = None,
) -> tuple[float, float]:
    """Return median and log deviation of the tokens of a speculative step.

    Empty `method` or `text`: unknown; `text` may be a data set. `verify_tokens`: more than the chain and one for a
    draft tree.

    Examples
    --------
    >>> mean, spread = acceptance_prior("glm", "mtp", 3)
    >>> 2.2 < mean < 3.6 and 0.05 < spread < 0.4
    True
    >>> acceptance_prior("glm", "mtp", 0)
    (1.0, 0.0)
    """
    if draft_tokens < 1:
        return 1.0, 0.0
    fit = _read()
    row = np.zeros(len(fit.names))
    row[fit.names["level"]] = 1.0
    row[fit.names["branches"]] = branches(draft_tokens, verify_tokens or 0)
    unknown = fit.noise**2
    for name, key in zip(EFFECTS, (method, family, text_kind(text)), strict=True):
        place = fit.names.get(f"{name} {key}")
        if place is None:
            unknown += fit.spread[name] ** 2
        else:
            row[place] = 1.0
    logit = float(row @ fit.value)
    variance = unknown + float(row @ fit.covariance @ row)
    mean, ahead = (yielded(logit + step, draft_tokens, fit.decay) for step in (0.0, 0.01))
    return mean, float((np.log(ahead) - np.log(mean)) / 0.01 * np.sqrt(variance))
