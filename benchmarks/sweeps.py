"""Reads what the sweeps `gpu_rows` and `gpu_gemm` wrote as results like all others."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.results import Result
from benchmarks.timing import Sample

ROW_PROVIDERS = {"mi300": "op", "inductor": "inductor", "eager": "eager"}


def load_rows(path: Path) -> Result:
    """The sweep of the row operators."""
    plain = json.loads(path.read_text())
    header = {key: plain[key] for key in ("card", "torch", "commit")}
    result = Result("ops", "python -m benchmarks.gpu_rows", header, plain["unit"])
    for row in plain["rows"]:
        case = {key: row[key] for key in ("family", "form", "hidden", "rows")}
        times = {ours: row[theirs] for theirs, ours in ROW_PROVIDERS.items() if theirs in row}
        result.add(case, {name: Sample(us, us, us) for name, us in times.items() if us})
    return result


def load_gemm(path: Path) -> Result:
    """The sweep of the matmuls; its header is one sentence.

    Raises:
        ValueError: if the sentence does not name card, torch and commit.
    """
    plain = json.loads(path.read_text())
    found = re.search(r"on (.+?), torch ([^,]+), .*?commit (\w+)", plain["header"])
    if found is None:
        raise ValueError(
            f"{path.name}: header; got {plain['header']!r}, expected card, torch and commit in it. "
            "Write it with benchmarks.gpu_gemm."
        )
    header = dict(zip(("card", "torch", "commit"), found.groups(), strict=True))
    command = "python -m benchmarks.gpu_gemm --out out"
    result = Result("gemm", command, header, plain["header"])
    for row in plain["rows"]:
        is_fp8 = row["operand"].startswith("float8")
        dtype = "FP8" if is_fp8 else "bf16"
        name = f"{row['n']} x {row['k']}"
        case = {"shape": name, "n": row["n"], "k": row["k"], "dtype": dtype, "rows": row["m"]}
        library = "torch._scaled_mm" if is_fp8 else "torch.mm"
        times = {"op": row["ours"], library: row["library"]}
        result.add(case, {name: Sample(us, us, us) for name, us in times.items()})
    return result
