"""What measurements beside other programs share: where the rivals are installed, the arguments, the rounds, and medians."""
import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAMBEAU = ROOT / "target" / "release" / "flambeau"


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


class Rivals:
    """An environment of Python below target/ whose packages are the rivals."""

    def __init__(self, name):
        self.home = ROOT / "target" / name
        self.python = self.home / "venv" / "bin" / "python"

    def install(self, packages, alone=None, note="", **environment):
        """Installs lists of packages in order, and perhaps one package without those that it depends on; once."""
        if self.python.exists():
            return
        say(f"installing packages into {self.home}{note}")
        run([sys.executable, "-m", "venv", self.home / "venv"])
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for some in packages:
            run([*pip, *some], env={**os.environ, **environment})
        if alone:
            run([*pip, "--no-deps", alone])

    def files(self, pattern):
        """Files of the installed packages."""
        return (self.home / "venv").glob(f"lib/python3*/site-packages/{pattern}")


def arguments(doc, only, worker, extend=lambda parser: None):
    """The command line; `worker` is how many words follow --worker, by which a script calls itself. Ends if Flambeau is not built."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", help=only)
    parser.add_argument("--worker", nargs=worker, help=argparse.SUPPRESS)
    extend(parser)
    args = parser.parse_args()
    if not args.worker and not FLAMBEAU.exists():
        sys.exit(f"{FLAMBEAU} is missing: cargo build --release -p flambeau-cli")
    return args


def machine(args):
    """The processor and the threads, as a table's heading names them."""
    return f"{platform.processor() or platform.machine()}, {args.threads} threads"


def median_seconds(call, calls):
    """The median of some calls, after one that does not count."""
    seconds = []
    for _ in range(calls + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
