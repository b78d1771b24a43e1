//! Long recordings, several windows of which are decoded at a time.

use flambeau_text::Tokenizer;

use super::{
    Request, Whisper, WhisperListener,
    decode::{Decoding, Greedy},
    detect_language,
    window::all_spans,
};
use crate::{
    Error, Result,
    speech::{Progress, Segment, Settings, stream::Stream, transcriber::Listener, whisper::Search},
};

/// A Whisper that transcribes one recording in windows that know nothing of one another. Each ends in the softest pause of its latter
/// half and has caches of its own; a step of the decoder appends a token to the text of each.
#[derive(Debug)]
pub(crate) struct WhisperBatch<'a> {
    listener: WhisperListener<'a>,
    /// What listens to all windows but the first.
    others: Vec<Whisper>,
}

impl<'a> WhisperBatch<'a> {
    /// Listens to one recording.
    ///
    /// # Errors
    /// As [`WhisperListener::new`]; the settings ask for what goes from window to window, or for several texts of one.
    pub(crate) fn new(model: &'a mut Whisper, tokenizer: &'a Tokenizer, settings: Settings) -> Result<WhisperBatch<'a>> {
        let refused = [
            (settings.condition_on_previous, "previous text: windows know nothing of one another"),
            (settings.search != Search::default(), "beam size, best of, patience or length penalty"),
        ];
        if let Some((_, option)) = refused.into_iter().find(|(is_asked, _)| *is_asked) {
            return Err(Error::NoSuchSetting { family: "batch", option });
        }
        let others = (1..settings.batch).map(|_| model.another()).collect::<Result<_>>()?;
        Ok(WhisperBatch { listener: WhisperListener::new(model, tokenizer, settings)?, others })
    }

    /// Takes the next windows off the stream, as many as are decoded at a time if there are so many.
    fn windows(&self, stream: &mut Stream) -> Vec<Stream> {
        let (window, step) = (self.listener.model.window(), self.listener.model.step_samples());
        let mut windows = Vec::new();
        while windows.len() <= self.others.len() && stream.samples.len() >= if stream.is_whole { step } else { window } {
            let heard = stream.samples.len().min(window);
            if let Some(passed) = stream.silence(heard) {
                stream.pass(passed);
                continue;
            }
            let is_last = stream.is_whole && heard == stream.samples.len();
            let heard = if is_last { heard } else { stream.pause(heard / 2..heard) };
            windows.push(stream.take(heard));
        }
        windows
    }

    /// Has each model listen to a window.
    fn listen(&mut self, windows: &[Stream]) -> Result<()> {
        for (model, window) in std::iter::once(&mut *self.listener.model).chain(&mut self.others).zip(windows) {
            let features = model.features(&window.samples)?;
            model.encode(features)?;
        }
        let listener = &mut self.listener;
        if listener.language.is_none() && !listener.model.vocabulary().languages.is_empty() {
            listener.language = Some(detect_language(listener.model)?.0);
        }
        Ok(())
    }

    /// The texts of the first windows at the first temperature.
    fn decode(&mut self, request: &Request, windows: usize) -> Result<Vec<Decoding>> {
        let mut models: Vec<&mut Whisper> =
            std::iter::once(&mut *self.listener.model).chain(&mut self.others).take(windows).collect();
        let mut texts = models.iter_mut().map(|model| Greedy::begin(model, request)).collect::<Result<Vec<Greedy>>>()?;
        loop {
            let mut steps = Vec::with_capacity(windows);
            for (model, text) in models.iter_mut().zip(&mut texts) {
                if let Some(token) = text.next(model.position())? {
                    steps.push((&mut **model, token, &mut text.logits));
                }
            }
            if steps.is_empty() {
                return Ok(texts.into_iter().map(Greedy::decoding).collect());
            }
            Whisper::step_each(&mut steps)?;
        }
    }

    /// The segments of a window, which the listener's model hears.
    fn segments(&mut self, window: &Stream, decoding: Decoding, request: &Request) -> Result<Vec<Segment>> {
        let listener = &mut self.listener;
        let steps = window.samples.len().div_ceil(listener.model.step_samples());
        let first = listener.judged(decoding, request.temperature, steps)?;
        let attempt = listener.better(first, request.clone(), steps)?;
        if listener.says_nothing(&attempt.decoding, steps) {
            return Ok(Vec::new());
        }
        let spans = all_spans(listener.model.vocabulary(), &attempt.decoding.tokens, steps);
        let mut segments = listener.segments(window, &attempt, spans)?;
        if listener.settings.words {
            listener.add_words(window, &mut segments, steps)?;
        }
        Ok(segments)
    }
}

impl Listener for WhisperBatch<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        let model = &self.listener.model;
        if !stream.is_whole && stream.samples.len() < model.window() * (1 + self.others.len()) {
            return Ok(Progress::NeedsSamples);
        }
        let is_over = stream.is_whole && stream.samples.len() < model.step_samples();
        let windows = self.windows(stream);
        if windows.is_empty() {
            return Ok(if is_over { Progress::Finished } else { Progress::Segments(Vec::new()) });
        }
        self.listen(&windows)?;
        let request = self.listener.request();
        let decodings = self.decode(&request, windows.len())?;
        let mut segments = Vec::new();
        for (number, (window, decoding)) in windows.iter().zip(decodings).enumerate() {
            // Whoever heard the window is the listener's model from here on.
            if let Some(other) = number.checked_sub(1).and_then(|number| self.others.get_mut(number)) {
                std::mem::swap(self.listener.model, other);
            }
            segments.extend(self.segments(window, decoding, &request)?);
        }
        Ok(Progress::Segments(segments))
    }

    fn language(&self) -> Option<&str> {
        self.listener.language()
    }
}
