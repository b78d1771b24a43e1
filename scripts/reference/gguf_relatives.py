"""Rewrites GGUF files as files of related architectures and of other writers, which have the same logits. Needs the package gguf."""
import numpy as np

ROWS = {"attn_qkv": ("attn_q", "attn_k", "attn_v")}


def joined(tensors, groups):
    """Joins rows of tensors of a layer."""
    for name in list(tensors):
        layer, _, part = name.rpartition(".")[0].rpartition(".")
        kind = name.rpartition(".")[2]
        for whole, parts in groups.items():
            if part == parts[0]:
                pieces = [tensors.pop(f"{layer}.{piece}.{kind}") for piece in parts]
                tensors[f"{layer}.{whole}.{kind}"] = np.concatenate(pieces)


def scaled(tensors):
    """Puts scales beside matrices, a number for each expert."""
    for name in list(tensors):
        module, _, kind = name.rpartition(".")
        data = tensors[name]
        if kind == "weight" and data.ndim > 1 and "blk" in name and "inp" not in name:
            factors = np.float32(2.0) ** np.arange(1, 1 + (len(data) if data.ndim == 3 else 1), dtype=np.float32)
            tensors[name] = (data / factors.reshape(-1, *[1] * (data.ndim - 1))).astype(data.dtype)
            tensors[f"{module}.scale"] = factors


def join_rows(keys, tensors):
    """Joins queries, keys and values."""
    joined(tensors, ROWS)


def first_ling(keys, tensors):
    """Granite with experts and without its factors, under the keys of Ling 1."""
    for name in ("embedding_scale", "residual_scale", "logit_scale", "attention.scale", "expert_shared_feed_forward_length"):
        del keys[name]
    keys |= dict(expert_feed_forward_length=keys["feed_forward_length"], expert_shared_count=1, expert_weights_norm=True, expert_weights_scale=1.0)


def rename_norm(keys, tensors):
    """Gives the second norm its usual name."""
    for name in list(tensors):
        tensors[name.replace("post_attention_norm", "ffn_norm")] = tensors.pop(name)


def second_ling(keys, tensors):
    rename_norm(keys, tensors)
    joined(tensors, ROWS)


def scale(keys, tensors):
    scaled(tensors)


def first_minicpm(keys, tensors):
    """The first files of MiniCPM leave out the factors."""
    for name in ("embedding_scale", "residual_scale", "logit_scale", "attention.scale"):
        del keys[name]


def orion(keys, tensors):
    del keys["use_parallel_residual"]


def one_loop(keys, tensors):
    keys["num_loops"] = 1


def first_qwen(keys, tensors):
    """The first Qwen states the joint width of gates and ups."""
    joined(tensors, ROWS)
    keys["feed_forward_length"] *= 2


def rewrite(source, out, architecture, change=None):
    """Writes the file `source` under another architecture's name, with `change` applied to keys and tensors."""
    # Imported late, so that a checkout's own package is found first.
    import gguf

    reader = gguf.GGUFReader(source)
    old = reader.fields["general.architecture"].contents()
    own = {name.split(".", 1)[1]: field.contents() for name, field in reader.fields.items() if name.startswith(f"{old}.")}
    kinds = {name.split(".", 1)[1]: field.types for name, field in reader.fields.items() if name.startswith(f"{old}.")}
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    if change:
        change(own, tensors)
    writer = gguf.GGUFWriter(out, architecture)
    new = {bool: gguf.GGUFValueType.BOOL, float: gguf.GGUFValueType.FLOAT32, int: gguf.GGUFValueType.UINT32}
    for name, field in reader.fields.items():
        if name.startswith(("tokenizer.", "general.file_type")):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for name, value in own.items():
        types = kinds.get(name, [new[type(value)]])
        writer.add_key_value(f"{architecture}.{name}", value, types[0], types[-1] if len(types) > 1 else None)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
