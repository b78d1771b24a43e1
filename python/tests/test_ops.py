"""`torch.ops.mlx.*` without ExecuTorch."""

import pytest

import flambeau

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flambeau.ops  # noqa: E402

mlx = torch.ops.mlx


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


CALLS = {
    "rope": (lambda x: mlx.rope(x, 8, 3), [normal(1, 2, 4, 8)]),
    "rope of a part, traditional": (lambda x: mlx.rope(x, 4, 5, True, 1000.0, 0.5), [normal(1, 2, 4, 8)]),
    "rope with frequencies": (lambda x, f: mlx.rope(x, 8, 2, freqs=f), [normal(1, 2, 4, 8), torch.tensor([1.0, 2.0, 4.0, 8.0])]),
    "attention": (lambda q, k, v: mlx.custom_sdpa(q, k, v, 3, is_causal=True), [normal(1, 4, 2, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8)]),
    "experts": (lambda a, b, i: mlx.gather_mm(a, b, i), [normal(3, 1, 4), normal(5, 4, 6), torch.tensor([4, 0, 2])]),
    "norm": (lambda x: mlx.tq_norm(x), [normal(2, 32)]),
    "codes": (lambda x, b: mlx.tq4_compress(x, b), [normal(2, 32), torch.linspace(-2, 2, 15)]),
    "values of codes": (
        lambda c, n, v: mlx.tq_dequant(c, n, v),
        [torch.arange(64, dtype=torch.uint8).reshape(2, 32), torch.tensor([[1.0], [2.0]]), torch.linspace(-1, 1, 16)],
    ),
    "delta rule": (
        lambda q, k, v, g, b: mlx.gated_delta_rule(q, k, v, g, b, torch.zeros(1, 4, 8, 32), False),
        [normal(1, 3, 2, 32), 0.1 * normal(1, 3, 2, 32), normal(1, 3, 4, 8), torch.full((1, 3, 4), 0.9), torch.full((1, 3, 4), 0.5)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_programs_compute_what_the_operators_say(name):
    function, inputs = CALLS[name]
    expected = function(*inputs)
    program = flambeau.compile(torch.export.export(Call(function), tuple(inputs)), require_full=True)
    (found,) = program.load_method("forward").execute(inputs)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ring", [0, 8])
def test_caches_are_written(ring):
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(1, 2, 8, 4))

        def forward(self, new, at):
            mlx.kv_cache_update(self.cache, new, at.item(), ring)
            return self.cache.clone()

    eager, new = Cache(), normal(1, 2, 3, 4)
    program = flambeau.compile(torch.export.export(Cache(), (new, torch.tensor(0))))
    method = program.load_method("forward")
    for at in (0, 3, 5) if ring == 0 else (0, 6, 13):
        torch.testing.assert_close(method.execute([new + at, torch.tensor(at)])[0], eager(new + at, torch.tensor(at)))


def test_experts_rows_come_back_in_their_order():
    x, experts = normal(6, 4), torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1], [0, 2], [1, 0]])
    for cutoff in (0, 100):
        rows, chosen, is_sorted, back = mlx.moe_gather_inputs(x, experts, 2, cutoff)
        assert bool(is_sorted) == (cutoff == 0) and rows.shape == (12, 1, 4)
        assert not is_sorted or torch.equal(chosen, chosen.sort().values)
        again = mlx.moe_scatter_outputs(rows, is_sorted, back, 2)
        torch.testing.assert_close(again, x[:, None].expand(6, 2, 4))


def test_quantized_experts():
    codes = torch.randint(0, 256, (3, 6, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scales, biases, x = normal(3, 6, 1).abs(), normal(3, 6, 1), normal(2, 1, 32)
    found = mlx.gather_qmm(x, codes, scales, biases, torch.tensor([2, 0]), group_size=32, bits=4)
    halves = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).float() - 8
    weights = (halves * scales + biases)[[2, 0]]
    torch.testing.assert_close(found, x @ weights.mT)


def test_draws_follow_probabilities():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    number = torch.tensor
    greedy = mlx.sample(logits, number(0.0), number(4), number(1.0))
    assert torch.equal(greedy, torch.zeros(4000, dtype=torch.int64))
    drawn = mlx.sample(logits, number(1.0), number(4), number(1.0), number(1)).bincount(minlength=4) / 4000
    torch.testing.assert_close(drawn, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03, rtol=0)
    assert mlx.sample(logits, number(1.0), number(2), number(1.0), number(1)).max() == 1
    assert mlx.sample(logits, number(1.0), number(4), number(0.6), number(1)).max() == 1


def test_operators_have_executorchs_schemas():
    expected = {
        "rope": "mlx::rope(Tensor x, SymInt dims, SymInt pos, bool traditional=False, float base=500000., float scale=1., Tensor? freqs=None) -> Tensor",
        "sample": "mlx::sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor? seed=None) -> Tensor",
        "kv_cache_update": "mlx::kv_cache_update(Tensor(a0!) cache, Tensor new_values, SymInt start_pos, SymInt ring_size=0) -> Tensor",
    }
    for name, schema in expected.items():
        assert str(getattr(mlx, name).default._schema) == schema


def test_operators_that_exist_stay():
    from flambeau.ops._define import defined, operator

    before = defined()
    operator("rope", "(Tensor x) -> Tensor", lambda x: x, lambda x: x)
    assert defined() == before and mlx.rope(normal(1, 2, 4, 8), 8, 0).shape == (1, 2, 4, 8)
