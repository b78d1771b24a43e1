"""The ``flambeau`` command."""

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command line and returns its exit code."""
    # The command handles Ctrl-C itself where needed; otherwise Ctrl-C ends the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command(sys.argv)
