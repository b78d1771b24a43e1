import Flambeau
import XCTest

final class TranscriberTests: XCTestCase {
  private static let transcriber = Result { try Transcriber(Fixtures.parakeet, flags: ["--cache-dir", Fixtures.cache]) }
  private let words = ["--word-timestamps"]

  /// The samples behind the header of 44 bytes.
  private func samples() throws -> [UInt8] {
    Array(try Data(contentsOf: URL(fileURLWithPath: Fixtures.recording)).dropFirst(44))
  }

  func testFilesSamplesAndStreamsAgree() async throws {
    let transcriber = try Self.transcriber.get()
    let stream = transcriber.stream(filePath: Fixtures.recording, flags: words)
    var segments: [Segment] = []
    for try await segment in stream { segments.append(segment) }
    let whole = try await stream.whole()
    XCTAssertEqual(whole.segments, segments)
    XCTAssertFalse(segments.isEmpty)
    XCTAssertFalse(segments.flatMap(\.words).isEmpty)
    XCTAssertEqual(whole.seconds, 0.5, accuracy: 0.001)
    XCTAssertNil(whole.language)
    for segment in segments { XCTAssertTrue(whole.text.contains(segment.text)) }

    let bytes = try samples()
    let tensor = try bytes.withUnsafeBytes { try AnyTensor(bytes: $0, shape: [bytes.count / 2], dataType: .short) }
    XCTAssertEqual(try transcriber.transcribe(samples: tensor, rate: 16000, flags: words).json, whole.json)

    var next = 0
    let read = { (buffer: UnsafeMutableRawBufferPointer) -> Int in
      let count = min(777, buffer.count, bytes.count - next)
      buffer.copyBytes(from: bytes[next..<next + count])
      next += count
      return count
    }
    let streamed = try transcriber.transcribe(rate: 16000, channels: 1, dataType: .short, flags: words, read: read)
    XCTAssertEqual(streamed.json, whole.json)
    XCTAssertEqual(next, bytes.count)
  }

  func testCallbacksEndTheTranscription() throws {
    let transcriber = try Self.transcriber.get()
    var segments = 0
    _ = try transcriber.transcribe(filePath: Fixtures.recording) { _ in
      segments += 1
      return false
    }
    XCTAssertEqual(segments, 1)
    struct Stopped: Error {}
    XCTAssertThrowsError(try transcriber.transcribe(filePath: Fixtures.recording) { _ in throw Stopped() }) {
      XCTAssertTrue($0 is Stopped)
    }
  }

  func testErrors() throws {
    assertFails(.load, "missing", try Transcriber("./missing"))
    let transcriber = try Self.transcriber.get()
    assertFails(.input, "no.wav", try transcriber.transcribe(filePath: "no.wav"))
    assertFails(
      .input, "takes no language", try transcriber.transcribe(filePath: Fixtures.recording, flags: ["--language=fr"]))
    let cube = try Tensor<Float>.zeros(shape: [1, 1, 1]).anyTensor
    assertFails(.input, "expected [samples]", try transcriber.transcribe(samples: cube, rate: 16000))
    assertFails(.input, "`rate` is -1", try transcriber.transcribe(samples: cube, rate: -1))
  }
}
