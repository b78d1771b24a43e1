//! Embeddings of each token for each layer.

use super::Decoder;
use crate::{
    Result,
    builder::{Int, Val},
    spec::PerLayer,
};

impl Decoder<'_> {
    /// Inputs of all layers [1, s, layers·width]: the mean of table rows and a projection of the
    /// embedding `x`, times the square root of 2.
    pub(super) fn per_layer_inputs(&mut self, p: &PerLayer, ids: &Val, x: &Val) -> Result<Val> {
        let layers = self.config.layers.len();
        let (width, hidden) = (layers * p.width, self.config.hidden as f64);
        let path = "model.embed_tokens_per_layer";
        self.w.b.enter(path);
        let name = format!("{path}.weight");
        let table = self.w.matrix(&name, &self.w.source(&name, &[p.vocab, width])?)?;
        let ids = if p.vocab < self.config.vocab { &self.known_ids(ids, p.vocab) } else { ids };
        let entries = self.w.b.embedding(&table, ids);
        let entries = self.w.b.scale(&entries, (p.width as f64).sqrt());
        let projected = self.w.linear(x, "model.per_layer_model_projection", width, false)?;
        let projected = self.w.b.scale(&projected, hidden.sqrt().recip());
        let sizes = [Int::from(1), self.span.tokens.clone(), layers.into(), p.width.into()];
        let projected = self.w.b.reshape(&projected, &sizes);
        let projected = self.norm(&projected, "model.per_layer_projection_norm")?;
        let projected = self.joined_heads(&projected, width);
        let sum = self.w.b.add(&projected, &entries);
        Ok(self.w.b.scale(&sum, 0.5f64.sqrt()))
    }

    /// The ids below `vocab`, and 0 in place of others.
    fn known_ids(&mut self, ids: &Val, vocab: usize) -> Val {
        let unknown = self.w.b.at_least(ids, vocab as i64);
        self.w.b.masked_fill(ids, &unknown, 0.0)
    }

    /// A layer's function of `x` and of its part of the inputs.
    pub(super) fn per_layer_part(&mut self, x: &Val, inputs: &Val, layer: usize, p: &PerLayer, path: &str) -> Result<Val> {
        let gate = self.w.linear(x, &format!("{path}.per_layer_input_gate"), p.width, false)?;
        self.w.b.enter(path);
        let gate = self.activated(&gate, p.activation);
        let own = self.w.b.slice(inputs, 2, &(layer * p.width).into(), &((layer + 1) * p.width).into());
        let gated = self.w.b.mul(&gate, &own);
        let made = self.w.linear(&gated, &format!("{path}.per_layer_projection"), self.config.hidden, false)?;
        self.norm(&made, &format!("{path}.post_per_layer_input_norm"))
    }
}
