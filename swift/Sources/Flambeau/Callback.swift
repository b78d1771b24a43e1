/// A closure that C calls by a pointer, with the error that it threw.
final class Callback<Input> {
  private let body: (Input) throws -> Bool
  private(set) var error: (any Error)?

  init(_ body: @escaping (Input) throws -> Bool) { self.body = body }

  /// Calls the closure; 0 asks C to go on.
  func call(_ input: Input) -> Int32 {
    do { return try body(input) ? 0 : 1 } catch {
      self.error = error
      return 1
    }
  }

  static func from(_ context: UnsafeMutableRawPointer?) -> Callback {
    Unmanaged<Callback>.fromOpaque(context!).takeUnretainedValue()
  }
}

/// Calls `run` with a closure as a pointer of C. An error of the closure is thrown after the call.
func withCallback<Input, Result>(
  _ body: (Input) throws -> Bool, _ run: (UnsafeMutableRawPointer) throws -> Result,
  discard: (Result) -> Void
) throws -> Result {
  try withoutActuallyEscaping(body) { body in
    let callback = Callback(body)
    return try withExtendedLifetime(callback) {
      let result = try run(Unmanaged.passUnretained(callback).toOpaque())
      if let error = callback.error {
        discard(result)
        throw error
      }
      return result
    }
  }
}
