//! Decoders with cross-attention to an audio encoder: Whisper's and Moonshine's.

use flambeau_tensor::DType;

use super::Heads;
use crate::{
    Checkpoint, Options, Result,
    builder::{Int, Val},
    options::{self, Precision, float_caches},
    writer::Writer,
};

pub(crate) const EMBEDDING: &str = "model.decoder.embed_tokens.weight";
const HEAD: &str = "proj_out.weight";

/// Settings shared by all methods of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecoderSettings {
    precision: Precision,
    /// Rows of the decoder's own caches.
    pub(super) positions: usize,
}

impl DecoderSettings {
    /// Settings by the options, for a decoder trained on `trained` tokens.
    pub(super) fn new(checkpoint: &Checkpoint, options: &Options, family: &str, trained: usize) -> Result<DecoderSettings> {
        let precision = Precision::new(checkpoint, options)?;
        float_caches(options, &format!("{family}'s caches have no other form"))?;
        let positions = options::ranged("max_seq_len", options.max_seq_len.unwrap_or(trained), trained)?;
        Ok(DecoderSettings { precision, positions })
    }

    /// Type of activations and caches.
    pub(super) fn dtype(self) -> DType {
        self.precision.dtype
    }

    /// Settings of a method.
    pub(super) fn parts<'a, C>(self, checkpoint: &'a Checkpoint, c: &'a C) -> MethodWriter<'a, C> {
        let Precision { dtype, scales } = self.precision;
        MethodWriter { w: Writer::new(checkpoint, dtype, scales), c, dtype, positions: self.positions }
    }
}

/// Buffers of keys and of values in every layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    pub(super) names: [&'static str; 2],
    pub(super) rows: usize,
}

/// Settings of every method.
pub(super) struct MethodWriter<'a, C> {
    pub(super) w: Writer<'a>,
    pub(super) c: &'a C,
    pub(super) dtype: DType,
    /// Rows of the decoder's own caches.
    pub(super) positions: usize,
}

impl<C> MethodWriter<'_, C> {
    /// Keys and values of cross-attention in a layer [1, heads, positions, dim], which methods
    /// share as state.
    pub(super) fn cross(&mut self, layer: usize, heads: Heads, positions: usize) -> Result<[Val; 2]> {
        self.layer_buffers(["cross_key", "cross_value"], layer, heads, positions)
    }

    /// Writes new keys and values [1, heads, s, dim] of a layer into a cache from row `pos` on.
    /// Returns all [1, heads, rows, dim].
    pub(super) fn cached(&mut self, cache: Cache, layer: usize, heads: Heads, made: [&Val; 2], pos: &Int) -> Result<[Val; 2]> {
        let caches = self.layer_buffers(cache.names, layer, heads, cache.rows)?;
        for (cache, new) in caches.iter().zip(made) {
            self.w.b.cache_update(cache, new, pos);
        }
        Ok(caches)
    }

    /// The decoder's self-attention cache of one text.
    pub(super) fn own_cache(&self) -> Cache {
        Cache { names: ["key_cache", "value_cache"], rows: self.positions }
    }

    fn layer_buffers(&mut self, names: [&str; 2], layer: usize, heads: Heads, rows: usize) -> Result<[Val; 2]> {
        let shape = vec![1, heads.count, rows, heads.dim()];
        let mut buffer = |name: &str| self.w.b.buffer(&format!("{name}_{layer}"), self.dtype, shape.clone());
        let [keys, values] = names;
        Ok([buffer(keys)?, buffer(values)?])
    }

    /// The embeddings [1, s, width] of tokens [1, s].
    pub(super) fn embedded(&mut self, ids: &Val, vocab: usize, width: usize) -> Result<Val> {
        let table = self.table(EMBEDDING, vocab, width)?;
        Ok(self.w.b.embedding(&table, ids))
    }

    /// Logits [1, s, vocab] of hidden states [1, s, width], by the embedding's weights if they are
    /// tied or the checkpoint has no head.
    pub(super) fn logits(&mut self, x: &Val, vocab: usize, width: usize, tied: bool) -> Result<Val> {
        self.w.b.enter("proj_out");
        let name = if tied || !self.w.has(HEAD) { EMBEDDING } else { HEAD };
        let head = self.table(name, vocab, width)?;
        Ok(self.w.b.linear(x, &head, None))
    }

    fn table(&mut self, name: &str, vocab: usize, width: usize) -> Result<Val> {
        let source = self.w.source(name, &[vocab, width])?;
        self.w.matrix(name, &source)
    }
}
