"""Matrix instructions: layouts as formulas, values against float64.

The layouts were compared with AMD's matrix calculator; here they stand as formulas, written
independently of the engine's loops: A, B and D are laid out by index arithmetic on whole arrays.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .snippets import LANES, assemble_snippets, run_snippet

DENSE = [
    (f"v_mfma_f32_{m}x{m}x{k}_{name}", m, k, kinds)
    for name, kinds, shapes in (
        ("fp8_fp8", ("fp8", "fp8"), ((16, 32), (32, 16))),
        ("bf8_fp8", ("bf8", "fp8"), ((16, 32),)),
        ("bf16", ("bf16", "bf16"), ((16, 16), (32, 8))),
        ("f16", ("f16", "f16"), ((16, 16), (32, 8))),
    )
    for m, k in shapes
]
SPARSE = [
    ("v_smfmac_f32_16x16x64_fp8_fp8", 16, 64, ("fp8", "fp8")),
    ("v_smfmac_f32_32x32x32_fp8_bf8", 32, 32, ("fp8", "bf8")),
    ("v_smfmac_f32_16x16x32_bf16", 16, 32, ("bf16", "bf16")),
    ("v_smfmac_f32_16x16x32_f16", 16, 32, ("f16", "f16")),
]
ONE_ROUNDING = 2.0**-22  # of an fp32 sum, in units of its terms' magnitudes
TORCH = {
    "fp8": torch.float8_e4m3fnuz,
    "bf8": torch.float8_e5m2fnuz,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}


def _random(shape: tuple[int, ...], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Random values of a format, and their bytes with one more trailing dimension."""
    values = torch.from_numpy(np.random.default_rng().normal(size=shape) * 4).to(TORCH[kind])
    raw = values.view(torch.uint8).numpy().reshape(*shape, -1)
    return values.double().numpy(), raw


def _lanes(raw: np.ndarray, rows: int) -> np.ndarray:
    """[rows, k, bytes] to registers [64, dwords]: lane rows * (k / share) + row."""
    share = raw.shape[1] // (LANES // rows)
    parts = raw.reshape(rows, LANES // rows, share, -1).transpose(1, 0, 2, 3)
    return np.ascontiguousarray(parts.reshape(LANES, -1)).view(np.uint32)


def _result(registers: np.ndarray, rows: int) -> np.ndarray:
    """Registers [64, 4 or 16] to D[i][j]."""
    if rows == 16:
        return registers.reshape(4, 16, 4).transpose(0, 2, 1).reshape(16, 16)
    return registers.reshape(2, 32, 4, 4).transpose(2, 0, 3, 1).reshape(32, 32)


def _accumulator(d: np.ndarray) -> np.ndarray:
    rows = d.shape[0]
    if rows == 16:
        return d.reshape(4, 4, 16).transpose(0, 2, 1).reshape(LANES, 4)
    return d.reshape(4, 2, 4, 32).transpose(1, 3, 0, 2).reshape(LANES, 16)


def _registers(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]"


@pytest.fixture(scope="module")
def kernels():
    bodies = {}
    for name, rows, depth, kinds in DENSE:
        count = rows * depth // LANES
        size = {"fp8": 1, "bf8": 1}.get(kinds[0], 2)
        words, results = count * size // 4, 4 if rows == 16 else 16
        a, b = _registers(0, words), _registers(words, words)
        c = _registers(16, results)
        bodies[name] = f"  {name} {c}, {a}, {b}, {c}\n"
    for name, rows, depth, kinds in SPARSE:
        size = {"fp8": 1, "bf8": 1}.get(kinds[0], 2)
        words, results = rows * depth // LANES * size // 4, 4 if rows == 16 else 16
        a, b = _registers(0, words // 2), _registers(4, words)
        c = _registers(16, results)
        bodies[name] = f"  {name} {c}, {a}, {b}, v15\n"
        bodies[f"{name}_abid"] = f"  {name} {c}, {a}, {b}, v15 abid:1\n"
    bodies["accvgpr"] = """
  v_accvgpr_write_b32 a3, v0
  v_accvgpr_read_b32 v16, a3
  v_accvgpr_write_b32 a4, 1.0
  v_accvgpr_mov_b32 a5, a4
  v_accvgpr_read_b32 v17, a5
"""
    return assemble_snippets(bodies)


def _error(got: np.ndarray, exact: np.ndarray, scale: np.ndarray) -> float:
    """The largest error, in units of the sum of the products' magnitudes."""
    return float((np.abs(got - exact) / scale).max())


@pytest.mark.parametrize("name,rows,depth,kinds", DENSE, ids=[d[0] for d in DENSE])
def test_mfma_equals_the_product(kernels, name, rows, depth, kinds):
    a, raw_a = _random((rows, depth), kinds[0])
    b, raw_b = _random((rows, depth), kinds[1])  # B transposed: [column, k]
    c = np.random.default_rng().normal(size=(rows, rows)).astype(np.float32)
    inputs = np.zeros((LANES, 32), np.uint32)
    packed = np.concatenate([_lanes(raw_a, rows), _lanes(raw_b, rows)], 1)
    inputs[:, : packed.shape[1]] = packed
    accumulator = _accumulator(c)
    inputs[:, 16 : 16 + accumulator.shape[1]] = accumulator.view(np.uint32)
    got = run_snippet(kernels[name], inputs)[:, 16 : 16 + accumulator.shape[1]].copy()
    exact = a @ b.T + c
    scale = np.abs(a) @ np.abs(b.T) + np.abs(c)
    assert _error(_result(got.view(np.float32), rows), exact, scale) <= ONE_ROUNDING


@pytest.mark.parametrize("abid", [0, 1])
@pytest.mark.parametrize("name,rows,depth,kinds", SPARSE, ids=[s[0] for s in SPARSE])
def test_smfmac_equals_the_expanded_product(kernels, name, rows, depth, kinds, abid):
    rng = np.random.default_rng()
    packed, raw = _random((rows, depth // 2), kinds[0])
    b, raw_b = _random((rows, depth), kinds[1])
    pairs = np.array([(p, q) for p in range(4) for q in range(p + 1, 4)])
    positions = pairs[rng.integers(0, 6, (rows, depth // 4))]  # [row, group, 2]
    a = np.zeros((rows, depth // 4, 4))
    np.put_along_axis(a, positions, packed.reshape(rows, -1, 2), 2)
    a = a.reshape(rows, depth)
    per_lane = depth // 2 // (LANES // rows)
    codes = positions.reshape(rows, LANES // rows, per_lane).transpose(1, 0, 2).reshape(LANES, -1)
    index = (codes << 2 * np.arange(per_lane)).sum(1) << 2 * per_lane * abid
    noise = rng.integers(0, 1 << 32, LANES, np.uint32)
    used = ((1 << 2 * per_lane) - 1) << 2 * per_lane * abid
    inputs = np.zeros((LANES, 32), np.uint32)
    lanes_a, lanes_b = _lanes(raw, rows), _lanes(raw_b, rows)
    inputs[:, : lanes_a.shape[1]] = lanes_a
    inputs[:, 4 : 4 + lanes_b.shape[1]] = lanes_b
    inputs[:, 15] = (noise & ~np.uint32(used)) | index.astype(np.uint32)
    count = 4 if rows == 16 else 16
    text = f"{name}_abid" if abid else name
    got = run_snippet(kernels[text], inputs)[:, 16 : 16 + count].copy()
    scale = np.abs(a) @ np.abs(b.T)
    assert _error(_result(got.view(np.float32), rows), a @ b.T, scale) <= ONE_ROUNDING


def test_accumulation_registers_hold_values(kernels):
    bits = np.random.default_rng().integers(0, 1 << 32, (LANES, 1), np.uint32)
    got = run_snippet(kernels["accvgpr"], bits)
    np.testing.assert_array_equal(got[:, 16], bits[:, 0])
    np.testing.assert_array_equal(got[:, 17], 0x3F800000)
