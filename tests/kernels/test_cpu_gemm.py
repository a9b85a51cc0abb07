"""The CPU's skinny_gemm against float64, torch's own matmuls and itself.

Every check draws fresh inputs; a failure names the seed. Outputs are filled with NaN before each
call, so an unwritten one shows. The checks of `check_level` run for lower instruction sets too,
each in its own process.
"""

import itertools
import pathlib
import random
import shutil
import subprocess
import sys

import pytest
import torch

from mi300_inductor import build, ops

if __name__ == "__main__":
    from importlib import import_module

    reference = import_module("reference")
else:
    from . import reference

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
FLOATS = (F32, BF16, F16)
FN, FNUZ, E5M2 = reference.FP8
PAIRS = [*itertools.product(reference.FP8, reference.FP8), *((dtype, dtype) for dtype in FLOATS)]
NAN_CODES = {FN: [0x7F, 0xFF], FNUZ: [0x80], E5M2: [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]}
# Around the tiles of 4 rows, panels of 3 or 6 columns, units of 16 or 32, blocks of 48, 64 and 96.
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 63, 64, 65, 70, 130]
COLUMNS = [1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 95, 96, 97, 200]
DEPTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1000, 1041]


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """`torch.empty` returns NaN, so an output that a kernel leaves unwritten is seen."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def rng():
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    generator = random.Random(seed)
    generator.drawn_seed = seed
    return generator


def values(shape, dtype):
    """Random values with outliers, zeros and values that are subnormal in FP8 and fp16."""
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[torch.rand(flat.shape) < 0.02] *= 50.0
    flat[torch.rand(flat.shape) < 0.05] = 0.0
    flat[torch.rand(flat.shape) < 0.02] = -0.0
    flat[torch.rand(flat.shape) < 0.05] *= 2.0**-9
    flat[torch.rand(flat.shape) < 0.02] *= 2.0**-20
    return x.to(dtype)


def codes_of(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def make_args(rng, m, n, k, a_dtype, weight_dtype):
    """Operands with every form of scales, bias and addend, and any out_dtype."""
    scales = [None, None]
    if a_dtype in reference.FP8:
        scales = [
            torch.rand(rng.choice([(), (1,), (length,), shape])) + 0.1
            for length, shape in ((m, (m, 1)), (n, (1, n)))
        ]
    bias = rng.choice([None, values((n,), rng.choice(FLOATS))])
    addend = rng.choice([None, values(rng.choice([(n,), (m, n)]), rng.choice(FLOATS))])
    operands = [values((m, k), a_dtype), values((n, k), weight_dtype)]
    return [*operands, *scales, bias, addend, rng.choice(FLOATS)]


def magnitude(args):
    """The sum of the absolute values of everything that is added up, in float64."""
    a, weight, scale_a, scale_b, bias, addend = (
        x if x is None else x.double().abs() for x in args[:6]
    )
    total = a @ weight.T
    if scale_a is not None:
        total = total * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    return total + sum(x for x in (bias, addend) if x is not None)


def check_call(args, seed):
    """At most half an ulp of each rounding away from float64, and float32's error of the sum."""
    got = torch.ops.mi300.skinny_gemm(*args)
    expected = reference.skinny_gemm(*args).double()
    out_dtype = args[-1]
    assert got.dtype == out_dtype and got.shape == expected.shape and got.is_contiguous()
    depth = args[0].shape[1]
    sum_error = (depth / 8 + 8) * 2.0**-24 * magnitude(args)
    ulp = torch.finfo(out_dtype).eps
    bound = sum_error + ulp * (expected.abs() + sum_error) * (2 if args[5] is not None else 1)
    bound += torch.finfo(out_dtype).smallest_normal * ulp
    worst = ((got.double() - expected).abs() - bound).nan_to_num(nan=torch.inf).max().item()
    assert worst <= 0, f"{worst} beyond the bound, {[x.shape for x in args[:2]]}, seed {seed}"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(str(d)[6:] for d in pair))
def test_sums_equal_float64_within_float32(pair, rng):
    for _ in range(25):
        m, n, k = rng.choice(ROWS), rng.choice(COLUMNS), rng.choice(DEPTHS)
        check_call(make_args(rng, m, n, k, *pair), rng.drawn_seed)


@pytest.mark.parametrize("k", DEPTHS)
def test_every_depth(k, rng):
    for pair in ((FN, FN), (E5M2, FNUZ), (BF16, BF16), (F32, F32)):
        for m in (1, 4, 9):
            check_call(make_args(rng, m, 8, k, *pair), rng.drawn_seed)


@pytest.mark.parametrize("m", ROWS + [256, 257, 300])
def test_every_row_count(m, rng):
    for pair in ((FN, FN), (F16, F16)):
        check_call(make_args(rng, m, rng.choice(COLUMNS), 70, *pair), rng.drawn_seed)


def check_every_code(dtype, rows, k):
    """Products with one are exact, wherever the code stands; NaN and infinity come out."""
    codes = codes_of(dtype)
    one = torch.ones(1)
    for position in {0, k // 3, k // 2, k - 1}:
        table = torch.zeros(256, k).to(dtype).view(torch.uint8)
        table[:, position] = codes.view(torch.uint8)
        picks = torch.zeros(rows, k)
        picks[:, position] = 1.0
        for other in reference.FP8:
            args = [one, one, None, None, F32]
            as_weight = torch.ops.mi300.skinny_gemm(picks.to(other), table.view(dtype), *args)
            as_rows = torch.ops.mi300.skinny_gemm(table.view(dtype), picks.to(other), *args)
            expected = codes.float().expand(rows, 256)
            assert torch.equal(as_weight.isnan(), expected.isnan()), (dtype, other, position)
            assert torch.equal(as_weight.nan_to_num(), expected.nan_to_num())
            assert torch.equal(as_rows.T.nan_to_num(), as_weight.nan_to_num())
            assert torch.equal(as_rows.T.isnan(), expected.isnan())


@pytest.mark.parametrize("dtype", reference.FP8)
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (2, 70), (20, 130), (3, 1030)])
def test_every_code_as_weight_and_as_activation(dtype, rows, k):
    check_every_code(dtype, rows, k)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(reference.FP8, repeat=2)))
def test_every_product_of_two_codes(first, second):
    a, weight, one = codes_of(first)[:, None], codes_of(second)[:, None], torch.ones(())
    got = torch.ops.mi300.skinny_gemm(a, weight, one, one, None, None, F32)
    expected = a.float() * weight.float().T
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("pair", PAIRS)
def test_nan_and_infinity_propagate(pair, rng):
    for m, n, k in ((1, 7, 33), (5, 40, 600), (17, 100, 64)):
        args = make_args(rng, m, n, k, *pair)
        for operand, dtype in zip(args[:2], pair, strict=True):
            row, column = rng.randrange(operand.shape[0]), rng.randrange(k)
            if dtype in reference.FP8:
                bad = [*NAN_CODES[dtype], *([0x7C, 0xFC] if dtype == E5M2 else [])]
                operand.view(torch.uint8)[row, column] = rng.choice(bad)
            else:
                operand[row, column] = rng.choice([float("nan"), float("inf"), -float("inf")])
        got = torch.ops.mi300.skinny_gemm(*args).float()
        expected = reference.skinny_gemm(*args).float()
        assert not expected.isfinite().all()
        assert torch.equal(got.isnan(), expected.isnan()), rng.drawn_seed
        assert torch.equal(got[got.isinf()], expected[got.isinf()]), rng.drawn_seed
        assert torch.equal(got.isinf(), expected.isinf()), rng.drawn_seed


def error_of(result, exact):
    return (result.double() - exact).square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [64, 1000, 8192])
def test_error_is_no_larger_than_that_of_mm(dtype, k, rng):
    a, weight = torch.randn(9, k).to(dtype), torch.randn(64, k).to(dtype)
    exact = a.double() @ weight.double().T
    ours = torch.ops.mi300.skinny_gemm(a, weight, None, None, None, None, dtype)
    # Both round once to the same dtype; the margin is for which way single elements fall.
    assert error_of(ours, exact) <= 1.1 * error_of(a @ weight.T, exact), rng.drawn_seed


@pytest.mark.parametrize("out_dtype", [F32, BF16])
@pytest.mark.parametrize("k", [64, 4096])
def test_error_is_no_larger_than_that_of_scaled_mm(out_dtype, k, rng):
    a, weight = torch.randn(4, k).to(FN), torch.randn(32, k).to(FN)
    scales = [torch.rand(()) + 0.5, torch.rand(()) + 0.5]
    exact = a.double() @ weight.double().T * (scales[0] * scales[1]).double()
    ours = torch.ops.mi300.skinny_gemm(a, weight, *scales, None, None, out_dtype)
    theirs = torch._scaled_mm(a, weight.T, *scales, out_dtype=out_dtype)
    assert error_of(ours, exact) <= 1.1 * error_of(theirs, exact), rng.drawn_seed


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 4), (5, 0, 4), (5, 4, 0), (0, 0, 0), (1, 40, 0)])
def test_empty_operands(m, n, k, rng):
    for pair in ((FN, FN), (BF16, BF16)):
        args = make_args(rng, m, n, k, *pair)
        args[4:6] = [values((n,), F32), None]
        got = torch.ops.mi300.skinny_gemm(*args)
        assert torch.equal(got, args[4].to(args[6]).expand(m, n))


def strided_views(x):
    """The same values behind other strides; gaps hold NaN codes in every format."""
    m, k = x.shape
    fill = -1 if x.element_size() == 1 else float("nan")
    wide = torch.full((m, 2 * k + 3), fill, dtype=torch.int8 if fill == -1 else x.dtype)
    wide = wide.view(x.dtype)
    wide[:, 3 : k + 3] = x
    yield wide[:, 3 : k + 3]
    yield x.t().contiguous().t()
    pairs = torch.full((m, k, 2), fill, dtype=torch.int8 if fill == -1 else x.dtype).view(x.dtype)
    pairs[..., 0] = x
    yield pairs[..., 0]


@pytest.mark.parametrize("pair", [(FN, E5M2), (BF16, BF16), (F32, F32)])
@pytest.mark.parametrize("m", [1, 12])
def test_strides_do_not_matter(pair, m, rng):
    args = make_args(rng, m, 100, 530, *pair)
    expected = torch.ops.mi300.skinny_gemm(*args)
    for a, weight in zip(strided_views(args[0]), strided_views(args[1]), strict=True):
        for operands in ((a, args[1]), (args[0], weight), (a, weight)):
            assert torch.equal(torch.ops.mi300.skinny_gemm(*operands, *args[2:]), expected)
    same_rows = args[0][:1].expand(m, -1)
    args[2:6] = [None if x is None else torch.ones(()) for x in args[2:4]] + [None, None]
    got = torch.ops.mi300.skinny_gemm(same_rows, *args[1:])
    first = torch.ops.mi300.skinny_gemm(args[0][:1], *args[1:])
    assert torch.equal(got, first.expand_as(got))


def test_strided_scales_bias_and_addend(rng):
    m, n, k = 5, 70, 40
    a, weight = values((m, k), FN), values((n, k), FN)
    scale_a, scale_b = torch.rand(m, 2)[:, :1], torch.rand(1, 2 * n)[:, ::2]
    bias, addend = torch.randn(2 * n, dtype=F32)[::2], torch.randn(n, m).to(BF16).t()
    extras = [scale_a, scale_b, bias, addend]
    got = torch.ops.mi300.skinny_gemm(a, weight, *extras, BF16)
    plain = [x.clone(memory_format=torch.contiguous_format) for x in extras]
    assert torch.equal(got, torch.ops.mi300.skinny_gemm(a, weight, *plain, BF16))
    check_call([a, weight, *extras, BF16], rng.drawn_seed)
    check_call([a, weight, *extras[:3], addend[:1].expand(m, n), BF16], rng.drawn_seed)


@pytest.mark.parametrize("pair", [(FN, FN), (FNUZ, E5M2), (BF16, BF16), (F16, F16), (F32, F32)])
def test_a_row_does_not_depend_on_the_other_rows(pair, rng):
    m, n, k = 70, 130, 1100
    args = make_args(rng, m, n, k, *pair)
    args[2:6] = [torch.rand(()) if x is not None else None for x in args[2:4]] + [None, None]
    whole = torch.ops.mi300.skinny_gemm(*args)
    for rows in (1, 2, 3, 4, 8, 9, 64, 65):
        begin = rng.randrange(m - rows + 1)
        part = torch.ops.mi300.skinny_gemm(args[0][begin : begin + rows], *args[1:])
        assert torch.equal(part, whole[begin : begin + rows]), (rows, rng.drawn_seed)
    for columns in (1, 6, 97):
        part = torch.ops.mi300.skinny_gemm(args[0], args[1][:columns], *args[2:])
        assert torch.equal(part, whole[:, :columns]), (columns, rng.drawn_seed)


@pytest.mark.parametrize("pair", [(FN, FN), (BF16, BF16), (F32, F32)])
def test_results_do_not_depend_on_the_number_of_threads(pair, rng):
    before = torch.get_num_threads()
    try:
        for m, n, k in (
            (1, 2000, 1500),
            (5, 997, 700),
            (70, 300, 2000),
            (300, 100, 300),
            (2, 3, 9),
        ):
            args = make_args(rng, m, n, k, *pair)
            results = []
            for threads in (1, 2, 7, 1):
                torch.set_num_threads(threads)
                results.append(torch.ops.mi300.skinny_gemm(*args))
            assert all(torch.equal(results[0], other) for other in results), rng.drawn_seed
    finally:
        torch.set_num_threads(before)


def test_large_operands_do_not_overflow_32_bit_offsets(rng):
    torch.use_deterministic_algorithms(False)
    base = torch.empty(2**31 + 4096, dtype=torch.int8).view(FN)
    far = base.as_strided((5, 64), (2**29, 1))
    near = values((5, 64), FN)
    far.copy_(near)
    a, one = values((2, 64), FN), torch.ones(())
    rest = [one, one, None, None, F32]
    expected = torch.ops.mi300.skinny_gemm(a, near, *rest)
    assert torch.equal(torch.ops.mi300.skinny_gemm(a, far, *rest), expected)
    transposed = torch.ops.mi300.skinny_gemm(far, a, *rest)
    assert torch.equal(transposed, expected.T)


def test_the_python_function_fills_in_the_usual_values(rng):
    a, weight = values((3, 40), FN), values((50, 40), FN)
    scale = torch.rand(())
    got = ops.skinny_gemm(a, weight, scale, scale)
    assert torch.equal(got, torch.ops.mi300.skinny_gemm(a, weight, scale, scale, None, None, BF16))
    half = values((3, 40), F16)
    assert ops.skinny_gemm(half, half).dtype == F16


@pytest.mark.parametrize("pair", [(FN, FNUZ), (BF16, BF16)])
def test_registration(pair, rng):
    torch.use_deterministic_algorithms(False)
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if pair[0] not in reference.FP8:
        checks.append("test_schema")  # compares arguments by arithmetic that FP8 does not have
    for addend in (None, torch.randn(50)):
        args = make_args(rng, 3, 50, 40, *pair)
        args[5] = addend
        op = torch.ops.mi300.skinny_gemm.default
        torch.library.opcheck(op, tuple(args), test_utils=checks)


@pytest.mark.parametrize("pair", [(FN, FN), (BF16, BF16)])
def test_inputs_are_left_as_they_are(pair, rng):
    args = make_args(rng, 3, 50, 40, *pair)
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    before = [x.clone() for x in tensors]
    first = torch.ops.mi300.skinny_gemm(*args)
    kept = first.clone()
    torch.ops.mi300.skinny_gemm(*make_args(rng, 3, 50, 40, *pair))
    pairs = [*zip(tensors, before, strict=True), (first, kept)]
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs if x.dim())


A, W, ONE = torch.ones(2, 4), torch.ones(3, 4), torch.ones(())
NONE = [None, None, None, None]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([torch.ones(2, 5), W, *NONE, F32], "do not fit"),
        ([torch.ones(4), W, *NONE, F32], "do not fit"),
        ([A.to(BF16), W, *NONE, F32], "unsupported operand dtypes"),
        ([A.to(FN), W, ONE, ONE, None, None, F32], "unsupported operand dtypes"),
        ([A.double(), W.double(), *NONE, F32], "dtype"),
        ([A, W, *NONE, torch.float64], "out_dtype"),
        ([A, W, ONE, None, None, None, F32], "scale_a goes with FP8"),
        ([A.to(FN), W.to(FN), ONE, None, None, None, F32], "scale_b goes with FP8"),
        ([A.to(FN), W.to(FN), torch.ones(3), ONE, None, None, F32], "scale_a has the wrong"),
        ([A.to(FN), W.to(FN), ONE, ONE.double(), None, None, F32], "scale_b has the wrong"),
        ([A, W, None, None, torch.ones(4), None, F32], "bias does not fit"),
        ([A, W, None, None, None, torch.ones(3, 2), F32], "addend does not fit"),
        ([A, W, None, None, torch.ones(3, dtype=torch.int32), None, F32], "bias"),
    ],
)
def test_bad_input_is_refused_with_advice(args, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        torch.ops.mi300.skinny_gemm(*args)
    text = str(caught.value).splitlines()[0]
    assert text.startswith("skinny_gemm: ") and text.rstrip().endswith(".")


SOURCES = ("skinny_gemm*", "*.h", "row_ops.cpp", "quantize.cpp")


def check_level(level, csrc):
    """Loads the operator's library of an instruction-set level into this process and checks it.

    `csrc` is a folder for the sources: the operator's own, to be spared the others' compilation.
    """
    from mi300_inductor import op_schemas

    (csrc / "cpu").mkdir()
    (csrc / "include").symlink_to(build.csrc_dir() / "include")
    for path in {path for name in SOURCES for path in (build.csrc_dir() / "cpu").glob(name)}:
        shutil.copy(path, csrc / "cpu")
    build.csrc_dir = lambda: csrc
    op_schemas.release_placeholder("CPU")
    torch.ops.load_library(str(build.build_cpu(level)))
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    for pair in PAIRS:
        for _ in range(8):
            m, n, k = rng.choice(ROWS), rng.choice(COLUMNS), rng.choice(DEPTHS)
            check_call(make_args(rng, m, n, k, *pair), seed)
    for dtype in reference.FP8:
        check_every_code(dtype, 2, 70)
        check_every_code(dtype, 20, 130)


@pytest.mark.parametrize("level", ["default", "avx2"])
def test_lower_instruction_sets(level, tmp_path):
    command = [sys.executable, __file__, level, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    check_level(sys.argv[1], pathlib.Path(sys.argv[2]))
