#!/usr/bin/env python3
"""Compares our text form of torch.export archives with PyTorch's own, line by line. Run by hand:

    compare_print.py PRINT_PT2 ARCHIVE...

PRINT_PT2 is the built example of this crate. Needs torch, and the packages whose operators the archives call.
"""
import subprocess
import sys

import torch

for module in (
    "torchao",
    "executorch.backends.mlx.custom_ops",
    "executorch.backends.mlx.ops",
    "executorch.extension.llm.cache.update_and_attend",
    "executorch.extension.llm.export.int4",
    "executorch.extension.llm.export.nvfp4",
    "executorch.extension.llm.export.mx",
    "executorch.extension.llm.export.gguf",
):
    try:
        __import__(module)
    except Exception as e:
        print(f"without {module}: {e}", file=sys.stderr)

torch.library.define("mlx_test::vadd", "(Tensor a, Tensor b) -> Tensor")  # the operator of the custom-kernel cases


def graphs(module, name):
    """str() of a module's graph and of every graph that it runs, in the order of our print."""
    yield ("" if name is None else f"{name} = ") + str(module.graph)
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(module, node.target, None), torch.fx.GraphModule):
            yield from graphs(getattr(module, node.target), node.target)


def main():
    printer, *paths = sys.argv[1:]
    same = different = unreadable = calls = 0
    for path in paths:
        ours = subprocess.run([printer, path], capture_output=True, text=True)
        try:
            with torch.no_grad():  # rebuilding float8 weights that require a gradient fails otherwise
                program = torch.export.load(path)
        except Exception as e:
            unreadable += 1
            print(f"{path}: PyTorch cannot load it: {str(e).splitlines()[0]}")
            continue
        want = "\n\n".join(graphs(program.graph_module, None)).splitlines()
        got = ours.stdout.splitlines()
        calls += sum("call_function" in line for line in want)
        if ours.returncode == 0 and got == want:
            same += 1
            continue
        different += 1
        print(f"{path}: differs {ours.stderr.strip()}")
        for mine, theirs in [(a, b) for a, b in zip(got + [""] * len(want), want + [""] * len(got)) if a != b][:3]:
            print(f"  ours  {mine}\n  torch {theirs}")
    print(f"{same} same, {different} different, {unreadable} that PyTorch cannot load; {calls} calls")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
