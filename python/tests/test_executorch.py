"""`flambeau.executorch`: the partitioner in ExecuTorch's export, and the backend in its runtime."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("executorch", reason="ExecuTorch is not installed")

with warnings.catch_warnings():
    # The library of the backend is built below.
    warnings.simplefilter("ignore")
    import flambeau.executorch

from cases import DATA  # noqa: E402
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower  # noqa: E402

import flambeau  # noqa: E402
from flambeau.executorch import FlambeauBackend, FlambeauPartitioner  # noqa: E402
from flambeau.runtime import Runtime  # noqa: E402


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.down = torch.nn.Linear(64, 4)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.norm(self.up(x)))).softmax(-1)


class Counter(torch.nn.Module):
    """Adds its input to a buffer; large enough to be no literal of the program."""

    def __init__(self, start=0.0):
        super().__init__()
        self.register_buffer("total", torch.full((32,), start))
        self.weight = torch.nn.Parameter(torch.arange(32.0))

    def forward(self, x):
        self.total.add_(x)
        return self.total * self.weight


def lowered(model, inputs, partitioner=None, **options):
    exported = torch.export.export(model.eval(), inputs, dynamic_shapes=options.pop("dynamic_shapes", None))
    return to_edge_transform_and_lower(exported, partitioner=[partitioner or FlambeauPartitioner()], **options)


def file(manager):
    return bytes(manager.to_executorch().buffer)


def backends(manager):
    return ["" + module.backend_id for module in manager.exported_program().graph_module.modules() if hasattr(module, "backend_id")]


def calls(manager):
    """Names of the calls outside of delegates."""
    nodes = manager.exported_program().graph.nodes
    names = [str(node.target) for node in nodes if node.op == "call_function"]
    return [name for name in names if name != "executorch_call_delegate" and "getitem" not in name]


def run(data, *inputs, method="forward"):
    outputs = Runtime.get().load_program(data).load_method(method).execute(list(inputs))
    return outputs[0] if len(outputs) == 1 else outputs


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_becomes_one_delegate_of_the_backend_of_mlx():
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(3, 8)
    manager = lowered(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=1, max=64)}})
    assert not calls(manager) and backends(manager) == ["MLXBackend"]
    program = Runtime.get().load_program(file(manager))
    assert program.metadata("forward").backends() == ["MLXBackend"]
    for rows in (1, 3, 40):
        x = torch.randn(rows, 8)
        close(program.load_method("forward").execute([x])[0], model(x))


def test_the_name_of_the_class_is_free_for_executorchs_own():
    name = FlambeauPartitioner().delegation_spec.backend_id
    assert FlambeauBackend.__name__ == "FlambeauBackend" and str.__str__(name) == "MLXBackend"
    assert name == "FlambeauBackend" and hash(name) == hash("FlambeauBackend") and name != "MLXBackend"


def test_what_nodes_cannot_express_stays_outside_with_a_reason():
    class Model(Mlp):
        def forward(self, x):
            return torch.cat([super().forward(x), x[:, :4]], 1).double().sum(1, keepdim=True).float() * super().forward(x)

    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 8)
    partitioner = FlambeauPartitioner()
    manager = lowered(model, (x,), partitioner)
    assert calls(manager) and len(backends(manager)) >= 1
    assert all(partitioner.refused.values()) and partitioner.refused
    close(run(file(manager), x), model(x))


def test_sorting_and_selection_are_parts_of_a_delegate():
    """ExecuTorch has no kernels for the positions of equal elements, so delegates choose any."""

    class Ranks(torch.nn.Module):
        def forward(self, x):
            return *x.topk(3), *x.sort(0)

    partitioner, x = FlambeauPartitioner(), torch.randperm(24).reshape(4, 6)
    manager = lowered(Ranks(), (x,), partitioner)
    assert not calls(manager) and backends(manager) == ["MLXBackend"] and not partitioner.refused
    close(run(file(manager), x), list(Ranks()(x)))


def test_weights_are_quantized_by_options():
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(3, 8)
    whole, small = (file(lowered(model, (x,), FlambeauPartitioner(**options))) for options in ({}, {"qlinear": "8w", "group_size": 32}))
    assert whole != small
    torch.testing.assert_close(run(small, x), model(x), rtol=0.1, atol=0.05)
    assert not torch.equal(run(small, x), run(whole, x))
    with pytest.raises(flambeau.LoadError, match="9w"):
        lowered(model, (x,), FlambeauPartitioner(qlinear="9w"))


def test_buffers_keep_their_contents():
    model, x = Counter(2.0), torch.ones(32)
    method = Runtime.get().load_program(file(lowered(model, (x,)))).load_method("forward")
    for count in (3.0, 4.0, 5.0):
        close(method.execute([x])[0], torch.full((32,), count) * torch.arange(32.0))


def test_inputs_that_no_node_reads_and_results_that_repeat_stay_in_order():
    class Model(torch.nn.Module):
        def forward(self, a, unused, b):
            y = a.sin()
            return y, b + 1, y, a

    a, unused, b = (torch.randn(4) for _ in range(3))
    for found, expected in zip(run(file(lowered(Model(), (a, unused, b))), a, unused, b), Model()(a, unused, b)):
        close(found, expected)


def test_sizes_stay_open():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.arange(x.shape[0], dtype=torch.float32)[:, None] + x.reshape(x.shape[0] * 2, 2).sum()

    x = torch.randn(3, 4)
    program = Runtime.get().load_program(file(lowered(Model(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=16)},))))
    for rows in (1, 3, 9):
        x = torch.randn(rows, 4)
        close(program.load_method("forward").execute([x])[0], Model()(x))


def test_control_flow_is_a_part_of_a_delegate():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x).sigmoid(), (x,)) + 1

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 8).abs()
    manager = lowered(model, (x,))
    assert not calls(manager)
    for x in (x, -x):
        close(run(file(manager), x), model(x))


def test_operators_of_mlx_are_taken():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 2, 16, 8))
            self.project = torch.nn.Linear(8, 8)

        def forward(self, x, start):
            at = start.item()
            torch._check(at >= 0)
            torch._check(at + x.shape[2] <= 16)
            torch.ops.mlx.kv_cache_update(self.keys, self.project(x), at)
            return torch.ops.mlx.custom_sdpa(x, self.keys, self.keys, at, is_causal=True)

    torch.manual_seed(0)
    model, x, start = Model().eval(), torch.randn(1, 2, 3, 8), torch.tensor(0)
    manager = lowered(model, (x, start))
    assert not calls(manager)
    close(run(file(manager), x, start), model(x, start))


def test_views_that_executorch_leaves_out_have_their_elements():
    from executorch.exir import to_edge

    torch.manual_seed(0)
    model, x = torch.nn.Linear(3, 3).eval(), torch.randn(3)
    data = to_edge(torch.export.export(model, (x,))).to_executorch().buffer
    close(run(bytes(data), x), model(x))


def test_inputs_are_checked_when_they_are_set():
    from flambeau.runtime import portable_lib

    method = portable_lib._load_program(str(DATA / "mlp.pte")).load_method("forward")
    with pytest.raises(flambeau.InputError, match="is on device meta.*only CPU and CUDA tensors"):
        method.set_inputs([torch.ones(2, 4, device="meta")])


def test_dim_order_operators_are_taken():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 5, 3)

        def forward(self, x):
            return self.conv(x).to(torch.float16).clone().to(torch.float32)

    torch.manual_seed(0)
    model, x = Model(), torch.randn(1, 3, 8, 8)
    for config in (EdgeCompileConfig(), EdgeCompileConfig(_skip_dim_order=True)):
        manager = lowered(model, (x,), compile_config=config)
        assert not calls(manager)
        torch.testing.assert_close(run(file(manager), x), model(x), rtol=1e-2, atol=1e-2)


def test_methods_are_compiled_together():
    torch.manual_seed(0)
    model = Mlp()
    programs = {name: torch.export.export(model.eval(), (torch.randn(rows, 8),)) for name, rows in (("one", 1), ("many", 5))}
    data = file(to_edge_transform_and_lower(programs, partitioner=[FlambeauPartitioner()]))
    for name, rows in (("one", 1), ("many", 5)):
        x = torch.randn(rows, 8)
        close(run(data, x, method=name), model(x))
    alone = file(lowered(model, (torch.randn(5, 8),)))
    assert len(data) < 2 * len(alone), "weights are stored once"


def test_a_model_of_transformers_runs():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.LlamaForCausalLM(config)

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits

    model, ids = Logits().eval(), torch.randint(0, 64, (1, 7))
    manager = lowered(model, (ids,))
    assert not calls(manager)
    close(run(file(manager), ids), model(ids))


def test_delegates_of_other_backends_stay(backend):
    partition = pytest.importorskip("executorch.backends.xnnpack.partition.xnnpack_partitioner", reason="ExecuTorch has no XNNPACK")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.b(torch.sin(self.a(x)).cumsum(1)).tan()

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 8)
    partitioners = [partition.XnnpackPartitioner(), FlambeauPartitioner()]
    manager = to_edge_transform_and_lower(torch.export.export(model, (x,)), partitioner=partitioners)
    assert not calls(manager) and set(backends(manager)) == {"XnnpackBackend", "MLXBackend"}
    data = file(manager)
    close(backend.load_program(data).load_method("forward").execute([x])[0], model(x))


@pytest.fixture(scope="session")
def backend(tmp_path_factory):
    """ExecuTorch's runtime with the backend, whose library is built."""
    os.environ["FLAMBEAU_EXECUTORCH"] = str(tmp_path_factory.mktemp("executorch"))
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("there is no C++ compiler")
    try:
        flambeau.executorch.build()
    except flambeau.LoadError as error:
        if "CMake is not installed" in str(error):
            pytest.skip(str(error))
        raise
    flambeau.executorch.register()
    from executorch.runtime import Runtime as ExecuTorch

    yield ExecuTorch.get()
    flambeau.executorch.set_options(engine="cpu", share_state=False, kv_cache="")


def test_executorchs_runtime_runs_programs(backend):
    assert flambeau.executorch.is_registered() and backend.backend_registry.is_available("MLXBackend")
    x = torch.randn(3, 4)
    (found,) = backend.load_program(DATA / "mlp.pte").load_method("forward").execute([x])
    (expected,) = Runtime.get().load_program(DATA / "mlp.pte").load_method("forward").execute([x])
    close(found, expected)


def test_a_partitioned_program_runs_there(backend):
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(3, 8)
    # ExecuTorch does not keep the bytes of a program alive.
    data = file(lowered(model, (x,)))
    close(backend.load_program(data).load_method("forward").execute([x])[0], model(x))


def test_channels_last_tensors_are_taken(backend):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.ReLU()).eval()
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    data = file(lowered(model, (x,)))
    close(backend.load_program(data).load_method("forward").execute([x])[0], model(x))


def test_methods_share_state_on_request(backend):
    exported = {name: torch.export.export(Counter(1.0).eval(), (torch.ones(32),)) for name in ("first", "second")}
    data = file(to_edge_transform_and_lower(exported, partitioner=[FlambeauPartitioner()]))
    weight = torch.arange(32.0)
    for share, expected in ((False, (2.0, 2.0, 3.0, 3.0)), (True, (2.0, 3.0, 4.0, 5.0))):
        flambeau.executorch.set_options(share_state=share)
        program = backend.load_program(data)
        for i, total in enumerate(expected):
            (found,) = program.load_method(("first", "second")[i % 2]).execute([torch.ones(32)])
            close(found, total * weight)
        again = backend.load_program(data).load_method("first")
        close(again.execute([torch.ones(32)])[0], 2.0 * weight)
        ours = Runtime(share_state=share).load_program(data)
        for i, total in enumerate(expected):
            close(ours.load_method(("first", "second")[i % 2]).execute([torch.ones(32)])[0], total * weight)


def test_options_are_checked_and_errors_have_texts(backend):
    flambeau.executorch.set_options(engine="tpu")
    with pytest.raises(RuntimeError):
        backend.load_program(DATA / "mlp.pte").load_method("forward")
    assert "tpu" in flambeau.executorch.last_error()
    flambeau.executorch.set_options(engine="cpu", threads=1)
    method = backend.load_program(DATA / "mlp.pte").load_method("forward")
    assert len(method.execute([torch.ones(2, 4)])) == 1
    flambeau.executorch.set_options(kv_cache="1,2")
    with pytest.raises(RuntimeError):
        backend.load_program(DATA / "mlp.pte").load_method("forward")
    assert "expected capacity,layers" in flambeau.executorch.last_error()
    flambeau.executorch.set_options(kv_cache="")


def test_steps_are_in_the_etdump(backend, tmp_path):
    program = backend.load_program(DATA / "mlp.pte", enable_etdump=True, debug_buffer_size=1 << 20)
    program.load_method("forward").execute([torch.ones(2, 4)])
    path = tmp_path / "run.etdp"
    program.write_etdump_result_to_file(str(path), str(tmp_path / "debug.bin"))
    from executorch.devtools import Inspector

    names = [event.name for block in Inspector(etdump_path=str(path)).event_blocks for event in block.events if event.is_delegated_op]
    assert any("Addmm" in name for name in names), names


def test_without_the_library_the_import_names_the_command(tmp_path):
    script = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import flambeau.executorch
assert any("-m flambeau.executorch build" in str(one.message) for one in told), told
assert not flambeau.executorch.is_registered()
"""
    environment = {**os.environ, "FLAMBEAU_EXECUTORCH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
