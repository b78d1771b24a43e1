//! Moonshine on recordings of any length: windows that end in the quietest pause are transcribed in
//! turn.

use flambeau_text::Tokenizer;

use super::{FAMILY, Moonshine};
use crate::{
    Result,
    speech::{
        Progress, SAMPLE_RATE, Segment, Settings,
        segment::has_words,
        stream::{BLOCK, Stream, powers},
        transcriber::{Listener, Takes},
    },
};

/// Samples of a window. Its end may be anywhere in the last half. The models were trained with 4 to
/// 30 seconds.
const WINDOW: usize = 20 * SAMPLE_RATE as usize;
/// Maximum tokens per second. A longer text repeats itself without end.
const MOST_TOKENS_A_SECOND: f64 = 6.5;
/// Minimum power of a window's loudest block. Models write a word or two into softer windows.
const LEAST_POWER: f32 = 1e-7;

/// Transcribes one recording with Moonshine.
#[derive(Debug)]
pub(crate) struct MoonshineListener<'a> {
    model: &'a mut Moonshine,
    tokenizer: &'a Tokenizer,
}

impl<'a> MoonshineListener<'a> {
    /// Creates a listener for one recording.
    ///
    /// # Errors
    /// The settings ask for a translation, a language other than English, a prompt or word times.
    pub(crate) fn new(model: &'a mut Moonshine, tokenizer: &'a Tokenizer, settings: &Settings) -> Result<MoonshineListener<'a>> {
        settings.check(FAMILY, Takes::default())?;
        Ok(MoonshineListener { model, tokenizer })
    }

    /// The segment of the stream's next `heard` samples, if they give text.
    fn segment(&mut self, stream: &Stream, heard: usize) -> Result<Option<Segment>> {
        let samples = &stream.samples[..heard];
        if powers(samples).into_iter().fold(0.0, f32::max) < LEAST_POWER {
            return Ok(None);
        }
        self.model.encode(samples)?;
        let most = (heard as f64 / f64::from(SAMPLE_RATE) * MOST_TOKENS_A_SECOND).ceil() as usize;
        let decoding = self.model.decode(most)?;
        let text = self.tokenizer.decode(&decoding.tokens, true)?;
        if !has_words(&text) {
            return Ok(None);
        }
        let [start, end] = [0, heard as isize].map(|samples| stream.at(samples));
        let text = format!(" {}", text.trim());
        Ok(Some(Segment::greedy(start..end, start, text, decoding.tokens, decoding.mean_log_probability)))
    }
}

impl Listener for MoonshineListener<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        if stream.is_whole && stream.samples.len() < BLOCK {
            return Ok(Progress::Finished);
        }
        let window = WINDOW.min(self.model.window());
        if !stream.is_whole && stream.samples.len() < window {
            return Ok(Progress::NeedsSamples);
        }
        let heard = stream.samples.len().min(window);
        if let Some(passed) = stream.silence(heard) {
            stream.pass(passed);
            return Ok(Progress::Segments(Vec::new()));
        }
        let is_last = stream.is_whole && heard == stream.samples.len();
        let heard = if is_last { heard } else { stream.pause(heard / 2..heard) };
        let segment = self.segment(stream, heard)?;
        stream.pass(heard);
        Ok(Progress::Segments(segment.into_iter().collect()))
    }

    fn language(&self) -> Option<&str> {
        None
    }
}
