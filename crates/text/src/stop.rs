//! Stop strings over streamed text.

use crate::error::{Error, Result};

/// Maximum number of stop strings per matcher.
pub const MAX_STOP_STRINGS: usize = 64;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 4096;

/// Watches streamed text for stop strings.
///
/// Text that may be the beginning of a stop string is held back until it is decided; everything
/// else is passed on at once. The first complete stop string ends the text. If several end at the
/// same character, the longest wins. So the outcome does not depend on the division of the text
/// into pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    held: String,
    stopped: Option<usize>,
}

/// The result of a piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that may be shown now; never a part of the stop string.
    pub text: String,
    /// Index of the stop string that has ended the text.
    pub stopped: Option<usize>,
}

/// A stop string as a Knuth-Morris-Pratt automaton over bytes.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fall[n]`: length of the longest proper prefix of the string that is a suffix of its first
    /// `n + 1` bytes.
    fall: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut fall = vec![0; bytes.len()];
        let mut len = 0;
        for at in 1..bytes.len() {
            while len > 0 && bytes[at] != bytes[len] {
                len = fall[len - 1];
            }
            len += usize::from(bytes[at] == bytes[len]);
            fall[at] = len;
        }
        Self { bytes, fall, matched: 0 }
    }

    /// Appends one byte; true if the string is now complete.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fall[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

impl StopMatcher {
    /// A matcher for `stops`; an empty list passes everything on.
    ///
    /// # Errors
    /// More than [`MAX_STOP_STRINGS`], or one that is empty or longer than [`MAX_STOP_BYTES`].
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        if stops.len() > MAX_STOP_STRINGS {
            return Err(Error::StopStrings { found: stops.len(), limit: MAX_STOP_STRINGS });
        }
        for (index, stop) in stops.iter().enumerate() {
            let found = stop.as_ref().len();
            if found == 0 || found > MAX_STOP_BYTES {
                return Err(Error::StopString { index, found, limit: MAX_STOP_BYTES });
            }
        }
        let stops = stops.iter().map(|stop| Pattern::new(stop.as_ref())).collect();
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Appends a piece of text; after a stop, text is dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { text: String::new(), stopped: self.stopped };
        }
        let old = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            if let Some((index, len)) = self.advance(byte) {
                self.stopped = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(old + at + 1 - len);
                return StopStep { text, stopped: self.stopped };
            }
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// Ends the text and returns the held-back part, which is not a stop string.
    pub fn finish(&mut self) -> String {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that has ended the text, if one has.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Advances every automaton; the longest stop string that is complete, with its length in
    /// bytes.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut done: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            let len = stop.bytes.len();
            if stop.advance(byte) && done.is_none_or(|(_, best)| len > best) {
                done = Some((index, len));
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, searched without any automaton: the smallest end, then the longest string.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        let mut best: Option<(usize, usize, usize)> = None;
        for (index, stop) in stops.iter().enumerate() {
            if let Some(start) = text.find(stop.as_str()) {
                let end = start + stop.len();
                if best.is_none_or(|(e, s, _)| (end, start) < (e, s)) {
                    best = Some((end, start, index));
                }
            }
        }
        match best {
            Some((_, start, index)) => (text[..start].to_owned(), Some(index)),
            None => (text.to_owned(), None),
        }
    }

    fn stream(pieces: &[&str], stops: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut out = String::new();
        for piece in pieces {
            out.push_str(&matcher.push(piece).text);
        }
        out.push_str(&matcher.finish());
        (out, matcher.stopped())
    }

    #[test]
    fn text_before_the_stop_is_emitted_and_the_rest_dropped() {
        let check = |pieces: &[&str], stops: &[&str], want: &str, hit: Option<usize>| {
            let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
            assert_eq!(stream(pieces, &stops), (want.to_owned(), hit), "{pieces:?} {stops:?}");
        };
        check(&["hello ", "wor", "ld"], &[], "hello world", None);
        check(&["one\nUs", "er: two"], &["\nUser:"], "one", Some(0));
        check(&["one\nUs", "age"], &["\nUser:"], "one\nUsage", None);
        check(&["aab"], &["ab"], "a", Some(0));
        check(&["xabcd"], &["abcd", "bc"], "xa", Some(1));
        check(&["xabc"], &["c", "abc"], "x", Some(1));
        check(&["né", "e!"], &["ée"], "n", Some(0));
        check(&["END"], &["END"], "", Some(0));
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let mut matcher = StopMatcher::new(&["</s>"]).unwrap();
        assert_eq!(matcher.push("abc</").text, "abc");
        assert_eq!(matcher.push("b>d").text, "</b>d");
        assert_eq!(matcher.push("<").text, "");
        assert_eq!(matcher.finish(), "<");
    }

    #[test]
    fn unusable_stop_strings_are_refused() {
        let check = |stops: Vec<String>, want: &str| assert_eq!(StopMatcher::new(&stops).unwrap_err().to_string(), want);
        check(vec!["a".into(), String::new()], "stop string 1: expected 1 to 4096 bytes, found 0");
        check(vec!["x".repeat(4097)], "stop string 0: expected 1 to 4096 bytes, found 4097");
        check(vec!["x".into(); 65], "65 stop strings given, at most 64 are taken");
    }

    proptest! {
        #[test]
        fn any_chunking_equals_the_naive_search(
            pieces in prop::collection::vec("[abé ]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(stream(&pieces, &stops), naive(&pieces.concat(), &stops));
        }
    }
}
