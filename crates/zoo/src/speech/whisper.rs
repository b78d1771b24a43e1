//! Whisper as methods with shared state. `encoder` fills the keys and values of cross-attention,
//! and `decoder` reads them.

use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr};
use indexmap::IndexMap;

use super::{
    Heads, NORM_EPS,
    decoder::{Cache, DecoderSettings, MethodWriter},
    encoder::{Encoder, Stack},
    feed_forward, spectrogram_facts,
};
use crate::{
    Checkpoint, MethodConstant, Model, Options, Result,
    builder::{Int, Val},
};

/// Hyperparameters of a Whisper model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WhisperConfig {
    /// Bins of the spectrogram.
    pub(crate) mels: usize,
    /// Width of the residual streams.
    pub(crate) width: usize,
    /// Number of output positions of the encoder, each of two frames.
    pub(crate) audio_positions: usize,
    /// Tokens that the decoder was trained for.
    pub(crate) text_positions: usize,
    pub(crate) encoder: Stack,
    pub(crate) decoder: Stack,
    pub(crate) vocab: usize,
    /// Whether the head reads the embedding's weights.
    pub(crate) tied: bool,
    /// Element type of the checkpoint, if stated.
    pub(crate) dtype: Option<DType>,
    /// Layers and heads of cross-attention that align words with the audio.
    pub(crate) alignment_heads: Vec<[usize; 2]>,
    pub(crate) tokens: Tokens,
}

/// Ids of control tokens, and lists of suppressed ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) end: i64,
    pub(crate) start: i64,
    pub(crate) previous: i64,
    pub(crate) no_speech: i64,
    pub(crate) no_timestamps: i64,
    pub(crate) translate: Option<i64>,
    pub(crate) transcribe: Option<i64>,
    pub(crate) languages: Vec<(String, i64)>,
    pub(crate) suppressed: Vec<i64>,
    /// Ids suppressed at the start of a text.
    pub(crate) suppressed_at_begin: Vec<i64>,
    /// Last timestamp that may start a text, in steps.
    pub(crate) last_initial_timestamp: usize,
}

/// The methods of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &WhisperConfig, options: &Options) -> Result<Model> {
    let form = DecoderSettings::new(checkpoint, options, "Whisper", c.text_positions)?;
    let parts = || form.parts(checkpoint, c);
    let mut methods = IndexMap::from([("encoder", parts().encoder()?), ("decoder", parts().decoder(Wanted::Logits)?)]);
    methods.insert("branches", parts().branches()?);
    if !c.alignment_heads.is_empty() {
        methods.insert("alignment", parts().decoder(Wanted::Alignment)?);
    }
    Ok(Model { methods, floats: Vec::new(), metadata: metadata(c, form), tokenizer: checkpoint.tokenizer().clone() })
}

/// Least number of texts in a cache of branches, each with the largest length of a window's text.
const MOST_BRANCHES: usize = 8;

/// Positions of the tokens of a run.
struct TokenSpan {
    tokens: Int,
    /// Cache row of the first token.
    pos: Int,
    cache: Cache,
    /// Mask [s, rows] of visible rows. Without it, each token sees its own row and all rows before.
    mask: Option<Val>,
}

/// Purpose of a run of the decoder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Logits of the last token [1, 1, vocab].
    Logits,
    /// Attention weights of the alignment heads over audio positions, f32 [1, heads, s, positions].
    Alignment,
}

impl MethodWriter<'_, WhisperConfig> {
    fn heads(&self, stack: Stack) -> Heads {
        stack.attention(self.c.width)
    }

    /// `input_features` f32 [1, mels, 2 · positions] → the encoder's last hidden state [1,
    /// positions, width].
    fn encoder(mut self) -> Result<Exported> {
        let c = self.c;
        let frames = Expr::Int(2 * c.audio_positions as i64);
        let features = self.w.b.input("input_features", DType::F32, vec![Expr::Int(1), Expr::Int(c.mels as i64), frames]);
        let encoder = Encoder { root: "model.encoder", width: c.width, positions: c.audio_positions, stack: c.encoder };
        self.w.b.enter(encoder.root);
        let x = self.w.b.cast(&features, self.dtype);
        let x = encoder.write(&mut self.w, &x)?;
        let (heads, positions) = (self.heads(c.decoder), Int::from(c.audio_positions));
        for layer in 0..c.decoder.layers {
            let path = format!("model.decoder.layers.{layer}.encoder_attn");
            let made = heads.keys_values(&mut self.w, &x, &positions, &path)?;
            for (buffer, value) in self.cross(layer, heads, c.audio_positions)?.iter().zip(&made) {
                self.w.b.store(buffer, value);
            }
        }
        self.w.b.finish(&[&x])
    }

    /// `input_ids` i64 [1, s], `cache_position` i64 [s] (consecutive) → the wanted output.
    fn decoder(mut self, wanted: Wanted) -> Result<Exported> {
        let c = self.c;
        let s = self.w.b.symbol("s0", 1, self.positions);
        let start = self.w.b.symbol("u0", 0, self.positions - 1);
        let ids = self.w.b.input("input_ids", DType::I64, vec![Expr::Int(1), s.clone()]);
        let places = self.w.b.input("cache_position", DType::I64, vec![s]);
        let mut x = self.begun(&ids, &places)?;
        let tokens = self.w.b.size(&ids, 1);
        let (_, pos) = self.w.b.first(&places, start);
        let place = TokenSpan { tokens, pos, cache: self.own_cache(), mask: None };
        let mut aligned = Vec::new();
        let last = c.alignment_heads.iter().map(|[layer, _]| *layer).max().filter(|_| wanted == Wanted::Alignment);
        for layer in 0..last.map_or(c.decoder.layers, |last| last + 1) {
            x = self.decoder_layer(&x, layer, &place, last.is_some().then_some(&mut aligned))?;
        }
        if let [first, others @ ..] = &aligned[..] {
            let others: Vec<&Val> = others.iter().collect();
            let shares = self.w.b.concatenate_all(first, &others, 1);
            return self.w.b.finish(&[&shares]);
        }
        let x = self.w.b.last_position(&x);
        let logits = self.ended(&x)?;
        self.w.b.finish(&[&logits])
    }

    /// Decodes branching texts in one cache. `input_ids` i64 [1, s], `text_position` i64 [s] (each
    /// token's position in its text), `cache_position` i64 [s] (consecutive cache rows), `seen`
    /// bool [s, rows] (visible rows) → logits [1, s, vocab].
    fn branches(mut self) -> Result<Exported> {
        let rows = self.positions + MOST_BRANCHES * (self.positions / 2);
        let [s, visible_rows] = [("s0", self.positions), ("s1", rows)].map(|(name, most)| self.w.b.symbol(name, 1, most));
        let start = self.w.b.symbol("u0", 0, rows - 1);
        let ids = self.w.b.input("input_ids", DType::I64, vec![Expr::Int(1), s.clone()]);
        let places = self.w.b.input("text_position", DType::I64, vec![s.clone()]);
        let cached = self.w.b.input("cache_position", DType::I64, vec![s.clone()]);
        let mask = self.w.b.input("seen", DType::Bool, vec![s, visible_rows]);
        let mut x = self.begun(&ids, &places)?;
        let tokens = self.w.b.size(&ids, 1);
        let (_, pos) = self.w.b.first(&cached, start);
        let cache = Cache { names: ["branch_key_cache", "branch_value_cache"], rows };
        let place = TokenSpan { tokens, pos, cache, mask: Some(mask) };
        for layer in 0..self.c.decoder.layers {
            x = self.decoder_layer(&x, layer, &place, None)?;
        }
        let logits = self.ended(&x)?;
        self.w.b.finish(&[&logits])
    }

    /// Input of the first layer [1, s, width] for tokens [1, s] at positions [s] of a text.
    fn begun(&mut self, ids: &Val, places: &Val) -> Result<Val> {
        let c = self.c;
        self.w.b.enter("model.decoder");
        let x = self.embedded(ids, c.vocab, c.width)?;
        let positions = self.w.plain("model.decoder.embed_positions.weight", &[c.text_positions, c.width])?;
        let positions = self.w.b.embedding(&positions, places);
        Ok(self.w.b.add(&x, &positions))
    }

    /// Logits [1, s, vocab] of the last layer's output [1, s, width].
    fn ended(&mut self, x: &Val) -> Result<Val> {
        let c = self.c;
        let x = self.w.layer_norm(x, "model.decoder.layer_norm", NORM_EPS)?;
        self.logits(&x, c.vocab, c.width, c.tied)
    }

    fn decoder_layer(&mut self, x: &Val, layer: usize, place: &TokenSpan, aligned: Option<&mut Vec<Val>>) -> Result<Val> {
        let tokens = &place.tokens;
        let (heads, path) = (self.heads(self.c.decoder), format!("model.decoder.layers.{layer}"));
        let x = self.self_attention(x, layer, place, &path)?;
        let normed = self.w.layer_norm(&x, &format!("{path}.encoder_attn_layer_norm"), NORM_EPS)?;
        let module = format!("{path}.encoder_attn");
        let q = heads.queries(&mut self.w, &normed, tokens, &module)?;
        let [k, v] = self.cross(layer, heads, self.c.audio_positions)?;
        self.w.b.enter(&module);
        if let Some(aligned) = aligned {
            for [_, head] in self.c.alignment_heads.iter().filter(|[of, _]| *of == layer) {
                aligned.push(self.shares(&q, &k, *head));
            }
        }
        let attended = self.w.b.attention_over_all([&q, &k, &v], None, heads.scale());
        let mixed = heads.output(&mut self.w, &attended, tokens, &module)?;
        let x = self.w.b.add(&x, &mixed);
        feed_forward(&mut self.w, &x, heads.width, self.c.decoder.feed_forward, &path)
    }

    fn self_attention(&mut self, x: &Val, layer: usize, place: &TokenSpan, path: &str) -> Result<Val> {
        let TokenSpan { tokens, pos, cache, mask } = place;
        let heads = self.heads(self.c.decoder);
        let normed = self.w.layer_norm(x, &format!("{path}.self_attn_layer_norm"), NORM_EPS)?;
        let module = format!("{path}.self_attn");
        let q = heads.queries(&mut self.w, &normed, tokens, &module)?;
        let [k, v] = heads.keys_values(&mut self.w, &normed, tokens, &module)?;
        self.w.b.enter(&module);
        let [keys, values] = self.cached(*cache, layer, heads, [&k, &v], pos)?;
        let attended = match mask {
            None => self.w.b.attention([&q, &keys, &values], pos, None, heads.scale()),
            Some(mask) => {
                let rows = self.w.b.size(mask, 1);
                let [keys, values] = [keys, values].map(|all| self.w.b.slice(&all, 2, &0.into(), &rows));
                self.w.b.attention_over_all([&q, &keys, &values], Some(mask), heads.scale())
            }
        };
        let mixed = heads.output(&mut self.w, &attended, tokens, &module)?;
        Ok(self.w.b.add(x, &mixed))
    }

    /// A head's attention weights over audio positions, f32 [1, 1, s, positions].
    fn shares(&mut self, q: &Val, k: &Val, head: usize) -> Val {
        let scale = self.heads(self.c.decoder).scale();
        let b = &mut self.w.b;
        let [q, k] = [q, k].map(|x| b.slice(x, 1, &head.into(), &(head + 1).into()));
        let k = b.transpose(&k, 2, 3);
        let scores = b.matmul(&q, &k);
        let scores = b.cast(&scores, DType::F32);
        let scores = b.scale(&scores, scale);
        b.softmax(&scores)
    }
}

/// Constant methods read by the runner.
fn metadata(c: &WhisperConfig, form: DecoderSettings) -> Vec<(String, MethodConstant)> {
    let t = &c.tokens;
    let (int, size) = (MethodConstant::Int, |v: usize| MethodConstant::Int(v as i64));
    let mut out = vec![
        ("get_model_type", MethodConstant::Text("whisper".into())),
        ("get_dtype", int(i64::from(form.dtype().code()))),
        ("get_audio_positions", size(c.audio_positions)),
        ("get_max_seq_len", size(form.positions)),
        ("get_vocab_size", size(c.vocab)),
        ("get_start_of_transcript_id", int(t.start)),
        ("get_start_of_previous_id", int(t.previous)),
        ("get_no_speech_id", int(t.no_speech)),
        ("get_no_timestamps_id", int(t.no_timestamps)),
        ("get_max_initial_timestamp_index", size(t.last_initial_timestamp)),
        ("get_eos_ids", MethodConstant::Ints(vec![t.end])),
    ];
    out.extend(t.translate.map(|id| ("get_translate_id", int(id))));
    out.extend(t.transcribe.map(|id| ("get_transcribe_id", int(id))));
    let languages: Vec<&str> = t.languages.iter().map(|(code, _)| code.as_str()).collect();
    let lists = [
        ("get_language_ids", t.languages.iter().map(|(_, id)| *id).collect()),
        ("get_suppress_ids", t.suppressed.clone()),
        ("get_begin_suppress_ids", t.suppressed_at_begin.clone()),
    ];
    out.extend(lists.into_iter().filter(|(_, ids)| !ids.is_empty()).map(|(name, ids)| (name, MethodConstant::Ints(ids))));
    if !languages.is_empty() {
        out.push(("get_languages", MethodConstant::Text(languages.join(" "))));
    }
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(spectrogram_facts(c.mels)).collect()
}
