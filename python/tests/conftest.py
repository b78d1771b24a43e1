import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, DATA  # noqa: E402

from flambeau.runtime import Runtime  # noqa: E402


@pytest.fixture
def mlp():
    """A stateless method with an input f32[batch, 4]."""
    return Runtime.get().load_program(DATA / "mlp.pte").load_method("forward")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A language model of a few kilobytes."""
    import flambeau

    cache = tmp_path_factory.mktemp("cache")
    return flambeau.LLM(DATA / "tiny-llama", qlinear="none", cache_dir=cache, threads=1)


def case_names():
    return sorted(folder.name for folder in CASES.iterdir() if (folder / "model.pte").is_file())


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", case_names())
