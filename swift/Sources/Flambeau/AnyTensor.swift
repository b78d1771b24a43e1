import CFlambeau

/// A tensor in host memory, row-major, with elements of any type.
///
/// It is `Sendable` because a tensor never changes, and because the handle is freed with the last
/// reference.
public final class AnyTensor: @unchecked Sendable {
  let handle: OpaquePointer
  public let dataType: DataType

  /// Takes over a handle.
  init(owning handle: OpaquePointer) throws {
    guard let dataType = DataType(rawValue: flb_tensor_dtype(handle)) else {
      defer { flb_tensor_free(handle) }
      throw FlambeauError(kind: .bug, text: "elements have a type with the unknown number \(flb_tensor_dtype(handle))")
    }
    self.handle = handle
    self.dataType = dataType
  }

  /// Makes another handle to the elements of a tensor that belongs to an object of the library.
  /// It copies no element.
  convenience init(sharing tensor: OpaquePointer) throws {
    try self.init(owning: make { flb_tensor_share(tensor, $0) })
  }

  /// Copies bytes. Their number must fit type and shape. Throws an error of the kind `input` if
  /// it differs.
  public convenience init(bytes: UnsafeRawBufferPointer, shape: [Int], dataType: DataType) throws {
    let sizes = try checked(shape)
    try self.init(
      owning: make {
        flb_tensor_copy(dataType.rawValue, sizes, sizes.count, bytes.baseAddress, bytes.count, $0)
      })
  }

  /// Reads bytes where they lie; the address must be a multiple of an element's size. The memory
  /// must live and must not change until the library calls `release`. It calls it once, from any
  /// thread, also if this throws an error.
  public convenience init(
    bytesNoCopy bytes: UnsafeRawBufferPointer, shape: [Int], dataType: DataType,
    release: @escaping @Sendable () -> Void
  ) throws {
    let sizes: [Int]
    do { sizes = try checked(shape) } catch {
      release()
      throw error
    }
    let context = Unmanaged.passRetained(Release(release)).toOpaque()
    try self.init(
      owning: make {
        flb_tensor_borrow(
          dataType.rawValue, sizes, sizes.count, bytes.baseAddress, bytes.count,
          { Unmanaged<Release>.fromOpaque($0!).takeRetainedValue().call() }, context, $0)
      })
  }

  deinit { flb_tensor_free(handle) }

  /// Sizes, outermost first.
  public var shape: [Int] {
    Array(UnsafeBufferPointer(start: flb_tensor_shape(handle), count: flb_tensor_rank(handle)))
  }

  /// Number of elements.
  public var count: Int { flb_tensor_count(handle) }

  /// Calls `body` with the bytes of all elements, which are not copied. They are valid during the
  /// call only.
  public func withUnsafeBytes<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
    try withExtendedLifetime(self) {
      try body(UnsafeRawBufferPointer(start: flb_tensor_data(handle), count: flb_tensor_size(handle)))
    }
  }
}

/// A closure behind a pointer of C.
private final class Release: Sendable {
  let call: @Sendable () -> Void
  init(_ call: @escaping @Sendable () -> Void) { self.call = call }
}

/// A shape without negative sizes.
private func checked(_ shape: [Int]) throws -> [Int] {
  guard shape.allSatisfy({ $0 >= 0 }) else {
    throw FlambeauError(kind: .input, text: "the shape \(shape) has a negative size")
  }
  return shape
}
