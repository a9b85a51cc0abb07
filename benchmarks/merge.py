"""Joins runs of one benchmark on one machine: `python -m benchmarks.merge OUT.json IN.json ...`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.arguments import check_places, json_file
from benchmarks.results import Result, merge
from benchmarks.tables import markdown


def result_of(text: str) -> Result:
    """Parses the name of a file that `--json` wrote."""
    try:
        return Result.load(Path(text))
    except OSError as error:
        said = error.strerror
    except (ValueError, TypeError) as error:
        said = str(error)
    raise argparse.ArgumentTypeError(
        f"got {text or 'nothing'}, expected a result that --json wrote ({said})"
    )


def main(arguments: list[str] | None = None) -> int:
    """Writes the joined result and its page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=__doc__)
    parser.add_argument("out", type=json_file, help="the .json to write; a .md beside it")
    parser.add_argument("parts", type=result_of, nargs="+", help="files that --json wrote")
    given = parser.parse_args(arguments)
    page: Path = given.out.with_suffix(".md")
    check_places(parser.error, "out", given.out.parent, [given.out.name, page.name])
    try:
        joined = merge(given.parts)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    joined.save(given.out)
    page.write_text(markdown(joined))
    return 0


if __name__ == "__main__":
    sys.exit(main())
