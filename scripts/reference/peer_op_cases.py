#!/usr/bin/env python3
"""Exports every configuration of ExecuTorch's MLX op tests as case folders with `.pt2` programs.

    peer_op_cases.py OUT [--only TEXT] [--core]

Needs the pinned `executorch` package with the generated files of its MLX backend. `--core` decomposes to core ATen first.
"""
import importlib.util
import sys
import traceback
import types

import torch

import cases


def without_torchtune():
    """The TurboQuant cache needs one module of a package whose `__init__` imports torchtune; the package's path is enough."""
    try:
        import torchtune  # noqa: F401
    except ImportError:
        name = "executorch.extension.llm.modules"
        spec = importlib.util.find_spec("executorch.extension.llm")
        package = types.ModuleType(name)
        package.__path__ = [f"{path}/modules" for path in spec.submodule_search_locations]
        sys.modules[name] = package


def configurations():
    without_torchtune()
    from executorch.backends.mlx.test import test_ops  # noqa: F401: importing registers the tests
    from executorch.backends.mlx.test.test_utils import get_registered_tests

    seen = {}
    for op, configs in get_registered_tests().items():
        for name, config in configs:
            seen[name] = seen.get(name, 0) + 1
            yield op, name if seen[name] == 1 else f"{name}_{seen[name]}", config


def write(out, op, name, config, core):
    config._set_seed()
    module = config.create_model()
    args = config.create_inputs()
    config._set_seed()
    test = config.create_test_inputs()
    args, test = ((v,) if isinstance(v, torch.Tensor) else tuple(v) for v in (args, test))
    module.eval()
    exported_module = module
    with torch.no_grad():
        expected = config.compute_expected_outputs(module, test)
    cases.write(
        out, name, exported_module, args, op=op, test=(test, {}), dynamic_shapes=config.get_dynamic_shapes(), strict=True,
        core=core, rtol=config.rtol, atol=config.atol, expected=expected, skip_comparison=config.skip_comparison,
        kv_cache=config.kv_cache, user_inputs=list(test),
    )


def main():
    args = cases.arguments(__doc__)
    written = failed = 0
    for op, name, config in configurations():
        if args.only not in name:
            continue
        try:
            write(args.out, op, name, config, args.core)
            written += 1
        except Exception as error:
            failed += 1
            print(f"not exported: {name}: {cases.reason(error)}", file=sys.stderr)
            if args.only:
                traceback.print_exc()
    print(f"{written} written, {failed} not exported")


if __name__ == "__main__":
    main()
