#!/usr/bin/env python3
"""Draws docs/images/speed.svg, the chart of the README, from the tables of the benchmark pages.

    python3 scripts/bench/chart.py

Reads the first table of docs/benchmarks.md and of docs/benchmarks-gpu.md. Needs matplotlib from pip.
"""
import io
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
OURS, THEIRS = "#e4572e", "#8d99ae"


def rows(page, heading):
    """The cells of the first table whose heading row contains a text, without emphasis and thousands separators."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|") and heading in line)
    table = []
    for line in lines[first + 2:]:
        if not line.startswith("|"):
            break
        table.append([re.sub(r"[*,](?=\d|\*|$)", "", cell.strip()).replace("*", "") for cell in line.strip("|").split("|")])
    return table


def bars(axes, title, pairs):
    """Horizontal bars of (label, tokens per second), the first at the top."""
    labels, values = zip(*pairs)
    colors = [OURS if label.startswith("Flambeau") else THEIRS for label in labels]
    drawn = axes.barh(labels, values, color=colors)
    axes.bar_label(drawn, labels=[f"{value:,.0f}" for value in values], padding=3, fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.18)
    axes.set_xticks([])
    axes.tick_params(left=False, labelsize=9)
    for side in axes.spines.values():
        side.set_visible(False)


def main():
    # Names in the file do not change from one run to the next.
    matplotlib.rcParams.update({"svg.hashsalt": "speed", "font.family": "sans-serif"})
    cpu = [row for row in rows("benchmarks.md", "generation of 128 behind the prompt") if row[0] != "Flambeau bf16"]
    gpu = [row for row in rows("benchmarks-gpu.md", "prompt of 2048, Flambeau") if row[0].endswith("4 bits")]
    beside = lambda ours, theirs: [
        (f"{name}, {row[0].removesuffix(', 4 bits')}", float(row[column])) for row in gpu for name, column in (("Flambeau", ours), ("mlx-lm", theirs))
    ]
    figure, panels = plt.subplots(2, 2, figsize=(9, 4.4), layout="constrained")
    bars(panels[0][0], "Prompt of 512, two CPU cores", [(row[0], float(row[1])) for row in cpu])
    bars(panels[0][1], "Generation, two CPU cores", [(row[0], float(row[3])) for row in cpu])
    bars(panels[1][0], "Prompt of 2,048 in 4 bits, NVIDIA GPU", beside(1, 2))
    bars(panels[1][1], "Generation in 4 bits, NVIDIA GPU", beside(4, 5))
    figure.supxlabel("tokens per second", fontsize=9)
    text = io.StringIO()
    figure.savefig(text, format="svg", facecolor="white")
    # The document type and the metadata name hosts and the date.
    plain = re.sub(r"<!DOCTYPE.*?>\n|\s*<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    (ROOT / "docs" / "images" / "speed.svg").write_text(plain)


if __name__ == "__main__":
    main()
