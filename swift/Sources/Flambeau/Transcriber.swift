import CFlambeau

/// A model of speech with its tokenizer.
///
/// It is `Sendable` because the library lets threads take turns on the model. The handle is freed
/// with the last reference. `flags` of its methods are flags of `flambeau transcribe` about speech,
/// such as `["--language", "fr"]`. Segment callbacks give false to end the transcription, and must
/// not use the same model.
public final class Transcriber: @unchecked Sendable {
  private let handle: OpaquePointer

  /// Loads a .pte program, a folder or file of weights, or a name on the Hugging Face hub. `flags`
  /// are flags of `flambeau transcribe` about models. Throws an error of the kind `load`.
  public init(_ model: String, flags: [String] = [], engine: Engine? = nil) throws {
    let engine = try engine ?? Engine.shared()
    handle = try withText(model) { model in
      try withTexts(flags) { flags, count in
        try make { flb_speech_model_load(engine.handle, model, flags, count, $0) }
      }
    }
  }

  deinit { flb_speech_model_free(handle) }

  /// Transcribes a recording in a file, segment by segment. A cancellation waits for the next
  /// segment.
  public func stream(filePath: String, flags: [String] = []) -> ResultStream<Segment, Transcript> {
    ResultStream { yield in try self.transcribe(filePath: filePath, flags: flags) { yield($0) } }
  }

  /// Transcribes a recording in a file, and blocks the thread until the end.
  public func transcribe(
    filePath: String, flags: [String] = [], onSegment: (Segment) throws -> Bool = { _ in true }
  ) throws -> Transcript {
    try withText(filePath) { path in
      try transcribe(flags, onSegment) { flags, count, callback, context, out in
        flb_transcribe_file(handle, path, flags, count, callback, context, out)
      }
    }
  }

  /// Transcribes samples of the shape [samples] or [samples, channels], `rate` of them a second.
  /// Floats are from -1 to 1. Integers of 8 bits are unsigned; integers of 16 and 32 bits are
  /// signed.
  public func transcribe(
    samples: AnyTensor, rate: Int, flags: [String] = [], onSegment: (Segment) throws -> Bool = { _ in true }
  ) throws -> Transcript {
    let rate = try checked(rate, "rate")
    return try withExtendedLifetime(samples) {
      try transcribe(flags, onSegment) { flags, count, callback, context, out in
        flb_transcribe_samples(handle, samples.handle, rate, flags, count, callback, context, out)
      }
    }
  }

  /// Transcribes samples that `read` writes, for example from a microphone: interleaved channels,
  /// `rate` samples of each a second. `read` gives the number of bytes written; 0 ends the
  /// recording. It may wait for sound.
  public func transcribe(
    rate: Int, channels: Int, dataType: DataType, flags: [String] = [],
    read: @escaping (UnsafeMutableRawBufferPointer) -> Int,
    onSegment: @escaping (Segment) throws -> Bool = { _ in true }
  ) throws -> Transcript {
    let (rate, channels) = (try checked(rate, "rate"), try checked(channels, "channels"))
    let recording = Recording(read: read, onSegment: Callback(onSegment))
    let transcript = try withTexts(flags) { flags, count in
      try withExtendedLifetime(recording) {
        try make { out in
          flb_transcribe_stream(
            handle, dataType.rawValue, rate, channels,
            { Recording.from($0).read(UnsafeMutableRawBufferPointer(start: $1, count: $2)) },
            flags, count, { Recording.from($0).onSegment.call(Segment($1!.pointee)) },
            Unmanaged.passUnretained(recording).toOpaque(), out)
        }
      }
    }
    if let error = recording.onSegment.error {
      flb_transcript_free(transcript)
      throw error
    }
    return try Transcript(owning: transcript)
  }

  private typealias Ask = (
    UnsafePointer<UnsafePointer<CChar>?>?, Int, @escaping flb_on_segment, UnsafeMutableRawPointer,
    UnsafeMutablePointer<OpaquePointer?>
  ) -> OpaquePointer?

  private func transcribe(_ flags: [String], _ onSegment: (Segment) throws -> Bool, _ ask: Ask) throws -> Transcript {
    let transcript = try withTexts(flags) { flags, count in
      try withCallback(
        onSegment,
        { context in
          try make { out in
            ask(flags, count, { Callback<Segment>.from($0).call(Segment($1!.pointee)) }, context, out)
          }
        },
        discard: { flb_transcript_free($0) })
    }
    return try Transcript(owning: transcript)
  }
}

/// The two closures of a recording behind one pointer of C.
private final class Recording {
  let read: (UnsafeMutableRawBufferPointer) -> Int
  let onSegment: Callback<Segment>

  init(read: @escaping (UnsafeMutableRawBufferPointer) -> Int, onSegment: Callback<Segment>) {
    self.read = read
    self.onSegment = onSegment
  }

  static func from(_ context: UnsafeMutableRawPointer?) -> Recording {
    Unmanaged<Recording>.fromOpaque(context!).takeUnretainedValue()
  }
}

private func checked(_ number: Int, _ name: String) throws -> UInt32 {
  guard let number = UInt32(exactly: number) else {
    throw FlambeauError(kind: .input, text: "`\(name)` is \(number), which is out of range")
  }
  return number
}
