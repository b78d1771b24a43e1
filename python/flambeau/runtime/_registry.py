"""Registries of backends and operators."""

from __future__ import annotations

from .. import _native


class BackendRegistry:
    """The backends of delegates."""

    @property
    def registered_backend_names(self) -> list[str]:
        """Names of all backends."""
        return ["MLXBackend"]

    def is_available(self, backend_name: str) -> bool:
        """Whether the backend exists."""
        return backend_name in self.registered_backend_names


class OperatorRegistry:
    """The operators that run outside delegates."""

    @property
    def operator_names(self) -> set[str]:
        """Names of all operators, such as ``aten::add.out``."""
        return set(_native.operator_names())
