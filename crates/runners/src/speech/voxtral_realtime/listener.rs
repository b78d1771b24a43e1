//! Streams of any length, a second at a time. Programs without a streaming encoder take windows.

use std::ops::Range;

use flambeau_text::{Tokenizer, log_probabilities};

use super::{FAMILY, VoxtralRealtime};
use crate::{
    Result,
    speech::{
        Progress, Segment, Settings, Word, live,
        segment::{ends_sentence, has_words},
        stream::{SHORTEST, Stream, seconds},
        text_decoder::{first_token, special_token},
        transcriber::{Listener, Takes},
    },
};

/// Tokens without text after which a segment ends.
const PAUSE: usize = 25;
/// Maximum tokens of a segment: 30 seconds.
const LONGEST: usize = 375;
/// Embeddings between two reports of progress, unless the transcription is live.
const STEP: usize = 12;

/// Transcribes one recording with Voxtral Realtime.
#[derive(Debug)]
pub(crate) struct RealtimeListener<'a> {
    model: &'a mut VoxtralRealtime,
    tokenizer: &'a Tokenizer,
    prompt: Vec<u32>,
    /// Whether words are drafted one by one.
    is_live: bool,
    /// Start of the model's input in seconds of the recording, and number of tokens since then.
    begin: f64,
    chosen: usize,
    /// The unfinished segment, if there is one.
    draft: Option<Draft>,
    is_finished: bool,
}

/// A segment that may continue.
#[derive(Debug, Default)]
struct Draft {
    tokens: Vec<u32>,
    text: String,
    /// In live transcription, the words so far, with the range of the stream's tokens for each.
    words: Vec<(String, Range<usize>)>,
    /// First and last token of the stream with text.
    first: usize,
    last: usize,
    log_probability: f32,
}

impl Draft {
    /// Splits the text of the stream's token `at` into words. A word ends before the next word's
    /// space. A character may take several tokens: an incomplete one waits, unless nothing follows.
    fn divide(&mut self, at: usize, nothing_follows: bool) {
        let written: usize = self.words.iter().map(|(word, _)| word.len()).sum();
        let Some(new) = self.text.get(written..).filter(|new| !new.is_empty()) else { return };
        if new.ends_with('\u{fffd}') && !nothing_follows {
            return;
        }
        match self.words.last_mut() {
            Some((word, tokens)) if !new.starts_with(char::is_whitespace) => {
                word.push_str(new);
                tokens.end = at + 1;
            }
            _ => self.words.push((new.to_owned(), at..at + 1)),
        }
    }
}

impl<'a> RealtimeListener<'a> {
    /// Creates a listener for one recording.
    ///
    /// # Errors
    /// The model does not support a setting, or the tokenizer belongs to another model.
    pub(crate) fn new(
        model: &'a mut VoxtralRealtime,
        tokenizer: &'a Tokenizer,
        settings: &Settings,
    ) -> Result<RealtimeListener<'a>> {
        settings.check(FAMILY, Takes { live: model.window().is_none(), ..Takes::default() })?;
        let prompt = prompt(tokenizer, model.prompt_len())?;
        model.restart();
        Ok(RealtimeListener {
            model,
            tokenizer,
            prompt,
            is_live: settings.live.is_some(),
            begin: 0.0,
            chosen: 0,
            draft: None,
            is_finished: false,
        })
    }

    /// Takes the model's next token. Returns the segment that ended before it.
    fn take(&mut self, token: u32) -> Result<Option<Segment>> {
        let at = self.chosen;
        self.chosen += 1;
        if self.tokenizer.is_special(token) {
            let pauses = self.draft.as_ref().is_some_and(|draft| at - draft.last > PAUSE);
            return if pauses || self.tokenizer.is_eos(token) { self.end() } else { Ok(None) };
        }
        let log_probability = log_probabilities(self.model.logits(), &[token]).first().copied().unwrap_or_default();
        let ended = match &self.draft {
            Some(draft) if ends_sentence(&draft.text) || at - draft.first >= LONGEST => self.end()?,
            _ => None,
        };
        let draft = self.draft.get_or_insert_with(|| Draft { first: at, ..Draft::default() });
        draft.tokens.push(token);
        draft.last = at;
        draft.log_probability += log_probability;
        draft.text = self.tokenizer.decode(&draft.tokens, true)?;
        if self.is_live {
            draft.divide(at, false);
        }
        Ok(ended)
    }

    /// Ends the current segment.
    fn end(&mut self) -> Result<Option<Segment>> {
        let Some(mut draft) = self.draft.take().filter(|draft| has_words(&draft.text)) else { return Ok(None) };
        if self.is_live {
            draft.divide(draft.last, true);
        }
        let [start, end] = [draft.first, draft.last + 1].map(|token| self.seconds(token));
        let mean = draft.log_probability / draft.tokens.len() as f32;
        let words = self.words(&draft);
        Ok(Some(Segment { words, ..Segment::greedy(start..end, start, draft.text, draft.tokens, mean) }))
    }

    /// Time of a token in seconds of the recording.
    fn seconds(&self, token: usize) -> f64 {
        self.begin + seconds((token * self.model.step_samples()) as u64)
    }

    fn words(&self, draft: &Draft) -> Vec<Word> {
        let word = |(text, tokens): &(String, Range<usize>)| Word {
            text: text.clone(),
            start: self.seconds(tokens.start),
            end: self.seconds(tokens.end),
        };
        draft.words.iter().map(word).collect()
    }
}

impl RealtimeListener<'_> {
    /// Decodes the pushed samples, and returns the segments that ended.
    fn written(&mut self) -> Result<Vec<Segment>> {
        self.model.listen()?;
        let mut segments = Vec::new();
        while let Some(token) = self.model.next_token(&self.prompt)? {
            segments.extend(self.take(token)?);
        }
        Ok(segments)
    }

    /// [`Listener::step`] for a model that takes independent windows of at most `longest` samples.
    fn hear_window(&mut self, stream: &mut Stream, longest: usize) -> Result<Progress> {
        if stream.is_whole && stream.samples.len() < SHORTEST {
            return Ok(Progress::Finished);
        }
        let Some(heard) = stream.stretch(longest) else { return Ok(Progress::NeedsSamples) };
        (self.begin, self.chosen) = (stream.seconds(), 0);
        self.model.restart();
        self.model.push(&stream.samples[..heard]);
        self.model.finish();
        let mut segments = self.written()?;
        segments.extend(self.end()?);
        stream.pass(heard);
        segments.iter_mut().for_each(|segment| segment.end_by(stream.seconds()));
        Ok(Progress::Segments(segments))
    }
}

impl Listener for RealtimeListener<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        if let Some(longest) = self.model.window() {
            return self.hear_window(stream, longest);
        }
        if self.is_finished {
            return Ok(Progress::Finished);
        }
        let step = if self.is_live { 1 } else { STEP };
        let taken = stream.samples.len().min(step * self.model.step_samples());
        if taken > 0 {
            self.model.push(&stream.samples[..taken]);
            stream.pass(taken);
        } else if stream.is_whole {
            self.model.finish();
            self.is_finished = true;
        } else {
            return Ok(Progress::NeedsSamples);
        }
        let mut segments = self.written()?;
        if self.is_finished {
            segments.extend(self.end()?);
            // Nothing is said after the recording's end.
            let length = stream.seconds();
            segments.iter_mut().for_each(|segment| segment.end_by(length));
        }
        Ok(Progress::Segments(segments))
    }

    fn language(&self) -> Option<&str> {
        None
    }

    fn draft(&self) -> live::Draft {
        // Punctuation alone may be dropped, and the last word may continue until the next one
        // begins.
        let Some(draft) = self.draft.as_ref().filter(|draft| has_words(&draft.text)) else { return live::Draft::default() };
        let mut settled = self.words(draft);
        let open = settled.pop().map(|word| word.text).unwrap_or_default();
        live::Draft { settled, open }
    }
}

/// The token that begins a text, then padding.
fn prompt(tokenizer: &Tokenizer, len: usize) -> Result<Vec<u32>> {
    let begin = first_token(tokenizer, FAMILY)?;
    let padding = special_token(tokenizer, FAMILY, "[STREAMING_PAD]")?;
    Ok(std::iter::once(begin).chain(std::iter::repeat(padding)).take(len).collect())
}
