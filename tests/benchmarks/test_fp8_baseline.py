"""Baselines get the faster of torch's two FP8 matmuls on a CPU, which is made up here."""

from __future__ import annotations

import pytest
import torch

from benchmarks import fp8_baseline

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_faster", [False, True])
def test_onednn_is_off_inside_the_block_only_and_only_where_that_is_faster(monkeypatch, is_faster):
    monkeypatch.setattr(fp8_baseline, "is_faster_without_onednn", lambda: is_faster)
    before = torch.backends.mkldnn.enabled
    with fp8_baseline.faster_fp8_matmul(CPU):
        assert torch.backends.mkldnn.enabled is (before and not is_faster)
    assert torch.backends.mkldnn.enabled is before
    with fp8_baseline.faster_fp8_matmul(torch.device("cuda")):
        assert torch.backends.mkldnn.enabled is before


def test_an_error_inside_the_block_leaves_onednn_as_it_was(monkeypatch):
    monkeypatch.setattr(fp8_baseline, "is_faster_without_onednn", lambda: True)
    before = torch.backends.mkldnn.enabled
    with pytest.raises(KeyError), fp8_baseline.faster_fp8_matmul(CPU):
        raise KeyError
    assert torch.backends.mkldnn.enabled is before


@pytest.mark.parametrize(("first", "second", "is_faster"), [(9.0, 4.0, True), (9.0, 5.0, False)])
def test_a_factor_of_two_decides(monkeypatch, first, second, is_faster):
    times = iter([first, second])
    monkeypatch.setattr(fp8_baseline, "_milliseconds", lambda: next(times))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    assert fp8_baseline.is_faster_without_onednn.__wrapped__() is is_faster


@pytest.mark.parametrize("is_faster", [False, True])
def test_the_product_is_the_same(monkeypatch, is_faster):
    monkeypatch.setattr(fp8_baseline, "is_faster_without_onednn", lambda: is_faster)
    a, weight = (torch.randn(rows, 32).to(torch.float8_e4m3fn) for rows in (3, 16))
    scale = torch.tensor(0.5)
    want = 0.25 * (a.double() @ weight.double().t())
    found = fp8_baseline.scaled_mm(a, weight.t(), scale, scale, out_dtype=torch.float32)
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-4)
