"""Graphs, measurements, verification and test cases of programs."""

import json

import numpy as np
import pytest
from cases import DATA, ROOT

import flambeau
from flambeau.runtime import Runtime, portable_lib

BUNDLE = ROOT / "crates" / "wire" / "tests" / "fixtures" / "mlp.bpte"


@pytest.fixture
def program():
    return Runtime.get().load_program(DATA / "mlp.pte")


def ones():
    return np.ones((2, 4), np.float32)


def test_graphs_have_nodes_and_names(program):
    (graph,) = program.graph["forward"]
    assert "Gelu" in [node["op"] for node in graph["chains"][graph["main"]]]
    assert any(entry["name"].endswith("up.weight") for entry in graph["names"])


def test_profiles_have_the_steps_of_each_run(program, tmp_path):
    profile = program.profile("forward", [ones()], repeat=3)
    assert {step.run for step in profile.steps} == {0, 1, 2}
    assert all(step.method == "forward" and step.delegate == 0 and step.time >= 0 for step in profile.steps)
    (name, calls, time), *_ = profile.totals()
    assert calls % 3 == 0 and time == sum(step.time for step in profile.steps if step.name == name)
    (expected,) = program.load_method("forward").execute([ones()])
    np.testing.assert_array_equal(np.asarray(profile.outputs[0]), np.asarray(expected))
    profile.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events].count("forward") == 3
    profile.write_etdump(tmp_path / "run.etdp")
    assert (tmp_path / "run.etdp").read_bytes()[8:12] == b"ED00"


def damaged():
    """The program with a byte of its largest weight changed."""
    contents = bytearray((DATA / "mlp.pte").read_bytes())
    (weight,) = (data for name, data in flambeau._native.Program(bytes(contents)).named_data() if name.endswith("up.weight"))
    at = contents.find(weight)
    contents[at + 3] ^= 0x02
    return Runtime.get().load_program(bytes(contents))


def test_engines_are_verified(program):
    verdict = program.verify(runs=3)
    assert verdict and verdict.runs == 3 and verdict.nodes == 15 and not verdict.differences
    assert program.verify("forward", [ones()]).runs == 1


def test_the_node_of_a_damaged_weight_is_named(program):
    verdict = damaged().verify(against=program)
    first = verdict.differences[0]
    assert not verdict and first.weights[0].endswith("up.weight") and first.error["ulps"] > 100
    assert damaged().verify(against=program, rtol=1e9, atol=1e9)
    with pytest.raises(ValueError, match="both"):
        program.verify(rtol=1.0)


def test_programs_record_runs_for_an_etdump(tmp_path):
    program = Runtime.get().load_program(DATA / "mlp.pte", enable_etdump=True)
    program.load_method("forward").execute([ones()])
    program.write_etdump_result_to_file(str(tmp_path / "a.etdp"), str(tmp_path / "a.bin"))
    assert (tmp_path / "a.etdp").stat().st_size > 100 and (tmp_path / "a.bin").exists()
    module = portable_lib._load_for_executorch(str(DATA / "mlp.pte"), enable_etdump=True)
    module.forward([ones()])
    module.write_etdump_result_to_file(str(tmp_path / "b.etdp"))
    assert module.has_etdump() and (tmp_path / "b.etdp").stat().st_size > 100


def test_the_inspector_of_executorch_reads_the_runs(program, tmp_path):
    devtools = pytest.importorskip("executorch.devtools")
    program.profile("forward", [ones()], repeat=2).write_etdump(tmp_path / "run.etdp")
    (block,) = devtools.Inspector(etdump_path=str(tmp_path / "run.etdp")).event_blocks
    names = [event.name for event in block.events]
    assert block.name == "Execute" and {"DELEGATE_CALL", "Method::execute"} < set(names)
    assert any(event.is_delegated_op for event in block.events)


def inspected(devtools, program, inputs, folder):
    """Names and recorded values of each event, and the outputs, as ExecuTorch's Inspector reads them."""
    method = program.load_method("forward")
    for _ in range(2):
        method.execute(inputs)
    etdump, buffer = str(folder / "run.etdp"), str(folder / "run.bin")
    program.write_etdump_result_to_file(etdump, buffer)
    (block,) = (block for block in devtools.Inspector(etdump_path=etdump, debug_buffer_path=buffer).event_blocks if block.name == "Execute")
    return [(event.name, event.debug_data) for event in block.events], block.run_output


def test_results_of_nodes_are_in_the_debug_buffer(tmp_path):
    program = Runtime.get().load_program(DATA / "mlp.pte", enable_etdump=True, debug_buffer_size=1 << 20)
    (output,) = program.load_method("forward").execute([ones()])
    program.write_etdump_result_to_file(str(tmp_path / "a.etdp"), str(tmp_path / "a.bin"))
    contents = (tmp_path / "a.bin").read_bytes()
    # As a result of the last node, of the delegate and of the run, and the input once.
    assert contents.count(np.asarray(output).tobytes()) == 3 and ones().tobytes() in contents
    small = Runtime.get().load_program(DATA / "mlp.pte", enable_etdump=True, debug_buffer_size=64)
    with pytest.raises(RuntimeError, match="over 64 bytes"):
        small.load_method("forward").execute([ones()])
    module = portable_lib._load_for_executorch(str(DATA / "mlp.pte"), enable_etdump=True, debug_buffer_size=1 << 20)
    module.forward([ones()])
    module.write_etdump_result_to_file(str(tmp_path / "b.etdp"), str(tmp_path / "b.bin"))
    assert (tmp_path / "b.bin").read_bytes() == contents


def test_the_inspector_shows_the_results_of_nodes(tmp_path):
    devtools = pytest.importorskip("executorch.devtools")
    program = Runtime.get().load_program(DATA / "mlp.pte", enable_etdump=True, debug_buffer_size=1 << 20)
    events, outputs = inspected(devtools, program, [ones()], tmp_path)
    values = dict(events)
    (last,) = [value for name, value in events if name.startswith("node ")][-1]
    (given, made) = values["DELEGATE_CALL"]
    assert (given.numpy() == ones()).all() and (made == last).all() and (outputs[0] == last).all()


def test_calls_outside_of_delegates_are_recorded_as_in_executorch(tmp_path):
    devtools = pytest.importorskip("executorch.devtools")
    torch = pytest.importorskip("torch")
    from executorch.exir import to_edge
    from executorch.runtime import Runtime as Original

    class Model(torch.nn.Module):
        def forward(self, x, y):
            best, places = torch.topk(x + x, 2)
            return best * y, places, x.sum()

    inputs = (torch.arange(6.0).reshape(2, 3), torch.tensor(3.0))
    contents = to_edge(torch.export.export(Model(), inputs)).to_executorch().buffer
    found = []
    for runtime in (Runtime.get(), Original.get()):
        program = runtime.load_program(contents, enable_etdump=True, debug_buffer_size=1 << 16)
        events, outputs = inspected(devtools, program, list(inputs), tmp_path)
        shown = [(name, [value.tolist() for value in values]) for name, values in events if name.startswith("native_call")]
        found.append((shown, [value.tolist() for value in outputs]))
    assert found[0] == found[1] and len(found[0][0]) >= 4


def test_cases_of_a_bundled_program_are_verified():
    contents = BUNDLE.read_bytes()
    bundle = portable_lib._load_bundled_program_from_buffer(contents)
    for case in (0, 1):
        bundle.verify_result_with_bundled_expected_output("forward", case)
    with pytest.raises(RuntimeError, match="output 0"):
        bundle.verify_result_with_bundled_expected_output("forward", 0, rtol=0.0, atol=0.0)
    with pytest.raises(RuntimeError, match="no test case 2"):
        bundle.verify_result_with_bundled_expected_output("forward", 2)
