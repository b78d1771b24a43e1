import CFlambeau

/// A language model with its tokenizer. Answers of one model are written at the same time.
///
/// It is `Sendable` because any thread may call the library with the handle. The handle is freed
/// with the last reference; an answer in progress holds one.
public final class LanguageModel: @unchecked Sendable {
  private let handle: OpaquePointer

  /// Loads a .pte program, a folder or GGUF file of weights, or a name on the Hugging Face hub.
  /// Weights are exported once, into a cache. `flags` are flags of `flambeau generate` about
  /// models. Blocks the thread. Throws an error of the kind `load`.
  public init(_ model: String, flags: [String] = [], engine: Engine? = nil) throws {
    let engine = try engine ?? Engine.shared()
    handle = try withText(model) { model in
      try withTexts(flags) { flags, count in
        try make { flb_language_model_load(engine.handle, model, flags, count, $0) }
      }
    }
  }

  deinit { flb_language_model_free(handle) }

  /// Most tokens of prompt and answer together; nil if the program does not say.
  public var contextLength: Int? {
    let length = flb_language_model_context(handle)
    return length == 0 ? nil : length
  }

  /// Whether the model has a chat template, which `chat` needs.
  public var canChat: Bool { flb_language_model_can_chat(handle) != 0 }

  /// Continues a prompt as it is, piece by piece.
  public func stream(_ prompt: String, _ options: GenerationOptions = .init()) -> ResultStream<String, Generation> {
    ResultStream { yield in try self.generate(prompt, options) { yield($0.isEmpty ? nil : $0) } }
  }

  /// Answers a conversation by the model's chat template, piece by piece.
  public func streamChat(_ messages: [Message], _ options: GenerationOptions = .init()) -> ResultStream<String, Generation> {
    ResultStream { yield in try self.chat(messages, options) { yield($0.isEmpty ? nil : $0) } }
  }

  /// Continues a prompt as it is, and blocks the thread until the answer has ended. `onText` takes
  /// the text of each step, empty where a step gives none. False or an error ends the answer.
  public func generate(
    _ prompt: String, _ options: GenerationOptions = .init(), onText: (String) throws -> Bool = { _ in true }
  ) throws -> Generation {
    try withText(prompt) { prompt in
      try answer(options, onText) { flb_generate(handle, prompt, $0, $1, $2, $3) }
    }
  }

  /// Answers a conversation by the model's chat template. Otherwise as `generate`.
  public func chat(
    _ messages: [Message], _ options: GenerationOptions = .init(), onText: (String) throws -> Bool = { _ in true }
  ) throws -> Generation {
    let texts = try Texts()
    let messages = try messages.map { flb_message(role: try texts.add($0.role), content: try texts.add($0.content)) }
    return try withExtendedLifetime(texts) {
      try answer(options, onText) { flb_chat(handle, messages, messages.count, $0, $1, $2, $3) }
    }
  }

  private typealias Ask = (
    UnsafePointer<flb_generation_options>, @escaping flb_on_text, UnsafeMutableRawPointer,
    UnsafeMutablePointer<OpaquePointer?>
  ) -> OpaquePointer?

  private func answer(_ options: GenerationOptions, _ onText: (String) throws -> Bool, _ ask: Ask) throws -> Generation {
    let generation = try options.withC { options in
      try withCallback(
        onText,
        { context in
          try make { out in
            ask(options, { Callback<String>.from($0).call(String(cString: $1!)) }, context, out)
          }
        },
        discard: { flb_generation_free($0) })
    }
    return try Generation(owning: generation)
  }
}
