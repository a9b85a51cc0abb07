"""Print what a product kernel executes.

    python -m tests.cdna3 profile add_rms_norm_quant --shape 32 4096
    python -m tests.cdna3 profile skinny_gemm --shape 8 256 4096 --form sparse

A shape is rows and hidden, or m, n and k.
"""

from __future__ import annotations

import argparse
import sys

from mi300_inductor.gemm_plan import Form

from ..gfx942.cases import Case
from ..gfx942.gemm_cases import FP8, GemmCase
from ..gfx942.rows import prepare


def main(arguments: list[str]) -> int:
    """Run one operator call with random inputs and print its counters, launch by launch."""
    parser = argparse.ArgumentParser(prog="python -m tests.cdna3")
    parser.add_argument("command", choices=["profile"])
    parser.add_argument("op")
    parser.add_argument("--shape", type=int, nargs="+", required=True)
    parser.add_argument("--form", choices=[form.name.lower() for form in Form], default="any")
    given = parser.parse_args(arguments)
    wanted = 3 if given.op == "skinny_gemm" else 2
    if len(given.shape) != wanted:
        parser.error(f"{given.op}: --shape has {len(given.shape)} numbers, expected {wanted}")
    if wanted == 3:
        case = GemmCase(*given.shape, FP8, Form[given.form.upper()])
        call = case.prepare(case.operands())
        names = [launch.entry.decode() for launch in call.plan().launches]
    else:
        row_case = Case(given.op, *given.shape)
        call = prepare(row_case.op, row_case.build())
        names = [launch.entry.decode() for launch in call.launches()]
    call.run()
    for name, counters in zip(names, call.counters, strict=True):
        print(f"{name}\n{counters}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
