"""What a user can set: `torch.compile(model, backend="mi300", mode=..., options={...})`.

`Options.parse` takes both arguments as torch passes them, checks every name and value, and gives a
frozen value. Names that are not ours are Inductor's and are passed on to it. `contract.py` checks
`expect` and `strict`; the pass reads `disable` and `check_numerics`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mi300_inductor.shown import shown

KINDS = (
    "rms_norm",
    "add_rms_norm",
    "rms_norm_quant",
    "add_rms_norm_quant",
    "silu_mul",
    "silu_mul_quant",
    "skinny_gemm",
)
TOTAL = "total:"


@dataclass(frozen=True)
class Expectation:
    """How many fusions of a kind there must be: `low` to `high`, both included.

    `is_total` says whether the number holds over all graphs of a model or for each graph.
    """

    kind: str
    low: int
    high: int
    is_total: bool = False

    def __str__(self) -> str:
        """`kind: number` or `kind: low to high`."""
        name = f"{TOTAL if self.is_total else ''}{self.kind}"
        return f"{name}: {self.low if self.low == self.high else f'{self.low} to {self.high}'}"


@dataclass(frozen=True)
class Options:
    """The user's switches.

    Attributes:
        expect: Number of fusions per kind, `{kind: n}` or `{kind: (low, high)}`. A kind holds for
            each compiled forward or inference graph. `"total:kind"` holds over all graphs of the
            model: `explain` checks it exactly; elsewhere a graph that alone has more than `high`
            is refused, because the graphs still to come are unknown.
        strict: Raise when anything that looked like a candidate was not fused.
        debug_dir: Directory to which each graph's report is saved, in a folder of its own.
        disable: Kinds that are left to Inductor.
        check_numerics: On the first call, run the original nodes beside each fused operator on the
            real inputs and raise when they differ by more than the contract allows. Nothing is
            cached then.
        inductor: Inductor's own options and mode, as configuration entries; sorted pairs.
        measure: Measure each kind of rewrite against Inductor's code on the device, and undo those
            that lose; measure the plans of each kind of matmul on a GPU, and take the fastest. On
            by default in the modes `max-autotune*`.
    """

    expect: tuple[Expectation, ...] = ()
    strict: bool = False
    debug_dir: str | None = None
    disable: frozenset[str] = frozenset()
    check_numerics: bool = False
    inductor: tuple[tuple[str, Any], ...] = ()
    measure: bool = False

    @classmethod
    def parse(cls, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
        """Checks what the user gave.

        Args:
            mode: A mode of torch.compile, for example `reduce-overhead`; None means the default.
            options: Our options, Inductor's options, and `mode` (torch refuses its own `mode`
                argument together with `options`).

        Raises:
            RuntimeError: for an unknown name, a value of the wrong type, or two different modes.
        """
        from mi300_inductor.inductor import inductor_patches, option_names

        if options is not None and not isinstance(options, Mapping):
            raise RuntimeError(
                f"options: the options are no dict; got {shown(options)}, expected for example "
                "{'strict': True}. Pass a dict."
            )
        given = dict(options or {})
        inner_mode = given.pop("mode", None)
        if mode and inner_mode and mode != inner_mode:
            raise RuntimeError(
                f"options: two modes; got mode={mode!r} and options['mode']={inner_mode!r}, "
                "expected one. Remove one of them."
            )
        own = {name: given.pop(name) for name in own_names() if name in given}
        is_tuned = str(mode or inner_mode).startswith("max-autotune")
        known = option_names()
        for name in given:
            if not isinstance(name, str):
                raise RuntimeError(
                    f"options: a name is no string; got {shown(name)}, expected one of "
                    f"{', '.join(own_names())}. Write it in quotes."
                )
            if name.replace("-", "_") not in known:
                raise RuntimeError(_unknown_name(name, known))
        return cls(
            expect=_parse_expect(own.get("expect", {})),
            strict=_parse_bool("strict", own.get("strict", False)),
            debug_dir=_parse_directory(own.get("debug_dir")),
            disable=_parse_disable(own.get("disable", ())),
            check_numerics=_parse_bool("check_numerics", own.get("check_numerics", False)),
            measure=_parse_bool("measure", own.get("measure", is_tuned)),
            inductor=tuple(sorted(inductor_patches(mode or inner_mode, given).items())),
        )

    def cache_key(self) -> str:
        """The switches that change the compiled code; part of the pass's `uuid()`.

        `expect`, `strict` and `debug_dir` are checked and written from the stored report on a
        cache hit; Inductor's own options are in its key already.
        """
        return (
            f"disable={sorted(self.disable)} check_numerics={self.check_numerics} "
            f"measure={self.measure}"
        )


def own_names() -> list[str]:
    """Names of the options that are ours and not Inductor's."""
    return [field.name for field in fields(Options) if field.name != "inductor"]


def _unknown_name(name: str, inductor_names: Iterable[str]) -> str:
    own = sorted([*own_names(), "mode"])
    # What Inductor accepts but keeps to itself is not worth proposing.
    names = sorted(n for n in inductor_names if not n.startswith("_") and not n.isupper())
    close = difflib.get_close_matches(name, [*own, *names], 1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return (
        f"options: unknown name; got {shown(name)}, expected one of {', '.join(own)}, or an option "
        f"of Inductor. {guess}Remove it or choose a valid name; torch._inductor.list_options() "
        "lists Inductor's."
    )


def check_kind(where: str, kind: Any, prefix: str = "") -> str:
    """Returns `kind` if it is one of `KINDS`.

    Raises:
        RuntimeError: listing the kinds.
    """
    if kind not in KINDS:
        raise RuntimeError(
            f"options: unknown kind in {where}; got {shown(prefix + kind if prefix else kind)}, "
            f"expected one of {', '.join(KINDS)}. Choose one of these."
        )
    return str(kind)


def _parse_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RuntimeError(
            f"options: {name} is a switch; got {shown(value)}, expected True or False. Pass a bool."
        )
    return value


def _parse_directory(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise RuntimeError(
            f"options: debug_dir is a path; got {shown(value)}, expected a directory name. "
            "Pass a string or a pathlib.Path."
        )
    if os.path.exists(value) and not os.path.isdir(value):
        raise RuntimeError(
            f"options: debug_dir is a file; got {os.fspath(value)}, expected a directory. "
            "Choose another name."
        )
    return str(os.fspath(value))


def _parse_disable(value: Any) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RuntimeError(
            f"options: disable is a list of kinds; got {shown(value)}, expected for example "
            "['skinny_gemm']. Put the kind into a list."
        )
    return frozenset(check_kind("disable", kind) for kind in value)


def _parse_expect(value: Any) -> tuple[Expectation, ...]:
    if not isinstance(value, Mapping):
        raise RuntimeError(
            f"options: expect is a dict; got {shown(value)}, expected for example "
            "{'silu_mul_quant': 32}. Pass {kind: number} or {kind: (low, high)}."
        )
    return tuple(_parse_expectation(name, bounds) for name, bounds in value.items())


def _parse_expectation(name: Any, bounds: Any) -> Expectation:
    is_total = isinstance(name, str) and name.startswith(TOTAL)
    kind = check_kind("expect", name[len(TOTAL) :] if is_total else name, TOTAL * is_total)
    pair = bounds if isinstance(bounds, tuple | list) else (bounds, bounds)
    good = len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair) and pair[0] <= pair[1]
    if not good:
        raise RuntimeError(
            f"options: expect[{name!r}] is a number of fusions; got {shown(bounds)}, expected an "
            "int or (low, high) with 0 <= low <= high. Pass one of these."
        )
    return Expectation(kind, pair[0], pair[1], is_total)
