"""Work for an arriving request outside of the steps: what the host launches for its prompt, and what it reads."""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import LayerKind
from glmplan.physics.blocks.kinds import mixer_of, routed_of
from glmplan.physics.step.model import FrontPoints
from glmplan.physics.step.structure import StepWork
from glmplan.physics.step.work import SLOTS

__all__ = ["front_work", "prompt_launches"]


def prompt_launches(structure: StepWork, *, replayed: bool = False) -> float:
    """Layers that a host launches for the pass that reads a prompt.

    Parameters
    ----------
    structure : StepWork
        Model, formats, part.
    replayed : bool, optional
        Whether piecewise graphs hold all of the pass but attention.

    Returns
    -------
    float
        Layers, counted once more where they have experts and once more where they keep a latent or recurrent state, [-]

    Notes
    -----
    Decoding steps replay a CUDA graph, long prompts do not: their kernels are launched one by one, and the first token
    waits for the host. One new token takes SGLang 83 ms without a graph and 23 ms with one (sgl-project/sglang pull
    request 12160, tested with DeepSeek-V3), about 0.46 ms for each of 180 counts; a short prompt of Qwen3-4B, with 36,
    takes 16.6 ms (wejoncy/sfllm pull request 46). Piecewise graphs leave the attention of each layer to the
    host, which counts once. Not modelled: launches that hide behind the kernels of a long prompt.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> from glmplan.physics.network.groups import links_of_layout
    >>> from glmplan.physics.step.structure import Part
    >>> part = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9")
    >>> link = links_of_layout(load_machine("h100-sxm"))
    >>> [prompt_launches(StepWork(load_model(name), uniform_checkpoint("bf16"), part, link))
    ...  for name in ("llama-3.1-8b", "deepseek-v3")]
    [32.0, 180.0]
    """
    return float(sum(part.count * (1.0 if replayed else _launched(part.kind)) for part, _ in structure.main))


def _launched(kind: LayerKind) -> float:
    return 1.0 + float(routed_of(kind) is not None) + mixer_of(kind).extra_launches


def front_work(table: np.ndarray, front: FrontPoints, launches: np.ndarray | float) -> np.ndarray:
    """Put the work outside of steps into a table of work.

    Parameters
    ----------
    table : (n, 20) array
        Work of the steps, [s] or [-]
    front : FrontPoints
        The work, (n,) arrays; rows with any hold nothing else.
    launches : (n,) array or float
        What `prompt_launches` says of each row's model, [-]

    Returns
    -------
    (n, 20) array
        The table with these rows replaced, [s] or [-]
    """
    any_of_it = (front.arrivals > 0) | (front.prompt > 0) | (np.asarray(front.wakes) > 0)
    found = np.where(any_of_it[:, None], 0.0, table)
    found[:, SLOTS.index("arrival")] = front.arrivals * launches
    found[:, SLOTS.index("prompt_token")] = front.prompt
    found[:, SLOTS.index("wake")] = front.wakes
    return found
