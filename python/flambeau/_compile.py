"""Compilation of captured programs."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any, Literal

from . import _native, runtime
from ._flags import engine_flags, flags

Source = Any


class Program(runtime.Program):
    """A compiled program. It runs like a loaded one, and can be saved."""

    def __init__(self, program: _native.Program, report: dict[str, Any]) -> None:
        super().__init__(program)
        #: Report on every call: ``methods``, each with ``calls`` of ``target``, ``source`` and
        #: ``nodes`` or ``kernel``.
        self.report = report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program as a ``.pte`` file, which also runs in ExecuTorch on a Mac."""
        self._program.save(os.fspath(path))

    def to_bytes(self) -> bytes:
        """The bytes of the ``.pte`` file."""
        return self._program.to_bytes()


def compile(
    source: Source | Mapping[str, Source],
    *,
    qlinear: str | None = None,
    qembedding: str | None = None,
    group_size: int | None = None,
    recipe: str | os.PathLike[str] | None = None,
    require_full: bool = False,
    ties: Literal["pytorch", "any"] = "pytorch",
    engine: str = "cpu",
    threads: int | None = None,
    device: str | None = None,
) -> Program:
    """Compiles a program captured by ``torch.export``.

    ``source`` is an ``ExportedProgram``, or the path or bytes of a ``.pt2`` archive; it becomes the
    method ``forward``. A mapping of method names to such sources compiles several methods.
    ``qlinear``, ``qembedding``, ``group_size`` and ``recipe`` quantize weights like the same flags
    of ``flambeau compile``. With ``require_full``, a call that cannot be delegated is an error;
    otherwise portable kernels run it. ``ties`` chooses the positions that sorting and selection
    give among equal elements: PyTorch's, for which some calls run outside of delegates, or any.

    The program runs on ``engine``. :class:`flambeau.CompileError` lists the calls that cannot be
    compiled, with source lines.
    """
    if ties not in ("pytorch", "any"):
        raise ValueError(f"ties is {ties!r}, expected 'pytorch' or 'any'")
    methods = source if isinstance(source, Mapping) else {"forward": source}
    quantize = {"qlinear": qlinear, "qembedding": qembedding, "group_size": group_size, "recipe": recipe}
    program, report = _native.compile(
        [(name, archive_of(one)) for name, one in methods.items()],
        quantize=flags(quantize),
        require_full=require_full,
        any_ties=ties == "any",
        engine=engine_flags(engine, threads, device),
    )
    return Program(program, json.loads(report))


def archive_of(source: Source) -> str | bytes:
    """Returns the path or the bytes of an archive."""
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
