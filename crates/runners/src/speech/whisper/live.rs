//! Live streams. A growing window is decoded again and again after its final words.

use flambeau_text::Tokenizer;

use super::{
    Request, Whisper, WhisperListener, align,
    coverage::Speech,
    decode::{Decoding, detect_language},
    listener::Attempt,
};
use crate::{
    Error, Result,
    speech::{
        Progress, SAMPLE_RATE, Settings,
        live::{Beat, Beats, Draft, LiveText},
        stream::Stream,
        transcriber::Listener,
        words::TimedWord,
    },
};

/// Samples of the pause that ends speech, after the last word or without any word.
const PAUSE: usize = 3 * SAMPLE_RATE as usize;
/// Samples of silence to keep, and samples that must follow a sentence before its removal.
const KEPT: usize = SAMPLE_RATE as usize;

/// Transcribes a live stream with Whisper.
#[derive(Debug)]
pub(crate) struct LiveWhisper<'a> {
    listener: WhisperListener<'a>,
    text: LiveText,
    beats: Beats,
    hop: usize,
    pause: usize,
    /// The final words with sound in the window. The window's text begins with them.
    begun: Vec<TimedWord>,
}

impl<'a> LiveWhisper<'a> {
    /// Creates a listener for one stream.
    ///
    /// # Errors
    /// As [`WhisperListener::new`].
    pub(crate) fn new(model: &'a mut Whisper, tokenizer: &'a Tokenizer, settings: Settings) -> Result<LiveWhisper<'a>> {
        if settings.batch > 1 {
            return Err(Error::NoSuchSetting { family: "live stream", option: "batch size: it has one window" });
        }
        let listener = WhisperListener::new(model, tokenizer, settings)?;
        let window = listener.model.window();
        let (hop, pause) = (Beats::hop(listener.settings.live).min(window / 3), PAUSE.min(window / 3));
        Ok(LiveWhisper { listener, text: LiveText::default(), beats: Beats::new(hop), hop, pause, begun: Vec::new() })
    }

    /// Decodes the window anew. Words are final if the previous hypothesis had them too, or if
    /// nothing follows.
    fn hear(&mut self, stream: &Stream, heard: usize, ends: bool) -> Result<()> {
        let mut speech = Speech::of(&stream.samples[..heard]);
        let steps = speech.steps();
        let features = self.listener.model.features(&stream.samples[..heard])?;
        self.listener.model.encode(features)?;
        self.detect_language()?;
        let begun: Vec<u32> = self.begun.iter().flat_map(|word| &word.ids).copied().collect();
        let request = Request { begun: begun.clone(), timestamps: false, ..self.listener.request() };
        let attempt =
            if ends { self.listener.attempts(request, &mut speech)? } else { self.listener.attempt(&request, &mut speech)? };
        let is_heard = !self.is_discarded(&attempt, &mut speech) && (ends || attempt.is_trusted);
        let words = if is_heard { self.words(&attempt.decoding, begun.len())? } else { Vec::new() };
        let count = if ends { words.len() } else { self.text.agreed(&words) };
        let words = if count > 0 { self.timed(stream, &attempt.decoding, begun.len(), words, steps)? } else { words };
        let settled = self.text.settle(words, count);
        self.begun.extend_from_slice(settled);
        Ok(())
    }

    /// Detects the window's language, again and again until the first words are final.
    fn detect_language(&mut self) -> Result<()> {
        let listener = &mut self.listener;
        let is_open = listener.settings.language.is_none() && self.text.said() == 0;
        if is_open && !listener.model.vocabulary().languages.is_empty() {
            listener.language = Some(detect_language(listener.model)?.0);
        }
        Ok(())
    }

    /// Whether the window's text is discarded. Short windows have few tokens even with speech, so
    /// the no-speech probability alone decides while the window has no final words.
    fn is_discarded(&self, attempt: &Attempt, speech: &mut Speech<'_>) -> bool {
        let is_silent = self.begun.is_empty() && self.listener.is_probably_silent(&attempt.decoding);
        is_silent || self.listener.is_discarded(attempt, speech)
    }

    /// The words of a text after its first `begun` tokens, without times.
    fn words(&self, decoding: &Decoding, begun: usize) -> Result<Vec<TimedWord>> {
        let listener = &self.listener;
        let vocabulary = listener.model.vocabulary();
        let tokens = &decoding.tokens[begun..];
        let count = tokens.iter().take_while(|&&id| id < vocabulary.end).count();
        let words = align::words(listener.tokenizer, &tokens[..count], listener.language().unwrap_or("en"))?;
        let word = |(text, range): (String, std::ops::Range<usize>)| TimedWord {
            text,
            ids: tokens[range.clone()].to_vec(),
            log_probability: decoding.probabilities[range].iter().map(|probability| probability.ln()).sum(),
            start: 0,
            end: 0,
        };
        Ok(words.into_iter().map(word).collect())
    }

    /// Sets the times of the words after the first `begun` tokens. Without alignment in the
    /// program, all tokens take equally long.
    fn timed(
        &mut self,
        stream: &Stream,
        decoding: &Decoding,
        begun: usize,
        mut words: Vec<TimedWord>,
        steps: usize,
    ) -> Result<Vec<TimedWord>> {
        let model = &mut *self.listener.model;
        let step = model.step_samples();
        let head: Vec<u32> = [model.vocabulary().start].into_iter().chain(self.listener.task_tokens()).collect();
        let tokens: Vec<u32> = self.listener.model.vocabulary().text_of(&decoding.tokens).collect();
        let starts = align::token_starts(self.listener.model, (&head, &tokens), steps)?;
        let evenly = || (0..=tokens.len()).map(|at| at * steps / tokens.len().max(1)).collect();
        let starts: Vec<usize> = starts.unwrap_or_else(evenly);
        let at = |token: usize| stream.position() + (starts[token.min(starts.len() - 1)] * step) as u64;
        let mut first = begun;
        for word in &mut words {
            let next = first + word.ids.len();
            (word.start, word.end) = (at(first), at(next));
            first = next;
        }
        Ok(words)
    }

    /// Removes sound from the window: all words at a pause, whole sentences if the window grows
    /// long, or silence.
    fn forget(&mut self, stream: &mut Stream, heard: usize, ends: bool) {
        let end = stream.position() + heard as u64;
        let window = self.listener.model.window();
        let is_quiet = self.text.is_settled() && end - self.text.said().max(stream.position()) >= self.pause as u64;
        if ends || is_quiet && self.begun.is_empty() {
            let kept = if ends { 0 } else { KEPT.min(heard) };
            self.forget_words(self.begun.len());
            stream.pass(heard - kept);
        } else if is_quiet {
            self.forget_words(self.begun.len());
            stream.pass((self.text.said() - stream.position()) as usize);
        } else if heard >= window / 2 {
            let is_early = |at: usize| self.begun.get(at + 1).is_some_and(|next| next.start + KEPT as u64 <= end);
            let count = self.begun.len();
            let sentence = (0..count).rev().find(|&at| self.begun[at].ends_sentence() && is_early(at));
            let is_full = heard + 2 * self.hop + KEPT > window;
            let word = || if is_full { self.longest_pause() } else { None };
            if let Some(last) = sentence.or_else(word) {
                let next = self.begun.get(last + 1).map_or(self.begun[last].end, |next| next.start);
                let cut = (self.begun[last].end.min(next) + next) / 2;
                self.forget_words(last + 1);
                stream.pass((cut - stream.position()).min(heard as u64) as usize);
            }
        }
    }

    /// Index of the word before the longest pause, in the latter half of the final words.
    fn longest_pause(&self) -> Option<usize> {
        let pause = |at: usize| self.begun[at + 1].start.saturating_sub(self.begun[at].end);
        let count = self.begun.len();
        (count / 2..count.saturating_sub(1)).max_by_key(|&at| pause(at))
    }

    /// Removes the first final words of the window. They become context for the next texts if the
    /// settings ask for it.
    fn forget_words(&mut self, count: usize) {
        let words = self.begun.drain(..count);
        if self.listener.settings.condition_on_previous {
            self.listener.previous.extend(words.flat_map(|word| word.ids));
        }
    }
}

impl Listener for LiveWhisper<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        let Some(Beat { mut heard, ends }) = self.beats.next(stream) else {
            return Ok(self.beats.pause());
        };
        if let Some(passed) = stream.silence(heard).filter(|_| self.begun.is_empty() && self.text.is_settled()) {
            stream.pass(passed);
            heard -= passed;
        }
        // Sound beyond the window is cut. Sound shorter than a time step gives no text.
        let ends = ends || heard + self.hop > self.listener.model.window();
        if heard >= self.listener.model.step_samples() {
            self.hear(stream, heard, ends)?;
        }
        let segments = self.text.segments(stream, heard, ends);
        self.forget(stream, heard, ends);
        Ok(Progress::Segments(segments))
    }

    fn language(&self) -> Option<&str> {
        self.listener.language()
    }

    fn draft(&self) -> Draft {
        self.text.draft()
    }
}
