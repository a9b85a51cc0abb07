"""Print what a product kernel executes.

    python -m tests.cdna3 profile add_rms_norm_quant --shape 32 4096
    python -m tests.cdna3 profile rms_norm_quant_dynamic --shape 8 8192 --group 128 --dtype fp16
    python -m tests.cdna3 profile skinny_gemm --shape 8 256 4096 --form sparse
    python -m tests.cdna3 profile skinny_gemm_list --shape 8 2048 128 128 16384

A shape is rows and hidden, or m, n and k, or m, the n of two or three products, and k. The plan is
that for an MI300X; inputs are random.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from mi300_inductor.gemm_plan import Form

from ..gfx942.cases import BF16, E4M3FN, E4M3FNUZ, E5M2, F16, F32, OPS, Case
from ..gfx942.gemm_cases import GemmCase
from ..gfx942.gemm_list import parts_of, prepare_list
from ..gfx942.rows import prepare

_DTYPES = {"bf16": BF16, "fp16": F16, "fp32": F32}
_FP8 = {"e4m3fn": E4M3FN, "e4m3fnuz": E4M3FNUZ, "e5m2": E5M2}
_FORMS = ("any", "dense", "sparse", "ring", "unaligned")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cdna3", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    profile = parser.add_subparsers(dest="command", required=True).add_parser("profile")
    profile.add_argument("op", choices=sorted(OPS))
    profile.add_argument("--shape", type=int, nargs="+", required=True)
    profile.add_argument("--dtype", choices=[*_DTYPES, "e4m3fnuz"], help="of the inputs")
    profile.add_argument("--fp8", choices=[*_FP8], default="e4m3fnuz", help="of the output")
    profile.add_argument(
        "--group", type=int, default=-1, help="elements a scale; -1 per token, 0 per tensor"
    )
    profile.add_argument("--form", choices=_FORMS, default="any", help="of the matmul")
    return parser


def _check_shape(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    counts, names = {
        "skinny_gemm": ((3,), "m, n, k"),
        "skinny_gemm_quant": ((3,), "m, n, k"),
        "skinny_gemm_list": ((4, 5), "m, n of each of 2 or 3 products, k"),
    }.get(given.op, ((2,), "rows, hidden"))
    if len(given.shape) not in counts or min(given.shape) < 1:
        numbers = " ".join(map(str, given.shape))
        wanted = f"{' or '.join(map(str, counts))} numbers above 0: {names}"
        parser.error(f"{given.op}: wrong shape; got {numbers}, expected {wanted}.")


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    _check_shape(parser, given)
    is_matmul = given.op.startswith("skinny_gemm")
    if not is_matmul and (given.form != "any" or given.dtype == "e4m3fnuz"):
        parser.error(f"{given.op}: --form and FP8 inputs go with matmuls only.")
    if is_matmul and given.dtype == "fp32":
        parser.error(f"{given.op}: no kernel for fp32; got fp32, expected bf16, fp16 or e4m3fnuz.")
    if given.group > 0 and given.shape[-1] % given.group:
        parser.error(
            f"{given.op}: hidden is not a whole number of groups; got {given.shape[-1]} and "
            f"{given.group}, expected a divisor."
        )


def _profile(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.op.startswith("skinny_gemm"):
        m, *widths, k = given.shape
        case = GemmCase(m, 0, k, _DTYPES.get(given.dtype, E4M3FNUZ), Form[given.form.upper()])
        if given.op == "skinny_gemm_quant":
            case = replace(case, n=widths[0], quant="div")
            call = case.prepare(case.operands(), scale=torch.full((1,), 0.05))
            launches = call.plan().launches
        else:
            parts = parts_of(case, widths)
            call = prepare_list(parts, [part.operands() for part in parts])
            launches = call.launches
        if not launches:
            parser.error(
                f"{given.op}: no kernel of form {given.form} takes the shape; got m {m}, "
                "expected at most 64 (ring 16, sparse 8) and FP8 for ring and sparse."
            )
    else:
        change = {"q_dtype": _FP8[given.fp8], "group_size": given.group}
        row_case = Case(given.op, *given.shape, _DTYPES[given.dtype or "bf16"], change)
        call = prepare(row_case.op, row_case.build())
        launches = call.launches()
    call.run()
    for launch, counters in zip(launches, call.counters, strict=True):
        print(f"{launch.entry.decode()}\n{counters}\n")


def main(arguments: list[str]) -> int:
    """Run one operator call and print its counters, launch by launch."""
    parser = _parser()
    given = parser.parse_args(arguments)
    _check(parser, given)
    _profile(parser, given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
