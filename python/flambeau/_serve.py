"""Serving models over HTTP."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import _native
from ._flags import flags

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType


class Server:
    """A server process that runs until it is stopped, or until a ``with`` block ends."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self._process = process
        #: The address, such as ``http://127.0.0.1:8080``; clients of OpenAI's API need ``/v1``
        #: appended.
        self.url = url

    def stop(self, timeout: float = 10.0) -> None:
        """Stops the server after its running requests; kills it after ``timeout`` seconds."""
        import subprocess

        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self) -> int:
        """Waits until the server ends, and returns its exit code."""
        return self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server {self.url}, {'running' if self._process.poll() is None else 'ended'}>"


def serve(
    *models: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8080,
    engine: str = "cpu",
    threads: int | None = None,
    ready_timeout: float = 600.0,
    **options: Any,
) -> Server:
    """Serves models with OpenAI's protocol from a separate process, like ``flambeau serve``.

    Returns when the server is ready. Further options are flags of ``flambeau serve``:
    ``parallel=8``, ``api_key="..."``.
    """
    # Imported here, because they would double the time of `import flambeau`.
    import subprocess
    import urllib.error
    import urllib.request

    if not models:
        raise _native.InputError("no model is given")
    command = [sys.executable, "-m", "flambeau", "serve", *[os.fspath(model) for model in models]]
    command += flags({"host": host, "port": port, "engine": engine, "threads": threads, **options})
    server = Server(subprocess.Popen(command), f"http://{host}:{port}")
    limit = time.monotonic() + ready_timeout
    while True:
        if server._process.poll() is not None:
            raise _native.LoadError(f"the server ended with code {server._process.returncode}; its messages are on stderr")
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=1):
                return server
        except (urllib.error.URLError, OSError):
            if time.monotonic() > limit:
                server.stop()
                raise _native.LoadError(f"the server did not answer within {ready_timeout} s") from None
            time.sleep(0.1)
