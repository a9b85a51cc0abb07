"""Loads and stores of every width against numpy: global memory, LDS, scalar loads, branches."""

from __future__ import annotations

import numpy as np
import pytest

from .snippets import LANES, assemble_snippets, run_snippet

# Instruction of a load: bytes, and what the 32-bit register holds (NumPy type of the value).
LOADS = {
    "global_load_ubyte": (1, np.uint8),
    "global_load_sbyte": (1, np.int8),
    "global_load_ushort": (2, np.uint16),
    "global_load_sshort": (2, np.int16),
    "global_load_dword": (4, np.uint32),
    "global_load_dwordx2": (8, np.uint32),
    "global_load_dwordx3": (12, np.uint32),
    "global_load_dwordx4": (16, np.uint32),
}
STORES = {
    "global_store_byte": 1,
    "global_store_short": 2,
    "global_store_dword": 4,
    "global_store_dwordx2": 8,
    "global_store_dwordx3": 12,
    "global_store_dwordx4": 16,
}
LDS = {
    "b8": ("u8", 1),
    "b16": ("u16", 2),
    "b32": ("b32", 4),
    "b64": ("b64", 8),
    "b128": ("b128", 16),
}
ROW = 128  # bytes of a lane's inputs and outputs: the snippets' 32 registers


def _registers(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def _lds_body(write: str, read: str, size: int) -> str:
    """Lane l writes at l * 16 and reads what lane l ^ 1 wrote."""
    data, result = _registers(0, -(-size // 4)), _registers(16, -(-size // 4))
    return f"""
  v_mbcnt_lo_u32_b32 v24, -1, 0
  v_mbcnt_hi_u32_b32 v24, -1, v24
  v_lshlrev_b32 v25, 4, v24
  v_xor_b32 v26, 16, v25
  ds_write_{write} v25, {data}
  s_waitcnt lgkmcnt(0)
  ds_read_{read} {result}, v26
  s_waitcnt lgkmcnt(0)
"""


def _pair_body(kind: str, words: int, strided: str) -> str:
    """Two values at a time: side by side, the first one higher, or 64 values apart."""
    first, second = _registers(0, words), _registers(words, words)
    offsets = "offset0:0 offset1:1" if strided else "offset0:1 offset1:0"
    shift = (2 if strided else 3) + (words == 2)
    return f"""
  v_mbcnt_lo_u32_b32 v24, -1, 0
  v_mbcnt_hi_u32_b32 v24, -1, v24
  v_lshlrev_b32 v25, {shift}, v24
  ds_write2{strided}_{kind} v25, {first}, {second} {offsets}
  s_waitcnt lgkmcnt(0)
  ds_read2{strided}_{kind} {_registers(16, 2 * words)}, v25 {offsets}
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v20, v25
  s_waitcnt lgkmcnt(0)
"""


def _bodies() -> dict[str, str]:
    bodies = {}
    for name, (size, _) in LOADS.items():
        result = _registers(16, -(-size // 4))
        bodies[name] = f"  {name} {result}, v40, s[4:5] offset:20\n  s_waitcnt vmcnt(0)\n"
    for name, size in STORES.items():
        data = _registers(0, -(-size // 4))
        bodies[name] = f"""
  global_store_dwordx4 v40, v[4:7], s[6:7]
  {name} v40, {data}, s[6:7]
  s_waitcnt vmcnt(0)
  global_load_dwordx4 v[16:19], v40, s[6:7]
  s_waitcnt vmcnt(0)
"""
    for write, (read, size) in LDS.items():
        bodies[f"lds_{write}"] = _lds_body(write, read, size)
    bodies["pair_b32"] = _pair_body("b32", 1, "")
    bodies["pair_b64"] = _pair_body("b64", 2, "")
    bodies["pair_st64_b32"] = _pair_body("b32", 1, "st64")
    for name, count in (("", 1), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16)):
        to = f"s{32}" if count == 1 else f"s[32:{31 + count}]"
        moves = "".join(f"  v_mov_b32 v{16 + k}, s{32 + k}\n" for k in range(count))
        bodies[f"scalar{name}"] = (
            f"  s_load_dword{name} {to}, s[4:5], 0x40\n  s_waitcnt lgkmcnt(0)\n{moves}"
        )
    return bodies


@pytest.fixture(scope="module")
def kernels():
    return assemble_snippets(_bodies())


def _random(columns: int = 32) -> np.ndarray:
    return np.random.default_rng().integers(0, 1 << 32, (LANES, columns), np.uint32)


@pytest.mark.parametrize("name", LOADS)
def test_global_load_takes_the_bytes_at_its_offset(kernels, name):
    bits = _random()
    size, kind = LOADS[name]
    raw = bits.view(np.uint8).reshape(LANES, ROW)[:, 20 : 20 + size].copy()
    expected = raw.view(kind).astype(np.int64) & 0xFFFFFFFF  # sub-dwords are extended
    got = run_snippet(kernels[name], bits)[:, 16 : 16 + -(-size // 4)]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", STORES)
def test_global_store_writes_its_bytes_alone(kernels, name):
    bits, size = _random(), STORES[name]
    got = run_snippet(kernels[name], bits)[:, 16:20].copy().view(np.uint8)
    stored, below = bits[:, 0:4].copy().view(np.uint8), bits[:, 4:8].copy().view(np.uint8)
    np.testing.assert_array_equal(got[:, :size], stored[:, :size])
    np.testing.assert_array_equal(got[:, size:], below[:, size:])


@pytest.mark.parametrize("write", LDS)
def test_lds_passes_every_width_to_another_lane(kernels, write):
    bits, size = _random(), LDS[write][1]
    words = -(-size // 4)
    expected = bits.reshape(LANES // 2, 2, 32)[:, ::-1].reshape(LANES, 32)[:, :words].copy()
    if size < 4:
        expected &= (1 << 8 * size) - 1
    got = run_snippet(kernels[f"lds_{write}"], bits)[:, 16 : 16 + words]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name,words", [("pair_b32", 1), ("pair_b64", 2), ("pair_st64_b32", 1)])
def test_lds_pairs_keep_their_order(kernels, name, words):
    bits = _random()
    got = run_snippet(kernels[name], bits)[:, 16:21]
    np.testing.assert_array_equal(got[:, : 2 * words], bits[:, : 2 * words])
    lower = 0 if "st64" in name else words  # the register at the lower address
    np.testing.assert_array_equal(got[:, 4], bits[:, lower])


@pytest.mark.parametrize("name,count", [("", 1), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16)])
def test_scalar_load_is_the_same_in_every_lane(kernels, name, count):
    bits = _random()
    got = run_snippet(kernels[f"scalar{name}"], bits)[:, 16 : 16 + count]
    np.testing.assert_array_equal(got, np.tile(bits[0, 16 : 16 + count], (LANES, 1)))


BRANCHES = {
    "s_cbranch_scc0": "  s_cmp_lg_u32 s16, 0\n",
    "s_cbranch_scc1": "  s_cmp_eq_u32 s16, 0\n",
    "s_cbranch_vccz": "  s_mov_b64 vcc, s[16:17]\n",
    "s_cbranch_vccnz": "  s_cmp_eq_u32 s16, 0\n  s_cselect_b64 vcc, -1, 0\n",
    "s_cbranch_execz": "  s_mov_b64 exec, s[16:17]\n",
    "s_cbranch_execnz": "  s_cmp_eq_u32 s16, 0\n  s_cselect_b64 exec, -1, 0\n",
    "s_branch": "",
}


@pytest.fixture(scope="module")
def branches():
    return assemble_snippets(
        {
            name: f"  s_mov_b32 s24, 1\n{setup}  {name} .L{name}_over\n  s_mov_b32 s24, 2\n"
            f".L{name}_over:\n  s_mov_b64 exec, -1\n  v_mov_b32 v16, s24\n"
            for name, setup in BRANCHES.items()
        }
    )


@pytest.mark.parametrize("value", [0, 5])
@pytest.mark.parametrize("name", BRANCHES)
def test_branch_is_taken_when_its_condition_holds(branches, name, value):
    """Every condition is set up so that it holds for 0."""
    got = run_snippet(branches[name], _random(1), np.array([value, 0], np.uint32))[:, 16]
    is_taken = value == 0 or name == "s_branch"
    np.testing.assert_array_equal(got, np.full(LANES, 1 if is_taken else 2))
