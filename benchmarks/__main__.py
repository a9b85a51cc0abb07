"""`python -m benchmarks`; see command_line.py."""

import signal
import sys

from benchmarks import command_line


def main() -> int:
    """Runs it; being stopped is one line, and what was measured is kept."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command_line.main()
    except KeyboardInterrupt:
        print("stopped; with --json its file has what was measured so far")
        return 130


if __name__ == "__main__":
    sys.exit(main())
