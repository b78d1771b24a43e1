#!/usr/bin/env python3
"""Exports small modules as case folders: dynamic sizes, writes, control flow, recurrences, resampling, inputs of every kind.

    module_cases.py OUT [--only TEXT] [--core]
"""
import sys
import traceback

import torch

import cases
from modules.attention import attention_masks
from modules.common import CASES, Fn
from modules.complex import complex_and_linear
from modules.edges import edges
from modules.elements import dtypes, einsums, ends_of_types, foreign, indexing
from modules.functions import functions
from modules.layers import losses_and_activations, pooling_and_conv, resampling
from modules.mixed import mixed
from modules.models import models, quantized, quantized_activations
from modules.options import options
from modules.samples import samples
from modules.sizes import dynamic_elementwise_and_shape, dynamic_layers, open_sizes
from modules.state import control_flow, inputs_and_outputs, recurrences, writes

GROUPS = [dynamic_elementwise_and_shape, dynamic_layers, open_sizes, attention_masks, writes, inputs_and_outputs, control_flow, recurrences, resampling, pooling_and_conv,
          indexing, einsums, losses_and_activations, models, quantized, quantized_activations, dtypes, foreign, options, functions, complex_and_linear, ends_of_types, samples, edges, mixed]


def shapes(args, dyn):
    if dyn is None:
        return None
    return tuple(dyn.get(i) for i in range(len(args)))


def collect():
    """Fills `CASES` with the modules of all groups."""
    for group in GROUPS:
        torch.manual_seed(0)
        try:
            group()
        except Exception:
            traceback.print_exc()


def write(out, case, op=None, core=False):
    """Writes one of `CASES` into the folder `out`."""
    name, module, inputs, kwargs, dyn, test, more = case
    dynamic = shapes(inputs, dyn)
    if dynamic is not None and isinstance(module, Fn):
        dynamic = (dynamic,)
    cases.write(out, name, module, inputs, kwargs, op=op or name.split(".")[0], test=test, dynamic_shapes=dynamic, **{"core": core, **more})


def main():
    args = cases.arguments(__doc__)
    collect()
    written = failed = 0
    for case in CASES:
        name = case[0]
        if not name.startswith(args.only):
            continue
        try:
            write(args.out, case, core=args.core)
            written += 1
        except Exception as error:
            failed += 1
            print(f"not exported: {name}: {cases.reason(error)}", file=sys.stderr)
    print(f"{written} written, {failed} not exported")


if __name__ == "__main__":
    main()
