//! Voxtral: Whisper's encoder, whose output replaces tokens of a language model.

use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr};
use indexmap::IndexMap;

use super::{
    encoder::{Encoder, Stack},
    spectrogram_facts,
};
use crate::{Checkpoint, MethodConstant, Model, Options, Result, block, builder::Val, model, options, spec, writer::Writer};

/// Hyperparameters of a Voxtral model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VoxtralConfig {
    /// Bins of the spectrogram.
    pub(crate) mels: usize,
    /// Width of the encoder.
    pub(crate) width: usize,
    /// Number of output positions of the encoder, each of two frames.
    pub(crate) positions: usize,
    pub(crate) encoder: Stack,
    /// Number of encoder positions per position of the language model.
    pub(crate) joined: usize,
    pub(crate) text: spec::DecoderConfig,
}

/// The methods of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &VoxtralConfig, options: &Options) -> Result<Model> {
    let settings = options::settings(checkpoint, &c.text, options)?;
    let w = Writer::new(checkpoint, settings.dtype, settings.scales);
    let (text_decoder, floats) = block::program_of_embeddings(checkpoint, &c.text, settings)?;
    let methods = IndexMap::from([
        ("audio_encoder", c.audio_encoder(w, settings.dtype)?),
        ("token_embedding", block::embedding_program(checkpoint, &c.text, settings)?),
        ("text_decoder", text_decoder),
    ]);
    let mut metadata = model::metadata(&c.text, settings);
    metadata.extend(spectrogram_facts(c.mels));
    metadata.push(("get_audio_positions".into(), MethodConstant::Int(c.positions as i64)));
    Ok(Model { methods, floats, metadata, tokenizer: checkpoint.tokenizer().clone() })
}

impl VoxtralConfig {
    /// `input_features` f32 [1, mels, 2 · positions] → [1, positions / joined, hidden].
    fn audio_encoder(&self, mut w: Writer<'_>, dtype: DType) -> Result<Exported> {
        let frames = Expr::Int(2 * self.positions as i64);
        let features = w.b.input("input_features", DType::F32, vec![Expr::Int(1), Expr::Int(self.mels as i64), frames]);
        let encoder = Encoder { root: "audio_tower", width: self.width, positions: self.positions, stack: self.encoder };
        w.b.enter(encoder.root);
        let x = w.b.cast(&features, dtype);
        let x = encoder.write(&mut w, &x)?;
        w.b.enter(PROJECTOR);
        let sizes = [1, self.positions / self.joined, self.joined * self.width];
        let x = w.b.reshape(&x, &sizes.map(Into::into));
        let x = projected(&mut w, &x, self.text.hidden)?;
        w.b.finish(&[&x])
    }
}

pub(super) const PROJECTOR: &str = "multi_modal_projector";

/// Projects an encoder's output to the language model's embedding space.
pub(super) fn projected(w: &mut Writer<'_>, x: &Val, hidden: usize) -> Result<Val> {
    let x = w.linear(x, &format!("{PROJECTOR}.linear_1"), hidden, false)?;
    let x = w.b.gelu(&x, false);
    w.linear(&x, &format!("{PROJECTOR}.linear_2"), hidden, false)
}
