import CFlambeau

/// How an answer is written.
public struct GenerationOptions: Sendable {
  /// Most tokens of the answer; the context may end it earlier.
  public var maximumNewTokens = 256
  /// Fixes what is drawn; 0 takes another seed each time.
  public var seed: UInt64 = 0
  /// 0 takes the likeliest token each time.
  public var temperature: Float = 0
  /// Sample from so many of the likeliest tokens; 0 means all.
  public var topK = 0
  /// Sample from this mass of probability; 0 means all, as 1 does.
  public var topP: Float = 0
  /// Drop tokens less likely than this times the likeliest one.
  public var minP: Float = 0
  /// On tokens that occurred already; 0 means none, as 1 does.
  public var repetitionPenalty: Float = 0
  /// Texts that end the answer and are not part of it.
  public var stop: [String] = []
  /// A JSON schema that the answer will follow.
  public var schema: String?
  /// Treat the model's end of text as any other token.
  public var ignoresEndOfText = false

  public init() {}

  /// Sets fields in a closure: `GenerationOptions { $0.temperature = 0.7 }`.
  public init(_ configure: (inout GenerationOptions) -> Void) {
    self.init()
    configure(&self)
  }

  /// Calls `body` with the options as C reads them.
  func withC<Result>(_ body: (UnsafePointer<flb_generation_options>) throws -> Result) throws -> Result {
    guard maximumNewTokens > 0, topK >= 0 else {
      throw FlambeauError(
        kind: .input, text: "maximumNewTokens is \(maximumNewTokens) and topK is \(topK), expected more than 0 and at least 0")
    }
    var options = flb_generation_options()
    options.struct_size = MemoryLayout<flb_generation_options>.stride
    options.max_new_tokens = maximumNewTokens
    options.seed = seed
    options.top_k = topK
    options.temperature = temperature
    options.top_p = topP
    options.min_p = minP
    options.repetition_penalty = repetitionPenalty
    options.ignore_eos = ignoresEndOfText ? 1 : 0
    return try withTexts(stop) { stop, count in
      try withOptionalText(schema) { schema in
        options.stop = stop
        options.stop_count = count
        options.schema = schema
        return try body(&options)
      }
    }
  }
}

/// A message of a conversation.
public struct Message: Sendable {
  /// The author, such as "system", "user" or "assistant".
  public var role: String
  public var content: String

  public init(role: String, content: String) {
    self.role = role
    self.content = content
  }
}

/// An answer, with numbers about it.
public struct Generation: Sendable {
  public enum Finish: Sendable {
    /// The model ended its text, or a stop text came.
    case stop
    /// `maximumNewTokens` is reached.
    case length
    /// The model's context is full.
    case context
    /// The reader ended the answer.
    case cancelled
  }

  public let text: String
  public let finish: Finish
  /// Tokens of the answer, one that ended it included.
  public let tokens: [UInt32]
  /// Tokens of the prompt that had to be computed.
  public let computedPromptTokens: Int
  /// Tokens per second after the first one; 0 if there were fewer than two.
  public let tokensPerSecond: Double

  /// Copies a generation of C and frees it.
  init(owning handle: OpaquePointer) throws {
    defer { flb_generation_free(handle) }
    text = String(cString: flb_generation_text(handle))
    switch Int(flb_generation_finish(handle)) {
    case Int(FLB_FINISH_STOP): finish = .stop
    case Int(FLB_FINISH_LENGTH): finish = .length
    case Int(FLB_FINISH_CONTEXT): finish = .context
    case Int(FLB_FINISH_CANCELLED): finish = .cancelled
    case let other: throw FlambeauError(kind: .bug, text: "an answer ended for a reason with the unknown number \(other)")
    }
    let count = flb_generation_token_count(handle)
    tokens = Array(UnsafeBufferPointer(start: flb_generation_tokens(handle), count: count))
    computedPromptTokens = flb_generation_prompt_count(handle)
    tokensPerSecond = flb_generation_tokens_per_second(handle)
  }
}
