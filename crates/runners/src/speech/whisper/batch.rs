//! Long recordings, with several windows decoded at a time.

use std::collections::VecDeque;

use flambeau_text::Tokenizer;

use super::{
    Request, Whisper, WhisperListener,
    coverage::{Coverage, Speech},
    decode::{Decoding, Greedy},
    detect_language,
    listener::{MOST_CUTS, SHORTEST},
    window::all_spans,
};
use crate::{
    Error, Result,
    speech::{Progress, Segment, Settings, stream::Stream, transcriber::Listener, whisper::Search},
};

/// Transcribes one recording in independent windows. Each window ends in the softest pause of its
/// latter half, and has its own caches. A decoder step appends a token to every window's text.
#[derive(Debug)]
pub(crate) struct WhisperBatch<'a> {
    listener: WhisperListener<'a>,
    /// Models for all windows but the first.
    others: Vec<Whisper>,
    /// Parts of earlier windows to decode again, in order of time.
    left: VecDeque<Window>,
    /// Segments after such a part.
    held: Vec<Segment>,
}

/// A part of the recording that is decoded independently.
#[derive(Debug)]
struct Window {
    stream: Stream,
    /// Number of cuts so far. A window is cut if its text does not cover it.
    cuts: usize,
}

impl<'a> WhisperBatch<'a> {
    /// Creates a listener for one recording.
    ///
    /// # Errors
    /// As [`WhisperListener::new`], or the settings ask for context between windows or for several
    /// texts of one.
    pub(crate) fn new(model: &'a mut Whisper, tokenizer: &'a Tokenizer, settings: Settings) -> Result<WhisperBatch<'a>> {
        let refused = [
            (settings.condition_on_previous, "previous text: windows know nothing of one another"),
            (settings.search != Search::default(), "beam size, best of, patience or length penalty"),
        ];
        if let Some((_, option)) = refused.into_iter().find(|(is_asked, _)| *is_asked) {
            return Err(Error::NoSuchSetting { family: "batch", option });
        }
        let others = (1..settings.batch).map(|_| model.another()).collect::<Result<_>>()?;
        Ok(WhisperBatch {
            listener: WhisperListener::new(model, tokenizer, settings)?,
            others,
            left: VecDeque::new(),
            held: Vec::new(),
        })
    }

    /// Takes the parts of earlier windows, then the stream's next windows: up to one for each
    /// model.
    fn windows(&mut self, stream: &mut Stream) -> Vec<Window> {
        let (window, most) = (self.listener.model.window(), 1 + self.others.len());
        let mut windows: Vec<Window> = self.left.drain(..most.min(self.left.len())).collect();
        while windows.len() < most && stream.samples.len() >= if stream.is_whole { SHORTEST } else { window } {
            let heard = stream.samples.len().min(window);
            if let Some(passed) = stream.silence(heard) {
                stream.pass(passed);
                continue;
            }
            let is_last = stream.is_whole && heard == stream.samples.len();
            let heard = if is_last { heard } else { stream.pause(heard / 2..heard) };
            windows.push(Window { stream: stream.take(heard), cuts: 0 });
        }
        windows
    }

    /// Encodes a window with each model.
    fn listen(&mut self, windows: &[Window]) -> Result<()> {
        for (model, window) in std::iter::once(&mut *self.listener.model).chain(&mut self.others).zip(windows) {
            let features = model.features(&window.stream.samples)?;
            model.encode(features)?;
        }
        let listener = &mut self.listener;
        if listener.language.is_none() && !listener.model.vocabulary().languages.is_empty() {
            listener.language = Some(detect_language(listener.model)?.0);
        }
        Ok(())
    }

    /// Decodes the texts of the first windows at the first temperature.
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

    /// The segments of a window that the listener's model has encoded. Sound outside its text is
    /// decoded again.
    fn segments(&mut self, mut window: Window, decoding: Decoding, request: &Request) -> Result<Vec<Segment>> {
        let listener = &mut self.listener;
        let (stream, step) = (&mut window.stream, listener.model.step_samples());
        let heard = stream.samples.len();
        let mut speech = Speech::of(&stream.samples);
        let steps = speech.steps();
        let first = listener.judged(decoding, request.temperature, &mut speech)?;
        let attempt = listener.retried(first, request.clone(), &mut speech)?;
        let all = all_spans(listener.model.vocabulary(), &attempt.decoding.tokens, steps);
        let (spans, Coverage { next, cut, .. }) = listener.covered(&attempt, (all, steps), &mut speech, window.cuts < MOST_CUTS);
        let segments = listener.timed(stream, &attempt, spans, heard)?;
        let next = (next * step).min(heard);
        stream.pass(next);
        let cuts = if cut.is_some() { window.cuts + 1 } else { 0 };
        let parts = cut.map(|cut| Window { stream: stream.take((cut * step).min(heard) - next), cuts });
        let rest = Window { cuts: 0, ..window };
        self.left.extend(parts.into_iter().chain([rest]).filter(|part| part.stream.samples.len() >= SHORTEST));
        Ok(segments)
    }

    /// Removes and returns the segments before all undecoded parts.
    fn settled(&mut self) -> Vec<Segment> {
        self.held.sort_by(|a, b| a.start.total_cmp(&b.start));
        let open = self.left.iter().map(|window| window.stream.at(0)).fold(f64::INFINITY, f64::min);
        let count = self.held.partition_point(|segment| segment.start < open);
        self.held.drain(..count).collect()
    }
}

impl Listener for WhisperBatch<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        let (window, most) = (self.listener.model.window(), 1 + self.others.len());
        if !stream.is_whole && stream.samples.len() < window * most.saturating_sub(self.left.len()) {
            return Ok(Progress::NeedsSamples);
        }
        let windows = self.windows(stream);
        if windows.is_empty() {
            let is_over = stream.is_whole && stream.samples.len() < SHORTEST;
            return Ok(if is_over { Progress::Finished } else { Progress::Segments(Vec::new()) });
        }
        self.listen(&windows)?;
        let request = self.listener.request();
        let decodings = self.decode(&request, windows.len())?;
        for (number, (window, decoding)) in windows.into_iter().zip(decodings).enumerate() {
            // The model that encoded the window becomes the listener's model.
            if let Some(other) = number.checked_sub(1).and_then(|number| self.others.get_mut(number)) {
                std::mem::swap(self.listener.model, other);
            }
            let segments = self.segments(window, decoding, &request)?;
            self.held.extend(segments);
        }
        self.left.make_contiguous().sort_by_key(|window| window.stream.position());
        Ok(Progress::Segments(self.settled()))
    }

    fn language(&self) -> Option<&str> {
        self.listener.language()
    }
}
