import Foundation

/// Texts as C reads them. They live as long as the object.
final class Texts {
  private(set) var pointers: [UnsafePointer<CChar>?] = []

  /// Throws an error of the kind `input` for a text with a zero character, since C cannot read it.
  init(_ texts: [String] = []) throws {
    for text in texts { _ = try add(text) }
  }

  func add(_ text: String) throws -> UnsafePointer<CChar> {
    guard !text.utf8.contains(0) else {
      throw FlambeauError(kind: .input, text: "a text has a zero character: \(text.debugDescription)")
    }
    guard let copy = strdup(text) else {
      throw FlambeauError(kind: .execution, text: "there is no memory for a text of \(text.utf8.count) bytes")
    }
    pointers.append(UnsafePointer(copy))
    return UnsafePointer(copy)
  }

  deinit {
    for pointer in pointers { free(UnsafeMutablePointer(mutating: pointer)) }
  }
}

/// Calls `body` with texts as an array of C, and its length.
func withTexts<Result>(
  _ texts: [String], _ body: (UnsafePointer<UnsafePointer<CChar>?>?, Int) throws -> Result
) throws -> Result {
  let copies = try Texts(texts)
  return try withExtendedLifetime(copies) {
    try copies.pointers.withUnsafeBufferPointer { try body($0.baseAddress, $0.count) }
  }
}

/// Calls `body` with a text as C reads it.
func withText<Result>(_ text: String, _ body: (UnsafePointer<CChar>) throws -> Result) throws -> Result {
  let copy = try Texts()
  let pointer = try copy.add(text)
  return try withExtendedLifetime(copy) { try body(pointer) }
}

/// Calls `body` with a text as C reads it, or with NULL.
func withOptionalText<Result>(_ text: String?, _ body: (UnsafePointer<CChar>?) throws -> Result) throws -> Result {
  guard let text else { return try body(nil) }
  return try withText(text) { try body($0) }
}
