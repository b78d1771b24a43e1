//! Streams of any length, a second at a time.

use flambeau_text::{Tokenizer, log_probabilities};

use super::{FAMILY, VoxtralRealtime};
use crate::{
    Result,
    speech::{
        Progress, SAMPLE_RATE, Segment, Settings,
        segment::{ends_sentence, has_words},
        stream::Stream,
        text_decoder::{first_token, special_token},
        transcriber::{Listener, Takes},
    },
};

/// Tokens without text after which a segment ends.
const PAUSE: usize = 25;
/// Tokens after which a segment ends whatever it says: 30 seconds.
const LONGEST: usize = 375;
/// Embeddings between two reports of progress.
const STEP: usize = 12;

/// A Voxtral Realtime that transcribes one recording.
#[derive(Debug)]
pub(crate) struct RealtimeListener<'a> {
    model: &'a mut VoxtralRealtime,
    tokenizer: &'a Tokenizer,
    prompt: Vec<u32>,
    /// Tokens that the model chose.
    chosen: usize,
    /// The text that is being written, if there is one.
    draft: Option<Draft>,
    is_finished: bool,
}

/// A segment that may go on.
#[derive(Debug, Default)]
struct Draft {
    tokens: Vec<u32>,
    text: String,
    /// Which tokens of the stream were the first and the last with text.
    first: usize,
    last: usize,
    log_probability: f32,
}

impl<'a> RealtimeListener<'a> {
    /// Listens to one recording.
    ///
    /// # Errors
    /// What was asked for is nothing that the model does; its tokenizer is that of another model.
    pub(crate) fn new(
        model: &'a mut VoxtralRealtime,
        tokenizer: &'a Tokenizer,
        settings: &Settings,
    ) -> Result<RealtimeListener<'a>> {
        settings.check(FAMILY, Takes::default())?;
        let prompt = prompt(tokenizer, model.prompt_len())?;
        model.restart();
        Ok(RealtimeListener { model, tokenizer, prompt, chosen: 0, draft: None, is_finished: false })
    }

    /// Takes what the model chose next; returns the segment that ended before it.
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
        Ok(ended)
    }

    /// Ends the segment that is being written.
    fn end(&mut self) -> Result<Option<Segment>> {
        let Some(draft) = self.draft.take().filter(|draft| has_words(&draft.text)) else { return Ok(None) };
        let seconds = |tokens: usize| (tokens * self.model.step_samples()) as f64 / f64::from(SAMPLE_RATE);
        let [start, end] = [draft.first, draft.last + 1].map(seconds);
        let mean = draft.log_probability / draft.tokens.len() as f32;
        Ok(Some(Segment::greedy(start..end, start, draft.text, draft.tokens, mean)))
    }
}

impl Listener for RealtimeListener<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        if self.is_finished {
            return Ok(Progress::Finished);
        }
        let taken = stream.samples.len().min(STEP * self.model.step_samples());
        if taken > 0 {
            self.model.push(&stream.samples[..taken]);
            stream.pass(taken);
        } else if stream.is_whole {
            self.model.finish();
            self.is_finished = true;
        } else {
            return Ok(Progress::NeedsSamples);
        }
        self.model.listen()?;
        let mut segments = Vec::new();
        while let Some(token) = self.model.next_token(&self.prompt)? {
            segments.extend(self.take(token)?);
        }
        if self.is_finished {
            segments.extend(self.end()?);
            // Nothing is said after the recording's end.
            segments.iter_mut().for_each(|segment| segment.end = segment.end.min(stream.seconds()));
        }
        Ok(Progress::Segments(segments))
    }

    fn language(&self) -> Option<&str> {
        None
    }
}

/// The beginning of a text, and padding while nothing was heard yet.
fn prompt(tokenizer: &Tokenizer, len: usize) -> Result<Vec<u32>> {
    let begin = first_token(tokenizer, FAMILY)?;
    let padding = special_token(tokenizer, FAMILY, "[STREAMING_PAD]")?;
    Ok(std::iter::once(begin).chain(std::iter::repeat(padding)).take(len).collect())
}
