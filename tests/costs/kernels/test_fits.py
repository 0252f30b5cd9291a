"""The committed fits: complete, within physics, readable, and found in the right order."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.files import data_folder, read_toml
from glmplan.costs.kernels.counts import gemm_work
from glmplan.costs.kernels.utilisation import (
    CollectiveParams,
    KernelParams,
    find_kernel_fit,
    fit_row,
    kernel_fits,
    kernel_release,
    kernel_seconds,
    read_fit,
)

FILES = sorted((data_folder("calibration") / "fits" / "kernels").glob("*.toml"))
PARTS = [file.stem for file in FILES if file.stem != "priors"]


def test_every_measured_part_is_in_the_catalogue():
    assert len(PARTS) == 10
    assert set(PARTS) <= set(accelerator_names())


@pytest.mark.parametrize("part", PARTS)
def test_the_fits_rest_on_the_peaks_of_the_catalogue(part):
    table = read_toml(data_folder("calibration") / "fits" / "kernels" / f"{part}.toml")
    accelerator = load_accelerator(part)
    assert table["memory_bandwidth"] == accelerator.memory_bandwidth
    assert table["peak"] == accelerator.peak


@pytest.mark.parametrize("part", [*PARTS, "priors"])
def test_every_fit_is_within_physics_and_has_a_domain(part):
    for fit in kernel_fits(part):
        assert fit.rows_low <= fit.rows_high
        assert fit.points > 0
        assert 0 < fit.median <= fit.p90
        p = fit.params
        if isinstance(p, KernelParams):
            assert 0 < p.bandwidth < 1
            assert p.tiles_half <= 400
            assert 0 < p.flop <= 1.05
            assert p.sharpness >= 1
            assert 1e-7 < p.floor <= 5e-3
        else:
            assert isinstance(p, CollectiveParams)
            assert 0 < p.two_shot <= 1.2


@pytest.mark.parametrize("part", [*PARTS, "priors"])
def test_the_rows_are_the_same_whether_read_as_toml_or_quickly(part):
    table = read_toml(data_folder("calibration") / "fits" / "kernels" / f"{part}.toml")
    assert [fit_row(fit) for fit in kernel_fits(part)] == table["fits"]


def test_a_prior_says_how_far_it_misses_a_part_left_out():
    for fit in kernel_fits("priors"):
        assert fit.pooled
        assert 0 < fit.part_log_sd < 1.5


def test_a_row_reads_back_what_was_written():
    for fit in kernel_fits("h200-sxm"):
        assert read_fit(fit_row(fit), pooled=False) == fit


def test_the_parts_own_engine_comes_first_then_another_then_the_family_then_all():
    own = find_kernel_fit("h200-sxm", "gemm", precision="fp8-block", engine="sglang", family="9")
    assert own is not None and own.engine.startswith("sglang") and not own.pooled
    other = find_kernel_fit("h200-sxm", "gemm", precision="fp8-block", engine="vllm", family="9")
    assert other is not None and not other.pooled  # vLLM's own table timed the host and was left out
    family = find_kernel_fit("rtx-pro-6000-ws", "gemm", precision="nvfp4", engine="vllm", family="12")
    assert family is not None and family.engine == "cc12"
    pooled = find_kernel_fit("mi300x", "gemm", precision="bf16", engine="vllm", family="gfx942")
    assert pooled is not None and pooled.engine == "*"
    assert find_kernel_fit("h200-sxm", "gemm", precision="q4_k", engine="vllm") is None


def test_a_step_takes_the_newest_kernels_that_its_engine_can_have():
    measured = sorted({fit.release for fit in kernel_fits("b300-sxm") if fit.kernel == "gemm" and "vllm" in fit.engine})
    assert len(measured) > 2

    def of(release: tuple[int, ...] | None) -> tuple[int, ...]:
        fit = find_kernel_fit("b300-sxm", "gemm", precision="bf16", engine="vllm", release=release)
        assert fit is not None
        return fit.release

    assert [of(one) for one in measured] == measured
    assert of(None) == of((99,)) == measured[-1]
    assert of((0, 1)) == measured[0]
    between = (*measured[0][:-1], measured[0][-1] + 1)
    assert of(between) == measured[0]
    assert kernel_release("b300-sxm", "vllm", (99,)) == measured[-1]
    assert kernel_release("rtx-4090", "vllm", None) is None


@pytest.mark.parametrize("part", PARTS)
def test_a_large_bf16_product_reaches_a_third_of_the_peak_and_no_more_than_all(part):
    accelerator = load_accelerator(part)
    fit = find_kernel_fit(part, "gemm", precision="bf16", engine="vllm")
    assert fit is not None and isinstance(fit.params, KernelParams)
    bandwidth, peak = accelerator.need("memory_bandwidth", "peak.bf16")
    work = gemm_work(np.array([8192.0]), 8192.0, 8192.0, weight_bytes=2.0)
    seconds = kernel_seconds(work, peak_flop=peak, peak_bandwidth=bandwidth, params=fit.params)
    assert peak / 3 < work.flop / seconds[0] <= peak
