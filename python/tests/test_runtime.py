"""Compares `flambeau.runtime` with `executorch.runtime`: classes, members, results and errors."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, DATA, argument, facts, floats, read, values

import flambeau
from flambeau.runtime import BackendRegistry, MethodMeta, OperatorRegistry, Runtime, Verification

MLP = DATA / "mlp.pte"


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_the_runtime_is_one_for_all():
    assert Runtime.get() is Runtime.get()
    assert isinstance(Runtime.get().backend_registry, BackendRegistry)
    assert isinstance(Runtime.get().operator_registry, OperatorRegistry)


def test_registries_tell_what_programs_may_ask_for():
    runtime = Runtime.get()
    assert runtime.backend_registry.registered_backend_names == ["MLXBackend"]
    assert runtime.backend_registry.is_available("MLXBackend")
    assert not runtime.backend_registry.is_available("NonExistBackend")
    assert "aten::add.out" in runtime.operator_registry.operator_names


@pytest.mark.parametrize("kind", ["str", "path", "bytes", "bytearray", "file", "stream"])
def test_programs_come_from_paths_bytes_and_files(kind):
    data = MLP.read_bytes()
    source = {
        "str": lambda: str(MLP),
        "path": lambda: MLP,
        "bytes": lambda: data,
        "bytearray": lambda: bytearray(data),
        "file": lambda: MLP.open("rb"),
        "stream": lambda: io.BytesIO(data),
    }[kind]()
    program = Runtime.get().load_program(source, verification=Verification.Minimal)
    assert program.method_names == {"forward"}
    assert program.load_method("forward") is program.load_method("forward")
    (y,) = program.load_method("forward").execute([ones(2, 4)])
    assert y.shape == (2, 2)


def test_other_sources_are_a_type_error():
    with pytest.raises(TypeError, match="found int"):
        Runtime.get().load_program(3)


def test_metadata_is_executorchs():
    meta = Runtime.get().load_program(MLP).metadata("forward")
    assert isinstance(meta, MethodMeta)
    assert (meta.name(), meta.num_inputs(), meta.num_outputs()) == ("forward", 1, 1)
    info = meta.input_tensor_meta(0)
    assert (info.sizes()[1:], info.dtype(), info.nbytes() % 16) == ((4,), 6, 0)
    assert repr(info).startswith("TensorInfo(sizes=[") and "dtype=Float, is_memory_planned=" in repr(info)
    assert repr(meta).startswith("MethodMeta(name='forward', num_inputs=1, input_tensor_meta=['TensorInfo(")
    for index in (-1, 1):
        with pytest.raises(IndexError):
            meta.input_tensor_meta(index)
        with pytest.raises(IndexError):
            meta.output_tensor_meta(index)


def test_errors_have_the_kinds_of_the_original_and_the_texts_of_the_command():
    runtime = Runtime.get()
    with pytest.raises(RuntimeError, match="cannot read .*nowhere.pte") as no_file:
        runtime.load_program("nowhere.pte")
    assert isinstance(no_file.value, flambeau.LoadError)
    with pytest.raises(flambeau.LoadError):
        runtime.load_program(b"no program")
    program = runtime.load_program(MLP)
    with pytest.raises(KeyError):
        program.load_method("nope")
    with pytest.raises(flambeau.LoadError, match="no method `nope`; the program has forward"):
        program.metadata("nope")
    with pytest.raises(RuntimeError, match="No etdump found"):
        program.write_etdump_result_to_file("a", "b")


@pytest.mark.parametrize(
    "inputs, text",
    [
        ([], "takes 1 inputs, found 0"),
        ([ones(2, 4), ones(2, 4)], "takes 1 inputs, found 2"),
        ([ones(2, 5)], "expected f32.*found f32.2, 5"),
        ([ones(2, 4, dtype=np.int64)], "expected f32.*found i64"),
        ([object()], "Input 0 for method forward has the Unsupported python type <class 'object'>"),
        (["text"], "Unsupported python type <class 'str'>"),
        ([[[1.0, 2.0], [3.0]]], "lists of different lengths"),
        ([[["a", "b", "c", "d"]]], "which is no float32"),
        ([np.array(["a"])], "elements of type <U1"),
    ],
)
def test_wrong_inputs_are_named(mlp, inputs, text):
    with pytest.raises(flambeau.InputError, match=text):
        mlp.execute(inputs)


def test_errors_can_be_pickled(mlp):
    with pytest.raises(flambeau.InputError) as caught:
        mlp.execute([])
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is flambeau.InputError and str(again) == str(caught.value)
    assert issubclass(flambeau.InputError, flambeau.Error) and issubclass(flambeau.Error, RuntimeError)


def test_programs_cannot_be_pickled(mlp):
    with pytest.raises(TypeError):
        pickle.dumps(mlp)


def test_reprs_tell_methods_and_shapes(mlp):
    program = Runtime.get().load_program(MLP)
    assert repr(program) == "<Program with forward>"
    assert repr(mlp).startswith("<Method forward(") and "f32[" in repr(mlp)
    assert repr(Runtime.get()) == "<Runtime --engine=cpu>"


def test_every_form_of_an_input_gives_the_same(mlp):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (expected,) = mlp.execute([x])
    wide = np.zeros((4, 8), np.float32)
    wide[::2, ::2] = x
    forms = {
        "one array": x,
        "tuple": (x,),
        "iterable": iter([x]),
        "transposed": [np.asfortranarray(x)],
        "strided": [wide[::2, ::2]],
        "negative strides": [x[::-1, ::-1].copy()[::-1, ::-1]],
        "read-only": [np.frombuffer(x.tobytes(), np.float32).reshape(2, 4)],
        "lists": [x.tolist()],
        "our tensor": [flambeau.Tensor(x)],
        "our tensor of lists": [flambeau.Tensor(x.tolist())],
        "misaligned": [np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 4)],
    }
    for name, inputs in forms.items():
        if name == "iterable":
            inputs = list(inputs)
        np.testing.assert_array_equal(values(mlp.execute(inputs)[0]), values(expected), err_msg=name)


def test_outputs_are_the_callers_own(mlp):
    x = ones(1, 4)
    (first,) = mlp.execute([x])
    kept = values(first).copy()
    (second,) = mlp.execute([2 * x])
    np.testing.assert_array_equal(values(first), kept)
    first[:] = 7
    (third,) = mlp.execute([x])
    np.testing.assert_array_equal(values(third), kept)
    assert not np.array_equal(values(second), kept)


def test_cases_of_the_repository_give_pytorchs_outputs(case):
    folder = CASES / case
    told = facts(folder)
    inputs = [argument(*tensor) for tensor in read(folder / "input.bin")]
    program = Runtime(threads=1).load_program(folder / "model.pte")
    method = program.load_method("forward" if "forward" in program.method_names else sorted(program.method_names)[0])
    taken = [kind for _, kind in method._method.inputs()]
    inputs = [int(x) if kind == "an integer" else x for x, kind in zip(inputs, taken)]
    outputs = method.execute(inputs)
    if told.get("skip_comparison"):
        return
    expected = read(folder / "expected_output.bin")
    assert len(outputs) == len(expected)
    for output, want in zip(outputs, expected):
        if isinstance(output, (int, float, bool)):
            output = np.asarray(output)
        np.testing.assert_allclose(
            values(output).astype(np.float64), floats(*want).astype(np.float64), rtol=told["rtol"], atol=told["atol"], equal_nan=True
        )


def test_another_engine_is_chosen_by_name():
    with pytest.raises(flambeau.LoadError, match="tpu"):
        Runtime(engine="tpu").load_program(MLP)
    with pytest.raises(flambeau.LoadError, match="--device needs --engine mlx"):
        Runtime(device="gpu").load_program(MLP)


def test_mlx_gives_what_the_cpu_gives(mlp):
    try:
        method = Runtime(engine="mlx").load_program(MLP).load_method("forward")
    except flambeau.LoadError as error:
        pytest.skip(f"no MLX: {error}")
    x = ones(3, 4)
    np.testing.assert_allclose(values(method.execute([x])[0]), values(mlp.execute([x])[0]), rtol=1e-5)


def test_the_import_needs_neither_pytorch_nor_numpy(tmp_path):
    import subprocess
    import sys

    script = """
import sys
import flambeau, flambeau.runtime
assert "torch" not in sys.modules and "numpy" not in sys.modules and "asyncio" not in sys.modules
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "torch"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
method = flambeau.runtime.Runtime.get().load_program(sys.argv[1]).load_method("forward")
(y,) = method.execute([[[1.0, 2.0, 3.0, 4.0]]])
assert isinstance(y, flambeau.Tensor), type(y)
assert y.shape == (1, 2) and y.dtype == "float32" and len(y.tolist()[0]) == 2
"""
    subprocess.run([sys.executable, "-c", script, str(MLP)], check=True, cwd=tmp_path)
