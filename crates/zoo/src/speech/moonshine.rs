//! Moonshine as methods with shared state. `encoder` takes the waveform and fills the keys and
//! values of cross-attention. `decoder` reads them.

use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr};
use indexmap::IndexMap;

use super::{
    Heads, NORM_EPS, Projections,
    decoder::{DecoderSettings, MethodWriter},
};
use crate::{
    Checkpoint, MethodConstant, Model, Options, Result,
    builder::{ConvParams, Int, Rotary, Val},
};

const SAMPLE_RATE: usize = 16_000;
/// Largest number of samples of a window: twice the trained length.
const MOST_SAMPLES: usize = 64 * SAMPLE_RATE;
/// Taps and strides of the convolutions from samples to positions.
const CONVOLUTIONS: [(usize, usize); 3] = [(127, 64), (7, 3), (3, 2)];

/// Hyperparameters of a Moonshine model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MoonshineConfig {
    pub(crate) width: usize,
    /// Inner width of a feed-forward half.
    pub(crate) feed_forward: usize,
    pub(crate) heads: usize,
    pub(crate) encoder_layers: usize,
    pub(crate) decoder_layers: usize,
    /// Whether queries, keys and values have biases.
    pub(crate) bias: bool,
    /// Base of the rotary frequencies, and number of rotated elements of a head.
    pub(crate) theta: f64,
    pub(crate) rotary: usize,
    /// Tokens that the decoder was trained for.
    pub(crate) positions: usize,
    pub(crate) vocab: usize,
    /// Whether the head reads the embedding's weights.
    pub(crate) tied: bool,
    /// First token of a text, and tokens that end it.
    pub(crate) start: i64,
    pub(crate) ends: Vec<i64>,
    /// Element type of the checkpoint, if stated.
    pub(crate) dtype: Option<DType>,
}

/// The methods of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &MoonshineConfig, options: &Options) -> Result<Model> {
    let form = DecoderSettings::new(checkpoint, options, "Moonshine", c.positions)?;
    let parts = || form.parts(checkpoint, c);
    let methods = IndexMap::from([("encoder", parts().encoder()?), ("decoder", parts().decoder()?)]);
    Ok(Model { methods, floats: Vec::new(), metadata: metadata(c, form), tokenizer: checkpoint.tokenizer().clone() })
}

/// Least number of samples for one position.
fn least_samples() -> usize {
    CONVOLUTIONS.iter().rev().fold(1, |places, (taps, stride)| (places - 1) * stride + taps)
}

/// Number of positions for a number of samples.
fn audio_positions(samples: usize) -> usize {
    CONVOLUTIONS.iter().fold(samples, |places, (taps, stride)| (places - taps) / stride + 1)
}

impl MethodWriter<'_, MoonshineConfig> {
    fn heads(&self) -> Heads {
        let bias = self.c.bias;
        let projections = Projections { queries: bias, keys: bias, values: bias, output: false, output_name: "o_proj" };
        Heads { count: self.c.heads, width: self.c.width, projections }
    }

    fn rotary(&self) -> Rotary {
        Rotary { dims: self.c.rotary, base: self.c.theta, scale: 1.0, interleaved: true, periods: None }
    }

    /// `input_values` f32 [1, samples] → the last hidden state [1, positions, width].
    fn encoder(mut self) -> Result<Exported> {
        let samples = self.w.b.symbol("s0", least_samples(), MOST_SAMPLES);
        let samples = self.w.b.input("input_values", DType::F32, vec![Expr::Int(1), samples]);
        self.w.b.enter("model.encoder");
        let x = self.w.b.cast(&samples, self.dtype);
        let x = self.w.b.unsqueeze(&x, 1);
        let x = self.convolved(&x, 1, self.c.width, false)?;
        let x = self.w.b.tanh(&x);
        let path = "model.encoder.groupnorm";
        let [weight, bias] =
            [self.w.vector(&format!("{path}.weight"), self.c.width)?, self.w.vector(&format!("{path}.bias"), self.c.width)?];
        let x = self.w.b.whole_norm(&x, [&weight, &bias], NORM_EPS);
        let x = self.convolved(&x, 2, 2 * self.c.width, true)?;
        let x = self.w.b.gelu(&x, false);
        let x = self.convolved(&x, 3, self.c.width, true)?;
        let x = self.w.b.gelu(&x, false);
        let mut x = self.w.b.transpose(&x, 1, 2);
        let tokens = self.w.b.size(&x, 1);
        for layer in 0..self.c.encoder_layers {
            x = self.encoder_layer(&x, &tokens, &format!("model.encoder.layers.{layer}"))?;
        }
        let x = self.w.scaled_layer_norm(&x, "model.encoder.layer_norm", NORM_EPS)?;
        let heads = self.heads();
        for layer in 0..self.c.decoder_layers {
            let path = format!("model.decoder.layers.{layer}.encoder_attn");
            let made = heads.keys_values(&mut self.w, &x, &tokens, &path)?;
            for (buffer, value) in self.cross(layer, heads, audio_positions(MOST_SAMPLES))?.iter().zip(&made) {
                self.w.b.cache_update(buffer, value, &0.into());
            }
        }
        self.w.b.finish(&[&x])
    }

    /// The convolution with this number.
    fn convolved(&mut self, x: &Val, number: usize, width: usize, bias: bool) -> Result<Val> {
        let (path, (taps, stride)) = (format!("model.encoder.conv{number}"), CONVOLUTIONS[number - 1]);
        self.w.b.enter(&path);
        let weight = self.w.plain(&format!("{path}.weight"), &[width, x.dim(1), taps])?;
        let bias = bias.then(|| self.w.vector(&format!("{path}.bias"), width)).transpose()?;
        Ok(self.w.b.conv([x, &weight], bias.as_ref(), ConvParams { stride, padding: 0, groups: 1 }))
    }

    fn encoder_layer(&mut self, x: &Val, tokens: &Int, path: &str) -> Result<Val> {
        let (heads, rotary, module) = (self.heads(), self.rotary(), format!("{path}.self_attn"));
        let w = &mut self.w;
        let normed = w.scaled_layer_norm(x, &format!("{path}.input_layernorm"), NORM_EPS)?;
        let q = heads.queries(w, &normed, tokens, &module)?;
        let [k, v] = heads.keys_values(w, &normed, tokens, &module)?;
        let [q, k] = [q, k].map(|x| w.b.rope(&x, &0.into(), &rotary));
        let attended = w.b.attention_over_all([&q, &k, &v], None, heads.scale());
        let mixed = heads.output(w, &attended, tokens, &module)?;
        let x = w.b.add(x, &mixed);
        let normed = w.scaled_layer_norm(&x, &format!("{path}.post_attention_layernorm"), NORM_EPS)?;
        let wide = w.linear(&normed, &format!("{path}.mlp.fc1"), self.c.feed_forward, true)?;
        let wide = w.b.gelu(&wide, false);
        let narrow = w.linear(&wide, &format!("{path}.mlp.fc2"), self.c.width, true)?;
        Ok(w.b.add(&x, &narrow))
    }

    /// `input_ids` i64 [1, s], `cache_position` i64 [s] (consecutive), `audio_length` i64 [1], the
    /// number of encoder positions → logits [1, 1, vocab] of the last token.
    fn decoder(mut self) -> Result<Exported> {
        let c = self.c;
        let s = self.w.b.symbol("s0", 1, self.positions);
        let start = self.w.b.symbol("u0", 0, self.positions - 1);
        let heard = self.w.b.symbol("u1", 1, audio_positions(MOST_SAMPLES));
        let ids = self.w.b.input("input_ids", DType::I64, vec![Expr::Int(1), s.clone()]);
        let places = self.w.b.input("cache_position", DType::I64, vec![s]);
        let length = self.w.b.input("audio_length", DType::I64, vec![Expr::Int(1)]);
        self.w.b.enter("model.decoder");
        let tokens = self.w.b.size(&ids, 1);
        let ((_, pos), (_, heard)) = (self.w.b.first(&places, start), self.w.b.first(&length, heard));
        let mut x = self.embedded(&ids, c.vocab, c.width)?;
        for layer in 0..c.decoder_layers {
            x = self.self_attention(&x, layer, (&tokens, &pos))?;
            x = self.cross_attention(&x, layer, (&tokens, &heard))?;
            x = self.gated(&x, layer)?;
        }
        let x = self.w.b.last_position(&x);
        let x = self.w.scaled_layer_norm(&x, "model.decoder.norm", NORM_EPS)?;
        let logits = self.logits(&x, c.vocab, c.width, c.tied)?;
        self.w.b.finish(&[&logits])
    }

    fn self_attention(&mut self, x: &Val, layer: usize, (tokens, pos): (&Int, &Int)) -> Result<Val> {
        let (heads, rotary, path) = (self.heads(), self.rotary(), format!("model.decoder.layers.{layer}"));
        let normed = self.w.scaled_layer_norm(x, &format!("{path}.input_layernorm"), NORM_EPS)?;
        let module = format!("{path}.self_attn");
        let q = heads.queries(&mut self.w, &normed, tokens, &module)?;
        let [k, v] = heads.keys_values(&mut self.w, &normed, tokens, &module)?;
        let [q, k] = [q, k].map(|x| self.w.b.rope(&x, pos, &rotary));
        let [keys, values] = self.cached(self.own_cache(), layer, heads, [&k, &v], pos)?;
        let attended = self.w.b.attention([&q, &keys, &values], pos, None, heads.scale());
        let mixed = heads.output(&mut self.w, &attended, tokens, &module)?;
        Ok(self.w.b.add(x, &mixed))
    }

    fn cross_attention(&mut self, x: &Val, layer: usize, (tokens, heard): (&Int, &Int)) -> Result<Val> {
        let (heads, path) = (self.heads(), format!("model.decoder.layers.{layer}"));
        let normed = self.w.scaled_layer_norm(x, &format!("{path}.post_attention_layernorm"), NORM_EPS)?;
        let module = format!("{path}.encoder_attn");
        let q = heads.queries(&mut self.w, &normed, tokens, &module)?;
        let both = self.cross(layer, heads, audio_positions(MOST_SAMPLES))?;
        let [k, v] = both.map(|all| self.w.b.slice(&all, 2, &0.into(), heard));
        let attended = self.w.b.attention_over_all([&q, &k, &v], None, heads.scale());
        let mixed = heads.output(&mut self.w, &attended, tokens, &module)?;
        Ok(self.w.b.add(x, &mixed))
    }

    /// The decoder's feed-forward half. In its wide layer, the gate follows the values.
    fn gated(&mut self, x: &Val, layer: usize) -> Result<Val> {
        let (feed_forward, path) = (self.c.feed_forward, format!("model.decoder.layers.{layer}"));
        let normed = self.w.scaled_layer_norm(x, &format!("{path}.final_layernorm"), NORM_EPS)?;
        let both = self.w.linear(&normed, &format!("{path}.mlp.fc1"), 2 * feed_forward, true)?;
        let [value, gate] = self.w.b.split(&both, [feed_forward; 2]);
        let gate = self.w.b.silu(&gate);
        let wide = self.w.b.mul(&gate, &value);
        let narrow = self.w.linear(&wide, &format!("{path}.mlp.fc2"), self.c.width, true)?;
        Ok(self.w.b.add(x, &narrow))
    }
}

/// Constant methods read by the runner.
fn metadata(c: &MoonshineConfig, form: DecoderSettings) -> Vec<(String, MethodConstant)> {
    let size = |v: usize| MethodConstant::Int(v as i64);
    let out = [
        ("get_model_type", MethodConstant::Text("moonshine".into())),
        ("get_dtype", MethodConstant::Int(i64::from(form.dtype().code()))),
        ("sample_rate", size(SAMPLE_RATE)),
        ("get_min_samples", size(least_samples())),
        ("get_max_samples", size(MOST_SAMPLES)),
        ("get_max_seq_len", size(form.positions)),
        ("get_vocab_size", size(c.vocab)),
        ("get_bos_id", MethodConstant::Int(c.start)),
        ("get_eos_ids", MethodConstant::Ints(c.ends.clone())),
    ];
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
