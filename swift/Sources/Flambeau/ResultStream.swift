import Foundation

/// Pieces of a result while it is computed, and the whole result at the end.
///
/// A thread of its own computes from the start. Leaving the loop early, cancelling the task of the
/// loop, or `cancel()` ends the computation after its current step. One loop can read the pieces.
public struct ResultStream<Element: Sendable, Whole: Sendable>: AsyncSequence, Sendable {
  private let pieces: AsyncThrowingStream<Element, any Error>
  private let state: StreamState<Whole>

  /// Starts `compute` on a new thread. It hands over pieces, or nil for a step without one, until
  /// that call gives false.
  init(_ compute: @escaping @Sendable ((Element?) -> Bool) throws -> Whole) {
    let state = StreamState<Whole>()
    pieces = AsyncThrowingStream { continuation in
      continuation.onTermination = { _ in state.cancel() }
      let thread = Thread {
        let result = Result<Whole, any Error> {
          try compute { piece in
            guard !state.isCancelled else { return false }
            if let piece { continuation.yield(piece) }
            return true
          }
        }
        state.end(result)
        continuation.finish(throwing: result.failure)
      }
      // The size of a main thread; Apple's other threads have half a megabyte.
      thread.stackSize = 8 << 20
      thread.start()
    }
    self.state = state
  }

  /// Ends the computation after its current step. The whole result is what came so far.
  public func cancel() { state.cancel() }

  /// Waits for the end and gives the whole result, also after a cancellation.
  public func whole() async throws -> Whole { try await state.whole() }

  public func makeAsyncIterator() -> Iterator {
    Iterator(pieces: pieces.makeAsyncIterator(), owner: Owner(state.cancel))
  }

  public struct Iterator: AsyncIteratorProtocol {
    var pieces: AsyncThrowingStream<Element, any Error>.Iterator
    let owner: Owner

    public mutating func next() async throws -> Element? { try await pieces.next() }
  }

  /// Cancels the computation with the last reference.
  final class Owner {
    private let cancel: () -> Void
    init(_ cancel: @escaping () -> Void) { self.cancel = cancel }
    deinit { cancel() }
  }
}

/// How far a computation is. A lock guards all fields.
private final class StreamState<Whole: Sendable>: @unchecked Sendable {
  private let lock = NSLock()
  private var cancelled = false
  private var result: Result<Whole, any Error>?
  private var waiting: [CheckedContinuation<Whole, any Error>] = []

  var isCancelled: Bool { lock.withLock { cancelled } }

  func cancel() { lock.withLock { cancelled = true } }

  func end(_ result: Result<Whole, any Error>) {
    let waiting = lock.withLock {
      self.result = result
      defer { self.waiting = [] }
      return self.waiting
    }
    for continuation in waiting { continuation.resume(with: result) }
  }

  func whole() async throws -> Whole {
    try await withCheckedThrowingContinuation { continuation in
      let result = lock.withLock {
        if self.result == nil { waiting.append(continuation) }
        return self.result
      }
      if let result { continuation.resume(with: result) }
    }
  }
}

extension Result {
  fileprivate var failure: Failure? {
    guard case .failure(let error) = self else { return nil }
    return error
  }
}
