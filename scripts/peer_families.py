#!/usr/bin/env python3
"""Writes the table of language model families in docs/peers.md: which program runs which family.

    scripts/peer_families.py LLAMA_CPP MLX_LM MISTRAL_RS

The arguments are source folders of the peers. A family counts if the peer's sources name it: llama.cpp by the
classes that its converter registers, mlx-lm by its model files, mistral.rs by its table of loaders. Classes of
families come from transformers, which must be installed. `docs/models.md` lists the families of Flambeau.
"""

import re
import sys
from pathlib import Path

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as PICTURES,
)

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"
# Classes of families whose code is not part of transformers.
OWN_CODE = {
    "bailing_moe": "BailingMoeForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM",
    "bailing_hybrid": "BailingMoeV3ForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "exaone": "ExaoneForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "iquestcoder": "IQuestCoderForCausalLM",
    "joyai_llm_flash": "JoyAILLMFlashForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "mimo": "MiMoForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "mpt": "MPTForCausalLM",
    "plamo2": "Plamo2ForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
}
# mlx-lm's names for the same layers.
REMAPPED = {"mistral": "llama", "llava": "mistral3", "falcon_mamba": "mamba", "joyai_llm_flash": "deepseek_v3",
            "kimi_k2": "deepseek_v3", "qwen2_5_vl": "qwen2_vl", "minimax_m2": "minimax", "iquestcoder": "llama",
            "gemma4_unified": "gemma4"}


def texts(folder: Path, pattern: str) -> str:
    files = sorted(folder.glob(pattern))
    if not files:
        sys.exit(f"{folder} has no {pattern}")
    return "\n".join(file.read_text() for file in files)


def llama_cpp(folder: Path) -> set[str]:
    """Class names that the converter registers."""
    calls = re.findall(r"@ModelBase\.register\(([^)]*)\)", texts(folder, "conversion/*.py"))
    return {name for call in calls for name in re.findall(r'"([A-Za-z0-9_]+)"', call)}


def mlx_lm(folder: Path) -> set[str]:
    return {file.stem for file in (folder / "mlx_lm/models").glob("*.py")}


def mistral_rs(folder: Path) -> set[str]:
    text = texts(folder, "mistralrs-core/src/model_metadata.rs")
    return set(re.findall(r'=> "([A-Za-z0-9_]+For[A-Za-z]+)"', text))


def own_families() -> list[list[str]]:
    """Names of each family in the first table of docs/models.md."""
    table = (ROOT / "docs/models.md").read_text().split("\n\n")[2]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines()[2:]]


def classes(name: str) -> set[str]:
    if name in OWN_CODE:
        return {OWN_CODE[name]}
    found = {CAUSAL.get(name), PICTURES.get(name)}
    whole = name.removesuffix("_text")
    found |= {CAUSAL.get(whole), PICTURES.get(whole)}
    return {entry for entry in found if entry}


def rows(peers: list[set[str]]) -> list[str]:
    converter, modules, loaders = peers
    own = own_families()
    known = {name for names in own for name in names}
    covered = known | {name.removesuffix("_text") for name in known}
    others = [[name] for name in CAUSAL if name not in covered and not name.endswith("_text")]

    def mark(found: bool) -> str:
        return "●" if found else "○"

    table = []
    for names in sorted(own) + others:
        kinds = set().union(*map(classes, names))
        files = {REMAPPED.get(name, name) for name in names} | set(names) | {name.removesuffix("_text") for name in names}
        cells = [bool(kinds & converter), bool(files & modules), bool(kinds & loaders)]
        is_own = names[0] in known
        if is_own or any(cells):
            label = ", ".join(f"`{name}`" for name in names)
            table.append(f"| {label} | {' | '.join(map(mark, [is_own, *cells]))} |")
    return table


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    readers = [llama_cpp, mlx_lm, mistral_rs]
    table = rows([reader(Path(path)) for reader, path in zip(readers, sys.argv[1:])])
    counts = [sum(row.split("|")[column].strip() == "●" for row in table) for column in range(2, 6)]
    head = ["| `model_type` | Flambeau | llama.cpp | mlx-lm | mistral.rs |", "|---|---|---|---|---|"]
    total = "| **rows with ●** | " + " | ".join(map(str, counts)) + " |"
    page = ROOT / "docs/peers.md"
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + "\n".join([*head, *table, total]) + "\n" + END + rest.split(END)[1])
    print(f"{len(table)} families; Flambeau, llama.cpp, mlx-lm, mistral.rs: {counts}")


if __name__ == "__main__":
    main()
