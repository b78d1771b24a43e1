import Flambeau
import XCTest

final class LanguageModelTests: XCTestCase {
  private static let model = Result {
    try LanguageModel(Fixtures.llama, flags: ["--cache-dir", Fixtures.cache, "--ctx-size", "64"])
  }

  /// The same model with room for answers that take long.
  private static let roomy = Result {
    try LanguageModel(Fixtures.llama, flags: ["--cache-dir", Fixtures.cache, "--ctx-size", "4000"])
  }

  private let options = GenerationOptions {
    $0.maximumNewTokens = 8
    $0.ignoresEndOfText = true
  }

  private func longAnswer() throws -> ResultStream<String, Generation> {
    try Self.roomy.get().stream("the cat sat on", GenerationOptions {
      $0.maximumNewTokens = 3900
      $0.ignoresEndOfText = true
    })
  }

  func testPiecesAreTheText() async throws {
    let model = try Self.model.get()
    XCTAssertEqual(model.contextLength, 64)
    XCTAssertTrue(model.canChat)
    let stream = model.stream("the cat sat on", options)
    var text = ""
    for try await piece in stream {
      XCTAssertFalse(piece.isEmpty)
      text += piece
    }
    let generation = try await stream.whole()
    XCTAssertEqual(generation.text, text)
    XCTAssertGreaterThan(text.count, 8)
    XCTAssertEqual(generation.finish, .length)
    XCTAssertEqual(generation.tokens.count, 8)

    // The blocking call gives the same tokens, and knows the beginning of the prompt.
    var pieces = ""
    let again = try model.generate("the cat sat on", options) {
      pieces += $0
      return true
    }
    XCTAssertEqual(again.tokens, generation.tokens)
    XCTAssertEqual(pieces, text)
    XCTAssertEqual(again.computedPromptTokens, 1)
  }

  func testLeavingTheLoopEndsTheAnswer() async throws {
    let stream = try longAnswer()
    for try await _ in stream { break }
    let generation = try await stream.whole()
    XCTAssertEqual(generation.finish, .cancelled)
    XCTAssertLessThan(generation.tokens.count, 3900)
  }

  func testCancellingTheTaskEndsTheAnswer() async throws {
    let stream = try longAnswer()
    let reader = Task {
      for try await _ in stream { withUnsafeCurrentTask { $0?.cancel() } }
    }
    try await reader.value
    let generation = try await stream.whole()
    XCTAssertEqual(generation.finish, .cancelled)
    XCTAssertLessThan(generation.tokens.count, 3900)
  }

  func testCancelEndsTheAnswer() async throws {
    let stream = try longAnswer()
    stream.cancel()
    let generation = try await stream.whole()
    XCTAssertEqual(generation.finish, .cancelled)
    var text = ""
    for try await piece in stream { text += piece }
    XCTAssertTrue(generation.text.hasPrefix(text))
  }

  func testACallbackEndsTheAnswer() throws {
    let model = try Self.model.get()
    var calls = 0
    let part = try model.generate("the cat sat on", options) { _ in
      calls += 1
      return calls < 3
    }
    XCTAssertEqual(calls, 3)
    XCTAssertEqual(part.finish, .cancelled)
    XCTAssertEqual(part.tokens.count, 3)

    struct Stopped: Error {}
    XCTAssertThrowsError(try model.generate("the cat", options) { _ in throw Stopped() }) { XCTAssertTrue($0 is Stopped) }
  }

  func testAnswersAConversation() async throws {
    let model = try Self.model.get()
    let messages = [Message(role: "user", content: "where is the cat ?")]
    let stream = model.streamChat(messages, options)
    var text = ""
    for try await piece in stream { text += piece }
    let blocking = try model.chat(messages, options).text
    XCTAssertEqual(text, blocking)
    let plain = try model.generate("where is the cat ?", options).text
    XCTAssertNotEqual(plain, text)
  }

  func testEqualSeedsDrawTheSame() throws {
    let model = try Self.model.get()
    var options = options
    options.temperature = 0.8
    options.seed = 7
    let texts = try (0..<2).map { _ in try model.generate("a dog", options).text }
    XCTAssertEqual(texts[0], texts[1])
  }

  func testAStopTextEndsTheAnswer() throws {
    let model = try Self.model.get()
    let whole = try model.generate("the cat sat on", options).text
    let word = try XCTUnwrap(whole.split(separator: " ").dropFirst().first.map(String.init))
    var options = options
    options.stop = [word]
    let part = try model.generate("the cat sat on", options)
    XCTAssertEqual(part.finish, .stop)
    XCTAssertFalse(part.text.contains(word))
  }

  func testErrors() async throws {
    assertFails(.load, "missing", try LanguageModel("./missing"))
    assertFails(.load, "--colour", try LanguageModel(Fixtures.llama, flags: ["--colour=red"]))
    let model = try Self.model.get()
    assertFails(.input, "temperature", try model.generate("a", GenerationOptions { $0.temperature = -1 }))
    assertFails(.input, "schema", try model.generate("a", GenerationOptions { $0.schema = "{" }))
    assertFails(.input, "maximumNewTokens", try model.generate("a", GenerationOptions { $0.maximumNewTokens = 0 }))
    let long = String(repeating: " cat", count: 90)
    let stream = model.stream(long)
    do {
      for try await _ in stream { XCTFail("a prompt that is too long has an answer") }
      XCTFail("a prompt that is too long gives no error")
    } catch let error as FlambeauError {
      XCTAssertEqual(error.kind, .input)
      XCTAssertTrue(error.text.contains("context holds 64"), error.text)
    }
  }
}
