"""What engines make of the tensors of a checkpoint when they load them: facts read from `hardware_db/engines/memory`.

Kernels pad experts, tables of rotary positions are added, some tensors are kept wider than the files hold them, and
the allocator rounds. What it all comes to on a rank is computed in `glmplan.physics.memory.loaded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from glmplan.errors import SpecError
from glmplan.facts.formats import WeightFormat, weight_format

if TYPE_CHECKING:
    from glmplan.facts.schema.beside import DraftHead

__all__ = ["AS_STORED", "ExpertKernel", "KeptWide", "Loading", "ScaleCopy", "read_loading"]

#: what "weights" means in an engine's log: ``files`` the tensors themselves, ``allocated`` what PyTorch's allocator
#: gave out for them, ``reserved`` what it took from the driver
Allocator = Literal["files", "allocated", "reserved"]


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """Widths to which one kernel of routed experts pads them.

    Attributes
    ----------
    backend : str
        The kernel as the engine's log names it.
    formats : tuple of str
        Weight formats that it multiplies.
    inner, hidden : int
        The inner width of an expert on a rank, and the width of its input, are padded to a multiple of it, [-]
    source : str
        Where it is from.
    output : int
        The width of what comes out of the second matrix is padded to a multiple of it; 0 as `hidden`, [-]
    silicon : tuple of str
        Compute capabilities, patterns allowed, on which the engine chooses it by itself; empty means everywhere.
    chosen : bool
        Whether the engine chooses it by itself at all.
    since, until : str or None
        Versions of the engine: from, and up to but not including.
    note : str or None
        What else there is to say.
    """

    backend: str
    formats: tuple[str, ...]
    inner: int
    hidden: int
    source: str
    output: int = 0
    silicon: tuple[str, ...] = ()
    chosen: bool = True
    since: str | None = None
    until: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class KeptWide:
    """Tensors that an engine keeps in another format than the files.

    Attributes
    ----------
    models : tuple of str
        Names of models, patterns allowed.
    tensor_class : str
        Class of the tensors.
    format : str
        How they are kept.
    source : str
        Where it is from.
    """

    models: tuple[str, ...]
    tensor_class: str
    format: str
    source: str


@dataclass(frozen=True, slots=True)
class ScaleCopy:
    """A second copy of the scales of routed experts that an engine keeps.

    Attributes
    ----------
    formats : tuple of str
        Weight formats of the experts.
    silicon : tuple of str
        Compute capabilities, patterns allowed.
    bits : float
        What the copy takes for each weight, [bit]
    source : str
        Where it is from.
    certain : bool
        Whether every build of these versions keeps it; otherwise only the interval of the weights knows it.
    since, until : str or None
        Versions of the engine: from, and up to but not including.
    """

    formats: tuple[str, ...]
    silicon: tuple[str, ...]
    bits: float
    source: str
    certain: bool = True
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """What one engine makes of the tensors of a checkpoint.

    Attributes
    ----------
    allocator : str
        See `Allocator`.
    rotary_bytes : float
        One value of the table of rotary positions; 0 where there is no table, [B]
    multimodal_positions : int
        How often the longest context the table holds for models with positions in time, height and width, [-]
    expert_kernels : tuple of ExpertKernel
        Kernels of routed experts that pad, in the order in which the engine prefers them.
    kept_wide : tuple of KeptWide
        Tensors kept in another format.
    scale_copies : tuple of ScaleCopy
        Second copies of scales.
    tower : bool
        Whether the vision tower is loaded with the model.
    draft_embedding_since : str or None
        From which version on a draft head keeps an embedding of its own whose values are not the model's; None: never.
    source : str
        Where it is from.
    """

    allocator: Allocator = "files"
    rotary_bytes: float = 0.0
    multimodal_positions: int = 1
    expert_kernels: tuple[ExpertKernel, ...] = ()
    kept_wide: tuple[KeptWide, ...] = ()
    scale_copies: tuple[ScaleCopy, ...] = ()
    tower: bool = True
    draft_embedding_since: str | None = None
    source: str = ""

    def kernel(
        self, form: str, *, version: str | None, silicon: str | None, backend: str | None
    ) -> ExpertKernel | None:
        """The kernel that multiplies routed experts of some format, where it pads them.

        Parameters
        ----------
        form : str
            Weight format of the experts.
        version : str or None
            Version of the engine; None means the newest.
        silicon : str or None
            Compute capability of the part; None fits every kernel.
        backend : str or None
            The kernel that the launch asks for or the log names; None means what the engine chooses.

        Returns
        -------
        ExpertKernel or None
            None when nothing is padded, or when no source knows the kernel.

        Examples
        --------
        >>> from glmplan.facts.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("vllm").loading
        >>> found = rule.kernel("mxfp4", version=None, silicon="12.0", backend=None)
        >>> found.backend, found.inner, found.hidden
        ('marlin', 128, 256)
        """
        from glmplan.facts.schema.versions import version_key

        for one in self.expert_kernels:
            if form not in one.formats:
                continue
            if version is None and one.until:
                continue
            if version is not None and one.since and version_key(version) < version_key(one.since):
                continue
            if version is not None and one.until and version_key(version) >= version_key(one.until):
                continue
            if backend is not None:
                if backend.lower().startswith(one.backend):
                    return one
                continue
            if one.chosen and (not one.silicon or not silicon or any(fnmatchcase(silicon, s) for s in one.silicon)):
                return one
        return None

    def copied(self, form: str, *, version: str | None, silicon: str | None, certain: bool) -> float:
        """What second copies of scales take for each weight of routed experts.

        Parameters
        ----------
        form : str
            Weight format of the experts.
        version : str or None
            Version of the engine; None means the newest.
        silicon : str or None
            Compute capability of the part; None has none.
        certain : bool
            Whether to tell what is kept for certain, or what may be kept.

        Returns
        -------
        float
            [bit]

        Examples
        --------
        >>> from glmplan.facts.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("sglang").loading
        >>> [rule.copied("nvfp4", version=None, silicon=one, certain=True) for one in ("9.0", "10.0")]
        [0.5, 0.0]
        """
        from glmplan.facts.schema.versions import version_key

        for one in self.scale_copies:
            if form not in one.formats or one.certain != certain:
                continue
            if not any(fnmatchcase(silicon or "", each) for each in one.silicon):
                continue
            if version is None and one.until:
                continue
            if version is not None and one.since and version_key(version) < version_key(one.since):
                continue
            if version is not None and one.until and version_key(version) >= version_key(one.until):
                continue
            return one.bits
        return 0.0

    def keeps_draft_embedding(self, head: DraftHead, version: str | None) -> bool:
        """Whether a draft head holds an embedding beside the model's.

        Parameters
        ----------
        head : DraftHead
            The head.
        version : str or None
            Version of the engine; None means the newest.

        Returns
        -------
        bool
            True where its files hold other values than the model and the engine compares them.

        Examples
        --------
        >>> from glmplan.facts.catalogue.models import load_model
        >>> from glmplan.facts.engines.memory import load_memory_rule
        >>> head = load_model("kimi-k2.6").draft_head
        >>> [load_memory_rule(one).loading.keeps_draft_embedding(head, None) for one in ("vllm", "sglang")]
        [True, False]
        """
        from glmplan.facts.schema.versions import version_key

        first = self.draft_embedding_since
        return (
            head.own_embedding and first is not None and (version is None or version_key(version) >= version_key(first))
        )

    def kept(self, model: str, tensor_class: str) -> WeightFormat | None:
        """Format in which a class of tensors of a model is kept, if not as the files hold it.

        Parameters
        ----------
        model : str
            Canonical name of the model.
        tensor_class : str
            The class.

        Returns
        -------
        WeightFormat or None
            None where it is kept as stored.
        """
        for one in self.kept_wide:
            if one.tensor_class == tensor_class and any(fnmatchcase(model, pattern) for pattern in one.models):
                return weight_format(one.format)
        return None


#: of an engine of which no source says what it adds
AS_STORED = Loading()


def read_loading(content: Mapping[str, Any] | None, *, file: object) -> Loading:
    """Read the section ``loading`` of a memory rule.

    Parameters
    ----------
    content : mapping or None
        The section; None where the file has none.
    file : path
        Where it stands, for messages.

    Returns
    -------
    Loading
        What the engine makes of the tensors.

    Raises
    ------
    SpecError
        If a field is not known or a format does not exist.
    """
    if content is None:
        return AS_STORED
    rest = dict(content)
    try:
        kernels = tuple(ExpertKernel(**_tuples(one)) for one in rest.pop("expert_kernels", ()))
        wide = tuple(KeptWide(**_tuples(one)) for one in rest.pop("kept_wide", ()))
        copies = tuple(ScaleCopy(**_tuples(one)) for one in rest.pop("scale_copies", ()))
        rotary = weight_format(rest.pop("rotary")).bytes if "rotary" in rest else 0.0
        found = Loading(**rest, rotary_bytes=rotary, expert_kernels=kernels, kept_wide=wide, scale_copies=copies)
    except TypeError as error:
        raise SpecError(f"has a field that is not known: {error}", file=str(file), field="loading") from None
    for name in {form for one in found.expert_kernels for form in one.formats} | {
        one.format for one in found.kept_wide
    }:
        weight_format(name)
    return found


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
