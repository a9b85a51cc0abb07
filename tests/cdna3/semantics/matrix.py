"""Matrix instructions with fp32 accumulation: dense MFMA and 4:2 sparse SMFMAC."""

from __future__ import annotations

from .base import Semantics

_TYPES = {"fp8": 0, "bf8": 1, "bf16": 2, "f16": 3, "f32": 4}


def _matrix(function: str, rows: int, depth: int, a: str, b: str) -> Semantics:
    parameters = rows | depth << 8 | _TYPES[a] << 16 | _TYPES[b] << 20
    return Semantics("call", "any = any any any", function, "matrix", immediate=parameters)


def _table() -> dict[str, Semantics]:
    table = {}
    for a in ("fp8", "bf8"):
        for b in ("fp8", "bf8"):
            for function, shapes in (
                ("mfma", ((16, 32), (32, 16))),
                ("smfmac", ((16, 64), (32, 32))),
            ):
                for rows, depth in shapes:
                    name = f"v_{function}_f32_{rows}x{rows}x{depth}_{a}_{b}"
                    table[name] = _matrix(function, rows, depth, a, b)
    for kind in ("bf16", "f16"):
        for function, shapes in (("mfma", ((16, 16), (32, 8))), ("smfmac", ((16, 32), (32, 16)))):
            for rows, depth in shapes:
                name = f"v_{function}_f32_{rows}x{rows}x{depth}_{kind}"
                table[name] = _matrix(function, rows, depth, kind, kind)
    table["v_mfma_f32_16x16x4_f32"] = _matrix("mfma", 16, 4, "f32", "f32")
    table["v_mfma_f32_32x32x2_f32"] = _matrix("mfma", 32, 2, "f32", "f32")
    return table


MATRIX = _table()
