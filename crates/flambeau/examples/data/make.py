"""Writes the data of the documentation's examples: `mlp.pt2`, a captured perceptron, and
`tiny-llama`, a model folder with random weights.

`flambeau compile mlp.pt2 -o mlp.pte` creates `mlp.pte`. Needs torch, safetensors and tokenizers.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
WORDS = ["<unk>", "<s>", "</s>", "user", "assistant", ":", "the", "cat", "sat", "on", "mat", "where", "is", "?", "a", "dog"]
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 2, 1, 16
TEMPLATE = "{% for message in messages %}{{ message.role }} : {{ message.content }} {% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 64)
        self.down = torch.nn.Linear(64, 2)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


def capture(path):
    x = torch.zeros(2, 4)
    program = torch.export.export(Mlp().eval(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(program, path)


def model_folder(folder):
    folder.mkdir(exist_ok=True)
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": len(WORDS),
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": (len(WORDS), HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "model.layers.0.mlp.gate_proj.weight": (FFN, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (FFN, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, FFN),
    }
    weights = {name: torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    save_file({name: tensor.bfloat16() for name, tensor in weights.items()}, folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    for name, value in [("config.json", config), ("tokenizer_config.json", special)]:
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    capture(HERE / "mlp.pt2")
    model_folder(HERE / "tiny-llama")
