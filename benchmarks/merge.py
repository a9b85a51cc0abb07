"""Joins runs of one benchmark on one machine: `python -m benchmarks.merge OUT.json IN.json ...`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.options import json_file
from benchmarks.results import Result, merge
from benchmarks.tables import markdown


def main(arguments: list[str] | None = None) -> int:
    """Writes the joined result and its page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=__doc__)
    parser.add_argument("out", type=json_file)
    parser.add_argument("parts", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    joined = merge([Result.load(part) for part in given.parts])
    joined.save(given.out)
    given.out.with_suffix(".md").write_text(markdown(joined))
    return 0


if __name__ == "__main__":
    sys.exit(main())
