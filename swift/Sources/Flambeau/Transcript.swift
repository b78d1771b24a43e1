import CFlambeau

/// A word with its times in seconds.
public struct Word: Sendable, Equatable {
  public let start: Double
  public let end: Double
  public let text: String
}

/// A stretch of speech with its times in seconds.
public struct Segment: Sendable, Equatable {
  public let start: Double
  public let end: Double
  public let text: String
  /// Empty unless the flag `--word-timestamps` asks for words.
  public let words: [Word]

  init(_ segment: flb_segment) {
    start = segment.start
    end = segment.end
    text = String(cString: segment.text)
    words = UnsafeBufferPointer(start: segment.words, count: segment.word_count).map {
      Word(start: $0.start, end: $0.end, text: String(cString: $0.text))
    }
  }
}

/// The text of a recording.
public struct Transcript: Sendable {
  public let text: String
  /// Code of the language, such as "en"; nil where it is not known.
  public let language: String?
  /// Seconds that were heard.
  public let seconds: Double
  public let segments: [Segment]
  /// The transcript as JSON with the names of OpenAI's `verbose_json`.
  public let json: String

  /// Copies a transcript of C and frees it.
  init(owning handle: OpaquePointer) throws {
    defer { flb_transcript_free(handle) }
    text = String(cString: flb_transcript_text(handle))
    language = flb_transcript_language(handle).map { String(cString: $0) }
    seconds = flb_transcript_seconds(handle)
    json = String(cString: flb_transcript_json(handle))
    segments = try (0..<flb_transcript_segment_count(handle)).map { index in
      var segment = flb_segment()
      segment.struct_size = MemoryLayout<flb_segment>.stride
      try check(flb_transcript_segment(handle, index, &segment))
      return Segment(segment)
    }
  }
}
