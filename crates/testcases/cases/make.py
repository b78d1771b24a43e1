#!/usr/bin/env python3
"""Writes the case folders next to this script: small programs of every operator family, in both
formats, with PyTorch's results.

    make.py FLAMBEAU [--only TEXT]

FLAMBEAU is the built command, which compiles each `model.pt2` to a `model.pte` next to it. Needs
PyTorch 2.15 and torchao.
"""
import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts" / "reference"))

import cases  # noqa: E402
import module_cases  # noqa: E402
from modules.common import CASES  # noqa: E402

FAMILIES = {
    "elementwise": "unary.exp.f32 unary.clamp.i64 unary.isfinite.f16 unary.sigmoid.bf16 act.mish.f32 act.hardswish.bf16 "
    "dtype.add.f16.i64 dtype.remainder.i32.neg dtype.cast.f32.i64 erfinv.f32",
    "reduce": "unary.sum.bool unary.mean.bf16 unary.argmax.i64 unary.logsumexp.f32 unary.var.f16 unary.cumsum.i32 io.zero_mean",
    "shape": "unary.flip.bool unary.pad.f16 unary.repeat.u8 io.views_of_one",
    "index": "index.bcast_split put.split scatter.reduce scatter.many gather.small masked.scatter embedding.padding bool_index_sum",
    "linalg": "einsum.6 einsum.3.bf16 unary.addmm.bf16",
    "conv": "conv.32112 convt.21122 conv.pad.reflect conv.1d_unbatched pool.max.32110 pool.avg.32110None resize.bilinear.f16",
    "norm": "model.norms model.bn1d dyn.layer.rms.bf16 renorm.f16",
    "attention": "sdpa.gqa.f32 sdpa.bool_rows.bf16 mha.padding.f16 dyn.layer.mha.f32",
    "create": "unary.arange.i64 unary.full_like.f16 unary.eye.bool",
    "sort": "unary.sort_desc.bf16 unary.topk.f32 searchsorted searchsorted.long",
    "scalar": "io.rank0 io.item io.int_div io.big_ints",
    "mixed types": "mixed.writes mixed.numbers mixed.autocast mixed.bits mixed.floats mixed.wide",
    "control flow": "cond.nested cond.of_sizes cond.shape cond.writes scan.two scan.dyn map.matrix while.linear vmap.pairs",
    "dynamic sizes": "dyn.reshape_mix dyn.pool_size dyn.matmul dyn.symint_input dyn.arange open.table open.parts open.pools "
    "open.resized open.scattered open.computed open.image open.patches open.causal open.channels",
    "state": "write.cache write.index_put write.counter_int write.bool_buffer write.swap "
    "write.old_inputs write.views write.masks",
    "quantized": "quant.linear.4.32.f32 quant.linear.8.0.bf16 quant.embedding.4.32.f16 quant.linear.2.64.f16 quant.int8.f32 "
    "quant.8da4w.bf16 quant.float8.f32 quant.nvfp4.bf16 quant.pt2e.dynamic",
    "foreign types": "f64.requests f64.dynamic float8.casts",
    "options": "options.losses options.resize options.grid options.windows options.layout options.sort options.create options.statistics "
    "options.products options.casts options.put options.attention options.parts",
    "functions": "functions.normal functions.gamma functions.near_poles functions.windows functions.bessel functions.halves functions.outside functions.distinct losses.margin statistics.counts statistics.segments",
    "arrangements": "arrange.chosen arrange.masked_index arrange.fractional arrange.lines arrange.tensor_split",
    "writes": "write.batch_norm write.dropout write.renorm",
    "ends of types": "ends.division ends.shifts ends.bounds ends.integer_conv ends.halves ends.nonzero_rank0",
    "complex": "complex.rope complex.functions complex.arranged complex.spectrum complex.statistics complex.frames linear.factors",
    "samples": "samples.attention samples.casts samples.running samples.complex samples.empty samples.strides samples.grid samples.bags samples.conv samples.conv3d samples.labels samples.batch_norm "
    "samples.ties samples.carried samples.turned_nothing samples.apart_windows samples.rounded samples.pools samples.nothing samples.open_nothing samples.roots samples.epsilon samples.frequencies samples.effects samples.fake_quantized",
    "models": "rnn.LSTM.1.uni.bias.bt model.decoder.f32 model.moe",
}


def shrink(path):
    """Recompresses an archive without its stack traces, which contain paths of this machine."""
    with zipfile.ZipFile(path) as old:
        entries = [(info.filename, old.read(info)) for info in old.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in entries:
            if name.endswith("models/model.json"):
                data = json.dumps(without_traces(json.loads(data))).encode()
            new.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def without_traces(value):
    if isinstance(value, dict):
        return {key: without_traces(v) for key, v in value.items() if key != "stack_trace"}
    return [without_traces(v) for v in value] if isinstance(value, list) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flambeau", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    module_cases.collect()
    known = {case[0]: case for case in CASES}
    for family, names in FAMILIES.items():
        for name in filter(lambda name: args.only in name, names.split()):
            torch.manual_seed(0)
            module_cases.write(HERE, known[name], op=family)
            program = HERE / name / "model.pt2"
            shrink(program)
            subprocess.run([args.flambeau.resolve(), "compile", program, "-o", HERE / name / "model.pte"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
