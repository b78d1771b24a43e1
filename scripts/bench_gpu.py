#!/usr/bin/env python3
"""Reruns the figures of docs/benchmarks-gpu.md on this machine's GPU, and writes their tables.

    bench_gpu.py FLAMBEAU WORK [--mlx-path DIR] [--minutes 9.5] [--only dense,sequences,...] [--page FILE] [--tiny]

Makes checkpoints with random weights under WORK, exports them and measures `flambeau bench --engine mlx`. Where mlx-lm, mlx-whisper or PyTorch
is installed, it is measured on the same weights. Each result is printed as a line of JSON at once, and the tables follow at the end. `--page`
also writes the tables into a Markdown page, between two marks. A part that does not fit into the remaining minutes is left out and listed.
Checkpoints and programs are removed after their part. At most 42 GB of disk are needed. Needs numpy. `--tiny` replaces every shape by a tiny
one: it checks the script without a large GPU.
"""

import argparse
import dataclasses
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent / "bench"
BEGIN, END = "<!-- bench_gpu.py begins -->", "<!-- bench_gpu.py ends -->"


class OutOfTime(Exception):
    """The deadline has passed."""


@dataclasses.dataclass
class Bench:
    flambeau: str
    work: pathlib.Path
    mlx_path: str | None
    tiny: bool
    deadline: float
    prompt: int = 2048
    generated: int = 128
    rows: list = dataclasses.field(default_factory=list)
    left_out: list = dataclasses.field(default_factory=list)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, *command, wanted=False) -> str | None:
        """The output of a command; `None` if it fails and is not wanted."""
        if self.left() < 5:
            raise OutOfTime
        try:
            done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True, timeout=self.left())
            return done.stdout
        except subprocess.TimeoutExpired as expired:
            raise OutOfTime from expired
        except subprocess.CalledProcessError:
            if wanted:
                raise
            return None

    def python(self, script, *arguments) -> dict:
        """The JSON line that a script of `bench/` prints; empty without the packages that it needs."""
        output = self.run(sys.executable, BENCH / script, *arguments)
        return json.loads(output.splitlines()[-1]) if output else {}

    def make(self, shape, *options, script="gpu_shapes.py") -> pathlib.Path:
        folder = self.work / "-".join([shape, *(option.lstrip("-") for option in options)])
        self.run(sys.executable, BENCH / script, "make", folder, "--shape", shape, *options, *["--tiny"] * self.tiny, wanted=True)
        return folder

    def export(self, folder, *options) -> pathlib.Path:
        file = folder.with_name(f"{folder.name}.pte")
        self.run(self.flambeau, "export", folder, "-o", file, *options, wanted=True)
        return file

    def language(self, folder) -> pathlib.Path:
        return self.export(folder, "--max-seq-len", self.prompt + 256, "--prefill-chunk", self.prompt)

    def bench(self, file, *options) -> tuple[dict, list]:
        """Medians by test, and the fused regions of the last test."""
        place = ["--mlx-path", self.mlx_path] if self.mlx_path else []
        command = [self.flambeau, "bench", file, *options, "--engine", "mlx", "--output", "json", *place]
        rows = json.loads(self.run(*command, wanted=True))
        regions = [f"{region['count']} x {region['form']}" for region in rows[-1].get("fused_regions") or []]
        return {row["test"]: row.get("tps_median", row.get("ms_median")) for row in rows}, regions

    def add(self, part, name, ours, theirs, regions=()) -> None:
        row = dict(part=part, name=name, flambeau=ours, other=theirs, regions=list(regions))
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def remove(self, *paths) -> None:
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def dense(b: Bench, shape: str, bits: int) -> None:
    """A prompt, generation from an empty context, and generation behind the prompt, beside mlx-lm and PyTorch."""
    folder = b.make(shape, "--bits", str(bits))
    file = b.language(folder)
    ours, regions = b.bench(file, "-p", b.prompt, "-n", b.generated, "-d", f"0,{b.prompt}", "-r", 3)
    theirs = b.python("gpu_shapes.py", "measure", folder, "--prompts", b.prompt, "--generated", b.generated, "--batches", 1)
    b.add("dense", f"{shape}, {bits} bits", ours, theirs, regions)
    if (shape, bits) == ("qwen3-8b", 4):
        sequences(b, folder, file)
    if bits == 16 and b.left() > 90:
        compared = b.python("gpu_torch.py", folder, "--prompt", b.prompt, "--generated", b.generated)
        for how, figures in compared.items():
            names = {"pp": f"pp{b.prompt}", "tg": f"tg{b.generated}", "tg_after_prompt": f"tg{b.generated}@d{b.prompt}"}
            b.add("pytorch", f"{shape}, {how}", ours, {names[key]: value for key, value in figures.items()})
    b.remove(folder, file)


def sequences(b: Bench, folder: pathlib.Path, file: pathlib.Path) -> None:
    """Several sequences at once."""
    ours, regions = b.bench(file, "-p", 0, "-n", b.generated, "-r", 3, "--sequences", "32,16,8,4,1")
    theirs = b.python("gpu_shapes.py", "measure", folder, "--prompts", "", "--generated", b.generated, "--batches", "32,8,1")
    b.add("sequences", "qwen3-8b, 4 bits", ours, theirs, regions)


def deep(b: Bench, part: str, shape: str, prompts: list[int], *options: str) -> None:
    """Prompts, and tokens behind each of them."""
    folder = b.make(shape, *options)
    file = b.language(folder)
    ours, generated = {}, b.generated // 2
    prompts = [min(prompt, b.prompt) for prompt in prompts]
    for prompt in prompts:
        ours.update(b.bench(file, "-p", prompt, "-n", generated, "-d", prompt, "-r", 2)[0])
    found, regions = b.bench(file, "-p", 0, "-n", generated, "-r", 2)
    theirs = b.python("gpu_shapes.py", "measure", folder, "--prompts", ",".join(map(str, prompts)), "--generated", generated)
    b.add(part, " ".join([shape, *options]), {**ours, **found}, theirs, regions)
    b.remove(folder, file)


def speech(b: Bench, shape: str) -> None:
    """Milliseconds of features, encoder, a token and a window."""
    folder = b.make(shape, script="speech_shapes.py")
    file = b.export(folder)
    ours, regions = b.bench(file, "-r", 5)
    theirs = b.python("speech_shapes.py", "measure", folder) if "whisper" in shape else {}
    b.add("speech", shape, ours, theirs, regions)
    b.remove(folder, file)


# Parts in order: a name, seconds that it takes at most with full shapes, and the measurement.
PARTS = [
    ("dense", 45, lambda b: dense(b, "llama-3.2-1b", 4)),
    ("dense", 90, lambda b: dense(b, "qwen3-8b", 4)),
    ("mixture", 60, lambda b: deep(b, "mixture", "qwen3.5-35b-a3b", [512], "--layers", "8", "--float-gates")),
    ("mixture", 60, lambda b: deep(b, "mixture", "qwen3.5-35b-a3b", [512], "--layers", "8")),
    ("gemma", 60, lambda b: deep(b, "gemma", "gemma4-e2b", [512])),
    ("speech", 40, lambda b: speech(b, "whisper-large-v3-turbo")),
    ("dense", 90, lambda b: dense(b, "llama-3.2-1b", 16)),
    ("mixture", 150, lambda b: deep(b, "mixture", "qwen3.5-35b-a3b", [512, 2048])),
    ("gemma", 120, lambda b: deep(b, "gemma", "gemma4-31b", [512])),
    ("dense", 150, lambda b: dense(b, "qwen3-8b", 16)),
    ("speech", 40, lambda b: speech(b, "parakeet-tdt-0.6b")),
]

TITLES = dict(
    dense="The engine beside mlx-lm, tokens/s", pytorch="The engine beside PyTorch, tokens/s",
    sequences="Several sequences at once, tokens/s of all", mixture="Mixtures of experts, tokens/s", gemma="Gemma 4, tokens/s",
    speech="Speech, milliseconds")


def tables(b: Bench) -> str:
    """The results as Markdown."""
    revision = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=BENCH, capture_output=True, text=True).stdout.strip()
    lines = [f"{time.strftime('%Y-%m-%d')}, {device()}, {versions()}, Flambeau {revision or 'of an unknown revision'}."]
    lines += [f"Not measured for want of time: {', '.join(b.left_out)}."] if b.left_out else []
    for part, title in TITLES.items():
        rows = [row for row in b.rows if row["part"] == part]
        if not rows:
            continue
        lines += ["", f"### {title}", "| shape | test | Flambeau | other | ratio |", "|---|---|---:|---:|---:|"]
        for row in rows:
            for test, ours in row["flambeau"].items():
                theirs = row["other"].get(test) or row["other"].get(f"{test}@s1")
                ratio = f"{ours / theirs:.2f}" if theirs else "–"
                lines.append(f"| {row['name']} | {test} | {number(ours)} | {number(theirs)} | {ratio} |")
            unmatched = {k: v for k, v in row["other"].items() if k not in row["flambeau"] and k.removesuffix("@s1") not in row["flambeau"]}
            lines += [f"| {row['name']} | {test} | – | {number(value)} | – |" for test, value in unmatched.items()]
        for row in rows:
            lines += ["", f"Fused regions of {row['name']}, last test: {'; '.join(row['regions'])}."] if row["regions"] else []
    return "\n".join(lines) + "\n"


def number(value) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def device() -> str:
    try:
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
        return names.stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or "an unknown device"


def versions() -> str:
    from importlib import metadata

    found = []
    for package in ("mlx", "mlx-lm", "mlx-whisper", "torch"):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            pass
    return ", ".join(found) or "no Python packages to compare with"


def write(page: pathlib.Path, text: str) -> None:
    """Replaces what stands between the marks, or adds both marks and the text at the end."""
    old = page.read_text()
    before, found, rest = old.partition(BEGIN)
    after = rest.partition(END)[2] if found else "\n"
    page.write_text(f"{before if found else old.rstrip() + chr(10) * 2 + '## Latest run' + chr(10)}{BEGIN}\n{text}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flambeau")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--mlx-path")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", default=",".join(dict.fromkeys(name for name, _, _ in PARTS)))
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="bench_gpu-", dir=args.work))
    b = Bench(args.flambeau, work, args.mlx_path, args.tiny, time.monotonic() + 60 * args.minutes)
    if args.tiny:
        b.prompt, b.generated = 64, 8
    for at, (name, seconds, measure) in enumerate(PARTS):
        if name not in args.only.split(","):
            continue
        label = f"{name} (part {at + 1})"
        if b.left() < seconds and not args.tiny:
            b.left_out.append(label)
            continue
        try:
            measure(b)
        except OutOfTime:
            b.left_out.append(label)
        except subprocess.CalledProcessError as error:
            b.left_out.append(f"{label}, which failed: {error}")
        for rest in work.iterdir():
            b.remove(rest)
    work.rmdir()
    text = tables(b)
    print(text)
    if args.page:
        write(args.page, text)


if __name__ == "__main__":
    main()
