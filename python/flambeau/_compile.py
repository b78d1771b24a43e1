"""From captured programs to programs that run."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any

from . import _native, runtime
from ._flags import engine_flags, flags

Source = Any


class Program(runtime.Program):
    """A program that was compiled here. It runs as one that was loaded does, and can be saved."""

    def __init__(self, program: _native.Program, report: dict[str, Any]) -> None:
        super().__init__(program)
        #: What became of every call: ``methods``, each with ``calls``, which have ``target``, ``source`` and ``nodes`` or ``kernel``.
        self.report = report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program as a ``.pte`` file, which also runs in ExecuTorch on a Mac."""
        self._program.save(os.fspath(path))

    def to_bytes(self) -> bytes:
        """The ``.pte`` file."""
        return self._program.to_bytes()


def compile(
    source: Source | Mapping[str, Source],
    *,
    qlinear: str | None = None,
    qembedding: str | None = None,
    group_size: int | None = None,
    recipe: str | os.PathLike[str] | None = None,
    require_full: bool = False,
    engine: str = "cpu",
    threads: int | None = None,
    device: str | None = None,
) -> Program:
    """Compiles a program that ``torch.export`` captured.

    ``source`` is an ``ExportedProgram``, the path or the bytes of a ``.pt2`` archive, or a mapping from names of methods to such;
    a single one becomes the method ``forward``. ``qlinear``, ``qembedding``, ``group_size`` and ``recipe`` quantize weights as the
    flags of ``flambeau compile`` do. With ``require_full``, a call that cannot be delegated is an error, in place of being left to
    portable kernels.

    The program runs on ``engine``. :class:`flambeau.CompileError` names the calls that cannot be compiled, and their lines.
    """
    methods = source if isinstance(source, Mapping) else {"forward": source}
    quantize = {"qlinear": qlinear, "qembedding": qembedding, "group_size": group_size, "recipe": recipe}
    program, report = _native.compile(
        [(name, archive_of(one)) for name, one in methods.items()],
        quantize=flags(quantize),
        require_full=require_full,
        engine=engine_flags(engine, threads, device),
    )
    return Program(program, json.loads(report))


def archive_of(source: Source) -> str | bytes:
    """The path or the bytes of an archive."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, (bytes, bytearray)):
        return bytes(source)
    if not hasattr(source, "graph_signature"):
        kind = type(source).__name__
        raise TypeError(f"expected an ExportedProgram, or the path or bytes of a .pt2 archive, found {kind}; use torch.export.export")
    import torch

    archive = io.BytesIO()
    torch.export.save(source, archive)
    return archive.getvalue()
