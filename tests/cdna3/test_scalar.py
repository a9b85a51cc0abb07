"""Scalar instructions against Python integers, with SCC."""

from __future__ import annotations

import numpy as np
import pytest

from .checks import Fault
from .snippets import assemble_snippets, run_snippet

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


# text with operands s16, s17 (or pairs): (result, SCC); SCC None: not looked at
WORDS = {
    "s_add_u32 s24, s16, s17": lambda a, b: (a + b, a + b > M32),
    "s_sub_u32 s24, s16, s17": lambda a, b: (a - b, b > a),
    "s_add_i32 s24, s16, s17": lambda a, b: (
        a + b,
        not -(1 << 31) <= _signed(a) + _signed(b) < 1 << 31,
    ),
    "s_mul_i32 s24, s16, s17": lambda a, b: (a * b, None),
    "s_mul_hi_u32 s24, s16, s17": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32 s24, s16, s17": lambda a, b: (_signed(a) * _signed(b) >> 32, None),
    "s_min_i32 s24, s16, s17": lambda a, b: (min(_signed(a), _signed(b)), _signed(a) < _signed(b)),
    "s_max_u32 s24, s16, s17": lambda a, b: (max(a, b), a > b),
    "s_and_b32 s24, s16, s17": lambda a, b: (a & b, a & b != 0),
    "s_andn2_b32 s24, s16, s17": lambda a, b: (a & ~b, a & ~b & M32 != 0),
    "s_xor_b32 s24, s16, s17": lambda a, b: (a ^ b, a != b),
    "s_not_b32 s24, s16": lambda a, b: (~a, a != M32),
    "s_lshl_b32 s24, s16, s17": lambda a, b: (a << b % 32, (a << b % 32) & M32 != 0),
    "s_ashr_i32 s24, s16, s17": lambda a, b: (_signed(a) >> b % 32, _signed(a) >> b % 32 != 0),
    "s_bfe_u32 s24, s16, 0x50003": lambda a, b: (a >> 3 & 31, a >> 3 & 31 != 0),
    "s_bfm_b32 s24, 5, 3": lambda a, b: (31 << 3, None),
    "s_ff1_i32_b32 s24, s16": lambda a, b: ((a & -a).bit_length() - 1, None),
    "s_flbit_i32_b32 s24, s16": lambda a, b: (32 - a.bit_length() if a else -1, None),
    "s_bcnt1_i32_b32 s24, s16": lambda a, b: (bin(a).count("1"), a != 0),
    "s_sext_i32_i16 s24, s16": lambda a, b: ((a & 0xFFFF ^ 0x8000) - 0x8000, None),
    "s_pack_lh_b32_b16 s24, s16, s17": lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, None),
    "s_lshl2_add_u32 s24, s16, s17": lambda a, b: ((a << 2) + b, (a << 2) + b > M32),
    "s_absdiff_i32 s24, s16, s17": lambda a, b: (abs(_signed(a - b & M32)), (a - b) & M32 != 0),
    "s_movk_i32 s24, 0x8001": lambda a, b: (-0x7FFF, None),
    "s_mov_b32 s24, s16\n  s_mulk_i32 s24, 0x8001": lambda a, b: (a * -0x7FFF, True),  # SCC stays
    "s_sub_i32 s24, s16, s17": lambda a, b: (
        a - b,
        not -(1 << 31) <= _signed(a) - _signed(b) < 1 << 31,
    ),
    "s_min_u32 s24, s16, s17": lambda a, b: (min(a, b), a < b),
    "s_or_b32 s24, s16, s17": lambda a, b: (a | b, a | b != 0),
    "s_lshr_b32 s24, s16, s17": lambda a, b: (a >> b % 32, a >> b % 32 != 0),
    "s_brev_b32 s24, s16": lambda a, b: (int(f"{a:032b}"[::-1], 2), None),
    "s_lshl1_add_u32 s24, s16, s17": lambda a, b: ((a << 1) + b, (a << 1) + b > M32),
    "s_lshl4_add_u32 s24, s16, s17": lambda a, b: ((a << 4) + b, (a << 4) + b > M32),
}
COMPARES = {
    "s_cmp_lt_i32 s16, s17": lambda a, b: _signed(a) < _signed(b),
    "s_cmp_ge_u32 s16, s17": lambda a, b: a >= b,
    "s_cmp_lg_u32 s16, s17": lambda a, b: a != b,
    "s_cmpk_gt_i32 s16, 0x8000": lambda a, b: _signed(a) > -0x8000,
    "s_cmp_gt_u32 s16, s17": lambda a, b: a > b,
    "s_cmp_le_u32 s16, s17": lambda a, b: a <= b,
    "s_cmp_lt_u32 s16, s17": lambda a, b: a < b,
    "s_cmpk_gt_u32 s16, 0x8000": lambda a, b: a > 0x8000,
    "s_cmpk_lt_u32 s16, 31": lambda a, b: a < 31,
    "s_bitcmp1_b32 s16, s17": lambda a, b: bool(a >> b % 32 & 1),
}
# Of 64 bits, with operands s[16:17] and s[18:19]: the result, and SCC where it is looked at.
WIDE = {
    "s_lshl_b64 s[24:25], s[16:17], s18": lambda a, b: (a << b % 64, (a << b % 64) & M64 != 0),
    "s_orn2_b64 s[24:25], s[16:17], s[18:19]": lambda a, b: (a | ~b, (a | ~b) & M64 != 0),
    "s_cselect_b64 s[24:25], s[16:17], s[18:19]": lambda a, b: (a, True),  # SCC is set before
    "s_cmp_eq_u64 s[16:17], s[18:19]": lambda a, b: (0, a == b),
    "s_cmp_lg_u64 s[16:17], s[18:19]": lambda a, b: (0, a != b),
}
VALUES = [0, 1, 31, 0x7FFFFFFF, 0x80000000, M32]


@pytest.fixture(scope="module")
def kernels():
    bodies = {}
    show = "  s_cselect_b32 s25, 1, 0\n  v_mov_b32 v16, s24\n  v_mov_b32 v17, s25\n"
    for k, text in enumerate(WORDS):
        bodies[f"w{k}"] = f"  s_cmp_eq_u32 s16, s16\n  {text}\n{show}"
    for k, text in enumerate(COMPARES):
        bodies[f"c{k}"] = f"  s_mov_b32 s24, 0\n  {text}\n{show}"
    for k, text in enumerate(WIDE):
        bodies[f"d{k}"] = f"""
  s_mov_b64 s[24:25], 0
  s_cmp_eq_u32 s16, s16
  {text}
  s_cselect_b32 s26, 1, 0
  v_mov_b32 v16, s24
  v_mov_b32 v17, s25
  v_mov_b32 v18, s26
"""
    bodies["addk"] = "  s_mov_b32 s24, s16\n  s_addk_i32 s24, 0x8001\n  v_mov_b32 v16, s24\n"
    bodies["or_saveexec"] = """
  s_mov_b64 exec, s[16:17]
  s_or_saveexec_b64 s[24:25], s[18:19]
  v_mov_b32 v16, 7
  s_mov_b64 exec, s[24:25]
  v_mov_b32 v16, 9
"""
    bodies["andn2_saveexec"] = """
  s_mov_b64 exec, s[16:17]
  s_andn2_saveexec_b64 s[24:25], s[18:19]
  v_mov_b32 v16, 7
  s_mov_b64 exec, s[24:25]
  v_mov_b32 v17, 9
"""
    bodies["wide"] = """
  s_add_u32 s24, s16, s18
  s_addc_u32 s25, s17, s19
  s_lshr_b64 s[26:27], s[16:17], 9
  v_mov_b32 v16, s24
  v_mov_b32 v17, s25
  v_mov_b32 v18, s26
  v_mov_b32 v19, s27
"""
    bodies["saveexec"] = """
  s_and_saveexec_b64 s[24:25], s[16:17]
  v_mov_b32 v16, 7
  s_xor_b64 exec, exec, s[24:25]
  v_mov_b32 v16, 9
"""
    # s[28:29] was never set: only its bits under EXEC may matter.
    bodies["merged_mask"] = """
  s_andn2_b64 s[24:25], s[28:29], exec
  s_and_b64 s[26:27], s[16:17], exec
  s_or_b64 s[24:25], s[24:25], s[26:27]
  v_cndmask_b32 v16, 0, 1, s[24:25]
"""
    bodies["unset_mask"] = "  v_cndmask_b32 v16, 0, 1, s[28:29]\n"
    return assemble_snippets(bodies)


def _pairs() -> list[tuple[int, int]]:
    rng = np.random.default_rng()
    pairs = [(a, b) for a in VALUES for b in VALUES]
    return pairs[::3] + [tuple(int(x) for x in rng.integers(0, 1 << 32, 2)) for _ in range(8)]


@pytest.mark.parametrize("number,text", list(enumerate(WORDS)), ids=list(WORDS))
def test_word_instruction_and_scc(kernels, number, text):
    for a, b in _pairs():
        got = run_snippet(kernels[f"w{number}"], np.zeros((64, 1), np.uint32), np.array([a, b]))
        result, scc = WORDS[text](a, b)
        assert int(got[0, 16]) == result & M32, (a, b)
        assert int(got[0, 17]) == (1 if scc is None else int(scc)), (a, b)


@pytest.mark.parametrize("number,text", list(enumerate(COMPARES)), ids=list(COMPARES))
def test_compare_sets_scc(kernels, number, text):
    for a, b in _pairs():
        got = run_snippet(kernels[f"c{number}"], np.zeros((64, 1), np.uint32), np.array([a, b]))
        assert int(got[0, 17]) == int(COMPARES[text](a, b)), (a, b)


@pytest.mark.parametrize("number,text", list(enumerate(WIDE)), ids=list(WIDE))
def test_wide_instruction_and_scc(kernels, number, text):
    rng = np.random.default_rng()
    for _ in range(12):
        words = rng.integers(0, 1 << 32, 4, np.uint32)
        words[2:] = words[:2] if rng.integers(2) else words[2:]
        a, b = (int(x) for x in words.view(np.uint64))
        got = run_snippet(kernels[f"d{number}"], np.zeros((64, 1), np.uint32), words)[0, 16:19]
        result, scc = WIDE[text](a, b)
        assert int(got[0]) | int(got[1]) << 32 == result & M64, (a, b)
        assert int(got[2]) == int(scc), (a, b)


def test_addk_extends_its_constant(kernels):
    for value in VALUES:
        words = np.array([value], np.uint32)
        got = run_snippet(kernels["addk"], np.zeros((64, 1), np.uint32), words)[0, 16]
        assert int(got) == value - 0x7FFF & M32


def test_saveexec_combines_masks(kernels):
    """A source combined with EXEC becomes EXEC: `a | exec`, and `a & ~exec`."""
    words = np.random.default_rng().integers(0, 1 << 32, 4, np.uint32)
    old, mask = np.unpackbits(words.view(np.uint8), bitorder="little").reshape(2, 64).astype(bool)
    got = run_snippet(kernels["or_saveexec"], np.zeros((64, 1), np.uint32), words)[:, 16]
    np.testing.assert_array_equal(got, np.where(old, 9, np.where(mask, 7, 0)))
    got = run_snippet(kernels["andn2_saveexec"], np.zeros((64, 1), np.uint32), words)[:, 16:18]
    np.testing.assert_array_equal(got[:, 0], np.where(mask & ~old, 7, 0))
    np.testing.assert_array_equal(got[:, 1], np.where(old, 9, 0))


def test_carry_and_wide_shift(kernels):
    words = np.random.default_rng().integers(0, 1 << 32, 4, np.uint32)
    low, high = (int(x) for x in words.view(np.uint64))
    got = run_snippet(kernels["wide"], np.zeros((64, 1), np.uint32), words)[0, 16:20].copy()
    assert int(got.view(np.uint64)[0]) == low + high & M64
    assert int(got.view(np.uint64)[1]) == low >> 9


def test_saveexec_splits_the_lanes(kernels):
    mask = np.random.default_rng().integers(0, 1 << 32, 2, np.uint32)
    on = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    got = run_snippet(kernels["saveexec"], np.zeros((64, 1), np.uint32), mask)[:, 16]
    np.testing.assert_array_equal(got, np.where(on, 7, 9))


def test_bits_without_a_value_may_be_merged_but_not_used(kernels):
    mask = np.array([0x0F0F, 0xFFFF0000], np.uint32)
    on = np.unpackbits(mask.view(np.uint8), bitorder="little")
    got = run_snippet(kernels["merged_mask"], np.zeros((64, 1), np.uint32), mask)[:, 16]
    np.testing.assert_array_equal(got, on)
    with pytest.raises(Fault, match="uninitialized_sgpr"):
        run_snippet(kernels["unset_mask"], np.zeros((64, 1), np.uint32))
