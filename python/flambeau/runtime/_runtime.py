"""The runtime, which loads programs."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .. import _native
from .._flags import engine_flags
from ._program import Program
from ._registry import BackendRegistry, OperatorRegistry


class Verification(enum.Enum):
    """ExecuTorch's verification levels. Flambeau always verifies the whole file."""

    Minimal = 0
    InternalConsistency = 1


class Runtime:
    """Loads programs. ``Runtime.get()`` returns the CPU runtime; ``Runtime(engine="mlx")`` creates
    an MLX runtime.

    With ``share_state``, buffers of one name are one in all methods of a program. ``kv_cache``
    describes the cache of programs that leave it to their host, as ``--kv-cache`` of ``flambeau
    run``: a text, or a mapping with ``capacity``, ``kv_heads``, ``head_dims``, ``windows``,
    ``max_write`` and ``dtype``.
    """

    def __init__(
        self,
        *,
        engine: str = "cpu",
        threads: int | None = None,
        device: str | None = None,
        share_state: bool = False,
        kv_cache: Mapping[str, Any] | str | None = None,
    ) -> None:
        self.backend_registry = BackendRegistry()
        self.operator_registry = OperatorRegistry()
        self._engine = engine_flags(engine, threads, device)
        self._share_state = share_state
        self._kv_cache = json.dumps(dict(kv_cache)) if isinstance(kv_cache, Mapping) else kv_cache

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> Runtime:
        """Returns the shared CPU runtime."""
        return Runtime()

    def load_program(
        self,
        data: bytes | bytearray | BinaryIO | Path | str,
        *,
        verification: Verification = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: Path | str | None = None,
    ) -> Program:
        """Loads a program from a file, which is memory-mapped, or from bytes.

        ``data_path`` names a ``.ptd`` file with weights. With ``enable_etdump``, methods record their
        runs for ``write_etdump_result_to_file``. With ``debug_buffer_size`` too, delegates run node by
        node, and each method keeps the results of nodes and calls, up to that many bytes.
        ``verification`` exists for compatibility with ExecuTorch and has no effect.
        """
        source: Any = data
        if not isinstance(data, (bytes, bytearray, str, Path)):
            if not hasattr(data, "read"):
                kind = type(data).__name__
                raise TypeError(f"expected bytes, bytearray, a path to a .pte file, or an object with read(), found {kind}")
            source = data.read()
        program = _native.Program(
            source, data=data_path, engine=self._engine, share_state=self._share_state, kv_cache=self._kv_cache
        )
        return Program(_native.measured(program, debug_buffer_size), is_measured=True) if enable_etdump else Program(program)

    def __repr__(self) -> str:
        return f"<Runtime {' '.join(self._engine)}>"
