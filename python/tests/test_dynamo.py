"""`torch.compile(model, backend="flambeau")`."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch._dynamo")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def counted(monkeypatch):
    """Counts compiled programs."""
    from flambeau import _dynamo

    programs = []
    known = _dynamo._native.compile

    def compile(*args, **options):
        programs.append(args)
        return known(*args, **options)

    monkeypatch.setattr(_dynamo._native, "compile", compile)
    return programs


def test_the_backend_is_known_by_its_name():
    assert "flambeau" in torch._dynamo.list_backends(exclude_tags=())


@pytest.mark.parametrize("dynamic", [None, True])
def test_inference_gives_eagers_outputs(monkeypatch, dynamic):
    programs = counted(monkeypatch)
    model = Block().eval()
    fast = torch.compile(model, backend="flambeau", dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (3, 3, 5, 8):
            x = torch.randn(rows, 16)
            close(fast(x), model(x))
    assert len(programs) == (1 if dynamic else 2), "a size that changed once stays open"


def test_a_size_beyond_the_plan_is_planned_anew(monkeypatch):
    programs = counted(monkeypatch)
    model = Block().eval()
    fast = torch.compile(model, backend="flambeau", dynamic=True)
    with torch.no_grad():
        for rows in (3, 5000, 4000):
            x = torch.randn(rows, 16)
            close(fast(x), model(x))
    assert len(programs) == 2


def test_changed_weights_count():
    model = Block().eval()
    fast = torch.compile(model, backend="flambeau")
    x = torch.randn(3, 16)
    with torch.no_grad():
        for _ in range(5):
            close(fast(x), model(x))
            model.up.weight.mul_(1.5)


def test_gradients_are_pytorchs():
    model, x = Block(), torch.randn(3, 16)
    model(x).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    torch.compile(model, backend="flambeau")(x).sum().backward()
    for name, p in model.named_parameters():
        close(p.grad, expected[name])


def test_graphs_break():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            y = self.block(x)
            if y.sum() > 0:
                return self.block(y)
            return y - 1

    model = Model().eval()
    fast = torch.compile(model, backend="flambeau")
    with torch.no_grad():
        for seed in range(4):
            x = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed)) + seed - 1.5
            close(fast(x), model(x))


def test_buffers_are_written():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count

    model = Model()
    fast = torch.compile(model, backend="flambeau")
    with torch.no_grad():
        for i in range(1, 4):
            close(fast(torch.ones(2)), torch.full((2,), float(i)))
    assert model.count == 3


def test_what_cannot_be_compiled_runs_in_pytorch_with_a_warning():
    def function(x):
        return torch.linalg.eigvals(x).real.sort().values

    x = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    with pytest.warns(UserWarning, match="linalg_eig"), torch.no_grad():
        close(torch.compile(function, backend="flambeau")(x), function(x))


def test_options_are_those_of_compile():
    model = torch.nn.Linear(64, 32).eval()
    x = torch.randn(2, 64)
    fast = torch.compile(model, backend="flambeau", options={"qlinear": "8w", "group_size": 32, "threads": 1})
    with torch.no_grad():
        y = fast(x)
        torch.testing.assert_close(y, model(x), rtol=0.1, atol=0.05)
        assert not torch.equal(y, model(x))


def test_views_in_and_out():
    def function(x):
        return x.T, x.reshape(-1)[2:], x + 1, 3, None

    x = torch.randn(3, 4)
    with torch.no_grad():
        for ours, theirs in zip(torch.compile(function, backend="flambeau")(x), function(x)):
            assert ours == theirs if not isinstance(ours, torch.Tensor) else torch.equal(ours, theirs)


@pytest.fixture
def no_warnings():
    """Fails a test if a graph runs in PyTorch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="flambeau")
        yield


def test_attention_is_compiled(no_warnings):
    def function(x, mask):
        q, k, v = x.chunk(3, -1)
        plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        masked = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
        return plain, masked, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    fast = torch.compile(function, backend="flambeau")
    with torch.no_grad():
        for length in (5, 9, 12):
            x = torch.randn(2, 4, length, 24)
            mask = torch.randn(2, 1, length, length)
            for ours, theirs in zip(fast(x, mask), function(x, mask)):
                close(ours, theirs)


def test_sizes_that_only_shapes_use_are_not_fixed(no_warnings):
    def function(x, y):
        rows = torch.arange(x.shape[0] + y.shape[0] - 2)
        return x.mean(2).view(x.shape[0], -1), rows, x.flatten(1) * 2

    fast = torch.compile(function, backend="flambeau", dynamic=True)
    with torch.no_grad():
        for count in (2, 3, 7):
            x, y = torch.randn(count, 4, 6), torch.randn(count + 3, 2)
            for ours, theirs in zip(fast(x, y), function(x, y)):
                close(ours, theirs)


def test_pools_of_channels_last_images_are_compiled(no_warnings):
    def function(x):
        return torch.nn.functional.adaptive_avg_pool2d(x.sin().to(memory_format=torch.channels_last), 1) * 2

    fast = torch.compile(function, backend="flambeau")
    with torch.no_grad():
        for count in (2, 3, 5):
            x = torch.randn(count, 3, 4, 5)
            close(fast(x), function(x))


def test_tensors_made_in_the_model_are_constants(no_warnings):
    def function(x):
        return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(0.5)

    x = torch.randn(2, 3)
    with torch.no_grad():
        close(torch.compile(function, backend="flambeau")(x), function(x))


def test_dropout_draws_eagers_numbers():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
    x = torch.randn(3, 16)
    fast = torch.compile(model, backend="flambeau")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        close(fast(x), expected)


def test_keywords_dataclasses_and_caches(no_warnings):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    fast = torch.compile(model, backend="flambeau")
    with torch.no_grad():
        tokens = torch.randint(0, 64, (1, 7))
        ours, theirs = (run(input_ids=tokens, use_cache=True) for run in (fast, model))
        assert type(ours) is type(theirs)
        for _ in range(2):
            close(ours.logits, theirs.logits)
            token = theirs.logits[:, -1:].argmax(-1)
            ours = fast(input_ids=token, past_key_values=ours.past_key_values, use_cache=True)
            theirs = model(input_ids=token, past_key_values=theirs.past_key_values, use_cache=True)
