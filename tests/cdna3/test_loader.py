"""Loading: code objects, listings and metadata that do not fit are refused."""

from __future__ import annotations

import pytest

from .assembly import compile_hip
from .code_object import CodeObjectError, load_code_object
from .listing import read_listing
from .messagepack import unpack
from .program import load_kernels
from .selftest import KERNELS
from .snippets import assemble_snippets


@pytest.fixture(scope="module")
def norm():
    return compile_hip(KERNELS / "norm.hip")


def test_descriptor_and_metadata_are_read(norm):
    code = load_code_object(norm.code_object)
    descriptor = code.descriptors["norm"]
    assert descriptor.group_segment_bytes == 16
    assert descriptor.kernarg_bytes == 32
    assert code.kernels["norm"][".max_flat_workgroup_size"] == 256
    assert [arg[".offset"] for arg in code.kernels["norm"][".args"]] == [0, 8, 16, 20, 24, 28]
    assert code.symbols["norm"].address == descriptor.entry


def test_every_branch_of_the_listing_is_resolved(norm):
    code = load_code_object(norm.code_object)
    lines = read_listing(norm.encoded, code)
    branches = [line for line in lines if line.label]
    assert branches
    assert {line.target for line in branches} <= {line.pc for line in lines}


def test_one_changed_byte_is_noticed(norm):
    code = load_code_object(norm.code_object)
    start = norm.code_object.index(code.text)
    entry = code.symbols["norm"].address - code.text_address
    for at in (entry, entry + 8, entry + code.symbols["norm"].size - 4):
        changed = bytearray(norm.code_object)
        changed[start + at] ^= 1
        with pytest.raises(CodeObjectError, match="bytes differ|lacks"):
            load_kernels(norm, bytes(changed))


def test_changed_branch_distance_is_noticed(norm):
    code = load_code_object(norm.code_object)
    line = next(line for line in read_listing(norm.encoded, code) if line.label)
    changed = bytearray(norm.code_object)
    changed[norm.code_object.index(code.text) + line.pc] ^= 1
    with pytest.raises(CodeObjectError, match="goes to"):
        load_kernels(norm, bytes(changed))


def test_another_machine_is_refused(norm):
    changed = bytearray(norm.code_object)
    changed[48] = 0x3F  # gfx90a
    with pytest.raises(CodeObjectError, match="gfx942"):
        load_code_object(bytes(changed))


def test_unknown_instruction_is_named():
    kernels = assemble_snippets({"sine": "  v_sin_f32_e32 v16, v0\n"})
    with pytest.raises(CodeObjectError, match="unknown instruction 'v_sin_f32_e32 v16, v0'"):
        kernels["sine"]


def test_messagepack_reads_what_the_format_allows():
    data = bytes.fromhex("85a161ff a162cd0102 a163d9036b6579 a16492c0c3 a165cb3ff8000000000000")
    assert unpack(data) == {"a": -1, "b": 258, "c": "key", "d": [None, True], "e": 1.5}
    for broken in ("a5616263", "c7"):
        with pytest.raises(ValueError, match="messagepack"):
            unpack(bytes.fromhex(broken))
