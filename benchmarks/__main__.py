"""`python -m benchmarks`; see command_line.py."""

import importlib.util
import sys


def main() -> int:
    """Says in one line what everything here needs and is not installed, else runs it."""
    for library in ("torch", "tabulate"):
        if importlib.util.find_spec(library) is None:
            print(f"missing: library {library}: not installed. Install the extra bench.")
            return 1
    from benchmarks import command_line

    try:
        return command_line.main()
    except KeyboardInterrupt:
        print("stopped; with --json its file has what was measured so far")
        return 130


if __name__ == "__main__":
    sys.exit(main())
