import Flambeau
import XCTest

final class ModuleTests: XCTestCase {
  func testResultsAgreeWithPyTorch() throws {
    let module = Module(filePath: Fixtures.mlp)
    let output: Tensor<Float> = try module.forward(Tensor(Fixtures.rows, shape: [3, 4]))
    XCTAssertEqual(output.shape, [3, 2])
    assertClose(output.scalars(), Fixtures.results)

    let values: [Value] = try module.execute("forward", Tensor(Array(Fixtures.rows[..<4]), shape: [1, 4]))
    XCTAssertEqual(values.map(\.tag), [.tensor])
    let row: Tensor<Float>? = values[0].tensor()
    assertClose(try XCTUnwrap(row).scalars(), Array(Fixtures.results[..<2]))
    let other: Tensor<Int64>? = values[0].tensor()
    XCTAssertNil(other)
    XCTAssertNil(values[0].integer)
  }

  func testResultsOutliveTheModule() throws {
    var module: Module? = Module(bytes: try Data(contentsOf: URL(fileURLWithPath: Fixtures.mlp)))
    let output: Tensor<Float> = try module!.forward(Tensor(Fixtures.rows, shape: [3, 4]))
    module = nil
    assertClose(output.scalars(), Fixtures.results)
  }

  func testLoadsAndForgetsMethods() throws {
    let module = Module(filePath: Fixtures.mlp)
    XCTAssertFalse(module.isLoaded())
    XCTAssertTrue(try module.methodNames().contains("forward"))
    XCTAssertTrue(module.isLoaded())
    XCTAssertFalse(module.isLoaded("forward"))
    try module.load("forward")
    XCTAssertTrue(module.isLoaded("forward"))
    module.unload("forward")
    XCTAssertFalse(module.isLoaded("forward"))
    try module.reset()
  }

  func testDescribesMethods() throws {
    let metadata = try Module(filePath: Fixtures.mlp).methodMetadata("forward")
    XCTAssertEqual(metadata.inputs.map(\.text), ["f32[..64, 4]"])
    XCTAssertEqual(metadata.outputs.map(\.text), ["f32[..64, 2]"])
    XCTAssertEqual(metadata.inputs[0].shape, [64, 4])
    XCTAssertEqual(metadata.inputs[0].isOpen, [true, false])
    XCTAssertEqual(metadata.inputs[0].dataType, .float)
    XCTAssertEqual(metadata.inputs[0].tag, .tensor)
  }

  func testRunsOnAnEngineOfItsOwn() throws {
    let engine = try Engine(flags: ["--engine", "cpu", "--threads", "2"])
    XCTAssertEqual(engine.name, "cpu")
    XCTAssertFalse(Engine.libraryVersion.isEmpty)
    let output: Tensor<Float> = try Module(filePath: Fixtures.mlp, engine: engine).forward(Tensor(Fixtures.rows, shape: [3, 4]))
    assertClose(output.scalars(), Fixtures.results)
  }

  func testThreadsShareAModule() throws {
    let module = Module(filePath: Fixtures.mlp)
    let input = try Tensor(Fixtures.rows, shape: [3, 4])
    let equal = Counter()
    DispatchQueue.concurrentPerform(iterations: 20) { _ in
      guard let output: Tensor<Float> = try? module.forward(input) else { return }
      let near = zip(output.scalars(), Fixtures.results).allSatisfy { abs($0 - $1) < 2e-6 }
      if near { equal.add() }
    }
    XCTAssertEqual(equal.count, 20)
  }

  func testErrors() throws {
    assertFails(.load, "missing.pte", try Module(filePath: "missing.pte").load())
    assertFails(.load, "not an ExecuTorch program", try Module(bytes: Data("no program".utf8)).load())
    assertFails(.load, "2 files", try Module(filePath: Fixtures.mlp, dataFilePaths: ["a.ptd", "b.ptd"]).load())
    assertFails(.input, "zero character", try Module(filePath: "a\0b").load())
    assertFails(.load, "--colour", try Engine(flags: ["--colour=red"]))

    let module = Module(filePath: Fixtures.mlp)
    assertFails(.load, "backward", try module.load("backward"))
    assertFails(.input, "takes 1 inputs, found 0", try module.forward() as [Value])
    assertFails(.input, "found 4", try module.forward(1, true, 0.5, "text") as [Value])
    assertFails(.input, "found the integer 1", try module.forward(1) as [Value])
    assertFails(.input, "found the string `text`", try module.forward("text") as [Value])
    assertFails(.input, "found i32[1, 4]", try module.forward(Tensor<Int32>([1, 2, 3, 4], shape: [1, 4])) as [Value])
    assertFails(.input, "found f32[65, 4]", try module.forward(Tensor<Float>.zeros(shape: [65, 4])) as [Value])
    assertFails(.input, "nothing", try module.attribute("nothing"))
    let row = try Tensor(Array(Fixtures.rows[..<4]), shape: [1, 4])
    assertFails(.execution, "expected an integer", try module.forward(row) as Int)
    // The module still works.
    let output: Tensor<Float> = try module.forward(row)
    assertClose(output.scalars(), Array(Fixtures.results[..<2]))
  }
}
