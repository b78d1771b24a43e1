"""What an entry of the zoo is: a model with random weights, its inputs, and the axes whose size is left open."""
from dataclasses import dataclass, field
from typing import Callable

import torch
from torch import nn
import torch.utils._pytree as pytree

ENTRIES = {}


@dataclass
class Example:
    """A model, a function from a batch size to its inputs by name, and whether its batch may be left open at export."""
    model: nn.Module
    inputs: Callable[[int], dict]
    dynamic: bool = True
    batch_axis: dict = field(default_factory=dict)


@dataclass
class Entry:
    source: str
    name: str
    build: Callable[[], Example]


def entry(source, name, build):
    ENTRIES[f"{source}/{name}"] = Entry(source, name, build)


class TensorResults(nn.Module):
    """Runs a model on inputs by name and returns the tensors of its result, in order, without caches and copies of inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        result = self.model(**inputs)
        if isinstance(result, dict):
            skipped = ("past_key_values", "encoder_last_hidden_state", "loss", "loss_dict")
            result = [v for k, v in result.items() if k not in skipped]
        given = {id(v) for v in inputs.values()}
        return tuple(v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor) and id(v) not in given)


class Positional(nn.Module):
    """A model that takes its only input by position."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def image(size, channels=3, name="x"):
    """Inputs of a model of images `[batch, channels, size, size]`."""
    height, width = size if isinstance(size, tuple) else (size, size)
    return lambda batch: {name: torch.randn(batch, channels, height, width)}


def shake(model):
    """Makes results depend on the inputs: no branch of the model stays at zero, and no layer shrinks its input to noise.

    Parameters that start as constants get noise. Weights [out, ...] whose elements are small for their fan-in, as in
    configurations with narrow layers, are scaled to a standard deviation of 1 / sqrt(fan-in).
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or parameter.numel() < 2:
                continue
            if parameter.max() == parameter.min():
                parameter.add_(torch.randn_like(parameter) * 0.02)
            wanted = parameter[0].numel() ** -0.5
            if parameter.dim() > 1 and parameter.std() < wanted / 2:
                parameter.mul_(wanted / parameter.std())
    return model
