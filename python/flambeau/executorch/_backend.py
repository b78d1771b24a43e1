"""The backend ``MLXBackend`` in ExecuTorch's runtime: its library is built, opened and set up here.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _native

#: What builds the library.
COMMAND = f"{Path(sys.executable).name} -m flambeau.executorch build"

_NAME = "libflambeau_executorch.dylib" if sys.platform == "darwin" else "libflambeau_executorch.so"


def library_path() -> Path:
    """Where the library is for the installed ExecuTorch, built or not.

    It is in the folder of the environment variable ``FLAMBEAU_EXECUTORCH`` or in the user's cache.
    """
    chosen = os.environ.get("FLAMBEAU_EXECUTORCH")
    if chosen:
        return Path(chosen) / _NAME
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "flambeau" / f"executorch-{_executorch()[1]}-{_version()}" / _NAME


def build(path: str | os.PathLike[str] | None = None) -> Path:
    """Builds the library for the installed ExecuTorch, and returns its path.

    It needs a C++17 compiler and CMake 3.28 or newer: ``pip install cmake``.
    """
    target = Path(path) if path is not None else library_path()
    cmake = _cmake()
    package, _ = _executorch()
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        source, work = Path(folder, "source"), Path(folder, "build")
        source.mkdir()
        for name, text in _native.executorch_project():
            (source / name).write_text(text)
        _run(
            [cmake, "-S", str(source), "-B", str(work), "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={package}"]
            + [f"-DFLAMBEAU_LIBRARY={_native.__file__}", f"-DFLAMBEAU_INCLUDE={source}"]
        )
        _run([cmake, "--build", str(work)])
        target.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, for other processes may open it.
        part = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(work / _NAME, part)
        os.replace(part, target)
    return target


def register() -> None:
    """Registers ``MLXBackend`` in ``executorch.runtime`` of this process.

    :class:`flambeau.LoadError` if the library is not built, or if it cannot be opened. On a Mac,
    ExecuTorch's own backend of this name comes first, and an error says so.
    """
    code = _library().flambeau_executorch_registered()
    if code != 0:
        raise _native.LoadError(f"ExecuTorch has another backend MLXBackend already (error {code})")


def is_registered() -> bool:
    """Whether Flambeau computes programs of ``MLXBackend`` in ``executorch.runtime``."""
    try:
        return int(_library().flambeau_executorch_registered()) == 0
    except _native.LoadError:
        return False


def set_options(
    *,
    engine: str | None = None,
    threads: int | None = None,
    share_state: bool | None = None,
    kv_cache: Mapping[str, Any] | str | None = None,
) -> None:
    """Sets options of the backend for programs that are loaded later. ``None`` changes nothing.

    ``engine`` and ``threads`` are those of :class:`flambeau.runtime.Runtime`. With ``share_state``,
    buffers of one name are one in all methods of a program. ``kv_cache`` describes the cache of
    programs that leave it to their host, as ``--kv-cache`` of ``flambeau run``; an empty text stands
    for none.
    """
    texts = {
        "engine": engine,
        "threads": None if threads is None else str(threads),
        "share_state": None if share_state is None else str(share_state).lower(),
        "kv_cache": json.dumps(dict(kv_cache)) if isinstance(kv_cache, Mapping) else kv_cache,
    }
    for key, text in texts.items():
        if text is not None and _library().flambeau_executorch_set_option(key.encode(), text.encode()) != 0:
            raise _native.InputError(last_error())


def last_error() -> str:
    """The text of this thread's last error in the backend; ExecuTorch's exceptions have its code
    only.
    """
    text: bytes = _library().flambeau_executorch_last_error()
    return text.decode(errors="replace")


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    path = library_path()
    if not path.is_file():
        raise _native.LoadError(f"the library {path} is not built: run `{COMMAND}`")
    # Both libraries that it needs are in the process then, and found by their names.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.extension.pybindings import portable_lib  # noqa: F401

    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _native.LoadError(f"cannot open {path}: {error}; run `{COMMAND}`") from None
    library.flambeau_executorch_registered.restype = ctypes.c_int32
    library.flambeau_executorch_set_option.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.flambeau_executorch_set_option.restype = ctypes.c_int32
    library.flambeau_executorch_last_error.restype = ctypes.c_char_p
    return library


def _executorch() -> tuple[Path, str]:
    """Folder and version of the installed ExecuTorch."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise _native.LoadError("ExecuTorch is not installed: pip install 'flambeau[executorch]'")
    return Path(spec.submodule_search_locations[0]), importlib.metadata.version("executorch")


def _version() -> str:
    """A text that differs where a library that was built no longer fits."""
    sources = "".join(text for _, text in _native.executorch_project())
    return f"{_native.__version__}-{hashlib.sha256(sources.encode()).hexdigest()[:8]}"


def _cmake() -> str:
    found = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise _native.LoadError("CMake is not installed: pip install cmake")
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        raise _native.LoadError(f"`{' '.join(command)}` failed:\n{done.stdout}")
