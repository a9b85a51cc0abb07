"""The GPU's norm and activation operators against their formulas in eager, on the card.

Fresh inputs with outliers, zeros, subnormals, NaN and infinities; a failure names the seed. Outputs
are filled with NaN before each call, so an unwritten one shows.
"""

import threading

import pytest
import torch

from ..kernels import reference
from ..kernels.test_cpu_rows import (
    BF16,
    F16,
    F32,
    OPS,
    ROW_OPS,
    fp8_inputs,
    make_args,
    named,
    same_bits,
    values,
)
from .row_args import usual_args
from .row_checks import check_outputs

DEVICE = torch.device("cuda")
FNUZ, FN = torch.float8_e4m3fnuz, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def poisoned_outputs():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def on_card(args):
    def move(value):
        if isinstance(value, torch.Tensor):
            return value.to(DEVICE)
        return [move(item) for item in value] if isinstance(value, list) else value

    return [move(value) for value in args]


def check_call(op, args, seed):
    check_outputs(op, args, named(op, getattr(OPS, op)(*args)), seed)


def draw(op, rng, shape, dtypes, special=False):
    return on_card(make_args(op, rng, shape, dtypes, special))


def usual(op, rng, shape, dtype, q_dtype=FN, group=-1):
    return on_card(usual_args(op, rng, shape, dtype, q_dtype, group))


@pytest.mark.parametrize("hidden", [8, 64, 1000, 4096, 8192, 14336, 16384, 24576, 53248, 65536])
@pytest.mark.parametrize("op", ROW_OPS)
def test_vector_kernels_equal_the_formula(op, hidden, rng):
    for dtype in (BF16, F16):
        for rows in (1, 5, 40, 130) + ((1100,) if hidden <= 16384 else ()):
            for q_dtype in (FN, FNUZ) if "quant" in op and rows < 100 else (FN,):
                group = rng.choice([-1, 8, 64, 128]) if hidden % 128 == 0 else -1
                args = usual(op, rng, (rows, hidden), dtype, q_dtype, group)
                check_call(op, args, rng.drawn_seed)


@pytest.mark.parametrize("hidden", [1, 7, 64, 769, 4096, 33000])
@pytest.mark.parametrize("op", ROW_OPS)
def test_any_combination_equals_the_formula(op, hidden, rng):
    for dtypes in ([BF16], [F16], [F32], [F32, BF16, F16]):
        for shape in ((1, hidden), (13, hidden)):
            check_call(op, draw(op, rng, shape, dtypes), rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
def test_nan_and_infinity_propagate(op, rng):
    for _ in range(12):
        check_call(op, draw(op, rng, (9, 136), [F32, BF16, F16], True), rng.drawn_seed)
        check_call(op, draw(op, rng, (9, 136), [BF16], True), rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 64), (2, 1, 3, 17), (0, 64), (4, 0)])
def test_any_shape(op, shape, rng):
    args = draw(op, rng, shape, [BF16, F32])
    if 0 in shape and op.endswith("dynamic"):
        names = [argument.name for argument in getattr(OPS, op).default._schema.arguments]
        args[names.index("group_size")] = -1  # an empty tensor has no largest element
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        fakes = [[mode.from_tensor(s) for s in a] if isinstance(a, list) else a for a in fakes]
        fake = named(op, getattr(OPS, op)(*fakes))
    for name, tensor in named(op, getattr(OPS, op)(*args)).items():
        assert tensor.shape == fake[name].shape and tensor.dtype == fake[name].dtype, name


@pytest.mark.parametrize("op", ROW_OPS)
def test_registration(op, rng):
    torch.use_deterministic_algorithms(False)
    torch.library.opcheck(getattr(OPS, op).default, tuple(usual(op, rng, (4, 64), BF16)))


@pytest.mark.parametrize("q_dtype", reference.FP8)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_codes_equal_the_cast_of_this_device(q_dtype, dtype, rng):
    x = fp8_inputs().to(dtype)
    x = x[: x.numel() // 8 * 8].reshape(8, -1).to(DEVICE)
    args = [torch.full_like(x, 1.2785), x, None, BF16, dtype]
    one = [torch.ones(1, device=DEVICE)]
    bound = 240.0 if q_dtype == FNUZ else 448.0
    for limit in (float("inf"), bound):
        rest = [one, q_dtype, "div", F32, -limit, limit, True]
        q, y = OPS.silu_mul_quant(*args, *rest)
        assert same_bits(q, y.float().clamp(-limit, limit).to(q_dtype)), (limit, rng.drawn_seed)


def test_rows_beyond_two_gibi_elements(rng):
    torch.use_deterministic_algorithms(False)
    base = torch.empty(2**31 + 64, dtype=BF16, device=DEVICE)
    far = base.as_strided((3, 64), (2**30, 1))
    near = values((3, 64), BF16).to(DEVICE)
    far.copy_(near)
    rest = [None, 1e-6, 0.0, BF16, BF16]
    assert same_bits(OPS.rms_norm(far, *rest), OPS.rms_norm(near, *rest))
    del base, far
    many = torch.randn(2**18 + 1, 8192, dtype=BF16, device=DEVICE)
    y = OPS.rms_norm(many, *rest)
    assert same_bits(y[-3:], OPS.rms_norm(many[-3:].clone(), *rest))


def test_packed_gate_and_up_and_row_strides(rng):
    packed = values((9, 2 * 136), BF16).to(DEVICE)
    for gate, up in (packed.chunk(2, -1), packed.split(136, -1)):
        check_call("silu_mul", [gate, up, None, BF16, BF16], rng.drawn_seed)
    wide = values((9, 300), BF16).to(DEVICE)
    for x in (wide[:, 3:139], wide[:, 8:144], wide.t(), wide[:, ::2]):
        check_call("rms_norm", [x, None, 1e-6, 0.0, BF16, BF16], rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
def test_graph_capture_and_other_streams(op, rng):
    torch.use_deterministic_algorithms(False)
    args = usual(op, rng, (40, 8192), BF16)
    expected = named(op, getattr(OPS, op)(*args))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = named(op, getattr(OPS, op)(*args))
    graph.replay()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        other = named(op, getattr(OPS, op)(*args))
    torch.cuda.synchronize()
    for name, tensor in expected.items():
        assert same_bits(captured[name], tensor) and same_bits(other[name], tensor), name


def test_several_threads(rng):
    torch.use_deterministic_algorithms(False)
    args = usual("add_rms_norm_quant", rng, (33, 4096), BF16)
    expected = named("add_rms_norm_quant", OPS.add_rms_norm_quant(*args))
    results = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(named("add_rms_norm_quant", OPS.add_rms_norm_quant(*args)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(results) == 6
    for result in results:
        assert all(same_bits(result[name], tensor) for name, tensor in expected.items())


def test_refusals_name_the_op_and_what_to_do():
    x = torch.ones(2, 16, device=DEVICE)
    with pytest.raises(RuntimeError, match="rms_norm: inputs on several devices"):
        OPS.rms_norm(x, torch.ones(16), 1e-6, 0.0, BF16, BF16)
    with pytest.raises(RuntimeError, match="silu_mul: the two inputs differ in shape"):
        OPS.silu_mul(x, x[:1], None, BF16, BF16)
