"""Fitting kernel tables: planted parameters come back, useless tables are left out, the run repeats itself."""

from __future__ import annotations

import platform
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glmplan.calibrate.kernels.all_parts import calibrate_kernels, kernels_page, write_kernel_fits
from glmplan.calibrate.kernels.fit import errors, fit_collective, fit_rows, rows_of
from glmplan.calibrate.kernels.tables import Campaign, campaigns, package_root, part_named, sample
from glmplan.catalog.files import data_folder
from glmplan.cli.calibrate import run
from glmplan.costs.kernels.counts import attention_decode_work, gemm_work, mixing_work, recurrent_decode_work
from glmplan.costs.kernels.utilisation import (
    CollectiveParams,
    KernelParams,
    collective_seconds,
    find_kernel_fit,
    kernel_fits,
    kernel_seconds,
)
from glmplan.errors import SpecError

PLANTED = KernelParams(floor=5e-6, bandwidth=0.8, flop=0.6, rows_half=20.0, tiles_half=15.0, sharpness=3.0)
PEAKS = {"peak_flop": 989e12, "peak_bandwidth": 4.8e12}  # h200-sxm

has_tables = pytest.mark.skipif(
    not (sys.platform == "linux" and platform.machine() == "x86_64"), reason="the tables have a wheel for Linux x86-64"
)


def shapes() -> tuple[np.ndarray, ...]:
    grid = np.meshgrid([1, 4, 16, 64, 256, 1024, 4096], [256, 1024, 4096, 16384], [512, 2048, 8192, 16384])
    return tuple(axis.ravel().astype(float) for axis in grid)


def planted_campaign(noise: float = 0.0) -> Campaign:
    m, n, k = shapes()
    work = gemm_work(m, n, k, weight_bytes=2.0)
    seconds = kernel_seconds(work, **PEAKS, params=PLANTED)
    seconds = seconds * np.exp(noise * np.random.default_rng(0).standard_normal(len(m)))
    return Campaign("h200-sxm", "gemm", "vllm 1", "bf16", "x", "bf16", work, seconds, np.full(len(m), np.inf), len(m))


def test_planted_parameters_come_back():
    rows = rows_of(planted_campaign(), slice(None), **PEAKS)
    fitted = fit_rows("gemm", "bf16", rows)
    assert np.abs(errors(fitted, rows)).max() < 0.06
    assert fitted.floor == pytest.approx(PLANTED.floor, rel=0.05)
    assert fitted.bandwidth == pytest.approx(PLANTED.bandwidth, rel=0.05)
    assert fitted.flop == pytest.approx(PLANTED.flop, rel=0.05)


def test_a_few_absurd_rows_do_not_move_the_fit():
    campaign = planted_campaign(noise=0.05)
    campaign.seconds[::25] *= 10
    fitted = fit_rows("gemm", "bf16", rows_of(campaign, slice(None), **PEAKS))
    assert fitted.bandwidth == pytest.approx(PLANTED.bandwidth, rel=0.1)


def test_planted_blocks_come_back_from_a_cache_of_keys_that_partly_lies_in_the_cache_of_the_part():
    planted = KernelParams(
        floor=6e-6, bandwidth=0.85, flop=0.8, cache_gain=4.0, cache_bytes=1e8, block=1e10, block_gain=1.5, key=2e-8
    )
    axes = np.meshgrid(2.0 ** np.arange(0, 8), 2.0 ** np.arange(7, 18), [64.0, 128.0, 256.0])
    batch, context, wide = (axis.ravel() for axis in axes)
    work = attention_decode_work(batch, context, heads=8.0, kv_heads=1.0, head_dim=wide, kv_bytes=2.0, splits=8.0)
    peaks = {"peak_flop": 467.8e12, "peak_bandwidth": 1.5976e12}
    seconds = kernel_seconds(planted.from_cache(work, work.bytes), **peaks, params=planted)
    campaign = Campaign("x", "decode-attention", "sglang 1", "bf16", "triton", "bf16", work, seconds, work.bytes, 264)
    rows = rows_of(campaign, slice(None), **peaks)
    fitted = fit_rows("decode-attention", "bf16", rows)
    assert np.median(np.abs(errors(fitted, rows))) < 0.02
    assert fitted.block == pytest.approx(planted.block, rel=0.1)
    assert fitted.key == pytest.approx(planted.key, rel=0.1)
    assert fitted.cache_gain == pytest.approx(planted.cache_gain, rel=0.2)
    assert fit_rows("decode-attention", "bf16", rows, most_gain=2.0).cache_gain <= 2.0


def test_planted_all_reduce_comes_back():
    planted = CollectiveParams(latency=5e-6, hop=2e-7, one_shot=0.4, two_shot=0.7, two_shot_setup=6e-6)
    bytes_, ranks = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(8, 30), [2.0, 4.0, 8.0]))
    seconds = collective_seconds(bytes_, ranks, link_bandwidth=450e9, params=planted)
    found, log_errors = fit_collective(bytes_, ranks, seconds, link_bandwidth=450e9)
    assert np.abs(log_errors).max() < 0.05
    assert found.latency == pytest.approx(planted.latency, rel=0.05)
    assert found.two_shot == pytest.approx(planted.two_shot, rel=0.05)


def write_gemm(root: Path, version: str, rows: int, *, seconds: np.ndarray | None = None) -> None:
    m, n, k = (axis.astype(int) for axis in shapes())
    planted = kernel_seconds(gemm_work(*shapes(), weight_bytes=2.0), **PEAKS, params=PLANTED)
    times = planted if seconds is None else seconds
    repeated = {"m": m, "n": n, "k": k, "latency": times * 1e3}
    columns = {name: np.resize(values, rows) for name, values in repeated.items()}
    columns |= {"gemm_dtype": np.full(rows, "bfloat16"), "kernel_source": np.full(rows, "torch")}
    folder = root / "h200_sxm" / "gemm" / "vllm" / version
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "gemm_perf.parquet")


def test_every_full_version_is_read_the_oldest_first(tmp_path):
    for version, rows in (("0.9.0", 448), ("0.10.2", 448), ("0.11.0", 120)):
        write_gemm(tmp_path, version, rows)
    found = list(campaigns(tmp_path, "h200_sxm"))
    assert [campaign.engine for campaign in found] == ["vllm 0.9.0", "vllm 0.10.2"]
    assert [campaign.points for campaign in found] == [448, 448]


def test_kernels_of_kimi_delta_attention_come_back_from_their_table_and_fused_ones_are_left_out(tmp_path):
    planted = KernelParams(floor=4e-6, bandwidth=0.8, flop=1.0, streams_half=30.0)
    batch, heads, verified = (
        axis.ravel().astype(float) for axis in np.meshgrid(2.0 ** np.arange(10), [8, 16, 32], [1, 4])
    )
    work = recurrent_decode_work(batch, key_heads=heads, value_heads=heads, queries=verified)
    seconds = kernel_seconds(work, **PEAKS, params=planted)
    columns = {
        "phase": np.where(verified > 1, "verify", "generation"),
        "kernel_source": np.full(len(batch), "fused_recurrent_kda"),
        "batch_size": batch, "seq_len": verified, "num_k_heads": heads, "num_v_heads": heads,
        "head_k_dim": np.full(len(batch), 128), "head_v_dim": np.full(len(batch), 128), "latency": seconds * 1e3,
    }  # fmt: skip
    both = {name: np.concatenate([values, values]) for name, values in columns.items()}
    both["kernel_source"][len(batch):] = "fused_kda_decode"  # fmt: skip
    folder = tmp_path / "h200_sxm" / "kda" / "vllm" / "0.31.0"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(both), folder / "kda_perf.parquet")
    [found] = campaigns(tmp_path, "h200_sxm")
    assert (found.kernel, found.engine, found.backend) == ("kda-decode", "vllm 0.31.0", "fused_recurrent_kda")
    rows = rows_of(found, slice(None), **PEAKS)
    assert np.abs(errors(fit_rows("kda-decode", "bf16", rows), rows)).max() < 0.06


@pytest.mark.parametrize("kernel", ["kda-decode", "kda-prefill"])
def test_kimi_delta_attention_has_fits_of_its_own_and_priors_elsewhere(kernel):
    for part in ("b200-sxm", "b300-sxm", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server"):
        for engine in ("vllm", "sglang"):
            own = find_kernel_fit(part, kernel, precision="bf16", engine=engine)
            assert not own.pooled and own.engine.startswith(engine) and own.median < 0.15
    assert find_kernel_fit("a100-80gb-sxm", kernel, precision="bf16", engine="vllm", family="8").pooled
    assert not find_kernel_fit("h200-sxm", kernel, precision="bf16", engine="trtllm").pooled


def write_mixing(root: Path, planted: dict[str, KernelParams]) -> None:
    """A table of residual streams as it comes: the times of both sites of a layer, other kernels among them."""
    parts = {"pre": "read", "post": "write", "fused_post_pre": "both"}
    tokens = np.repeat(2.0 ** np.arange(18), 2)
    hidden = np.tile([4096.0, 7168.0], 18)
    columns: dict[str, list[object]] = {name: [] for name in ("op_name", "num_tokens", "hidden_size", "latency")}
    for name in (*parts, "expand"):
        work = mixing_work(tokens, streams=4, hidden=hidden, part=parts.get(name, "read"))
        params = planted.get(name, PLANTED)
        once = kernel_seconds(params.from_cache(work, work.bytes), **PEAKS, params=params)
        columns["op_name"] += [name] * len(tokens)
        columns["num_tokens"] += tokens.astype(int).tolist()
        columns["hidden_size"] += hidden.astype(int).tolist()
        columns["latency"] += (2e3 * once).tolist()
    same = {name: [value] * len(columns["op_name"]) for name, value in (("hc_mult", 4), ("num_sites", 2))}
    folder = root / "h200_sxm" / "mhc" / "vllm" / "0.31.0"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({**columns, **same}), folder / "mhc_module_perf.parquet")


def test_kernels_of_residual_streams_come_back_for_one_site_and_are_carried_to_no_other_part(tmp_path):
    planted = {
        "pre": KernelParams(floor=9e-6, bandwidth=0.4, flop=1.0, cache_gain=1.3, cache_bytes=5e7),
        "post": KernelParams(floor=3e-6, bandwidth=0.88, flop=1.0, cache_gain=1.3, cache_bytes=5e7),
        "fused_post_pre": KernelParams(floor=1e-5, bandwidth=0.55, flop=1.0, cache_gain=1.3, cache_bytes=5e7),
    }
    write_mixing(tmp_path, planted)
    found = {one.kernel: one for one in campaigns(tmp_path, "h200_sxm")}
    assert set(found) == {"hyper-read", "hyper-write", "hyper-both"}
    for name, kernel in zip(planted, ("hyper-read", "hyper-write", "hyper-both"), strict=True):
        rows = rows_of(found[kernel], slice(None), **PEAKS)
        fitted = fit_rows(kernel, "bf16", rows)
        assert np.abs(errors(fitted, rows)).max() < 0.02
        assert fitted.floor == pytest.approx(planted[name].floor, rel=0.05)
        assert fitted.bandwidth == pytest.approx(planted[name].bandwidth, rel=0.05)
    write_gemm(tmp_path, "1", 448)
    both = calibrate_kernels(root=tmp_path)
    assert {one.kernel for one in both.parts["h200-sxm"]} == {"gemm", *found}
    assert {one.kernel for one in both.priors} == {"gemm"}


def test_every_kernel_of_residual_streams_that_ships_stays_below_the_bandwidth_of_its_part():
    parts = ("b200-sxm", "b300-sxm", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server")
    shipped = [fit for part in parts for fit in kernel_fits(part) if fit.kernel.startswith("hyper-")]
    assert len(shipped) > 70
    # no share above what any stream reaches, none that says nothing
    assert all(0.05 < fit.params.bandwidth < 0.95 and fit.median < 0.2 for fit in shipped)
    assert float(np.median([fit.median for fit in shipped])) < 0.06
    assert not [fit for fit in kernel_fits("priors") if fit.kernel.startswith("hyper-")]


def test_a_table_that_timed_the_host_is_left_out_with_the_reason(tmp_path):
    write_gemm(tmp_path, "1", 448, seconds=np.full(len(shapes()[0]), 90e-6))
    found = calibrate_kernels(["h200-sxm"], root=tmp_path)
    assert found.parts["h200-sxm"] == []
    assert "90 µs, so the host was timed" in found.left_out[0]


def test_a_run_repeats_itself_byte_for_byte_and_its_page_names_every_part(tmp_path):
    write_gemm(tmp_path / "tables", "1", 448)
    texts = []
    for turn in ("first", "second"):
        found = calibrate_kernels(root=tmp_path / "tables")
        files = write_kernel_fits(found, tmp_path / turn)
        texts.append([file.read_bytes() for file in files])
        assert [file.name for file in files] == ["h200-sxm.toml", "priors.toml"]
    assert texts[0] == texts[1]
    page = kernels_page(found)
    assert "## h200-sxm" in page
    assert "| gemm | bf16 |" in page


def wheel_of(folder: Path, root: Path) -> Path:
    """A wheel with the tables of `root`, and with things beside them that no one may unpack."""
    wheel = folder / "tables-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(root.rglob("*.parquet")):
            archive.write(file, f"some_core/systems/data/{file.relative_to(root)}")
        archive.writestr("some_core/systems/data/../../../../gemm/x/1/escaped_perf.parquet", b"")
        archive.writestr("some_core/__init__.py", b"raise SystemExit('a wheel is read, not run')")
    return wheel


def test_a_wheel_of_kernel_tables_is_read_in_one_command_which_lists_what_changed(tmp_path):
    write_gemm(tmp_path / "tables", "7.7", 448)
    (tmp_path / "tables" / "h200_sxm").rename(tmp_path / "tables" / "h200_sxm_of_elsewhere")
    write_gemm(tmp_path / "tables", "7.7", 448)
    written, changed = run(out=tmp_path / "fits", wheel=wheel_of(tmp_path, tmp_path / "tables"))
    assert [file.name for file in written] == ["h200-sxm.toml", "priors.toml", "kernels.md"]
    assert 'source = "kernel tables of tables 1.2.3' in written[0].read_text(encoding="utf-8")
    shipped = len(kernel_fits("h200-sxm"))
    assert changed[0].startswith(f"h200-sxm: 1 fits, 1 new, {shipped} gone, 0 with another error; median error")
    assert changed[1] == "  new: gemm vllm 7.7 bf16 torch"
    assert "not in the catalog, left out: h200_sxm_of_elsewhere (add an alias of that name)" in changed
    assert changed[-1].startswith("no tables, fits unchanged: a100-80gb-sxm, arc-pro-b60")
    assert not list(tmp_path.rglob("escaped_perf.parquet"))


def test_a_wheel_without_kernel_tables_or_a_file_that_is_no_wheel_is_refused_by_its_name(tmp_path):
    with pytest.raises(SpecError, match=r"tables-1\.2\.3.*holds no kernel tables"):
        run(out=tmp_path / "fits", wheel=wheel_of(tmp_path, tmp_path))
    (tmp_path / "no.whl").write_bytes(b"not an archive")
    with pytest.raises(SpecError, match=r"no\.whl"):
        run(out=tmp_path / "fits", wheel=tmp_path / "no.whl")
    assert not (tmp_path / "fits").exists()


@has_tables
def test_every_part_with_committed_fits_is_found_by_the_name_of_its_folder_of_tables():
    folders = {path.name: part_named(path.name) for path in package_root().iterdir() if path.is_dir()}
    fits = {file.stem for file in (data_folder("calibration") / "fits" / "kernels").glob("*.toml")} - {"priors"}
    assert fits <= set(folders.values())


def test_a_sample_is_spread_and_repeats_itself():
    chosen = sample(10_000, 100)
    assert len(set(chosen.tolist())) == 100
    assert chosen.max() - chosen.min() > 9_000
    assert (sample(10_000, 100) == chosen).all()


def test_an_unknown_part_is_refused_with_the_nearest_name():
    with pytest.raises(SpecError, match="h200-sxm"):
        run(["h200-sxn"])


@has_tables
def test_the_committed_fits_of_a_part_can_be_made_again():
    found = calibrate_kernels(["arc-pro-b60"], root=package_root())
    again = {(f.kernel, f.engine, f.precision, f.backend): f.median for f in found.parts["arc-pro-b60"]}
    committed = {(f.kernel, f.engine, f.precision, f.backend): f.median for f in kernel_fits("arc-pro-b60")}
    assert again.keys() == committed.keys()
    assert all(again[key] == pytest.approx(committed[key], abs=0.02) for key in again)


def test_without_the_tables_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match="glmplan\\[kernels\\]"):
        calibrate_kernels(["l40s"])
    assert (data_folder("calibration") / "fits" / "kernels" / "l40s.toml").is_file()
