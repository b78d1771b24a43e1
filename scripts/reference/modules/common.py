"""What every family of module cases uses: the list of cases, and inputs to make them of."""
import torch
from torch import nn
from torch.export import Dim

CASES = []


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args, **kwargs):
        return self.fn(*args, **kwargs)


def case(name, module, *args, dyn=None, test=None, kwargs=None, **more):
    """`dyn` names dynamic axes by input: {0: {1: (lo, hi)}}; equal bounds objects mean one symbol."""
    if not isinstance(module, nn.Module):
        module = Fn(module)
    CASES.append((name, module, args, kwargs, dyn, test, more))


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def ints(hi, *shape, lo=0, dtype=torch.int64):
    return torch.randint(lo, hi, shape, dtype=dtype)


FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ALL = dict(FLOATS, i32=torch.int32, i64=torch.int64, u8=torch.uint8, bool=torch.bool)


def some(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(*shape) > 0.5
    if dtype.is_floating_point:
        return randn(*shape, dtype=dtype)
    return ints(9, *shape, dtype=dtype) if dtype == torch.uint8 else ints(9, *shape, lo=-9, dtype=dtype)


N, T = Dim("n", min=1, max=16), Dim("t", min=3, max=33)
