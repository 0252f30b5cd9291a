"""What the engine of a row was told: by the row itself, else by the script of its campaign."""

from __future__ import annotations

from glmplan.facts.catalogue.names import own_images
from glmplan.facts.engines.kernels import IMAGE
from glmplan.facts.formats import KV_FORMATS
from glmplan.prediction.settings import Settings
from glmplan.readers.runs.campaigns import CampaignSettings
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.settings import SETTINGS

__all__ = ["contradicted_by", "said_by_script", "settings_of_row"]


def settings_of_row(run: Run, campaign: CampaignSettings, dp: int, experts: str) -> Settings:
    """What the engine of a row was told; the rest is open unless the campaign's files tell.

    Parameters
    ----------
    run : Run
        The row, which is believed first.
    campaign : CampaignSettings
        What its campaign set.
    dp : int
        Data-parallel ranks, [-]
    experts : str
        What the table calls the kernels of the experts.

    Returns
    -------
    Settings
        The settings of one rank.
    """
    limit = campaign.running_limit
    told = {
        "memory_fraction": run.memory_fraction or campaign.fraction,
        "max_num_seqs": run.max_num_seqs or (-(-limit // dp) if limit else None),
        "max_num_batched_tokens": run.max_num_batched_tokens or campaign.budget,
    }
    # what scripts of a campaign leave open is played in each way in which they set it, see `alternatives_of`
    written = campaign.source or campaign.launched
    open_ = frozenset() if written else frozenset(name for name, one in told.items() if one is None)
    return Settings(
        **told,  # type: ignore[arg-type]
        max_model_len=run.max_model_len,
        attention_backend=_attention(run) or campaign.attention_backend or "",
        moe_backend=experts,
        expert_kernels=campaign.expert_kernels,
        graphs=(campaign.graphs if run.graphs is None else run.graphs) is not False,
        unstated=open_,
    )


def _attention(run: Run) -> str:
    """Attention backend, with the image behind it where that is not the engine's own."""
    backend, version = run.attention_backend or "", run.engine_version or ""
    others = "/" in version and not version.startswith(own_images())
    return f"{backend}{IMAGE}{version}" if backend and others else backend


def said_by_script(campaign: CampaignSettings) -> frozenset[str]:
    """Settings that a script decides, if only by leaving them to the engine.

    Parameters
    ----------
    campaign : CampaignSettings
        What is known of the launch.

    Returns
    -------
    frozenset of str
        Some of `glmplan.readers.runs.settings.SETTINGS`; empty where no script is known.
    """
    return frozenset(SETTINGS) - set(campaign.open) if campaign.launched else frozenset()


def contradicted_by(run: Run, campaign: CampaignSettings) -> tuple[str, ...]:
    """Settings that a row and the script of its day both name, and not alike.

    Parameters
    ----------
    run : Run
        The row.
    campaign : CampaignSettings
        What the script says.

    Returns
    -------
    tuple of str
        Some of `glmplan.readers.runs.settings.SETTINGS`.
    """
    stated = {"kv": run.kv_cache if run.kv_cache in KV_FORMATS else None, "running_limit": run.running_limit,
              "fraction": run.memory_fraction, "budget": run.max_num_batched_tokens, "graphs": run.graphs}  # fmt: skip
    written = {name: getattr(campaign, name) for name in stated} if campaign.launched else {}
    return tuple(name for name, one in written.items() if None not in (one, stated[name]) and one != stated[name])
