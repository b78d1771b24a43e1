//! Prints live text.

use std::io::{self, Write};

use anyhow::Result;
use flambeau::runners::speech::{Draft, Segment, Word};

/// Prints words as they become final, and measures their delays.
#[derive(Debug)]
pub(super) struct Live {
    is_printed: bool,
    /// Number of final words so far in the next segment.
    known: usize,
    /// End of the last step, if sound had arrived in real time: seconds from the start of the
    /// recording.
    clock: f64,
    computed: f64,
    /// Seconds from the end of each word until it was final.
    delays: Vec<f64>,
}

impl Live {
    /// Prints words if `is_printed`, and always measures their delays.
    pub(super) fn new(is_printed: bool) -> Live {
        Live { is_printed, known: 0, clock: 0.0, computed: 0.0, delays: Vec::new() }
    }

    /// Takes the result of a step of `took` seconds, after `heard` seconds of sound.
    pub(super) fn take(&mut self, segments: &[Segment], draft: &Draft, heard: f64, took: f64) -> Result<()> {
        self.clock = self.clock.max(heard) + took;
        self.computed += took;
        for segment in segments {
            self.words(&segment.words)?;
            self.print("\n")?;
            self.known = 0;
        }
        self.words(&draft.settled)?;
        if self.is_printed {
            io::stdout().flush()?;
        }
        Ok(())
    }

    /// Takes the final words of a segment so far.
    fn words(&mut self, words: &[Word]) -> Result<()> {
        for (at, word) in words.iter().enumerate().skip(self.known) {
            self.delays.push((self.clock - word.end).max(0.0));
            self.print(if at == 0 { word.text.trim_start() } else { &word.text })?;
        }
        self.known = words.len();
        Ok(())
    }

    fn print(&self, text: &str) -> Result<()> {
        if self.is_printed {
            write!(io::stdout(), "{text}")?;
        }
        Ok(())
    }

    /// Statistics of the computing time and of the words' delays.
    pub(super) fn summary(mut self, seconds: f64) -> String {
        self.delays.sort_by(f64::total_cmp);
        let factor = format!("computing took {:.3} of its time", self.computed / seconds.max(f64::MIN_POSITIVE));
        let share = |share: f64| self.delays.get(((self.delays.len() as f64 * share) as usize).min(self.delays.len().max(1) - 1));
        match (share(0.5), share(0.95)) {
            (Some(half), Some(most)) => {
                format!("{factor}; a word is final {half:.2} s after it was said, 95 % of them within {most:.2} s")
            }
            _ => factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(end: f64) -> Word {
        Word { text: " so".into(), start: end - 0.25, end }
    }

    #[test]
    fn words_wait_for_agreement_and_for_computing() {
        let mut live = Live::new(false);
        let draft = |ends: &[f64]| Draft { settled: ends.iter().copied().map(word).collect(), open: String::new() };
        live.take(&[], &draft(&[0.5]), 1.0, 0.25).unwrap();
        live.take(&[], &draft(&[0.5, 1.0]), 2.0, 3.0).unwrap();
        // The previous step ended only at 5 s.
        live.take(&[], &draft(&[0.5, 1.0, 2.0]), 3.0, 0.5).unwrap();
        assert_eq!(live.delays, [0.75, 4.0, 3.5]);
        let summary = live.summary(7.5);
        assert!(
            summary.contains("took 0.500 of") && summary.contains("3.50 s after") && summary.contains("within 4.00 s"),
            "{summary}"
        );
        assert_eq!(Live::new(false).summary(1.0), "computing took 0.000 of its time");
    }
}
