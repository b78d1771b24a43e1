"""Lets ExecuTorch's language-model modules be imported without torchtune.

ExecuTorch 1.5.1's attention modules name torchtune classes when they are imported, and torchtune cannot be imported beside the
torchao that ExecuTorch needs. The operator tests use none of those classes, so an empty class of each name will do.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class _StubModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "torchtune" or name.startswith("torchtune."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _StubModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
