//! Parakeet as methods: `encoder`, and for transducers `decoder_step` and `joint`.

use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr};
use indexmap::IndexMap;

use super::conformer::{Encoder, HALVINGS};
use crate::{
    Checkpoint, Error, MethodConstant, Model, Options, Result,
    builder::Val,
    options::{Precision, float_caches},
    writer::Writer,
};

/// Sample rate in Hz, window size and hop length in samples, as in the training of all models.
pub(crate) const SAMPLE_RATE: usize = 16_000;
pub(crate) const WINDOW_SIZE: usize = 400;
pub(crate) const HOP_LENGTH: usize = 160;

/// A weight in every Parakeet checkpoint.
pub(crate) const SUBSAMPLING: &str = "encoder.subsampling.linear.weight";
const EMBEDDING: &str = "decoder.embedding.weight";

/// Hyperparameters of a Parakeet model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParakeetConfig {
    pub(crate) encoder: Encoder,
    /// Number of tokens, including the blank.
    pub(crate) vocab: usize,
    pub(crate) blank: usize,
    pub(crate) head: Head,
    /// Element type of the checkpoint, if stated.
    pub(crate) dtype: Option<DType>,
}

/// Decoding of positions to tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Each position separately. One token may fill several positions (Graves et al. 2006).
    Ctc,
    /// Conditioned on the previous tokens (Graves 2012; with durations: Xu et al. 2023).
    Transducer(Transducer),
}

/// The prediction network over previous tokens, and the joint network with audio positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transducer {
    /// Width of both.
    pub(crate) width: usize,
    pub(crate) layers: usize,
    /// Numbers of positions that a token may take. Empty for a transducer without durations.
    pub(crate) durations: Vec<i64>,
    /// Largest number of tokens per position.
    pub(crate) most_symbols: usize,
}

/// The methods of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &ParakeetConfig, options: &Options) -> Result<Model> {
    let Precision { dtype, scales } = Precision::new(checkpoint, options)?;
    float_caches(options, "Parakeet caches no keys and values")?;
    let parts = || MethodWriter { w: Writer::new(checkpoint, dtype, scales), c, dtype };
    let mut methods = IndexMap::from([("encoder", parts().encoder()?)]);
    if let Head::Transducer(t) = &c.head {
        methods.insert("decoder_step", parts().decoder_step(t)?);
        methods.insert("joint", parts().joint(t)?);
    }
    Ok(Model { methods, floats: Vec::new(), metadata: metadata(c, dtype), tokenizer: checkpoint.tokenizer().clone() })
}

/// Settings of every method.
struct MethodWriter<'a> {
    w: Writer<'a>,
    c: &'a ParakeetConfig,
    dtype: DType,
}

impl MethodWriter<'_> {
    /// `input_features` f32 [1, frames, mels] → last hidden state [1, positions, width], and an
    /// output per position: logits [1, positions, vocab], or the joint input of a transducer [1,
    /// positions, width].
    fn encoder(mut self) -> Result<Exported> {
        let c = self.c;
        let frames = self.w.b.symbol("s0", 1, c.encoder.frames());
        let features = self.w.b.input("input_features", DType::F32, vec![Expr::Int(1), frames, Expr::Int(c.encoder.mels as i64)]);
        self.w.b.enter("encoder");
        let x = self.w.b.cast(&features, self.dtype);
        let hidden = c.encoder.write(&mut self.w, &x)?;
        let made = match &c.head {
            Head::Ctc => self.w.pointwise(&hidden, "ctc_head", c.vocab, true)?,
            Head::Transducer(t) => self.w.linear(&hidden, "encoder_projector", t.width, true)?,
        };
        self.w.b.finish(&[&hidden, &made])
    }

    /// `token` i64 [1, 1] and the states `h` and `c` [layers, 1, width] → the input of the joint
    /// network [1, 1, width], and the next states. A sequence begins with the blank and zeros.
    fn decoder_step(mut self, t: &Transducer) -> Result<Exported> {
        let token = self.w.b.input("token", DType::I64, vec![Expr::Int(1), Expr::Int(1)]);
        let state = |size: usize| Expr::Int(size as i64);
        let [h, c] = ["h", "c"].map(|name| self.w.b.input(name, self.dtype, vec![state(t.layers), Expr::Int(1), state(t.width)]));
        self.w.b.enter("decoder");
        let source = self.w.source(EMBEDDING, &[self.c.vocab, t.width])?;
        let table = self.w.matrix(EMBEDDING, &source)?;
        let mut x = self.w.b.embedding(&table, &token);
        let (mut hidden, mut cells) = (Vec::new(), Vec::new());
        for layer in 0..t.layers {
            let own = [&h, &c].map(|all| self.w.b.slice(all, 0, &layer.into(), &(layer + 1).into()));
            let [next, cell] = self.lstm_step(&x, own, layer)?;
            x = next.clone();
            hidden.push(next);
            cells.push(cell);
        }
        let [h, c] = [hidden, cells].map(|layers| {
            let others: Vec<&Val> = layers[1..].iter().collect();
            self.w.b.concatenate_all(&layers[0], &others, 0)
        });
        let heard = self.w.linear(&x, "decoder.decoder_projector", t.width, true)?;
        self.w.b.finish(&[&heard, &h, &c])
    }

    /// One step of a layer: `x`, `h` and `c` [1, 1, width] → the next `h` and `c`.
    fn lstm_step(&mut self, x: &Val, [h, c]: [Val; 2], layer: usize) -> Result<[Val; 2]> {
        let width = c.dim(2);
        let mut gates = |x: &Val, from: &str| {
            let name = format!("decoder.lstm.weight_{from}_l{layer}");
            let source = self.w.source(&name, &[4 * width, width])?;
            let weight = self.w.matrix(&name, &source)?;
            let bias = self.w.vector(&format!("decoder.lstm.bias_{from}_l{layer}"), 4 * width)?;
            Ok::<_, Error>(self.w.b.linear(x, &weight, Some(&bias)))
        };
        let (own, carried) = (gates(x, "ih")?, gates(&h, "hh")?);
        let b = &mut self.w.b;
        let sum = b.add(&own, &carried);
        let [i, f, g, o] = b.split(&sum, [width; 4]);
        let [i, f, o] = [i, f, o].map(|gate| b.sigmoid(&gate));
        let g = b.tanh(&g);
        let (kept, new) = (b.mul(&f, &c), b.mul(&i, &g));
        let c = b.add(&kept, &new);
        let squashed = b.tanh(&c);
        Ok([b.mul(&o, &squashed), c])
    }

    /// Positions `f` [1, n, width] of the encoder's second output and `g` [1, 1, width] of
    /// `decoder_step` → logits [1, n, vocab + durations] of tokens, then durations.
    fn joint(mut self, t: &Transducer) -> Result<Exported> {
        let width = Expr::Int(t.width as i64);
        let positions = self.w.b.symbol("s0", 1, self.c.encoder.positions);
        let f = self.w.b.input("f", self.dtype, vec![Expr::Int(1), positions, width.clone()]);
        let g = self.w.b.input("g", self.dtype, vec![Expr::Int(1), Expr::Int(1), width]);
        self.w.b.enter("joint");
        let sum = self.w.b.add(&f, &g);
        let joined = self.w.b.relu(&sum);
        let logits = self.w.linear(&joined, "joint.head", self.c.vocab + t.durations.len(), true)?;
        self.w.b.finish(&[&logits])
    }
}

/// Constant methods read by the runner. They use the names of ExecuTorch's Parakeet where it has
/// them.
fn metadata(c: &ParakeetConfig, dtype: DType) -> Vec<(String, MethodConstant)> {
    let size = |v: usize| MethodConstant::Int(v as i64);
    let mut out = vec![
        ("get_model_type", MethodConstant::Text("parakeet".into())),
        ("get_dtype", MethodConstant::Int(i64::from(dtype.code()))),
        ("sample_rate", size(SAMPLE_RATE)),
        ("window_size", size(WINDOW_SIZE)),
        ("hop_length", size(HOP_LENGTH)),
        ("num_mel_bins", size(c.encoder.mels)),
        ("get_audio_positions", size(c.encoder.positions)),
        ("encoder_subsampling_factor", size(1 << HALVINGS)),
        ("vocab_size", size(c.vocab)),
        ("blank_id", size(c.blank)),
    ];
    if let Head::Transducer(t) = &c.head {
        out.extend([
            ("num_rnn_layers", size(t.layers)),
            ("pred_hidden", size(t.width)),
            ("joint_hidden", size(t.width)),
            ("max_symbols_per_step", size(t.most_symbols)),
        ]);
        if !t.durations.is_empty() {
            out.push(("durations", MethodConstant::Ints(t.durations.clone())));
        }
    }
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
