import Flambeau
import Foundation
import XCTest

/// Files of the clone that this package is part of.
enum Fixtures {
  private static let clone = URL(fileURLWithPath: #filePath)
    .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()

  private static func path(_ path: String) -> String { clone.appendingPathComponent(path).path }

  /// Two linear layers: f32[..64, 4] to f32[..64, 2].
  static let mlp = path("crates/flambeau/examples/data/mlp.pte")
  /// Three rows for it.
  static let rows: [Float] = [0.5, -1, 0, 2, 1, 1, 1, 1, -3, 0.25, 4, -0.5]
  /// Results of PyTorch for those rows, rounded.
  static let results: [Float] = [0.500_533_6, 0.190_533_1, 0.587_792_9, 0.162_802_2, -0.721_456_9, 0.785_947_9]

  /// A folder with a Llama of random weights.
  static let llama = path("crates/flambeau/examples/data/tiny-llama")
  /// A folder with a Parakeet of random weights, and half a second of 16-bit samples for it.
  static let parakeet = path("crates/testcases/checkpoints/speech-parakeet-ctc/checkpoint")
  static let recording = path("crates/testcases/checkpoints/speech-parakeet-ctc/audio.wav")

  /// A folder for exported programs, one for a run of the tests.
  static let cache: String = {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("flambeau-\(UUID().uuidString)")
    atexit { try? FileManager.default.removeItem(atPath: Fixtures.cache) }
    return folder.path
  }()
}

func assertClose(_ found: [Float], _ expected: [Float], file: StaticString = #filePath, line: UInt = #line) {
  XCTAssertEqual(found.count, expected.count, file: file, line: line)
  for (found, expected) in zip(found, expected) {
    XCTAssertEqual(found, expected, accuracy: 2e-6, file: file, line: line)
  }
}

/// Holds an expression to an error of a kind whose text has `part`.
func assertFails<Result>(
  _ kind: FlambeauError.Kind, _ part: String, _ expression: @autoclosure () throws -> Result,
  file: StaticString = #filePath, line: UInt = #line
) {
  XCTAssertThrowsError(try expression(), file: file, line: line) { error in
    guard let error = error as? FlambeauError else {
      return XCTFail("the error is \(error)", file: file, line: line)
    }
    XCTAssertEqual(error.kind, kind, error.text, file: file, line: line)
    XCTAssertTrue(error.text.contains(part), error.text, file: file, line: line)
  }
}
