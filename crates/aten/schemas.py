"""Writes src/pytorch.txt: the function schemas of ATen operators in Flambeau's sources, in the
installed PyTorch's notation.

An operator is included if a Rust source of the workspace names it in quotes (`"aten.add.Tensor"`,
or `"aten::add"` for all its overloads on tensors), with its in-place, out and copying variants. The
file has one schema per line, sorted by name. The script reports a target that PyTorch lacks, unless
src/custom.txt has it.

    python crates/aten/schemas.py
"""

import re
import sys
from pathlib import Path

import torch

CRATE = Path(__file__).resolve().parent
OPTIONS = {"dtype", "layout", "device", "pin_memory"}
QUOTED = re.compile(r'"aten\.(\w+)\.(\w+)"')
QUOTED_NAME = re.compile(r'"aten::(\w+)"')


def base(name):
    """The base name of an in-place variant: `add` for `add_`, `__add__` for `__iadd__`."""
    if match := re.fullmatch(r"__i(\w+)__", name):
        return f"__{match[1]}__"
    return name if name.endswith("__") else name.removesuffix("_")


def is_on_tensors(schema):
    """Whether the operator takes and returns tensors without named axes."""
    types = [str(a.type) for a in schema.arguments]
    return any("Tensor" in t for t in types) and all("Tensor" in str(r.type) for r in schema.returns) and not (
        "Dimname" in str(schema) or schema.overload_name.startswith("prim_"))


def signature(schema):
    """The parameters that all variants of an operator share: names and types, without outputs and
    without the options of a factory function.
    """
    names = {a.name for a in schema.arguments}
    options = OPTIONS if OPTIONS <= names else set()
    return {a.name: str(a.type) for a in schema.arguments if not a.is_out and a.name not in options}


def are_variants(one, other):
    """Whether two operators have the same operands. The written operand of an in-place variant may
    have another name.
    """
    a, b = signature(one), signature(other)
    names, others = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
    same = all(a[name] == b[name] for name in a.keys() & b.keys())
    if not same or len(names) != len(others) or len(names) > 1:
        return False
    written = {x.name for s in (one, other) for x in s.arguments if x.alias_info is not None and x.alias_info.is_write}
    return all(a[name] == b[own] and (name in written or own in written) for name, own in zip(names, others))


def main():
    by_name = {}
    for schema in torch._C._jit_get_all_schemas():
        namespace, name = schema.name.split("::")
        if namespace == "aten":
            by_name.setdefault(name, {})[schema.overload_name] = schema
    families = {}
    for name in by_name:
        families.setdefault(base(name), []).append(name)
    custom = {line.split("(")[0] for line in (CRATE / "src/custom.txt").read_text().splitlines()}

    found, missing = set(), []
    for source in CRATE.parent.glob("*/src/**/*.rs"):
        text = source.read_text()
        named = [(name, by_name.get(name, {})) for name in QUOTED_NAME.findall(text)]
        overloads = [(name, overload) for name, all_of in named for overload, s in all_of.items() if is_on_tensors(s)]
        for name, overload in QUOTED.findall(text) + overloads:
            overload = "" if overload == "default" else overload
            schema = by_name.get(name, {}).get(overload)
            if schema is None and f"aten::{name}" in custom:
                found.update(str(v) for other in families.get(name, []) for v in by_name[other].values())
                continue
            if schema is None:
                missing.append(f"{name}.{overload}")
                continue
            found.add(str(schema))
            for other in families[base(name)] + [f"{name}_copy"]:
                variants = by_name.get(other, {}).values()
                found.update(str(v) for v in variants if are_variants(v, schema))
    lines = sorted(found, key=lambda line: line.split("(")[0])
    (CRATE / "src/pytorch.txt").write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} schemas of PyTorch {torch.__version__}")
    if missing:
        sys.exit(f"PyTorch has no {', '.join(sorted(set(missing)))}")


if __name__ == "__main__":
    main()
