//! Transcribes recordings of any length in windows of 30 seconds. A window begins where the last
//! whole sentence ended.

use flambeau_text::Tokenizer;

use super::{
    Decoding, Language, Request, Span, Vocabulary, Whisper, align,
    align::settle,
    coverage::{Coverage, Speech, coverage},
    decode, detect_language, spans, text,
};
use crate::{
    Error, Result,
    speech::{
        Progress, SAMPLE_RATE, Segment, Settings, Task, Word,
        segment::{compression_ratio, has_words},
        stream::Stream,
        transcriber::Listener,
    },
};

/// Minimum number of samples to decode. Models write a word into less, even into silence.
pub(super) const SHORTEST: usize = SAMPLE_RATE as usize / 4;
/// Maximum number of steps from the timestamp that ends a span to the end of its last word.
const LATE: usize = 25;
/// Maximum number of successive windows that are cut because their text does not cover them.
pub(super) const MOST_CUTS: usize = 3;

/// Transcribes one recording with Whisper.
#[derive(Debug)]
pub(crate) struct WhisperListener<'a> {
    pub(super) model: &'a mut Whisper,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) settings: Settings,
    pub(super) language: Option<Language>,
    /// Context of the next window: tokens of the prompt, then of the text so far.
    pub(super) previous: Vec<u32>,
    /// Number of the prompt's tokens in `previous`.
    prompt: usize,
    /// Tokens of the hotwords, which precede `previous`.
    hotwords: Vec<u32>,
    /// Sample of the recording at which the next window ends, if it is cut.
    cut: Option<u64>,
    /// Number of successive cuts so far.
    cuts: usize,
}

impl<'a> WhisperListener<'a> {
    /// Creates a listener for one recording.
    ///
    /// # Errors
    /// The model does not support the language, a translation, or several candidate texts. The
    /// prompt cannot be tokenized.
    pub(crate) fn new(model: &'a mut Whisper, tokenizer: &'a Tokenizer, settings: Settings) -> Result<WhisperListener<'a>> {
        if settings.search.beam_size.max(settings.search.best_of) > 1 {
            // Fails early if the program has no method for several texts.
            model.branches()?;
        }
        let vocabulary = model.vocabulary();
        let language = settings.language.as_deref().map(|code| known(vocabulary, code)).transpose()?.flatten();
        if settings.task == Task::Translate && vocabulary.translate.is_none() {
            return Err(Error::NoTranslation);
        }
        let tokens = |text: &str| match text.trim() {
            "" => Ok(Vec::new()),
            text => tokenizer.encode_plain(&format!(" {text}")),
        };
        let (previous, hotwords) = (tokens(&settings.prompt)?, tokens(&settings.hotwords)?);
        Ok(WhisperListener { prompt: previous.len(), model, tokenizer, settings, language, previous, hotwords, cut: None, cuts: 0 })
    }

    /// Decoding request of a window at the first temperature.
    pub(super) fn request(&self) -> Request {
        Request {
            previous: self.context_tokens(),
            task: self.task_tokens(),
            timestamps: true,
            begun: Vec::new(),
            temperature: self.settings.temperatures.first().copied().unwrap_or(0.0),
            seed: self.settings.seed,
            max_tokens: 0,
            search: self.settings.search,
        }
    }

    /// Tokens before a window's text: the hotwords, and as much of the end of `previous` as fits.
    fn context_tokens(&self) -> Vec<u32> {
        let room = Request::room(self.model.context());
        let hotwords = &self.hotwords[..self.hotwords.len().min(room / 2)];
        let first = self.previous.len().saturating_sub(room - hotwords.len());
        [hotwords, &self.previous[first..]].concat()
    }

    /// Decodes the window at one temperature after the other until a text is trusted. Returns the
    /// likeliest text if none is.
    pub(super) fn attempts(&mut self, request: Request, speech: &mut Speech<'_>) -> Result<Attempt> {
        let first = self.attempt(&request, speech)?;
        self.retried(first, request, speech)
    }

    /// As [`attempts`](Self::attempts), with the attempt at the first temperature given.
    pub(super) fn retried(&mut self, mut best: Attempt, mut request: Request, speech: &mut Speech<'_>) -> Result<Attempt> {
        let others: Vec<f32> = self.settings.temperatures.iter().skip(1).copied().collect();
        for temperature in others {
            if best.is_trusted {
                break;
            }
            request = Request { temperature, seed: request.seed.wrapping_add(1), ..request };
            let attempt = self.attempt(&request, speech)?;
            if attempt.is_trusted || self.is_better(&attempt, &best) {
                best = attempt;
            }
        }
        Ok(best)
    }

    /// Decodes the window once.
    pub(super) fn attempt(&mut self, request: &Request, speech: &mut Speech<'_>) -> Result<Attempt> {
        let decoding = decode(self.model, request)?;
        self.judged(decoding, request.temperature, speech)
    }

    /// Decides whether a decoded text is trusted.
    pub(super) fn judged(&self, decoding: Decoding, temperature: f32, speech: &mut Speech<'_>) -> Result<Attempt> {
        let text = text(self.tokenizer, self.model.vocabulary(), &decoding.tokens)?;
        let compression_ratio = compression_ratio(text.trim());
        let letters = text.chars().filter(|c| c.is_alphanumeric()).count();
        let mut attempt = Attempt { letters, compression_ratio, decoding, temperature, is_trusted: false };
        attempt.is_trusted = self.is_trusted(&attempt, speech);
        Ok(attempt)
    }

    /// Tokens of the language and the task, if the model has several languages.
    pub(super) fn task_tokens(&self) -> Vec<u32> {
        let vocabulary = self.model.vocabulary();
        let task = match self.settings.task {
            Task::Transcribe => vocabulary.transcribe,
            Task::Translate => vocabulary.translate,
        };
        self.language.iter().map(|language| language.id).chain(task.filter(|_| self.language.is_some())).collect()
    }

    fn repeats(&self, attempt: &Attempt) -> bool {
        self.settings.most_compression.is_some_and(|most| attempt.compression_ratio > most)
    }

    fn is_doubtful(&self, decoding: &Decoding) -> bool {
        self.settings.least_log_probability.is_some_and(|least| decoding.mean_log_probability < least)
    }

    fn is_trusted(&self, attempt: &Attempt, speech: &mut Speech<'_>) -> bool {
        self.is_silent(&attempt.decoding, speech) || !self.repeats(attempt) && !self.is_doubtful(&attempt.decoding)
    }

    fn is_better(&self, a: &Attempt, b: &Attempt) -> bool {
        let key = |attempt: &Attempt| (!self.repeats(attempt), attempt.decoding.mean_log_probability);
        key(a) > key(b)
    }

    /// Number of text tokens of a window.
    fn text_tokens(&self, decoding: &Decoding) -> usize {
        self.model.vocabulary().text_of(&decoding.tokens).count()
    }

    /// Whether the no-speech probability is too high.
    pub(super) fn is_probably_silent(&self, decoding: &Decoding) -> bool {
        self.settings.most_no_speech.is_some_and(|most| decoding.no_speech_probability > most)
    }

    /// Whether the window is silent: its no-speech probability is too high, and its text does not
    /// outweigh this.
    fn is_silent(&self, decoding: &Decoding, speech: &mut Speech<'_>) -> bool {
        if !self.is_probably_silent(decoding) {
            return false;
        }
        self.is_doubtful(decoding) || (self.text_tokens(decoding) as f64) < speech.least_tokens()
    }

    /// Whether the final text of a window is discarded. Either the window is silent, or its sound
    /// is too short for the text, or the text has only a doubtful word or two.
    pub(super) fn is_discarded(&self, attempt: &Attempt, speech: &mut Speech<'_>) -> bool {
        let decoding = &attempt.decoding;
        let is_guessed = self.is_doubtful(decoding) && speech.is_little(self.text_tokens(decoding));
        is_guessed || self.is_silent(decoding, speech) || speech.is_short(attempt.letters)
    }

    /// Decodes the next `heard` samples. Returns their segments, and the number of samples to
    /// remove from the stream.
    fn hear(&mut self, stream: &Stream, heard: usize) -> Result<(Vec<Segment>, usize)> {
        let features = self.model.features(&stream.samples[..heard])?;
        self.model.encode(features)?;
        if self.language.is_none() && !self.model.vocabulary().languages.is_empty() {
            self.language = Some(detect_language(self.model)?.0);
        }
        let mut speech = Speech::of(&stream.samples[..heard]);
        let attempt = self.attempts(self.request(), &mut speech)?;
        let whole = spans(self.model.vocabulary(), &attempt.decoding.tokens, speech.steps());
        let (spans, Coverage { mut next, cut, .. }) = self.covered(&attempt, whole, &mut speech, self.cuts < MOST_CUTS);
        let continues = !stream.is_whole || heard < stream.samples.len();
        if continues && cut.is_none() && next >= speech.steps() {
            // If the window's end cuts a phrase without text, the next window has the whole phrase.
            let onset = speech.onset(speech.steps());
            next = if spans.last().is_none_or(|span| span.end <= onset) { onset } else { next };
        }
        let segments = self.timed(stream, &attempt, spans, heard)?;
        if !self.settings.condition_on_previous || attempt.temperature > 0.5 {
            self.previous.truncate(self.prompt);
        } else {
            self.previous.extend(segments.iter().flat_map(|segment| &segment.tokens));
        }
        let step = self.model.step_samples();
        self.cuts = if cut.is_some() { self.cuts + 1 } else { 0 };
        self.cut = cut.map(|cut| stream.position() + (cut * step) as u64).or(self.cut);
        Ok((segments, if next == 0 && cut.is_none() { heard } else { (next * step).min(heard) }))
    }

    /// The spans of a window's text to keep, and the sound to decode next.
    pub(super) fn covered(
        &self,
        attempt: &Attempt,
        (mut spans, next): (Vec<Span>, usize),
        speech: &mut Speech<'_>,
        may_cut: bool,
    ) -> (Vec<Span>, Coverage) {
        let decoding = &attempt.decoding;
        // In parts of a silent window, the model would write words without speech.
        let may_cut = may_cut && !self.is_probably_silent(decoding);
        if self.is_discarded(attempt, speech) {
            // A few words in a long silence are doubtful, but may be clear without the silence.
            let spoken = if may_cut && !decoding.tokens.is_empty() { speech.spoken() } else { None };
            let (next, cut) = spoken.map_or((speech.steps(), None), |part| (part.start, Some(part.end)));
            return (Vec::new(), Coverage { kept: 0, next, cut });
        }
        let coverage = coverage(self.model.vocabulary(), &decoding.tokens, (&spans, next), speech, may_cut);
        spans.truncate(coverage.kept);
        if let Some(last) = spans.last_mut().filter(|last| coverage.next > last.start) {
            last.end = last.end.min(coverage.next);
        }
        (spans, coverage)
    }

    /// The segments of a window's spans, with timed words if requested.
    pub(super) fn timed(&mut self, stream: &Stream, attempt: &Attempt, spans: Vec<Span>, heard: usize) -> Result<Vec<Segment>> {
        let end = (stream.position() + heard as u64) as f64 / f64::from(SAMPLE_RATE);
        let steps = heard.div_ceil(self.model.step_samples());
        let last = spans.last().map_or(0, |span| span.end);
        let mut segments = self.segments(stream, attempt, spans)?;
        if self.settings.words {
            self.add_words(stream, &mut segments, steps.min(last + LATE))?;
        }
        segments.iter_mut().for_each(|segment| segment.end_by((end * 1000.0).floor() / 1000.0));
        Ok(segments)
    }

    /// Adds the words with their times to the segments of a window.
    pub(super) fn add_words(&mut self, stream: &Stream, segments: &mut [Segment], steps: usize) -> Result<()> {
        let vocabulary = self.model.vocabulary();
        let counts: Vec<usize> = segments.iter().map(|segment| vocabulary.text_of(&segment.tokens).count()).collect();
        let tokens: Vec<u32> = segments.iter().flat_map(|segment| vocabulary.text_of(&segment.tokens)).collect();
        let head: Vec<u32> = [vocabulary.start].into_iter().chain(self.task_tokens()).collect();
        let language = self.language().unwrap_or("en").to_owned();
        let mut aligned = align(self.model, self.tokenizer, (&head, &tokens), &language, steps)?;
        let heard = (steps * self.model.step_samples()).min(stream.samples.len());
        let mut speech = Speech::of(&stream.samples[..heard]);
        let (mut first, mut last) = (0, 0);
        for (segment, count) in segments.iter_mut().zip(counts) {
            last += count;
            let end = aligned.partition_point(|word| word.tokens.start < last);
            let words = &mut aligned[first..end];
            settle(words, &mut speech);
            for word in words {
                let (start, end) = (self.at(stream, word.start), self.at(stream, word.end));
                segment.words.push(Word { text: std::mem::take(&mut word.text), start, end });
            }
            segment.hold_words();
            first = end;
        }
        // A segment ends at the start of the next one, but not before its own last word.
        for at in 1..segments.len() {
            let said = segments[at - 1].words.last().map_or(0.0, |word| word.end);
            segments[at - 1].end = segments[at - 1].end.min(segments[at].start).max(said);
        }
        Ok(())
    }

    /// Seconds of the recording at a step of the window.
    fn at(&self, stream: &Stream, steps: usize) -> f64 {
        stream.at((steps * self.model.step_samples()) as isize)
    }

    /// The segments of a window's spans.
    pub(super) fn segments(&self, stream: &Stream, attempt: &Attempt, spans: Vec<Span>) -> Result<Vec<Segment>> {
        let decoding = &attempt.decoding;
        let vocabulary = self.model.vocabulary();
        let mut segments = Vec::new();
        for span in spans.into_iter().filter(|span| span.start < span.end) {
            let tokens = &decoding.tokens[span.tokens.clone()];
            let text = text(self.tokenizer, vocabulary, tokens)?;
            if !has_words(&text) {
                continue;
            }
            segments.push(Segment {
                start: self.at(stream, span.start),
                end: self.at(stream, span.end),
                window: self.at(stream, 0),
                text,
                tokens: tokens.to_vec(),
                words: Vec::new(),
                temperature: attempt.temperature,
                mean_log_probability: decoding.mean_log_probability,
                no_speech_probability: decoding.no_speech_probability,
                compression_ratio: attempt.compression_ratio,
                channel: None,
            });
        }
        Ok(segments)
    }
}

impl Listener for WhisperListener<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        // So little sound has no text.
        if stream.is_whole && stream.samples.len() < SHORTEST {
            return Ok(Progress::Finished);
        }
        let position = stream.position();
        self.cut.take_if(|cut| *cut < position + SHORTEST as u64);
        let window = self.cut.map_or(self.model.window(), |cut| (cut - position) as usize);
        if !stream.is_whole && stream.samples.len() < window {
            return Ok(Progress::NeedsSamples);
        }
        let heard = stream.samples.len().min(window);
        if let Some(passed) = stream.silence(heard) {
            stream.pass(passed);
            // After a long silence, the text need not continue the previous text.
            self.previous.truncate(self.prompt);
            return Ok(Progress::Segments(Vec::new()));
        }
        let (segments, passed) = self.hear(stream, heard)?;
        stream.pass(passed);
        Ok(Progress::Segments(segments))
    }

    fn language(&self) -> Option<&str> {
        let is_english_only = self.model.vocabulary().languages.is_empty();
        self.language.as_ref().map(|language| language.code.as_str()).or(is_english_only.then_some("en"))
    }
}

/// A window's text at one temperature.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) decoding: Decoding,
    temperature: f32,
    /// Number of letters and digits in the text.
    letters: usize,
    compression_ratio: f32,
    /// Whether the text passes the limits of the settings, or the window is silent.
    pub(super) is_trusted: bool,
}

/// The language with this code. `None` is English in a model without other languages.
///
/// # Errors
/// [`Error::Language`] if the model does not support the language.
fn known(vocabulary: &Vocabulary, code: &str) -> Result<Option<Language>> {
    let unknown = |expected: String| Err(Error::Language { found: code.to_owned(), expected });
    match vocabulary.language(code) {
        Some(language) => Ok(Some(language.clone())),
        None if !vocabulary.languages.is_empty() => {
            let codes: Vec<&str> = vocabulary.languages.iter().map(|language| language.code.as_str()).collect();
            unknown(format!("expected one of {}", codes.join(", ")))
        }
        None if code == "en" => Ok(None),
        None => unknown("it knows only English".into()),
    }
}
