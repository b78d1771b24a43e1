"""PyTorch tensors as inputs and outputs."""

import pytest
from cases import DATA

import flambeau
from flambeau.runtime import Runtime

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def expected(mlp):
    x = torch.arange(8.0).reshape(2, 4)
    return x, mlp.execute([x])[0]


def test_outputs_are_tensors_of_their_own(mlp):
    x = torch.ones(2, 4)
    (y,) = mlp.execute([x])
    assert type(y) is torch.Tensor and y.dtype == torch.float32 and y.shape == (2, 2) and y.is_contiguous()
    kept = y.clone()
    mlp.execute([2 * x])[0].zero_()
    assert torch.equal(y, kept)
    y.add_(1)
    assert torch.equal(mlp.execute([x])[0], kept)


def test_one_tensor_is_one_input(mlp, expected):
    x, y = expected
    assert torch.equal(mlp.execute(x)[0], y)


def test_every_kind_of_tensor_is_read(mlp, expected):
    x, y = expected
    wide = torch.zeros(4, 8)
    wide[::2, ::2] = x

    class Subclass(torch.Tensor):
        pass

    forms = {
        "parameter": torch.nn.Parameter(x),
        "gradient": x.clone().requires_grad_(),
        "transposed": x.T.contiguous().T,
        "strided": wide[::2, ::2],
        "expanded then added": torch.zeros(1, 4).expand(2, 4) + x,
        "negated view": torch.view_as_complex(torch.stack((x, -x), -1)).conj().imag,
        "sparse": x.to_sparse(),
        "subclass": x.as_subclass(Subclass),
        "inference": _inference(x),
    }
    for name, form in forms.items():
        assert torch.equal(mlp.execute([form])[0], y), name


def _inference(x):
    with torch.inference_mode():
        return x.clone()


def test_channels_last_and_half_types(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 2

    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        x = torch.arange(24).reshape(1, 2, 3, 4).to(dtype)
        program = flambeau.compile(torch.export.export(Model(), (x,)))
        (y,) = program.load_method("forward").execute([x.to(memory_format=torch.channels_last)])
        assert y.dtype == dtype and torch.equal(y, x * 2), dtype


def test_tensors_without_elements_are_refused(mlp):
    with pytest.raises(flambeau.InputError, match="is on device meta") as caught:
        mlp.execute([torch.ones(2, 4, device="meta")])
    assert "only CPU and CUDA tensors" in str(caught.value)


def test_an_output_that_is_an_input_is_a_copy():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x.view(-1), x + 1

    x = torch.ones(2, 3)
    method = flambeau.compile(torch.export.export(Model(), (x,))).load_method("forward")
    flat, _ = method.execute([x])
    flat.zero_()
    assert torch.equal(x, torch.ones(2, 3))


def test_state_does_not_follow_an_input_that_changes_later():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(4))

        def forward(self, x):
            before = self.kept.clone()
            self.kept.copy_(x)
            return before

    x = torch.ones(4)
    method = flambeau.compile(torch.export.export(Model(), (x,))).load_method("forward")
    assert torch.equal(method.execute([x])[0], torch.zeros(4))
    x.fill_(7)
    assert torch.equal(method.execute([x])[0], torch.ones(4))
    assert torch.equal(method.execute([x])[0], torch.full((4,), 7.0))
    method.reset()
    assert torch.equal(method.execute([x])[0], torch.zeros(4))


def test_exported_programs_are_compiled_without_a_file():
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    x = torch.randn(3, 64)
    exported = torch.export.export(model, (x,))
    program = flambeau.compile({"first": exported, "second": exported})
    for name in ("first", "second"):
        torch.testing.assert_close(program.load_method(name).execute([x])[0], model(x), rtol=1e-4, atol=1e-5)
    assert any("linear" in call["target"] for call in program.report["methods"][0]["calls"])
    coded = flambeau.compile(exported, qlinear="8w", group_size=32)
    torch.testing.assert_close(coded.load_method("forward").execute([x])[0], model(x), rtol=0.1, atol=0.1)


def test_calls_that_cannot_be_compiled_are_named():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x)

    exported = torch.export.export(Model(), (torch.eye(3),))
    with pytest.raises(flambeau.CompileError, match="linalg_eig"):
        flambeau.compile(exported)


def test_our_tensor_becomes_one_of_pytorchs():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint16):
        x = torch.tensor([[0, 1], [1, 1]]).to(dtype)
        ours = flambeau.Tensor(x)
        assert ours.torch().dtype == dtype and torch.equal(ours.torch(), x)
        assert ours.torch().data_ptr() == x.data_ptr()
        assert torch.equal(torch.from_dlpack(ours), x)


def test_numpy_is_taken_beside_pytorch(mlp):
    numpy = pytest.importorskip("numpy")
    (y,) = Runtime.get().load_program(DATA / "mlp.pte").load_method("forward").execute([numpy.ones((2, 4), numpy.float32)])
    assert isinstance(y, torch.Tensor) and torch.equal(y, mlp.execute([torch.ones(2, 4)])[0])
