"""A `flambeau serve` process that belongs to one actor."""

import re
import shutil
import subprocess
import sys
import threading
import time


class Process:
    """Runs a server on a free port of this machine. `command` is the program, by default the one that the wheel installs."""

    def __init__(self, models, arguments=(), command="flambeau", timeout_s=1800.0):
        self.arguments = [command, "serve", *models, "--port=0", "--metrics", "--log-level=warn", *arguments]
        # Linux then ends the server with the thread that started it, and so with the actor, however that ends.
        if shutil.which("setpriv"):
            self.arguments = ["setpriv", "--pdeathsig", "TERM", *self.arguments]
        self.timeout_s = timeout_s
        self.child = None
        self.url = None
        self.start()

    def start(self):
        """Starts the server and waits until its models are loaded."""
        self.child = None
        until = time.monotonic() + self.timeout_s
        listens = threading.Event()
        thread = threading.Thread(target=self._run, args=(listens,), daemon=True)
        thread.start()
        while not listens.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("flambeau ended before its models were loaded; its messages are in this actor's log")
            if time.monotonic() > until:
                self.stop()
                raise TimeoutError(f"flambeau did not load its models in {self.timeout_s} s")

    def _run(self, listens):
        """Starts the server, copies its messages to the actor's log, and finds its address in them. Lasts as long as the server."""
        self.child = subprocess.Popen(self.arguments, stderr=subprocess.PIPE, text=True)
        for line in self.child.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.match(r"listening on (http://\S+)", line):
                self.url = found[1]
                listens.set()
        self.child.wait()

    def is_alive(self):
        return self.child is not None and self.child.poll() is None

    def stop(self):
        """Lets running requests end, as long as the server's --grace allows."""
        if self.is_alive():
            self.child.terminate()
            self.child.wait()
