"""Measures the Python package: import, size of the wheel, calls, and generation beside `flambeau bench`.

Run it with the Python that has a release build of the package. ExecuTorch is measured too where it is installed.
Usage: python scripts/bench_python.py [--model MODEL] [--wheel FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def command(*args: str) -> str:
    done = subprocess.run([sys.executable, "-m", "flambeau", *args], check=True, capture_output=True, text=True)
    return done.stdout


def imports() -> float:
    """Milliseconds of `import flambeau`, without the start of Python."""
    script = "import time; t = time.perf_counter(); import flambeau; print((time.perf_counter() - t) * 1e3)"
    runs = [float(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout) for _ in range(10)]
    return min(runs)


def calls(method: Any) -> float:
    """Microseconds of a call of four small tensors."""
    import torch

    inputs = [torch.ones(4) for _ in range(4)]
    least = float("inf")
    for _ in range(50):
        begin = time.perf_counter()
        for _ in range(200):
            method.execute(inputs)
        least = min(least, (time.perf_counter() - begin) / 200)
    return least * 1e6


def four_tensors() -> bytes:
    import torch

    import flambeau

    class Sum(torch.nn.Module):
        def forward(self, a, b, c, d):
            return a + b, c + d

    return flambeau.compile(torch.export.export(Sum(), tuple(torch.ones(4) for _ in range(4)))).to_bytes()


def generation(model: str) -> tuple[float, float]:
    """Tokens a second through Python, and of `flambeau bench`. The model is a `.pte` file with its tokenizer."""
    import flambeau

    llm, count = flambeau.LLM(model), 128
    answers = [llm.generate("The history of", max_new_tokens=count, temperature=0.0, ignore_eos=True) for _ in range(6)]
    told = json.loads(command("bench", model, "-p", "0", "-n", str(count), "--json"))
    return max(answer.generated_tokens_per_second for answer in answers), told[0]["tps_median"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a language model, for generation")
    parser.add_argument("--wheel", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    print(f"import: {imports():.1f} ms")
    if options.wheel:
        print(f"wheel: {options.wheel.stat().st_size / 1e6:.1f} MB")
    if importlib.util.find_spec("torch"):
        data = four_tensors()
        from flambeau.runtime import Runtime

        print(f"call of 4 small tensors: {calls(Runtime.get().load_program(data).load_method('forward')):.1f} us")
        if importlib.util.find_spec("executorch"):
            import flambeau.executorch
            from executorch.runtime import Runtime as ExecuTorch

            if flambeau.executorch.is_registered():
                print(f"the same in executorch.runtime: {calls(ExecuTorch.get().load_program(data).load_method('forward')):.1f} us")
    if options.model:
        ours, bench = generation(options.model)
        print(f"generation: {ours:.1f} tokens/s, `flambeau bench` {bench:.1f}")


if __name__ == "__main__":
    main()
