"""`flambeau.compile` on archives, without PyTorch."""

import numpy as np
import pytest
from cases import CASES, DATA, values

import flambeau
from flambeau.runtime import Runtime

ARCHIVE = DATA / "mlp.pt2"


def run(program):
    return values(program.load_method("forward").execute([np.ones((2, 4), np.float32)])[0])


def test_an_archive_becomes_a_program_that_runs_and_can_be_saved(tmp_path):
    program = flambeau.compile(ARCHIVE)
    expected = run(Runtime.get().load_program(DATA / "mlp.pte"))
    np.testing.assert_allclose(run(program), expected, rtol=1e-5)
    path = tmp_path / "saved.pte"
    program.save(path)
    assert path.read_bytes() == program.to_bytes()
    np.testing.assert_array_equal(run(Runtime.get().load_program(path)), run(program))


def test_bytes_and_several_methods_are_taken():
    program = flambeau.compile({"a": ARCHIVE.read_bytes(), "b": str(ARCHIVE)})
    assert program.method_names == {"a", "b"}


def test_the_report_says_what_became_of_each_call():
    (method,) = flambeau.compile(ARCHIVE).report["methods"]
    targets = {call["target"] for call in method["calls"]}
    assert any("gelu" in target for target in targets) and method["nodes"] > 0


def test_weights_are_quantized():
    whole, small = flambeau.compile(ARCHIVE), flambeau.compile(ARCHIVE, qlinear="8w", group_size=32)
    assert small.to_bytes() != whole.to_bytes()
    with pytest.raises(flambeau.LoadError, match="9w"):
        flambeau.compile(ARCHIVE, qlinear="9w")


def test_the_rule_for_equal_elements_is_chosen():
    archive = CASES / "samples.ties" / "model.pt2"

    def kernels(program):
        return [call["kernel"] for call in program.report["methods"][0]["calls"] if "kernel" in call]

    assert kernels(flambeau.compile(archive, ties="pytorch")) == kernels(flambeau.compile(archive)) != []
    assert kernels(flambeau.compile(archive, ties="any")) == []
    with pytest.raises(ValueError, match="ties is 'first'"):
        flambeau.compile(archive, ties="first")


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(TypeError, match="found int"):
        flambeau.compile(3)
    with pytest.raises(flambeau.CompileError):
        flambeau.compile(b"no archive")
    with pytest.raises(flambeau.LoadError, match="cannot read"):
        flambeau.compile(tmp_path / "nowhere.pt2")
    with pytest.raises(flambeau.LoadError, match="cannot write"):
        flambeau.compile(ARCHIVE).save(tmp_path / "no" / "folder.pte")


def test_the_command_is_in_the_package(capfd):
    assert flambeau._native.command(["flambeau", "--version"]) == 0
    assert flambeau.__version__ in capfd.readouterr().out
    assert flambeau._native.command(["flambeau", "nonsense"]) == 2
