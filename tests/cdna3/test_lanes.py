"""Instructions that move data between lanes, against the maps of the ISA document."""

from __future__ import annotations

import numpy as np
import pytest

from .snippets import LANES, assemble_snippets, run_snippet

LANE = np.arange(LANES)
ROW, IN_ROW = LANE // 16 * 16, LANE % 16
NONE = -1


def _shift(amount: int, limit: int) -> np.ndarray:
    """Source lane when moving within rows of `limit` lanes; NONE past the row's end."""
    place = LANE % limit + amount
    return np.where((place >= 0) & (place < limit), LANE + amount, NONE)


DPP = {
    "quad_perm:[3,1,0,2]": LANE // 4 * 4 + np.array([3, 1, 0, 2])[LANE % 4],
    "row_shl:3": _shift(3, 16),
    "row_shr:5": _shift(-5, 16),
    "row_ror:6": ROW + (IN_ROW - 6) % 16,
    "wave_shl:1": _shift(1, 64),
    "wave_shr:1": _shift(-1, 64),
    "wave_rol:1": (LANE + 1) % 64,
    "wave_ror:1": (LANE - 1) % 64,
    "row_mirror": ROW + 15 - IN_ROW,
    "row_half_mirror": LANE // 8 * 8 + 7 - LANE % 8,
    "row_bcast:15": np.where(ROW > 0, ROW - 1, NONE),
    "row_bcast:31": np.where(LANE >= 32, 31, NONE),
    "row_newbcast:9": ROW + 9,
}
SWIZZLES = {
    "swizzle(SWAP,4)": LANE ^ 4,
    "swizzle(BROADCAST,8,3)": LANE // 8 * 8 + 3,
    "swizzle(REVERSE,16)": LANE // 16 * 16 + 15 - LANE % 16,
    "swizzle(QUAD_PERM,2,2,0,1)": LANE // 4 * 4 + np.array([2, 2, 0, 1])[LANE % 4],
    "0x401f": LANE ^ 16,
}
MASKED = "v_mov_b32_dpp v16, v0 row_shr:1 row_mask:0x5 bank_mask:0x6"


@pytest.fixture(scope="module")
def kernels():
    bodies = {}
    for k, control in enumerate(DPP):
        for bound in (0, 1):
            tail = " bound_ctrl:1" if bound else ""
            bodies[f"dpp{k}_{bound}"] = (
                "  s_mov_b64 exec, s[16:17]\n"
                f"  v_mov_b32_dpp v16, v0 {control} row_mask:0xf bank_mask:0xf{tail}\n"
            )
    for k, offset in enumerate(SWIZZLES):
        bodies[f"swizzle{k}"] = (
            f"  s_mov_b64 exec, s[16:17]\n  ds_swizzle_b32 v16, v0 offset:{offset}\n"
        )
    bodies["masked"] = f"  {MASKED}\n"
    bodies["add_dpp"] = "  v_add_f32_dpp v16, v0, v1 row_ror:4 row_mask:0xf bank_mask:0xf\n"
    bodies["bpermute"] = "  s_mov_b64 exec, s[16:17]\n  ds_bpermute_b32 v16, v1, v0 offset:4\n"
    bodies["permute"] = "  ds_permute_b32 v16, v1, v0\n"
    bodies["scalar"] = """
  v_readfirstlane_b32 s24, v0
  v_mov_b32 v16, s24
  v_readlane_b32 s25, v0, 37
  v_mov_b32 v17, s25
  s_movk_i32 s26, 0x1234
  v_writelane_b32 v18, s26, 5
  v_mbcnt_lo_u32_b32 v19, -1, 0
  v_mbcnt_hi_u32_b32 v19, -1, v19
  s_mov_b64 exec, s[16:17]
  v_readfirstlane_b32 s24, v0
  s_mov_b64 exec, -1
  v_mov_b32 v20, s24
"""
    return assemble_snippets(bodies)


def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng()
    bits = rng.integers(1, 1 << 32, (LANES, 20), np.uint32)
    mask = rng.integers(0, 1 << 32, 2, np.uint32) | np.array([1 << 9, 1 << 20], np.uint32)
    return bits, mask, np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)


@pytest.mark.parametrize("bound", [0, 1])
@pytest.mark.parametrize("number,control", list(enumerate(DPP)), ids=list(DPP))
def test_dpp_reads_the_documented_lane(kernels, number, control, bound):
    """A lane whose source is missing or off keeps its value, or gets 0 with bound_ctrl."""
    bits, mask, on = _inputs()
    got = run_snippet(kernels[f"dpp{number}_{bound}"], bits, mask)[:, 16]
    source = DPP[control]
    valid = (source != NONE) & on[source]
    expected = np.where(valid, bits[source, 0], 0 if bound else bits[:, 16])
    np.testing.assert_array_equal(got, np.where(on, expected, bits[:, 16]))


def test_dpp_row_and_bank_masks_protect_lanes(kernels):
    bits, _, _ = _inputs()
    got = run_snippet(kernels["masked"], bits)[:, 16]
    written = np.isin(LANE // 16, (0, 2)) & np.isin(IN_ROW // 4, (1, 2))
    np.testing.assert_array_equal(got, np.where(written, bits[LANE - 1, 0], bits[:, 16]))


def test_dpp_reads_before_it_writes(kernels):
    x = np.random.default_rng().normal(size=(LANES, 2)).astype(np.float32)
    got = run_snippet(kernels["add_dpp"], x.view(np.uint32))[:, 16].copy().view(np.float32)
    np.testing.assert_array_equal(got, x[ROW + (IN_ROW - 4) % 16, 0] + x[:, 1])


@pytest.mark.parametrize("number,offset", list(enumerate(SWIZZLES)), ids=list(SWIZZLES))
def test_swizzle_reads_the_documented_lane(kernels, number, offset):
    bits, mask, on = _inputs()
    got = run_snippet(kernels[f"swizzle{number}"], bits, mask)[:, 16]
    source = SWIZZLES[offset]
    expected = np.where(on[source], bits[source, 0], 0)
    np.testing.assert_array_equal(got, np.where(on, expected, bits[:, 16]))


def test_bpermute_pulls_and_permute_pushes(kernels):
    bits, mask, on = _inputs()
    lane = np.random.default_rng().permutation(LANES)
    bits[:, 1] = lane * 4
    got = run_snippet(kernels["bpermute"], bits, mask)[:, 16]
    source = (lane + 1) % 64
    expected = np.where(on[source], bits[source, 0], 0)
    np.testing.assert_array_equal(got, np.where(on, expected, bits[:, 16]))
    got = run_snippet(kernels["permute"], bits)[:, 16]
    np.testing.assert_array_equal(got[lane], bits[:, 0])


def test_lane_reads_and_writes(kernels):
    bits, mask, on = _inputs()
    got = run_snippet(kernels["scalar"], bits, mask)
    np.testing.assert_array_equal(got[:, 16], bits[0, 0])
    np.testing.assert_array_equal(got[:, 17], bits[37, 0])
    np.testing.assert_array_equal(got[:, 18], np.where(LANE == 5, 0x1234, bits[:, 18]))
    np.testing.assert_array_equal(got[:, 19], LANE)
    np.testing.assert_array_equal(got[:, 20], bits[np.argmax(on), 0])
