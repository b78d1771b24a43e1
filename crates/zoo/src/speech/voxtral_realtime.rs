//! Voxtral Realtime: a streaming encoder, whose output is added to the embeddings of a language
//! model's tokens.

use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr};
use indexmap::IndexMap;

use super::{
    spectrogram_facts,
    voxtral::{PROJECTOR, projected},
};
use crate::{
    Checkpoint, Logits, MethodConstant, Model, Options, Result,
    block::{self, Decoder},
    builder::{ConvParams, Int, Val},
    limits::MAX_POSITIONS,
    model,
    options::{self, Settings},
    spec,
    writer::Writer,
};

/// Taps of both convolutions.
const TAPS: usize = 3;
/// Number of spectrogram frames per position of the encoder.
const FRAMES: usize = 2;
/// Largest number of embeddings per encoder call: 5 seconds.
const MOST_EMBEDDINGS: usize = 64;
/// Default largest number of tokens of a call. It fits the tokens before a recording, and keeps
/// caches with windows short.
const DEFAULT_CHUNK: usize = 64;

/// Hyperparameters of a Voxtral Realtime model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VoxtralRealtimeConfig {
    /// Bins of the spectrogram.
    pub(crate) mels: usize,
    /// The encoder's layers. It has neither an embedding nor a head.
    pub(crate) encoder: spec::DecoderConfig,
    /// Number of encoder positions per position of the language model.
    pub(crate) joined: usize,
    pub(crate) text: spec::DecoderConfig,
    /// Delay of the text after the audio, in embeddings.
    pub(crate) delay: usize,
    /// Number of silence embeddings before a recording.
    pub(crate) left_pad: usize,
}

/// The methods of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &VoxtralRealtimeConfig, options: &Options) -> Result<Model> {
    // Caches have the length of windows, so positions cost nothing.
    let positions = options.max_seq_len.unwrap_or(MAX_POSITIONS);
    let chunk = options.prefill_chunk.unwrap_or(DEFAULT_CHUNK.min(positions));
    let options = Options { max_seq_len: Some(positions), prefill_chunk: Some(chunk), ..*options };
    let settings = options::settings(checkpoint, &c.text, &options)?;
    let listening = Settings { positions: MAX_POSITIONS, chunk: MOST_EMBEDDINGS * c.joined, logits: Logits::All, ..settings };
    let (text_decoder, floats) = block::program_of_embeddings(checkpoint, &c.text, settings)?;
    let methods = IndexMap::from([
        ("encode_audio_chunk", c.encode_audio_chunk(checkpoint, listening)?),
        ("token_embedding", block::embedding_program(checkpoint, &c.text, settings)?),
        ("text_decoder", text_decoder),
    ]);
    let size = |name: &str, value: usize| (name.to_owned(), MethodConstant::Int(value as i64));
    let mut metadata = model::metadata(&c.text, settings);
    metadata.extend(spectrogram_facts(c.mels));
    metadata.extend([
        size("streaming", 1),
        size("chunk_mel_len", FRAMES * c.joined),
        size("get_max_chunks", MOST_EMBEDDINGS),
        size("delay_tokens", c.delay),
        size("left_pad_tokens", c.left_pad),
    ]);
    Ok(Model { methods, floats, metadata, tokenizer: checkpoint.tokenizer().clone() })
}

impl VoxtralRealtimeConfig {
    /// `mel_chunk` f32 [1, mels, 2 · joined · t], `enc_input_pos` i64 [joined · t] → [1, t,
    /// hidden].
    fn encode_audio_chunk(&self, checkpoint: &Checkpoint, settings: Settings) -> Result<Exported> {
        let mut w = Writer::new(checkpoint, settings.dtype, settings.scales);
        let t = w.b.symbol("s0", 1, MOST_EMBEDDINGS);
        let positions = Expr::Int(self.joined as i64) * t.clone();
        let frames = Expr::Int(FRAMES as i64) * positions.clone();
        let mel = w.b.input("mel_chunk", DType::F32, vec![Expr::Int(1), Expr::Int(self.mels as i64), frames]);
        let places = w.b.input("enc_input_pos", DType::I64, vec![positions]);
        let mut decoder = Decoder::new(w, &self.encoder, settings, places)?;
        let x = decoder.w.b.cast(&mel, settings.dtype);
        let x = self.convolved(&mut decoder, &x, 1)?;
        let x = self.convolved(&mut decoder, &x, 2)?;
        let x = decoder.w.b.transpose(&x, 1, 2);
        let x = decoder.layers(x, None)?;
        let w = &mut decoder.w;
        w.b.enter(PROJECTOR);
        let x = w.b.reshape(&x, &[1.into(), Int::rest(t), (self.joined * self.encoder.hidden).into()]);
        let x = projected(w, &x, self.text.hidden)?;
        decoder.w.b.finish(&[&x])
    }

    /// Convolution `stride`, whose number is also its stride, over its kept inputs and `x` [1, C,
    /// n], then GELU. Returns [1, width, n / stride].
    fn convolved(&self, decoder: &mut Decoder<'_>, x: &Val, stride: usize) -> Result<Val> {
        let (width, kept) = (self.encoder.hidden, TAPS - stride);
        let path = format!("audio_tower.embedder.conv{stride}");
        decoder.w.b.enter(&path);
        let state = decoder.w.b.buffer(&format!("conv{stride}_state"), x.dtype, vec![1, x.dim(1), kept])?;
        let before = decoder.carried(&state);
        let b = &mut decoder.w.b;
        let all = b.concatenate(&before, x, 2);
        let (start, end) = (b.size(x, 2), b.size(&all, 2));
        let last = b.slice(&all, 2, &start, &end);
        b.store(&state, &last);
        let weight = decoder.w.plain(&format!("{path}.weight"), &[width, x.dim(1), TAPS])?;
        let bias = decoder.w.vector(&format!("{path}.bias"), width)?;
        let x = decoder.w.b.conv([&all, &weight], Some(&bias), ConvParams { stride, padding: 0, groups: 1 });
        Ok(decoder.w.b.gelu(&x, false))
    }
}
