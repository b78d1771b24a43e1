//! Writes the programs of speech models.

pub(crate) mod conformer;
pub(crate) mod decoder;
pub(crate) mod encoder;
pub(crate) mod moonshine;
pub(crate) mod parakeet;
pub(crate) mod voxtral;
pub(crate) mod voxtral_realtime;
pub(crate) mod whisper;

use crate::{
    MethodConstant, Result,
    builder::{Int, Val},
    writer::Writer,
};

/// Sample rate in Hz, window size and hop length in samples, as in the training of Whisper and
/// related models.
const SAMPLE_RATE: i64 = 16_000;
const WINDOW_SIZE: i64 = 400;
const HOP_LENGTH: i64 = 160;

/// Constant methods that describe a program's spectrograms.
fn spectrogram_facts(mels: usize) -> [(String, MethodConstant); 4] {
    let facts =
        [("sample_rate", SAMPLE_RATE), ("window_size", WINDOW_SIZE), ("hop_length", HOP_LENGTH), ("num_mel_bins", mels as i64)];
    facts.map(|(name, value)| (name.to_owned(), MethodConstant::Int(value)))
}

/// Epsilon of layer norms in all of these models.
const NORM_EPS: f64 = 1e-5;

/// Biases of an attention's projections, and the name of the last one.
#[derive(Clone, Copy, Debug)]
struct Projections {
    queries: bool,
    keys: bool,
    values: bool,
    output: bool,
    output_name: &'static str,
}

/// Attention with separate keys and values for each head.
#[derive(Clone, Copy, Debug)]
struct Heads {
    count: usize,
    width: usize,
    projections: Projections,
}

impl Heads {
    /// Elements of a head.
    fn dim(self) -> usize {
        self.width / self.count
    }

    fn scale(self) -> f64 {
        (self.dim() as f64).sqrt().recip()
    }

    /// `x` [1, s, width] as [1, heads, s, dim].
    fn apart(self, w: &mut Writer<'_>, x: &Val, tokens: &Int) -> Val {
        let heads = w.b.reshape(x, &[1.into(), tokens.clone(), self.count.into(), self.dim().into()]);
        w.b.transpose(&heads, 1, 2)
    }

    /// `x` [1, heads, s, dim] as [1, s, width].
    fn joined(self, w: &mut Writer<'_>, x: &Val, tokens: &Int) -> Val {
        let transposed = w.b.transpose(x, 1, 2);
        w.b.reshape(&transposed, &[1.into(), tokens.clone(), self.width.into()])
    }

    /// Queries [1, heads, s, dim] of module `path`.
    fn queries(self, w: &mut Writer<'_>, x: &Val, tokens: &Int, path: &str) -> Result<Val> {
        let q = w.linear(x, &format!("{path}.q_proj"), self.width, self.projections.queries)?;
        Ok(self.apart(w, &q, tokens))
    }

    /// Keys and values [1, heads, s, dim] of module `path`.
    fn keys_values(self, w: &mut Writer<'_>, x: &Val, tokens: &Int, path: &str) -> Result<[Val; 2]> {
        let k = w.linear(x, &format!("{path}.k_proj"), self.width, self.projections.keys)?;
        let v = w.linear(x, &format!("{path}.v_proj"), self.width, self.projections.values)?;
        Ok([k, v].map(|x| self.apart(w, &x, tokens)))
    }

    /// Output projection of module `path` over the attention's result.
    fn output(self, w: &mut Writer<'_>, attended: &Val, tokens: &Int, path: &str) -> Result<Val> {
        let joined = self.joined(w, attended, tokens);
        let Projections { output, output_name, .. } = self.projections;
        w.linear(&joined, &format!("{path}.{output_name}"), self.width, output)
    }
}

/// The feed-forward half of a layer: norm, wide layer, GELU, narrow layer. Its result is added to
/// `x`.
fn feed_forward(w: &mut Writer<'_>, x: &Val, width: usize, inner: usize, path: &str) -> Result<Val> {
    let normed = w.layer_norm(x, &format!("{path}.final_layer_norm"), NORM_EPS)?;
    let wide = w.linear(&normed, &format!("{path}.fc1"), inner, true)?;
    w.b.enter(path);
    let wide = w.b.gelu(&wide, false);
    let narrow = w.linear(&wide, &format!("{path}.fc2"), width, true)?;
    Ok(w.b.add(x, &narrow))
}
