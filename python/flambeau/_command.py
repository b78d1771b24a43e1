"""The ``flambeau`` command."""

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command line and gives its exit code."""
    # The command watches for Ctrl-C itself, and otherwise ends at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command(sys.argv)
