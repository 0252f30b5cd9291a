"""What a whole model has: features that walls ask for, an indexer, experts."""

from __future__ import annotations

from glmplan.facts.remembered import remembered
from glmplan.facts.schema.model import ExpertsFfn, ModelSpec
from glmplan.physics.blocks.kinds import feed_forwards_of, mixer_of, routed_of
from glmplan.physics.blocks.mixer import Mixer

__all__ = ["is_indexed", "mixers_of", "model_features", "model_shape", "routed_blocks"]


@remembered()
def mixers_of(model: ModelSpec) -> tuple[Mixer, ...]:
    """Return the mixers of all kinds of layers.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of Mixer
        One for each kind of layer, layers that draft included.
    """
    return tuple(mixer_of(kind) for kind in model.layers.values())


@remembered()
def routed_blocks(model: ModelSpec) -> tuple[ExpertsFfn, ...]:
    """Return the mixtures of experts of all kinds of layers.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of ExpertsFfn
        Empty for dense models.
    """
    return tuple(one for kind in model.layers.values() if (one := routed_of(kind)) is not None)


@remembered()
def is_indexed(model: ModelSpec) -> bool:
    """Whether an indexer decides what some layers read, and engines without its kernels read everything instead.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    bool
        Whether there is one.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> is_indexed(load_model("glm-5.1")), is_indexed(load_model("deepseek-v3"))
    (True, False)
    """
    return any(one.indexed for one in mixers_of(model))


@remembered()
def model_features(model: ModelSpec) -> frozenset[str]:
    """Return the features of a model that walls ask for.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    frozenset of str
        ``mtp``, and what its blocks say: ``moe`` and the words of `Mixer.features`.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> sorted(model_features(load_model("glm-5.1")))
    ['dsa', 'mla', 'moe', 'mtp']
    """
    found: set[str] = {"mtp"} if model.mtp is not None else set()
    for name, _ in model.runs:
        kind = model.layers[name]
        found |= mixer_of(kind).features.union(*(one.features for one in feed_forwards_of(kind)))
    return frozenset(found)


@remembered()
def model_shape(model: ModelSpec) -> str:
    """Return the name of a model's shape: models that differ in their weights only are the same to an engine.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    str
        Family, hidden size, layers, experts and whether an indexer decides what is read.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> model_shape(load_model("glm-5.1")), model_shape(load_model("llama-3.1-8b"))
    ('glm 6144x78 e256k8 sparse', 'llama 4096x32')
    """
    experts = next((f" e{one.experts}k{one.topk}" for one in routed_blocks(model)), "")
    sparse = " sparse" if is_indexed(model) else ""
    return f"{model.family} {model.hidden}x{len(model.layer_names)}{experts}{sparse}"
