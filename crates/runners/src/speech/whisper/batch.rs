//! Long recordings, several windows of which are decoded at a time.

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

/// A Whisper that transcribes one recording in windows that know nothing of one another. Each ends in the softest pause of its latter
/// half and has caches of its own; a step of the decoder appends a token to the text of each.
#[derive(Debug)]
pub(crate) struct WhisperBatch<'a> {
    listener: WhisperListener<'a>,
    /// Models for all windows but the first.
    others: Vec<Whisper>,
    /// Parts of the windows so far that are heard again, in the order of time.
    left: VecDeque<Window>,
    /// Segments that stand behind such a part.
    held: Vec<Segment>,
}

/// A part of the recording that is decoded by itself.
#[derive(Debug)]
struct Window {
    stream: Stream,
    /// How often it was cut because its text did not cover it.
    cuts: usize,
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
        Ok(WhisperBatch {
            listener: WhisperListener::new(model, tokenizer, settings)?,
            others,
            left: VecDeque::new(),
            held: Vec::new(),
        })
    }

    /// Takes what is left of earlier windows, and the next ones off the stream: as many as are decoded at a time if there are so many.
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

    /// Has each model listen to a window.
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

    /// The segments of a window, which the listener's model hears. Sound that its text does not cover is decoded again.
    fn segments(&mut self, mut window: Window, decoding: Decoding, request: &Request) -> Result<Vec<Segment>> {
        let listener = &mut self.listener;
        let (stream, step) = (&mut window.stream, listener.model.step_samples());
        let heard = stream.samples.len();
        let mut speech = Speech::of(&stream.samples);
        let steps = speech.steps();
        let first = listener.judged(decoding, request.temperature, &mut speech)?;
        let attempt = listener.better(first, request.clone(), &mut speech)?;
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

    /// Takes the segments off that no other ones will come ahead of.
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
            // Whoever heard the window is the listener's model from here on.
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
