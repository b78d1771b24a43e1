"""Conversion of keyword options to command line flags, which the command checks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Union

Value = Union[None, bool, int, float, str, "os.PathLike[str]", Sequence[str]]


def flags(options: Mapping[str, Value]) -> list[str]:
    """Converts options to flags. Omits ``None`` and ``False``; ``True`` gives a bare flag; a list
    repeats its flag.
    """
    result: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            result.append(flag)
        elif isinstance(value, (list, tuple)):
            for item in value:
                result.append(f"{flag}={item}")
        else:
            result.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return result


def engine_flags(engine: str, threads: int | None, device: str | None = None) -> list[str]:
    """The flags of an engine. Equal flags select the same engine within a process."""
    return flags({"engine": engine, "threads": threads, "device": device})
