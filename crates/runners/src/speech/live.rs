//! Text of live streams.

use super::{
    Progress, SAMPLE_RATE, Segment, Word,
    segment::has_words,
    stream::Stream,
    words::{TimedWord, segment, timed, whole_segments},
};

/// Live words that belong to no segment yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// Final words: the next segments begin with them.
    pub settled: Vec<Word>,
    /// Current hypothesis for the sound after those words. It may change.
    pub open: String,
}

/// The text of a growing stream that is decoded again and again. Words are final once two
/// successive hypotheses agree on them and on all earlier words. This is local agreement (Liu et
/// al. 2020; Macháček et al. 2023 for Whisper).
#[derive(Debug, Default)]
pub(crate) struct LiveText {
    /// Final words without a segment yet, timed by samples.
    settled: Vec<TimedWord>,
    /// The last hypothesis for the sound after the final words.
    open: Vec<TimedWord>,
    /// End of the last final word, in samples of the stream.
    said: u64,
}

impl LiveText {
    /// Number of leading words that a new hypothesis shares with the previous one. Both begin after
    /// the final words.
    pub(crate) fn agreed(&self, words: &[TimedWord]) -> usize {
        words.iter().zip(&self.open).take_while(|(new, old)| new.text == old.text).count()
    }

    /// Takes a hypothesis for the sound after the final words, and makes its first `count` words
    /// final. Returns the new final words, with times in ascending order.
    pub(crate) fn settle(&mut self, mut words: Vec<TimedWord>, count: usize) -> &[TimedWord] {
        self.open = words.split_off(count);
        let known = self.settled.len();
        // Punctuation alone begins no segment.
        for word in words {
            if self.settled.is_empty() && !has_words(&word.text) {
                continue;
            }
            let start = word.start.max(self.said);
            let word = TimedWord { start, end: word.end.max(start), ..word };
            self.said = word.end;
            self.settled.push(word);
        }
        &self.settled[known..]
    }

    /// End of the last final word, in samples of the stream.
    pub(crate) fn said(&self) -> u64 {
        self.said
    }

    /// Whether the last hypothesis had no words after the final ones.
    pub(crate) fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// Removes and returns the complete segments. The next `heard` samples of the stream are
    /// decoded.
    pub(crate) fn segments(&mut self, stream: &Stream, heard: usize, nothing_follows: bool) -> Vec<Segment> {
        let (length, window) = (stream.position() + heard as u64, stream.at(0));
        let whole = whole_segments(&mut self.settled, nothing_follows);
        whole.iter().map(|words| segment(words, length, window, true)).collect()
    }

    /// Words without a segment.
    pub(crate) fn draft(&self) -> Draft {
        let settled = self.settled.iter().map(|word| timed(word, u64::MAX)).collect();
        Draft { settled, open: self.open.iter().map(|word| word.text.as_str()).collect() }
    }
}

/// Schedule of a stream's hypotheses. It does not depend on the sizes of the pushed blocks.
#[derive(Debug)]
pub(crate) struct Beats {
    /// Samples between hypotheses, and the position of the next one.
    hop: u64,
    next: u64,
    is_over: bool,
}

/// The part of a stream to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    /// Number of waiting samples to decode.
    pub(crate) heard: usize,
    /// Whether no samples follow them, or a removed pause follows.
    pub(crate) ends: bool,
}

impl Beats {
    pub(crate) fn new(hop: usize) -> Beats {
        Beats { hop: hop as u64, next: hop as u64, is_over: false }
    }

    /// Samples between hypotheses, from the seconds in the [settings](super::Settings::live).
    pub(crate) fn hop(seconds: Option<f64>) -> usize {
        (seconds.unwrap_or(1.0).clamp(0.1, 10.0) * f64::from(SAMPLE_RATE)) as usize
    }

    /// Progress to report if no hypothesis is due.
    pub(crate) fn pause(&self) -> Progress {
        if self.is_over { Progress::Finished } else { Progress::NeedsSamples }
    }

    /// The next beat, if the stream is long enough.
    pub(crate) fn next(&mut self, stream: &mut Stream) -> Option<Beat> {
        let (position, waiting) = (stream.position(), stream.samples.len());
        if self.is_over {
            return None;
        }
        if let Some(pause) = stream.pauses.pop_front_if(|pause| *pause <= self.next) {
            self.next = pause + self.hop;
            return Some(Beat { heard: (pause - position) as usize, ends: true });
        }
        if self.next <= position + waiting as u64 {
            let heard = (self.next - position) as usize;
            self.next += self.hop;
            return Some(Beat { heard, ends: false });
        }
        self.is_over = stream.is_whole;
        self.is_over.then_some(Beat { heard: waiting, ends: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::words::tests::word;

    fn heard(text: &mut LiveText, words: &[TimedWord]) -> String {
        let count = text.agreed(words);
        text.settle(words.to_vec(), count).iter().map(|word| word.text.as_str()).collect()
    }

    #[test]
    fn what_two_hypotheses_agree_on_is_final() {
        let (mut text, stream) = (LiveText::default(), Stream::default());
        assert_eq!(heard(&mut text, &[word("I", 0, 10), word("scream.", 20, 30)]), "");
        assert_eq!(heard(&mut text, &[word("I", 0, 10), word("scrub", 20, 30), word("it.", 30, 40)]), " I");
        assert_eq!(text.draft().open, " scrub it.");
        assert_eq!(text.segments(&stream, 40, false), []);
        assert_eq!(heard(&mut text, &[word("scrub", 5, 30), word("it.", 30, 40), word("So", 50, 60)]), " scrub it.");
        let segments = text.segments(&stream, 60, false);
        assert_eq!((segments.len(), segments[0].text.as_str(), segments[0].words.len()), (1, " I scrub it.", 3));
        assert!(segments[0].words[1].start >= segments[0].words[0].end, "times do not go back");
        assert_eq!((text.draft().settled.len(), text.draft().open.as_str(), text.said()), (0, " So", 40));
    }

    #[test]
    fn beats_are_the_same_however_samples_come() {
        let beats = |block: usize| {
            let (mut stream, mut beats, mut found) = (Stream::default(), Beats::new(100), Vec::new());
            for (at, block) in vec![0.0; 330].chunks(block).enumerate() {
                stream.samples.extend(block);
                if at == 0 {
                    stream.pauses.push_back(150);
                }
                while let Some(beat) = beats.next(&mut stream) {
                    found.push((stream.position(), beat));
                    stream.pass(beat.heard / 2);
                }
            }
            stream.is_whole = true;
            found.extend(beats.next(&mut stream).map(|beat| (stream.position(), beat)));
            assert!(beats.pause() == Progress::Finished && beats.next(&mut stream).is_none());
            found
        };
        let expected = [(0, 100, false), (50, 100, true), (100, 150, false), (175, 155, true)];
        let expected = expected.map(|(position, heard, ends)| (position, Beat { heard, ends }));
        assert_eq!(beats(330), expected);
        assert_eq!(beats(160), expected);
    }
}
