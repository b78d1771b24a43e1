//! The methods of a Voxtral Realtime's program.

use std::{collections::VecDeque, sync::Arc};

use flambeau_audio::LogMelStream;
use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, SharedState, ValueSpec};
use flambeau_tensor::Tensor;
use flambeau_text::argmax;

use super::FAMILY;
use crate::{
    Error, Result,
    speech::{
        Facts, has_methods,
        inputs::{self, positions},
        text_decoder::{TextDecoder, floats},
        voxtral::Voxtral,
    },
};

const ENCODER: &str = "encode_audio_chunk";
/// Encoder of programs that encode a whole recording at once.
const WHOLE_ENCODER: &str = "audio_encoder";

/// Constant method with the delay of text after sound, in embeddings.
const DELAY: &str = "delay_tokens";
/// Embeddings of silence after a recording, in addition to the delay. The model was trained to
/// finish its text within them.
const RIGHT_PAD: usize = 11;
/// Logarithm of the loudest sound in the model's spectrograms.
const LOUDEST: f32 = 1.5;

/// A loaded Voxtral Realtime, with its current stream.
#[derive(Debug)]
pub struct VoxtralRealtime {
    encoder: Method,
    text: TextDecoder,
    features: LogMelStream,
    mels: usize,
    /// Spectrogram frames per embedding, and the encoder's positions per embedding if it streams.
    frames: usize,
    positions: Option<usize>,
    /// Maximum embeddings per call of the encoder.
    most: usize,
    delay: usize,
    left_pad: usize,
    /// Frames [n, mels] that wait for a whole embedding.
    pending: Vec<f32>,
    /// Positions that the encoder has processed.
    listened: usize,
    /// Embeddings [hidden] that wait for their token.
    heard: VecDeque<Vec<f32>>,
    /// Samples that were pushed.
    samples: u64,
    /// Token to add to the next embedding.
    last: Option<u32>,
    logits: Vec<f32>,
}

impl VoxtralRealtime {
    /// Methods that identify a streaming Voxtral Realtime.
    pub(crate) const METHODS: &[&str] = &[ENCODER, "token_embedding", "text_decoder"];

    /// Whether a program has a streaming Voxtral's methods, or Voxtral's methods and a text delay.
    pub fn is_in(program: &Program) -> bool {
        let hears_whole = Voxtral::is_in(program) && Facts::of(program, FAMILY).size(DELAY).is_ok();
        has_methods(program, VoxtralRealtime::METHODS) || hears_whole
    }

    /// Loads a program.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`] for another program. Other errors if the program cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<VoxtralRealtime> {
        if !VoxtralRealtime::is_in(program) {
            return Err(unfit("it has no methods `encode_audio_chunk`, `token_embedding` and `text_decoder`"));
        }
        let facts = Facts::of(program, FAMILY);
        let options = LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() };
        let streams = has_methods(program, &[ENCODER]);
        let encoder = program.method(if streams { ENCODER } else { WHOLE_ENCODER }, engine, &options)?;
        let sizes = |index: usize| encoder.inputs().get(index).and_then(ValueSpec::tensor).map(|spec| spec.dims.clone());
        let spectrogram = sizes(0).as_deref().and_then(|dims| <&[DimSpec; 3]>::try_from(dims).ok()).copied();
        let Some([_, DimSpec::Fixed(mels), longest]) = spectrogram else {
            return Err(unfit("its encoder does not take a spectrogram"));
        };
        // A position covers two frames, and `downsample_factor` positions form an embedding.
        let frames = if streams { facts.size("chunk_mel_len") } else { facts.size("downsample_factor").map(|joined| 2 * joined) }?;
        let most = longest.max().unwrap_or(frames) / frames.max(1);
        let positions = match sizes(1).as_deref() {
            Some([positions]) if streams => Some(positions.max().unwrap_or(most) / most.max(1)),
            _ if streams => return Err(unfit("its encoder does not take positions")),
            _ => None,
        };
        if most == 0 || positions == Some(0) {
            return Err(unfit("its encoder takes less than one embedding"));
        }
        let text = TextDecoder::load(program, engine, &options, FAMILY)?;
        let mut model = VoxtralRealtime {
            encoder,
            text,
            features: LogMelStream::new(mels, LOUDEST),
            mels,
            frames,
            positions,
            most,
            delay: facts.size(DELAY)?,
            left_pad: facts.size("left_pad_tokens").unwrap_or(LEFT_PAD),
            pending: Vec::new(),
            listened: 0,
            heard: VecDeque::new(),
            samples: 0,
            last: None,
            logits: Vec::new(),
        };
        if model.window() == Some(0) {
            return Err(unfit("its caches have no room for a text beside the silence around it"));
        }
        model.restart();
        Ok(model)
    }

    pub(in crate::speech) fn methods(&mut self) -> Vec<&mut Method> {
        let mut methods = vec![&mut self.encoder];
        methods.extend(self.text.methods());
        methods
    }

    /// Samples per embedding, and so per token.
    pub fn step_samples(&self) -> usize {
        self.frames * self.features.hop()
    }

    /// Number of prompt tokens: the token that begins a text, then padding.
    pub fn prompt_len(&self) -> usize {
        1 + self.left_pad + self.delay
    }

    /// Samples of a window, if the encoder does not stream. The recording is then cut into such
    /// windows.
    pub fn window(&self) -> Option<usize> {
        let most = self.most.min(self.text.context()).saturating_sub(self.left_pad + self.delay + RIGHT_PAD + 1);
        self.positions.is_none().then_some(most * self.step_samples())
    }

    /// Maximum samples of a stream or window.
    pub fn longest(&self) -> usize {
        let context = self.text.context().saturating_sub(self.prompt_len()).saturating_mul(self.step_samples());
        self.window().unwrap_or(context)
    }

    /// Forgets the stream. The next one begins with silence.
    pub fn restart(&mut self) {
        self.text.restart();
        self.features.restart();
        self.pending.clear();
        self.heard.clear();
        (self.listened, self.samples, self.last) = (0, 0, None);
        let silence = vec![0.0; self.left_pad * self.step_samples()];
        self.features.push(&silence, &mut self.pending);
    }

    /// Appends samples of the recording.
    pub fn push(&mut self, samples: &[f32]) {
        self.samples += samples.len() as u64;
        self.features.push(samples, &mut self.pending);
    }

    /// Ends the recording with silence, in which the model writes the rest of its text.
    pub fn finish(&mut self) {
        let step = self.step_samples();
        let missing = (step - (self.samples % step as u64) as usize) % step;
        let silence = vec![0.0; missing + (self.delay + RIGHT_PAD) * step + self.features.lookahead()];
        self.features.push(&silence, &mut self.pending);
    }

    /// The log-mel spectrogram f32 [1, mels, n] of the pushed samples that are not encoded yet.
    ///
    /// # Errors
    /// None for programs of this project's exporter.
    pub fn features(&self) -> Result<Tensor> {
        self.spectrogram(&self.pending)
    }

    /// The spectrogram [1, mels, n] of frames [n, mels].
    fn spectrogram(&self, frames: &[f32]) -> Result<Tensor> {
        let mels = self.mels;
        let transposed: Vec<f32> = (0..mels).flat_map(|bin| frames.iter().skip(bin).step_by(mels).copied()).collect();
        Tensor::from_slice(&transposed, &[1, mels, frames.len() / mels]).map_err(|_| unfit("its encoder takes no such chunk"))
    }

    /// Encodes the pushed samples. Returns the new embeddings [t, hidden] in order.
    ///
    /// # Errors
    /// The method fails.
    pub fn listen(&mut self) -> Result<Vec<f32>> {
        let row = self.frames * self.mels;
        let whole = self.pending.len() / row * row;
        let frames: Vec<f32> = self.pending.drain(..whole).collect();
        let mut rows = Vec::new();
        for frames in frames.chunks(self.most * row) {
            rows.extend(self.encode(frames)?);
        }
        self.heard.extend(rows.chunks_exact(self.text.hidden()).map(<[f32]>::to_vec));
        Ok(rows)
    }

    /// Encodes frames [n, mels] of whole embeddings.
    fn encode(&mut self, frames: &[f32]) -> Result<Vec<f32>> {
        let count = frames.len() / self.mels / self.frames;
        let mut values = vec![inputs::floats(&self.encoder, 0, &self.spectrogram(frames)?)?];
        if let Some(each) = self.positions {
            values.push(positions(self.listened, count * each)?);
            self.listened += count * each;
        }
        let outputs = self.encoder.run(&values)?;
        let expected = count * self.text.hidden();
        let rows = floats(outputs.first()).filter(|rows| rows.len() == expected);
        rows.ok_or_else(|| unfit("its encoder gives no rows of the text decoder's width"))
    }

    /// The most likely next token; its scores are then [`logits`](Self::logits). `None` until more
    /// samples are [encoded](Self::listen). The first call reads `prompt`.
    ///
    /// # Errors
    /// A method fails, or the stream does not fit into the caches.
    pub fn next_token(&mut self, prompt: &[u32]) -> Result<Option<u32>> {
        let last = self.last.map(|token| [token]);
        let tokens = last.as_ref().map_or(prompt, |token| &token[..]);
        if self.heard.len() < tokens.len() {
            return Ok(None);
        }
        let mut rows = self.text.embed(tokens)?;
        let heard = self.heard.drain(..tokens.len()).flatten();
        rows.iter_mut().zip(heard).for_each(|(row, heard)| *row += heard);
        self.text.step(&rows, &mut self.logits)?;
        self.last = argmax(&self.logits).map(|(token, _)| token);
        self.last.map(Some).ok_or_else(|| unfit("its logits are no numbers"))
    }

    /// The logits `[V]` of the last token.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }
}

/// Embeddings of silence before a recording, if the program does not state the number.
const LEFT_PAD: usize = 32;

fn unfit(what: &str) -> Error {
    Error::NoSpeechModel { family: FAMILY, what: what.into() }
}
