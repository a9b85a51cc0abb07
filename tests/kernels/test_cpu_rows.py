"""The CPU's norm and activation operators against their formulas in plain PyTorch.

Every check draws fresh inputs with outliers, zeros, subnormals, NaN and infinities among them; a
failure names the seed. Outputs are filled with NaN before each call, so an unwritten one shows.
"""

import itertools

import pytest
import torch

from . import reference
from .row_cases import (
    BF16,
    F16,
    F32,
    FP8_MAX,
    OPS,
    ROW_OPS,
    check_call,
    make_args,
    named,
    ordered,
    same_bits,
    values,
)

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


@pytest.mark.parametrize("hidden", [1, 7, 64, 769, 4096, 33000])
@pytest.mark.parametrize("op", ROW_OPS)
def test_operator_equals_the_formula(op, hidden, rng):
    rows = 3 if hidden > 4096 else 13
    for dtypes in ([BF16], [F16], [F32], [F32, BF16, F16]):
        for shape in ((1, hidden), (rows, hidden)):
            check_call(op, make_args(op, rng, shape, dtypes), rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
def test_nan_and_infinity_propagate(op, rng):
    for _ in range(12):
        check_call(op, make_args(op, rng, (9, 129), [F32, BF16, F16], True), rng.drawn_seed)


@pytest.mark.parametrize("op", [op for op in ROW_OPS if "norm" in op])
def test_squares_that_overflow_propagate_as_in_the_formula(op, rng):
    """Their sum is infinite in any order, so the row is zero; what overflows before is NaN."""
    for exponent in (64, 100, 126):
        args = make_args(op, rng, (9, 129), [F32, BF16])
        args[0] *= 2.0**exponent
        check_call(op, args, rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 64), (2, 1, 3, 17), (1, 2, 1, 2, 33)])
def test_any_number_of_dimensions(op, shape, rng):
    check_call(op, make_args(op, rng, shape, [BF16, F32]), rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 8), (0,), (4, 0)])
def test_empty_input_gives_empty_outputs_of_the_right_shape(op, shape, rng):
    args = make_args(op, rng, shape, [BF16])
    if op.endswith("dynamic"):
        args[-11] = -1
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        fakes = [[mode.from_tensor(s) for s in a] if isinstance(a, list) else a for a in fakes]
        fake = named(op, getattr(OPS, op)(*fakes))
    for name, tensor in named(op, getattr(OPS, op)(*args)).items():
        assert tensor.shape == fake[name].shape and tensor.dtype == fake[name].dtype, name


def strided_views(x):
    """The same values as `x` [rows, hidden] behind other strides."""
    rows, hidden = x.shape
    wide = torch.full((rows, 2 * hidden + 3), float("nan"), dtype=x.dtype)
    wide[:, 3 : hidden + 3] = x
    yield "row stride", wide[:, 3 : hidden + 3]
    yield "last stride", torch.stack([x, x + 1], -1)[..., 0]
    yield "transposed", x.t().contiguous().t()
    yield "blocks", x.reshape(1, rows, hidden).expand(3, rows, hidden)
    yield "overlap", x.reshape(-1).as_strided((rows, hidden), (1, 1))


@pytest.mark.parametrize("op", ROW_OPS)
def test_strides_do_not_matter(op, rng):
    args = make_args(op, rng, (6, 100), [BF16, F32])
    both = not isinstance(args[1], torch.Tensor) or op.startswith(("add", "silu"))
    for (name, first), (_, second) in zip(
        strided_views(args[0]),
        strided_views(args[1] if both and isinstance(args[1], torch.Tensor) else args[0]),
        strict=True,
    ):
        given = [first, second, *args[2:]] if op.startswith(("add", "silu")) else [first, *args[1:]]
        plain = [a.clone(memory_format=torch.contiguous_format) for a in given[:2] if a is not None]
        got = named(op, getattr(OPS, op)(*given))
        expected = named(op, getattr(OPS, op)(*plain, *given[len(plain) :]))
        for key, tensor in got.items():
            assert tensor.is_contiguous() and same_bits(tensor, expected[key]), (name, key)


def test_packed_gate_and_up_are_read_in_place(rng):
    packed = values((9, 2 * 136), BF16)
    for gate, up in (packed.chunk(2, -1), packed.split(136, -1)):
        check_call("silu_mul", [gate, up, None, BF16, BF16], rng.drawn_seed)


def test_rows_beyond_two_gibi_elements(rng):
    torch.use_deterministic_algorithms(False)
    base = torch.empty(2**31 + 64, dtype=BF16)
    far = base.as_strided((3, 64), (2**30, 1))
    near = values((3, 64), BF16)
    far.copy_(near)
    rest = [None, 1e-6, 0.0, BF16, BF16]
    assert same_bits(OPS.rms_norm(far, *rest), OPS.rms_norm(near, *rest))


@pytest.mark.parametrize("op", ROW_OPS)
def test_results_do_not_depend_on_the_number_of_threads(op, rng):
    before = torch.get_num_threads()
    try:
        for shape in ((1, 200_001), (5, 9000), (300, 257)):
            args = make_args(op, rng, shape, [F32, BF16])
            results = []
            for threads in (1, 2, 7):
                torch.set_num_threads(threads)
                results.append(named(op, getattr(OPS, op)(*args)))
            for other in results[1:]:
                assert all(same_bits(results[0][k], v) for k, v in other.items()), rng.drawn_seed
    finally:
        torch.set_num_threads(before)


def fp8_inputs():
    """Every bf16 value and, around every FP8 code's midpoints, the floats next to them."""
    all_bf16 = (torch.arange(65536, dtype=torch.int32) << 16).view(F32)
    codes = [torch.arange(256, dtype=torch.uint8).view(dtype).float() for dtype in reference.FP8]
    known = torch.cat(codes)
    known = known[known.isfinite()].unique()
    middle = (known[1:] + known[:-1]) / 2
    bits = torch.cat([known, middle, middle * 2]).view(torch.int32)
    near = torch.cat([bits + step for step in (-2, -1, 0, 1, 2)]).view(F32)
    noise = torch.randint(-(2**31), 2**31, (200_000,), dtype=torch.int64).to(torch.int32).view(F32)
    return torch.cat([all_bf16, near, -near, noise])


@pytest.mark.parametrize("q_dtype", reference.FP8)
def test_codes_equal_the_cast_of_this_torch(q_dtype, rng):
    x = fp8_inputs()
    # silu(1.2785) is 1.0 in bf16, so y is `up`.
    gate = torch.full_like(x, 1.2785)
    args = [gate, x, None, BF16, F32]
    inf = float("inf")
    q, y = OPS.silu_mul_quant(*args, [torch.ones(1)], q_dtype, "div", F32, -inf, inf, True)
    assert same_bits(y, x)
    assert same_bits(q, x.to(q_dtype)), rng.drawn_seed


def every_bf16():
    return (torch.arange(65536, dtype=torch.int32) << 16).view(F32).to(BF16)


@pytest.mark.parametrize("scaling", ["div", "mul", "mul_reciprocal"])
@pytest.mark.parametrize("q_dtype", reference.FP8)
def test_codes_of_every_bf16_value(q_dtype, scaling, rng):
    """The usual clamp and dtypes, which have code of their own, with scales that make ties."""
    up = every_bf16()[: 65536 - rng.randint(0, 40)]
    gate = torch.full_like(up, 1.2785)  # its silu is 1.0 in bf16, so y is `up`
    bound = FP8_MAX[q_dtype]
    for scale in (1.0, 0.75, 1 / 3, rng.uniform(1e-3, 1e-1), 2.0**-70, 1e30, float("inf")):
        quant = [[torch.tensor([scale])], q_dtype, scaling, F32, -bound, bound, True]
        q, y = OPS.silu_mul_quant(gate, up, None, BF16, BF16, *quant)
        assert same_bits(y, up)
        expected, _ = reference._quant(y, *quant)
        assert same_bits(q, expected), (scale, rng.drawn_seed)


def test_silu_of_every_bf16_gate():
    gate = every_bf16()
    y = OPS.silu_mul(gate, torch.ones_like(gate), None, BF16, BF16)
    expected = torch.nn.functional.silu(gate)
    assert torch.equal(y.isnan(), expected.isnan())
    distance = (ordered(y) - ordered(expected)).abs().where(~y.isnan(), 0)
    assert distance.max() <= 1 and (distance > 0).sum() <= 65


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("op", ROW_OPS)
def test_the_usual_bf16_case_equals_the_formula(op, special, rng):
    """All bf16, a weight without offset, an even clamp: this has code of its own."""
    for hidden in (1, 31, 33, 1024, 1057, 4096):
        args = make_args(op, rng, (4, hidden), [BF16], special)
        if op.startswith("silu"):
            args[2] = None
        else:
            start = 3 if op.startswith("add") else 0
            args[start + 1 : start + 4] = [values((hidden,), BF16), 1e-6, 0.0]
            args[start + 4] = rng.choice([F32, BF16])
        if "quant" in op:
            bound = FP8_MAX[args[-6]]
            args[-4:-1] = [F32, -bound, bound]
        check_call(op, args, rng.drawn_seed)


def test_a_second_call_does_not_touch_the_first_result(rng):
    args = make_args("add_rms_norm_quant", rng, (4, 64), [BF16])
    first = named("add_rms_norm_quant", OPS.add_rms_norm_quant(*args))
    kept = {name: tensor.clone() for name, tensor in first.items()}
    OPS.add_rms_norm_quant(*make_args("add_rms_norm_quant", rng, (4, 64), [BF16]))
    assert all(same_bits(tensor, kept[name]) for name, tensor in first.items())


def args_with_finite_results(op, rng):
    """opcheck takes no NaN of an FP8 dtype for equal, and codes beyond the format are NaN."""
    while True:
        args = make_args(op, rng, (4, 64), [BF16])
        if all(t.float().isfinite().all() for t in named(op, getattr(OPS, op)(*args)).values()):
            return args


@pytest.mark.parametrize("op", ROW_OPS)
def test_registration(op, rng):
    torch.use_deterministic_algorithms(False)
    args = args_with_finite_results(op, rng)
    torch.library.opcheck(getattr(OPS, op).default, tuple(args))


NORM = [None, 1e-6, 0.0, BF16, BF16]
TARGET = [torch.float8_e4m3fn, "div", F32, -448.0, 448.0, False]
ONE = [torch.ones(1)]


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("rms_norm", [torch.ones(()), *NORM], "got a 0-D tensor"),
        ("rms_norm", [torch.ones(2, 4, dtype=torch.int32), *NORM], "unsupported input dtype"),
        ("rms_norm", [torch.ones(2, 4), torch.ones(3), *NORM[1:]], "does not fit the last"),
        ("rms_norm", [torch.ones(2, 4), None, 1e-6, 0.0, torch.int8, BF16], "norm_dtype"),
        ("add_rms_norm", [torch.ones(2, 4), torch.ones(2, 3), BF16, BF16, *NORM], "differ in"),
        ("silu_mul", [torch.ones(2, 4), torch.ones(2, 3), None, BF16, BF16], "differ in shape"),
        ("rms_norm_quant", [torch.ones(2, 4), *NORM, [], *TARGET], "wrong number of scales"),
        ("rms_norm_quant", [torch.ones(2, 4), *NORM, ONE * 5, *TARGET], "wrong number of scales"),
        ("rms_norm_quant", [torch.ones(2, 4), *NORM, [torch.ones(2)], *TARGET], "one fp32 value"),
        ("rms_norm_quant", [torch.ones(2, 4), *NORM, ONE, F32, *TARGET[1:]], "unsupported q_dtype"),
        (
            "rms_norm_quant",
            [torch.ones(2, 4), *NORM, ONE, TARGET[0], "half", *TARGET[2:]],
            "unknown scaling",
        ),
        (
            "rms_norm_quant_dynamic",
            [torch.ones(2, 4), *NORM, 3, "amax_div", 448.0, 0.0, 0.0, *TARGET],
            "whole number of groups",
        ),
        (
            "rms_norm_quant_dynamic",
            [torch.ones(2, 4), *NORM, -1, "amax", 448.0, 0.0, 0.0, *TARGET],
            "unknown scale_form",
        ),
    ],
)
def test_bad_input_is_refused_with_advice(op, args, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        getattr(OPS, op)(*args)
    text = str(caught.value).splitlines()[0]
    assert text.startswith(f"{op}: ") and text.rstrip().endswith(".")


def test_every_rounding_combination_of_a_norm(rng):
    for dtypes in itertools.product([F32, BF16], [F32, BF16, F16], [F32, F16], [F32, BF16]):
        x, norm_dtype, y_dtype, weight_dtype = dtypes
        args = [values((3, 48), x), values((48,), weight_dtype), 1e-6, 1.0, norm_dtype, y_dtype]
        check_call("rms_norm", args, rng.drawn_seed)
