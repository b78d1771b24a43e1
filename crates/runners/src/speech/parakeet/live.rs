//! Live streams. The sound after the final words is decoded again and again, with context before
//! it.

use flambeau_text::Tokenizer;

use super::{Parakeet, ParakeetListener};
use crate::{
    Result,
    speech::{
        Progress, Settings,
        live::{Beat, Beats, Draft, LiveText},
        stream::Stream,
        transcriber::Listener,
        words::TimedWord,
    },
};

/// Positions of 80 ms in the context before the open words, and in the pause that ends speech.
const BEFORE: usize = 100;
const PAUSE: usize = 38;
/// Parts of a window; one of them is the context.
const PARTS: usize = 4;

/// Transcribes a live stream with Parakeet.
#[derive(Debug)]
pub(crate) struct LiveParakeet<'a> {
    listener: ParakeetListener<'a>,
    text: LiveText,
    beats: Beats,
    /// Samples between two hypotheses, of the longest window without its context, and of a pause.
    /// All are whole positions.
    hop: usize,
    window: usize,
    pause: usize,
}

impl<'a> LiveParakeet<'a> {
    /// Creates a listener for one stream.
    ///
    /// # Errors
    /// As [`ParakeetListener::new`].
    pub(crate) fn new(model: &'a mut Parakeet, tokenizer: &'a Tokenizer, settings: &Settings) -> Result<LiveParakeet<'a>> {
        let mut listener = ParakeetListener::new(model, tokenizer, settings)?;
        let (step, part) = (listener.model.step_samples(), listener.model.positions().min(PARTS * BEFORE) / PARTS);
        listener.context = part;
        let hop = (Beats::hop(settings.live) / step).clamp(1, part) * step;
        let (window, pause) = ((PARTS - 1) * part * step, PAUSE.min(part) * step);
        Ok(LiveParakeet { listener, text: LiveText::default(), beats: Beats::new(hop), hop, window, pause })
    }

    /// Decodes the next samples after their context. Words are final if the previous hypothesis had
    /// them too, or if nothing follows.
    fn add_words(&mut self, stream: &Stream, heard: usize, ends: bool) -> Result<()> {
        let words = self.listener.decode_window(stream, heard)?;
        let first = self.listener.before.len() / self.listener.model.step_samples();
        let end = stream.position() + heard as u64;
        let words = self.listener.fresh(words, first as u64..u64::MAX, stream);
        let words: Vec<TimedWord> = words.into_iter().map(|word| TimedWord { end: word.end.min(end), ..word }).collect();
        let count = if ends { words.len() } else { self.text.agreed(&words) };
        if let Some(last) = self.text.settle(words, count).last() {
            self.listener.last = Some(last.clone());
        }
        Ok(())
    }

    /// Advances to the end of the final words, or past a pause. The passed samples serve as
    /// context.
    fn forget(&mut self, stream: &mut Stream, heard: usize, ends: bool) {
        let said = self.text.said().saturating_sub(stream.position()) as usize;
        let is_quiet = self.text.is_settled() && heard - said.min(heard) >= self.pause;
        let passed = if ends {
            heard
        } else if is_quiet {
            heard - self.pause / 2
        } else {
            // Rounded down to a whole position, before the next word begins.
            let step = self.listener.model.step_samples();
            said.min(heard) / step * step
        };
        self.listener.pass(stream, passed);
    }
}

impl Listener for LiveParakeet<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        let Some(Beat { mut heard, ends }) = self.beats.next(stream) else {
            return Ok(self.beats.pause());
        };
        if let Some(passed) = stream.silence(heard).filter(|_| self.text.is_settled()) {
            // Whole hops keep the positions of successive hypotheses aligned.
            let passed = passed / self.hop * self.hop;
            self.listener.pass(stream, passed);
            heard -= passed;
        }
        // Sound beyond the window is cut. Sound shorter than a position gives no text.
        let ends = ends || heard + self.hop > self.window;
        if heard >= self.listener.model.step_samples() {
            self.add_words(stream, heard, ends)?;
        }
        let segments = self.text.segments(stream, heard, ends);
        self.forget(stream, heard, ends);
        Ok(Progress::Segments(segments))
    }

    fn language(&self) -> Option<&str> {
        None
    }

    fn draft(&self) -> Draft {
        self.text.draft()
    }
}
