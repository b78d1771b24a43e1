"""Runs ExecuTorch's own tests of its Python runtime, unmodified, with `flambeau.runtime` in the place of `executorch.runtime`.

Needs a Python with ExecuTorch and the package of this repository. Left out are tests of backends that are not MLX.
Usage: python scripts/executorch-python.py [PYTEST ARGUMENTS]
"""

import importlib.util
import sys
from pathlib import Path

import flambeau.runtime
import flambeau.runtime.portable_lib

# Ahead of the collection, so that no native module of ExecuTorch's is loaded.
sys.modules["executorch.runtime"] = flambeau.runtime
sys.modules["executorch.extension.pybindings.portable_lib"] = flambeau.runtime.portable_lib


def main() -> int:
    import pytest

    root = Path(importlib.util.find_spec("executorch").submodule_search_locations[0])
    tests = [root / "runtime/test/test_runtime.py", root / "runtime/test/test_runtime_etdump_gen.py", root / "extension/pybindings/test"]
    return pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(root), *map(str, tests), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
