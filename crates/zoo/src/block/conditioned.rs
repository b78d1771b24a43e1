//! Norms whose weights depend on one number given to the whole model.

use flambeau_tensor::Tensor;

use super::Decoder;
use crate::{Error, Result, builder::Val, spec::Conditioned};

impl Decoder<'_> {
    /// The norm `name` of a layer. All factors of its weights are constants, so they cost nothing
    /// at run time.
    pub(super) fn conditioned_norm(&mut self, x: &Val, layer: &str, name: &str, c: &Conditioned) -> Result<Val> {
        let hidden = self.config.hidden;
        let (path, module) = (format!("{layer}.{name}"), format!("{layer}.{}", c.module));
        self.w.b.enter(&module);
        let told = self.w.b.constant("condition", &waves(c, hidden)?);
        let first = format!("{module}.linear1.weight");
        let inner = self.w.tensors().get(&first).and_then(|weight| weight.shape().first().copied());
        let inner = inner.ok_or_else(|| Error::MissingTensor(first.clone()))?;
        let narrow = self.w.wide(&first, &[inner, hidden])?;
        let narrow = self.dot(&narrow, &told, inner);
        let narrow = self.w.b.gelu(&narrow, false);
        let wide = self.w.wide(&format!("{module}.linear2.weight"), &[hidden, inner])?;
        let factors = self.dot(&wide, &narrow, hidden);
        let factors = self.w.b.shift(&factors, 1.0);
        self.w.b.enter(&path);
        let weight = self.w.wide(&format!("{path}.weight"), &[hidden])?;
        let weight = self.w.b.mul(&weight, &factors);
        let weight = self.w.b.cast(&weight, self.settings.dtype);
        Ok(self.w.b.rms_norm(x, Some(&weight), self.config.norm.eps))
    }

    /// `matrix` [rows, n] times `vector` [n], as [rows]. It is not a linear layer, so no quantizer
    /// selects it.
    fn dot(&mut self, matrix: &Val, vector: &Val, rows: usize) -> Val {
        let products = self.w.b.mul(matrix, vector);
        let sums = self.w.b.sum(&products);
        self.w.b.reshape(&sums, &[rows.into()])
    }
}

/// Cosines, then sines, of the number at decreasing frequencies, f32 [hidden].
fn waves(c: &Conditioned, hidden: usize) -> Result<Tensor> {
    let half = hidden / 2;
    let angle = |i: usize| c.value * (-c.base.ln() * i as f64 / half as f64).exp();
    let waves: Vec<f32> = (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).map(|w| w as f32).collect();
    let found = hidden.to_string();
    Tensor::from_slice(&waves, &[hidden]).map_err(|_| Error::key("hidden_size", "an even number", found))
}
