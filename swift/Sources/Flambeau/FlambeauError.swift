import CFlambeau
import Foundation

/// An error of the library, with its kind and its text.
public struct FlambeauError: Error, Equatable, Sendable {
  public enum Kind: Sendable {
    /// An engine, a program, a method or a model cannot be loaded.
    case load
    /// An argument does not fit.
    case input
    /// A run has failed.
    case execution
    /// The library has a bug. The object that was used may refuse more calls.
    case bug
  }

  public let kind: Kind
  /// The reason in English; it may have several lines.
  public let text: String

  public init(kind: Kind, text: String) {
    self.kind = kind
    self.text = text
  }
}

extension FlambeauError: LocalizedError, CustomStringConvertible {
  public var errorDescription: String? { text }
  public var description: String { text }
}

/// Throws the error that a C function returned, and frees it. NULL is success.
func check(_ error: OpaquePointer?) throws {
  guard let error else { return }
  defer { flb_error_free(error) }
  let kind: FlambeauError.Kind
  switch Int(flb_error_get_kind(error)) {
  case Int(FLB_ERROR_LOAD): kind = .load
  case Int(FLB_ERROR_INPUT): kind = .input
  case Int(FLB_ERROR_EXECUTION): kind = .execution
  default: kind = .bug
  }
  throw FlambeauError(kind: kind, text: String(cString: flb_error_get_text(error)))
}

/// Calls a C function that writes a new handle, and gives that handle.
func make(_ call: (UnsafeMutablePointer<OpaquePointer?>) throws -> OpaquePointer?) throws -> OpaquePointer {
  var handle: OpaquePointer?
  try check(call(&handle))
  guard let handle else { throw FlambeauError(kind: .bug, text: "a C function gave neither an error nor a handle") }
  return handle
}
