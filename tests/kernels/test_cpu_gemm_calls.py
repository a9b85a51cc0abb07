"""How the CPU's skinny_gemm may be called: strides, empty operands, threads, refusals."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from mi300_inductor import ops

from . import reference
from .gemm_cases import BF16, E5M2, F16, F32, FN, FNUZ, PAIRS, check_call, make_args, values

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


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
    copied = torch.ops.mi300.skinny_gemm(same_rows.contiguous(), *args[1:])
    assert torch.equal(got, copied)


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
        (
            [A, W, None, None, torch.ones(4), None, F32],
            r"bias .*got \[4\], expected \[3\]",
        ),
        (
            [A, W, None, None, None, torch.ones(3, 2), F32],
            r"addend does not fit; got \[3, 2\], expected \[2, 3\] or \[3\]",
        ),
        ([A, W, None, None, torch.ones(3, dtype=torch.int32), None, F32], "bias"),
    ],
)
def test_bad_input_is_refused_with_advice(args, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        torch.ops.mi300.skinny_gemm(*args)
    text = str(caught.value).splitlines()[0]
    assert text.startswith("skinny_gemm: ") and text.rstrip().endswith(".")
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
    with mode, pytest.raises(RuntimeError) as caught:
        torch.ops.mi300.skinny_gemm(*fakes)
    assert str(caught.value) == text, "a compiled call fails in other words"


@pytest.mark.parametrize("pair", PAIRS)
def test_a_list_gives_the_bits_of_single_calls(pair, rng):
    out_dtype = rng.choice([F32, BF16, F16])
    has_bias = rng.choice([False, True])
    singles = []
    for n in (17, 40, 64):
        a, weight, *scales, _, _, _ = make_args(rng, 5, n, 70, *pair)
        singles.append((a, weight, *scales, values((n,), F32) if has_bias else None))
    lists = [None if one[0] is None else list(one) for one in zip(*singles, strict=True)]
    got = torch.ops.mi300.skinny_gemm_list(*lists, out_dtype)
    for result, args in zip(got, singles, strict=True):
        want = torch.ops.mi300.skinny_gemm(*args, None, out_dtype)
        assert torch.equal(result, want) and result.dtype == out_dtype, rng.drawn_seed


@pytest.mark.parametrize("pair", [(FN, FN), (FNUZ, E5M2), (BF16, BF16), (F16, F16), (F32, F32)])
def test_a_row_does_not_depend_on_the_other_rows(pair, rng):
    """Up to 8 rows and beyond them, where sums are taken in another order.

    So is one row's sum of bf16 and FP8 where a matrix unit takes the other rows.
    """
    n, k = 130, 1100
    one = (1,) if pair[0] in (F16, F32) else ()
    for m, counts in ((8, (*one, 2, 3, 4, 7)), (70, (9, 16, 17, 64, 65))):
        args = make_args(rng, m, n, k, *pair)
        args[2:6] = [torch.rand(()) if x is not None else None for x in args[2:4]] + [None, None]
        whole = torch.ops.mi300.skinny_gemm(*args)
        for rows in counts:
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
            (600, 520, 300),
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


@pytest.mark.parametrize("q_dtype", [FN, FNUZ, E5M2])
@pytest.mark.parametrize("scaling", ["div", "mul", "mul_reciprocal"])
def test_a_quantised_result_has_the_codes_of_the_unquantised_one(q_dtype, scaling, rng):
    limit = rng.choice([torch.finfo(q_dtype).max, 3.0, float("inf")])
    for pair in ((FN, FN), (BF16, BF16), (F32, F32)):
        args = make_args(rng, rng.choice([1, 9, 70]), 97, 130, *pair)
        args[0].view(torch.int8)[0, :8] = -1  # NaN, in every format
        y, scale = torch.ops.mi300.skinny_gemm(*args), torch.rand(1) * 0.1
        target = (q_dtype, scaling, rng.choice([F32, BF16]), -limit, limit)
        got = torch.ops.mi300.skinny_gemm_quant(*args, scale, *target)
        want = reference.codes(y, scale, *target)
        assert got.dtype == want.dtype == q_dtype and got.isnan().any()
        assert torch.equal(got.isnan(), want.isnan()), rng.drawn_seed
        equal = got.view(torch.uint8) == want.view(torch.uint8)
        assert (equal | want.isnan()).all(), rng.drawn_seed


def test_the_python_function_quantises_to_the_usual_format(rng):
    a, weight, scale = values((3, 64), BF16), values((40, 64), BF16), torch.tensor([0.25])
    got = ops.skinny_gemm_quant(a, weight, scale)
    want = reference.codes(ops.skinny_gemm(a, weight), scale, FN, "div", F32, -448.0, 448.0)
    assert got.dtype == FN and torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    with pytest.raises(RuntimeError, match="skinny_gemm_quant: the result is not written"):
        ops.skinny_gemm_quant(a, weight, scale, return_y=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_dtype": F16}, "skinny_gemm_quant: unsupported q_dtype; got Half, expected"),
        ({"scale": torch.ones(3)}, r"skinny_gemm_quant: the scale .* got \[3\] Float, expected"),
        ({"scaling": "times"}, "skinny_gemm_quant: unknown scaling; got 'times', expected div"),
        ({"scale_a": torch.ones(1)}, "skinny_gemm: scale_a goes with FP8 operands"),
    ],
)
def test_what_cannot_be_quantised_is_refused(change, words):
    arguments = {"a": torch.ones(2, 8), "weight": torch.ones(4, 8), "scale": torch.ones(1)}
    arguments |= change
    with pytest.raises(RuntimeError, match=words):
        ops.skinny_gemm_quant(**arguments)
    if "scaling" in change:
        return
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=words):
        fakes = {
            n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v
            for n, v in arguments.items()
        }
        ops.skinny_gemm_quant(**fakes)
