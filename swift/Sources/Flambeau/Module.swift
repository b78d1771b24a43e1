import CFlambeau
import Foundation

/// A .pte program with its methods. Methods are loaded when they are first used.
///
/// It is `Sendable`: a lock guards the table of methods, and the library lets threads that share a
/// method take turns. Runs block the calling thread.
public final class Module: @unchecked Sendable {
  private enum Source {
    case file(String)
    case bytes(Data)
  }

  private let source: Source
  private let dataFilePaths: [String]
  private let engine: Engine?
  private let lock = NSLock()
  private var program: Program?
  private var methods: [String: Method] = [:]

  /// Opens nothing yet. The file is mapped later, so it must not change while the module lives.
  /// `dataFilePaths` names at most one .ptd file with weights. Without an engine, it runs on
  /// `Engine.shared()`.
  public init(filePath: String, dataFilePaths: [String] = [], engine: Engine? = nil) {
    source = .file(filePath)
    self.dataFilePaths = dataFilePaths
    self.engine = engine
  }

  /// As above, for a program in memory, which loading copies.
  public init(bytes: Data, dataFilePaths: [String] = [], engine: Engine? = nil) {
    source = .bytes(bytes)
    self.dataFilePaths = dataFilePaths
    self.engine = engine
  }

  /// Opens the program, unless it is open.
  public func load() throws { _ = try opened() }

  /// Loads a method, unless it is loaded.
  public func load(_ method: String) throws { _ = try loaded(method) }

  public func isLoaded() -> Bool { lock.withLock { program != nil } }

  public func isLoaded(_ method: String) -> Bool { lock.withLock { methods[method] != nil } }

  /// Forgets a method with its state. Runs in progress end as usual.
  public func unload(_ method: String) { _ = lock.withLock { methods.removeValue(forKey: method) } }

  /// Names of all methods, constant ones included.
  public func methodNames() throws -> Set<String> { try opened().methodNames }

  /// Describes arguments and results of a method.
  public func methodMetadata(_ method: String) throws -> MethodMetadata {
    let handle = try loaded(method)
    return try withExtendedLifetime(handle) { try MethodMetadata(name: method, method: handle.handle) }
  }

  /// Runs a method. Tensors are read where they lie, and the results are not copied.
  public func execute(_ method: String, _ inputs: [ValueConvertible]) throws -> [Value] {
    try loaded(method).run(inputs.map { $0.asValue() })
  }

  public func execute(_ method: String, _ inputs: ValueConvertible...) throws -> [Value] {
    try execute(method, inputs)
  }

  /// As `execute`, with the results as one Swift value.
  public func execute<Output: ValueSequenceConstructible>(_ method: String, _ inputs: [ValueConvertible]) throws -> Output {
    try Output(values: execute(method, inputs))
  }

  public func execute<Output: ValueSequenceConstructible>(_ method: String, _ inputs: ValueConvertible...) throws -> Output {
    try execute(method, inputs)
  }

  /// Runs the method "forward".
  public func forward(_ inputs: [ValueConvertible]) throws -> [Value] { try execute("forward", inputs) }

  public func forward(_ inputs: ValueConvertible...) throws -> [Value] { try execute("forward", inputs) }

  public func forward<Output: ValueSequenceConstructible>(_ inputs: [ValueConvertible]) throws -> Output {
    try execute("forward", inputs)
  }

  public func forward<Output: ValueSequenceConstructible>(_ inputs: ValueConvertible...) throws -> Output {
    try execute("forward", inputs)
  }

  /// Sets the state of a method back to what loading left.
  public func reset(_ method: String = "forward") throws {
    let method = try loaded(method)
    try withExtendedLifetime(method) { try check(flb_method_reset(method.handle)) }
  }

  /// Copies a tensor that the program names, such as a buffer, as it is now.
  public func attribute(_ name: String, of method: String = "forward") throws -> AnyTensor {
    let method = try loaded(method)
    return try withExtendedLifetime(method) {
      try withText(name) { name in
        try AnyTensor(owning: make { flb_method_attribute(method.handle, name, $0) })
      }
    }
  }

  private func opened() throws -> Program {
    try lock.withLock { try openedLocked() }
  }

  private func loaded(_ name: String) throws -> Method {
    try lock.withLock {
      if let method = methods[name] { return method }
      let method = try Method(openedLocked(), name)
      methods[name] = method
      return method
    }
  }

  /// The program. The caller holds the lock.
  private func openedLocked() throws -> Program {
    if let program { return program }
    guard dataFilePaths.count <= 1 else {
      throw FlambeauError(kind: .load, text: "there are \(dataFilePaths.count) files of weights, expected at most one")
    }
    let engine = try self.engine ?? Engine.shared()
    let handle = try withOptionalText(dataFilePaths.first) { data in
      switch source {
      case .file(let path):
        return try withText(path) { path in try make { flb_program_open(engine.handle, path, data, $0) } }
      case .bytes(let bytes):
        return try bytes.withUnsafeBytes { bytes in
          try make { flb_program_from_bytes(engine.handle, bytes.baseAddress, bytes.count, data, $0) }
        }
      }
    }
    let program = Program(owning: handle)
    self.program = program
    return program
  }
}

/// Frees a program of C with the last reference.
private final class Program {
  let handle: OpaquePointer
  init(owning handle: OpaquePointer) { self.handle = handle }
  deinit { flb_program_free(handle) }

  var methodNames: Set<String> {
    Set((0..<flb_program_method_count(handle)).compactMap { flb_program_method_name(handle, $0) }.map { String(cString: $0) })
  }
}

/// Frees a method of C with the last reference.
private final class Method {
  let handle: OpaquePointer

  init(_ program: Program, _ name: String) throws {
    handle = try withText(name) { name in try make { flb_method_load(program.handle, name, $0) } }
  }

  deinit { flb_method_free(handle) }

  func run(_ inputs: [Value]) throws -> [Value] {
    let texts = try Texts()
    let arguments = try inputs.map { try $0.borrowed(texts) }
    let results = try withExtendedLifetime((self, inputs, texts)) {
      try make { flb_method_run(handle, arguments, arguments.count, $0) }
    }
    defer { flb_values_free(results) }
    return try (0..<flb_values_count(results)).map { index in
      var value = flb_value()
      try check(flb_values_get(results, index, &value))
      return try Value(value)
    }
  }
}
