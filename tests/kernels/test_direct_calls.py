"""Calls from Python that skip torch's conversions: the same results, and only for plain calls."""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mi300_inductor import build, direct_calls, ops

from . import gemm_cases
from .row_cases import BF16, F32, OPS, ROW_OPS, make_args, named, same_bits

NORM_ARGS = (None, 1e-6, 0.0, 15, 15)


@pytest.fixture(autouse=True)
def installed():
    build.load_kernels("CPU")
    for op in ops.SCHEMAS:
        assert type(ops.overload(op)._op).__name__ == "DirectCall"


@contextlib.contextmanager
def counted_usual_calls(op="rms_norm"):
    """A list that grows with each call through torch's own caller, which stops at autograd."""
    calls = []

    def kernel(*args):
        calls.append(args)
        with torch._C._AutoDispatchBelowAutograd():
            return ops.overload(op)(*args)

    library = torch.library.Library("mi300", "IMPL", "AutogradCPU")
    library.impl(op, kernel)
    try:
        yield calls
    finally:
        library._destroy()


def by_name(op, args):
    """The arguments as keywords, which are never plain."""
    names = [argument.name for argument in ops.overload(op)._schema.arguments]
    return dict(zip(names, args, strict=True))


@pytest.mark.parametrize("op", ROW_OPS)
def test_row_operators_give_the_same_bits_either_way(op, rng):
    for shape in ((5, 48), (2, 3, 33)):
        args = make_args(op, rng, shape, [BF16, F32])
        with counted_usual_calls(op) as calls:
            direct = named(op, ops.overload(op)(*args))
            assert not calls
            usual = named(op, ops.overload(op)(**by_name(op, args)))
            assert len(calls) == 1
        for name, tensor in direct.items():
            assert same_bits(tensor, usual[name]), (name, rng.drawn_seed)


def test_matmuls_give_the_same_bits_either_way(rng):
    for pair in ((BF16, BF16), (torch.float8_e4m3fn, torch.float8_e5m2)):
        args = gemm_cases.make_args(rng, 3, 17, 40, *pair)
        a, weight, scale_a, scale_b, bias, _, dtype = args
        lists = [v if v is None else [v, v] for v in (a, weight, scale_a, scale_b, bias)]
        for op, given in (("skinny_gemm", args), ("skinny_gemm_list", [*lists, dtype])):
            direct = ops.overload(op)(*given)
            usual = ops.overload(op)(**by_name(op, given))
            assert type(direct) is type(usual)
            if op == "skinny_gemm":
                direct, usual = [direct], [usual]
            both = zip(direct, usual, strict=True)
            assert all(same_bits(ours, theirs) for ours, theirs in both), rng.drawn_seed


class Subclass(torch.Tensor):
    pass


class Functions(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        type(self).seen += func is OPS.rms_norm.default
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        type(self).seen += func is OPS.rms_norm.default
        return func(*args, **(kwargs or {}))


def test_what_is_not_plain_is_left_to_torch():
    x = torch.randn(2, 8, dtype=BF16)
    leaf = x.clone().requires_grad_()
    plain = OPS.rms_norm.default(x, *NORM_ARGS)
    with counted_usual_calls() as calls:
        OPS.rms_norm.default(x, *NORM_ARGS)
        OPS.rms_norm.default(torch.nn.Parameter(x, requires_grad=False), *NORM_ARGS)
        with torch.no_grad():
            OPS.rms_norm.default(leaf, *NORM_ARGS)
        with torch.inference_mode():
            assert OPS.rms_norm.default(x, *NORM_ARGS).is_inference()
        assert not calls
        results = [
            OPS.rms_norm.default(leaf, *NORM_ARGS),
            OPS.rms_norm.default(x.as_subclass(Subclass), *NORM_ARGS),
            OPS.rms_norm.default(x, None, 1e-6, 0, 15, 15),
            OPS.rms_norm.default(x, None, 1e-6, 0.0, 15, y_dtype=15),
        ]
        with torch.profiler.profile() as profile:
            results.append(OPS.rms_norm.default(x, *NORM_ARGS))
        assert len(calls) == len(results)
    assert any(event.key == "mi300::rms_norm" for event in profile.key_averages())
    assert all(torch.equal(result, plain) for result in results)
    with Functions(), Dispatches():
        OPS.rms_norm.default(x, *NORM_ARGS)
    assert (Functions.seen, Dispatches.seen) == (1, 1)


def test_a_result_with_gradient_says_that_it_has_none():
    leaf = torch.randn(2, 8, dtype=BF16, requires_grad=True)
    out = OPS.rms_norm.default(leaf, *NORM_ARGS)
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        out.sum().backward()


def test_fakes_stay_fakes():
    with torch._subclasses.FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(2, 8, dtype=BF16))
        y = OPS.rms_norm.default(x, *NORM_ARGS)
    assert isinstance(y, torch._subclasses.FakeTensor) and y.shape == (2, 8)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((torch.ones(2, 4, dtype=torch.int32), *NORM_ARGS), RuntimeError, "^rms_norm: unsupported"),
        ((torch.ones(2, 4), *NORM_ARGS[:-1]), RuntimeError, "missing value for argument 'y_dtype'"),
        ((torch.ones(2, 4), *NORM_ARGS, 1), RuntimeError, "at most 6 argument"),
        ((torch.ones(2, 4), *NORM_ARGS[:-1], "bf16"), RuntimeError, "found type 'str'"),
        ((None, *NORM_ARGS), RuntimeError, "no tensor arguments"),
        ((torch.ones(2, 4), *NORM_ARGS[:-1], 2**70), RuntimeError, "rms_norm"),
    ],
)
def test_errors_are_those_of_torch(args, error, message):
    with pytest.raises(error, match=message):
        OPS.rms_norm.default(*args)


def test_an_operator_keeps_its_hash_and_name():
    module = direct_calls.load(direct_calls.library())
    usual = torch._C._jit_get_operation("mi300::rms_norm")[0]
    direct = module.direct_call("mi300::rms_norm", usual)
    assert hash(direct) == hash(usual) and direct.__name__ == usual.__name__
    assert module.direct_call("mi300::no_such_operator", usual) is usual
    assert {OPS.rms_norm.default: 1}[ops.overload("rms_norm")] == 1


def test_python_without_headers_calls_through_torch(monkeypatch, tmp_path):
    monkeypatch.setattr(direct_calls.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    before = ops.overload("rms_norm")._op
    assert not direct_calls.install()
    assert ops.overload("rms_norm")._op is before


def test_a_module_that_does_not_compile_is_left_out(monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError("build: the compiler failed")

    monkeypatch.setattr(direct_calls.build, "build_library", fail)
    before = ops.overload("rms_norm")._op
    assert not direct_calls.install()
    assert ops.overload("rms_norm")._op is before
    assert "the compiler failed" in caplog.text
