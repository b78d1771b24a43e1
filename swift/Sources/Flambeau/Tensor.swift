import CFlambeau

/// A tensor with elements of one type of Swift. It never changes; copies of the struct share the
/// elements.
public struct Tensor<Element: Scalar>: Sendable {
  public let anyTensor: AnyTensor

  /// Throws an error of the kind `input` if the tensor has another type of elements.
  public init(_ tensor: AnyTensor) throws {
    guard tensor.dataType == Element.dataType else {
      throw FlambeauError(kind: .input, text: "the tensor is \(tensor.dataType), expected \(Element.dataType)")
    }
    anyTensor = tensor
  }

  /// Copies elements in row-major order. Without a shape, the tensor has one dimension.
  public init(_ scalars: [Element], shape: [Int]? = nil) throws {
    anyTensor = try scalars.withUnsafeBytes {
      try AnyTensor(bytes: $0, shape: shape ?? [scalars.count], dataType: Element.dataType)
    }
  }

  /// Makes a tensor of zeros and lets `fill` write its elements. No element is copied.
  public init(shape: [Int], fill: (UnsafeMutableBufferPointer<Element>) throws -> Void) throws {
    var count = 1
    for size in shape {
      let (product, overflow) = count.multipliedReportingOverflow(by: size)
      guard size >= 0, !overflow, product <= Int.max / MemoryLayout<Element>.stride else {
        throw FlambeauError(kind: .input, text: "the shape \(shape) has a negative size or too many elements")
      }
      count = product
    }
    // One element more, since C may refuse the address of no memory.
    let memory = UnsafeMutableBufferPointer<Element>.allocate(capacity: max(count, 1))
    memory.initialize(repeating: Element.zero)
    do { try fill(UnsafeMutableBufferPointer(rebasing: memory[..<count])) } catch {
      memory.deallocate()
      throw error
    }
    let bytes = UnsafeRawBufferPointer(start: memory.baseAddress, count: count * MemoryLayout<Element>.stride)
    let owner = Memory(memory.baseAddress!)
    anyTensor = try AnyTensor(bytesNoCopy: bytes, shape: shape, dataType: Element.dataType) { owner.free() }
  }

  public static func zeros(shape: [Int]) throws -> Tensor { try Tensor(shape: shape) { _ in } }

  public static func full(shape: [Int], scalar: Element) throws -> Tensor {
    try Tensor(shape: shape) { $0.update(repeating: scalar) }
  }

  /// Sizes, outermost first.
  public var shape: [Int] { anyTensor.shape }

  /// Number of elements.
  public var count: Int { anyTensor.count }

  /// A copy of the elements in row-major order.
  public func scalars() -> [Element] { withUnsafeBytes { Array($0) } }

  /// Calls `body` with the elements in row-major order, which are not copied. They are valid during
  /// the call only.
  public func withUnsafeBytes<Result>(_ body: (UnsafeBufferPointer<Element>) throws -> Result) rethrows -> Result {
    try anyTensor.withUnsafeBytes { try body($0.bindMemory(to: Element.self)) }
  }
}

/// Memory that one thread frees, once.
private struct Memory: @unchecked Sendable {
  private let address: UnsafeMutableRawPointer
  init(_ address: UnsafeMutableRawPointer) { self.address = address }
  func free() { address.deallocate() }
}
