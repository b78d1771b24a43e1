"""A `flambeau serve` process that belongs to one actor."""

import ctypes
import re
import signal
import subprocess
import sys
import threading
import time

PR_SET_PDEATHSIG = 1


def _die_with_parent():
    """Asks Linux for SIGTERM when the actor ends, so that no server outlives it. Runs in the new process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """Runs a server on a free port of this machine. `command` is the program, by default the one that the wheel installs."""

    def __init__(self, models, arguments=(), command="flambeau", timeout_s=1800.0):
        self.arguments = [command, "serve", *models, "--port=0", "--metrics", "--log-level=warn", *arguments]
        self.timeout_s = timeout_s
        self.child = None
        self.url = None
        self.start()

    def start(self):
        """Starts the server and waits until its models are loaded."""
        listens = threading.Event()
        self.child = subprocess.Popen(self.arguments, stderr=subprocess.PIPE, text=True, preexec_fn=_die_with_parent)
        threading.Thread(target=self._read, args=(self.child, listens), daemon=True).start()
        until = time.monotonic() + self.timeout_s
        while not listens.wait(0.1):
            if not self.is_alive():
                raise RuntimeError(f"flambeau ended with code {self.child.returncode}; its messages are in this actor's log")
            if time.monotonic() > until:
                self.stop()
                raise TimeoutError(f"flambeau did not load its models in {self.timeout_s} s")

    def _read(self, child, listens):
        """Copies the server's messages to the actor's log, and finds its address in them."""
        for line in child.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.match(r"listening on (http://\S+)", line):
                self.url = found[1]
                listens.set()

    def is_alive(self):
        return self.child.poll() is None

    def stop(self):
        """Lets running requests end, as long as the server's --grace allows."""
        self.child.terminate()
        self.child.wait()
