#!/usr/bin/env python3
"""Exports small layers quantized by torchao and by PyTorch's export quantization (PT2E) as case folders.

    torchao_cases.py OUT [--only TEXT]

`flambeau conformance OUT --from pt2` runs them. Needs torch and torchao. A configuration that torchao cannot run or export on this
machine is named and left out.
"""
import sys

import torch
from torch import nn

import cases


class Layers(nn.Module):
    """Two linear layers."""

    def __init__(self, width, hidden, bias=True):
        super().__init__()
        self.a, self.b = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Words(nn.Module):
    """An embedding and a linear layer."""

    def __init__(self, width):
        super().__init__()
        self.table, self.b = nn.Embedding(40, width), nn.Linear(width, 24)

    def forward(self, ids):
        return self.b(self.table(ids))


class Pictures(nn.Module):
    """Convolutions and what stands between them."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, groups=4), nn.Linear(8, 10)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        x = torch.relu(self.b(x) + self.b(x))
        return self.c(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def configurations():
    """Name and configuration of every kind that torchao can make here."""
    import torchao.quantization as q
    from torchao.prototype.mx_formats.inference_workflow import MXDynamicActivationMXWeightConfig, NVFP4DynamicActivationNVFP4WeightConfig, NVFP4WeightOnlyConfig
    from torchao.prototype.quantization.gguf.api import GGUFWeightOnlyConfig
    from torchao.quantization.quant_primitives import MappingType
    from torchao.quantization.granularity import PerAxis, PerGroup, PerRow, PerTensor

    yield "float8_row", lambda: q.Float8WeightOnlyConfig()
    yield "float8_tensor", lambda: q.Float8WeightOnlyConfig(granularity=PerTensor())
    yield "float8_e5m2", lambda: q.Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2)
    yield "float8_dynamic_row", lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    yield "float8_dynamic_tensor", lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=PerTensor())
    yield "float8_int4", lambda: q.Float8DynamicActivationInt4WeightConfig()
    yield "int4", lambda: q.Int4WeightOnlyConfig(group_size=32)
    for packing in ("plain", "plain_int32", "tile_packed_to_4d", "opaque"):
        yield f"int4_{packing}", lambda packing=packing: q.Int4WeightOnlyConfig(group_size=32, int4_packing_format=packing)
    yield "int8", lambda: q.Int8WeightOnlyConfig()
    yield "int8_group", lambda: q.Int8WeightOnlyConfig(granularity=PerGroup(32))
    yield "int8_dynamic", lambda: q.Int8DynamicActivationInt8WeightConfig()
    yield "int8_dynamic_tensor", lambda: q.Int8DynamicActivationInt8WeightConfig(granularity=PerTensor())
    yield "int8_dynamic_asymmetric", lambda: q.Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC)
    yield "int8_static", lambda: q.Int8StaticActivationInt8WeightConfig(act_quant_scale=torch.tensor(0.03))
    for bits in (2, 4, 8):
        dtype = getattr(torch, f"int{bits}")
        yield f"8da{bits}w_group", lambda dtype=dtype: q.Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=PerGroup(32))
        yield f"8da{bits}w_axis", lambda dtype=dtype: q.Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=PerAxis(0))
    yield "8da4w_symmetric", lambda: q.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32), act_mapping_type=MappingType.SYMMETRIC)
    yield "intx5", lambda: q.IntxWeightOnlyConfig(weight_dtype=torch.int5, granularity=PerGroup(32))
    yield "intx6_asymmetric", lambda: q.IntxWeightOnlyConfig(weight_dtype=torch.int6, granularity=PerGroup(32), mapping_type=MappingType.ASYMMETRIC)
    yield "intx7", lambda: q.IntxWeightOnlyConfig(weight_dtype=torch.int7, granularity=PerAxis(0))
    yield "nvfp4", lambda: NVFP4WeightOnlyConfig()
    yield "nvfp4_single", lambda: NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=False)
    yield "nvfp4_dynamic", lambda: NVFP4DynamicActivationNVFP4WeightConfig()
    yield "mx8_dynamic", lambda: MXDynamicActivationMXWeightConfig()
    yield "mx4_dynamic", lambda: MXDynamicActivationMXWeightConfig(activation_dtype=torch.float4_e2m1fn_x2, weight_dtype=torch.float4_e2m1fn_x2)
    yield "gguf_q4_k", lambda: GGUFWeightOnlyConfig()


def quantized(model, config, linear_only=True):
    from torchao.quantization import quantize_

    quantize_(model, config, (lambda m, _: isinstance(m, nn.Linear)) if linear_only else (lambda m, _: isinstance(m, (nn.Linear, nn.Embedding))))
    return model


def by_export(dynamic, channels):
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=channels, is_dynamic=dynamic))

    def convert(model, args):
        prepared = prepare_pt2e(torch.export.export(model, args).module(), quantizer)
        prepared(*args)
        return Called(convert_pt2e(prepared))
    return convert


class Called(nn.Module):
    """Calls a converted module, which has no `eval`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def eval(self):
        return self

    def forward(self, x):
        return self.inner(x)


def main():
    args = cases.arguments(__doc__)
    written = 0

    def attempt(name, make):
        nonlocal written
        if args.only not in name:
            return
        torch.manual_seed(0)
        try:
            model, inputs, dynamic, tolerance = make()
            cases.write(args.out, name, model, inputs, dynamic_shapes=dynamic, rtol=tolerance, atol=tolerance)
            written += 1
        except Exception as error:
            print(f"left out: {name}: {cases.reason(error)}", file=sys.stderr)

    for name, config in configurations():
        for dtype, short, width, hidden in ((torch.float32, "f32", 64, 96), (torch.bfloat16, "bf16", 256, 128)):
            def layers(config=config, dtype=dtype, width=width, hidden=hidden):
                model = quantized(Layers(width, hidden, bias=dtype == torch.float32).to(dtype).eval(), config())
                # One code of an activation more or less is a step of its scale.
                return model, (torch.randn(3, width, dtype=dtype),), None, 2e-2
            attempt(f"ao.{name}.{short}", layers)

            def dynamic(config=config, dtype=dtype, width=width, hidden=hidden):
                model = quantized(Layers(width, hidden).to(dtype).eval(), config())
                return model, (torch.randn(2, 5, width, dtype=dtype),), ({0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=16)},), 2e-2
            attempt(f"ao.{name}.{short}.dyn", dynamic)
    for dynamic in (False, True):
        for channels in (False, True):
            kind = f"{'dynamic' if dynamic else 'static'}_{'channel' if channels else 'tensor'}"
            convert = by_export(dynamic, channels)

            def layers():
                x = (torch.randn(3, 64),)
                return convert(Layers(64, 48).eval(), x), x, None, 2e-2

            def pictures():
                x = (torch.randn(2, 3, 12, 12),)
                return convert(Pictures().eval(), x), x, None, 2e-2
            attempt(f"pt2e.{kind}.layers", layers)
            attempt(f"pt2e.{kind}.pictures", pictures)
    print(f"{written} written")


if __name__ == "__main__":
    main()
