import CFlambeau

/// Describes an argument or a result of a method.
public struct ValueMetadata: Sendable {
  public let tag: ValueTag
  /// The type of a tensor's elements; nil for other kinds.
  public let dataType: DataType?
  /// The largest sizes of a tensor; nil for a size without a limit.
  public let shape: [Int?]
  /// For each size, whether smaller ones fit as well.
  public let isOpen: [Bool]
  /// The name in the exported program.
  public let name: String?
  /// The description in words, such as "f32[..64, 4]".
  public let text: String

  init(_ info: flb_value_info) throws {
    tag = try ValueTag(info.kind)
    dataType = DataType(rawValue: info.dtype)
    let sizes = UnsafeBufferPointer(start: info.sizes, count: info.rank)
    // SIZE_MAX means no limit; as a signed number it is -1.
    shape = sizes.map { $0 == -1 ? nil : $0 }
    isOpen = UnsafeBufferPointer(start: info.is_open, count: info.rank).map { $0 != 0 }
    name = info.name.map { String(cString: $0) }
    text = String(cString: info.text)
  }
}

/// Describes a method.
public struct MethodMetadata: Sendable {
  public let name: String
  public let inputs: [ValueMetadata]
  public let outputs: [ValueMetadata]

  init(name: String, method: OpaquePointer) throws {
    self.name = name
    inputs = try describe(flb_method_input_count(method)) { flb_method_input(method, $0, &$1) }
    outputs = try describe(flb_method_output_count(method)) { flb_method_output(method, $0, &$1) }
  }
}

private func describe(
  _ count: Int, _ ask: (Int, inout flb_value_info) -> OpaquePointer?
) throws -> [ValueMetadata] {
  try (0..<count).map { index in
    var info = flb_value_info()
    info.struct_size = MemoryLayout<flb_value_info>.stride
    try check(ask(index, &info))
    return try ValueMetadata(info)
  }
}
