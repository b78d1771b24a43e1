"""``python -m flambeau.executorch build`` builds the library of ExecuTorch's backend."""

import argparse

from . import build

parser = argparse.ArgumentParser(prog="python -m flambeau.executorch", description=__doc__)
commands = parser.add_subparsers(required=True, metavar="COMMAND")
command = commands.add_parser("build", help="build the library of the backend MLXBackend for the installed ExecuTorch")
command.add_argument("--output", help="path of the library, in place of the user's cache")
options = parser.parse_args()
try:
    print(build(options.output))
except RuntimeError as error:
    raise SystemExit(f"error: {error}") from None
