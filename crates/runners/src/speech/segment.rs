//! Segments of a transcript, with their times.

use std::ops::Range;

/// A stretch of speech that belongs together: at most a sentence or two.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Seconds from the beginning of the recording.
    pub start: f64,
    pub end: f64,
    /// Start of the window that contained the segment, in seconds of the recording.
    pub window: f64,
    pub text: String,
    /// Ids of the text and of the timestamps around it.
    pub tokens: Vec<u32>,
    /// Words with their times, if requested.
    pub words: Vec<Word>,
    /// Temperature of the window's final text.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub mean_log_probability: f32,
    /// The model's probability that the window holds no speech.
    pub no_speech_probability: f32,
    /// Bytes of the window's text over its compressed bytes: high for a text that repeats itself.
    pub compression_ratio: f32,
    /// Number of the channel, from 1 on, if channels were transcribed separately.
    pub channel: Option<usize>,
}

impl Segment {
    /// A segment of greedily decoded text, without a no-speech probability and without words.
    pub(crate) fn greedy(times: Range<f64>, window: f64, text: String, tokens: Vec<u32>, mean_log_probability: f32) -> Segment {
        Segment {
            start: times.start,
            end: times.end,
            window,
            compression_ratio: compression_ratio(text.trim()),
            text,
            tokens,
            words: Vec::new(),
            temperature: 0.0,
            mean_log_probability,
            no_speech_probability: 0.0,
            channel: None,
        }
    }

    /// Limits the ends of the segment and its words to that many seconds.
    pub(crate) fn end_by(&mut self, seconds: f64) {
        self.end = self.end.min(seconds);
        self.words.iter_mut().for_each(|word| (word.start, word.end) = (word.start.min(seconds), word.end.min(seconds)));
    }

    /// Extends the segment to its first and last word.
    pub(crate) fn hold_words(&mut self) {
        self.start = self.words.iter().map(|word| word.start).fold(self.start, f64::min);
        self.end = self.words.iter().map(|word| word.end).fold(self.end, f64::max);
    }
}

/// A word.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    /// With its leading space, as the model writes it.
    pub text: String,
    /// Seconds from the beginning of the recording.
    pub start: f64,
    pub end: f64,
}

/// Characters that end a sentence.
const ENDS: [char; 6] = ['.', '?', '!', '。', '？', '！'];

/// Whether a text ends with the end of a sentence.
pub(crate) fn ends_sentence(text: &str) -> bool {
    text.ends_with(ENDS)
}

/// Whether a text has words, not only punctuation.
pub(crate) fn has_words(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// Bytes of a text over its compressed bytes.
pub(crate) fn compression_ratio(text: &str) -> f32 {
    use std::io::Write;
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    // Writing to memory does not fail.
    let compressed = zlib.write_all(text.as_bytes()).and_then(|()| zlib.finish()).map_or(1, |bytes| bytes.len());
    text.len() as f32 / compressed as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_with_marks_of_either_width() {
        assert!(["Yes.", "Yes?", "はい。", "是！"].iter().all(|text| ends_sentence(text)));
        assert!(["Yes", "Yes,", "はい、", ""].iter().all(|text| !ends_sentence(text)));
    }
}
