//! Linear layers: several weights over one input, and what follows each product done while it is at hand.

mod finish;

use flambeau_tensor::Shape;

use crate::{
    Error, Float, FloatView, Pool, View, ViewMut,
    convert::FloatPtr,
    error::same,
    gemm::{Dense, dense_linear},
    math::Unary,
    quant::{self, QMatrix},
};
use finish::Finish;

/// A weight matrix `[N, K]`, used transposed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Weight<'a> {
    /// Floats of any strides; fastest where K is contiguous.
    Float(FloatView<'a>),
    /// Packed codes.
    Codes(QMatrix<'a>),
}

impl Weight<'_> {
    /// `[N, K]`
    fn size(&self) -> Result<[usize; 2], Error> {
        match self {
            Weight::Codes(w) => Ok([w.rows(), w.cols()]),
            Weight::Float(w) => match *w.shape() {
                [n, k] => Ok([n, k]),
                _ => Err(Error::Size { what: "rank of a linear weight", expected: 2, found: w.shape().len() }),
            },
        }
    }
}

/// The second product of a gated layer.
#[derive(Clone, Debug)]
pub struct Gate<'a> {
    /// `[N, K]`, as the layer's own.
    pub weight: Weight<'a>,
    /// Added to the gate's product; broadcasts to `[M, N]`.
    pub bias: Option<FloatView<'a>>,
    /// Applied to the gate.
    pub activation: Unary,
}

/// What is added at the end.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// What the output held before.
    Out,
    /// Broadcasts to `[M, N]`.
    View(FloatView<'a>),
}

/// The steps after a product, in this order: `residual + gate · activation(product + bias)`, each optional.
///
/// Each step is rounded to the type of the output, so that a layer has the bits of its steps done one by one; product and bias
/// are one step.
#[derive(Clone, Debug, Default)]
pub struct After<'a> {
    /// Added to the product in `f32`; broadcasts to `[M, N]`.
    pub bias: Option<FloatView<'a>>,
    /// Applied after the bias.
    pub activation: Option<Unary>,
    /// A factor that is a product of the same input: `gate.activation(x · gate.weightᵀ + gate.bias)`.
    pub gate: Option<Gate<'a>>,
    /// Added at the end.
    pub residual: Residual<'a>,
}

/// One output of an input `x` `[M, K]`.
#[derive(Debug)]
pub struct Layer<'a, Y> {
    /// `[N, K]`
    pub weight: Weight<'a>,
    /// What happens to `x · weightᵀ`.
    pub after: After<'a>,
    /// `[M, N]`, any strides.
    pub out: ViewMut<'a, Y>,
}

/// Computes all layers of one input `x` `[M, K]`, which is read and prepared once.
///
/// # Errors
/// [`Error::Size`] or [`Error::Broadcast`] if an operand does not fit; then no output is written.
pub fn layers<X: Float, Y: Float>(pool: &Pool, x: &View<X>, layers: &mut [Layer<'_, Y>]) -> Result<(), Error> {
    same("rank of a linear layer's input", 2, x.rank())?;
    let [m, k] = [x.shape()[0], x.shape()[1]];
    let finishes = layers.iter_mut().map(|layer| Finish::new(layer, [m, k])).collect::<Result<Vec<_>, _>>()?;
    let dense: Vec<X> = if x.as_slice().is_none() { gather(x) } else { Vec::new() };
    let x = x.as_slice().unwrap_or(&dense);
    for (layer, mut finish) in layers.iter().zip(finishes) {
        if finish.is_empty() {
            continue;
        }
        let mut gate = Vec::new();
        if let Some(Gate { weight, activation, .. }) = &layer.after.gate {
            gate = vec![Y::from_f32(0.0); finish.len()];
            let part = finish.gate_part(*activation, FloatPtr::of(gate.as_mut_ptr()));
            product(pool, x, [m, k], weight, &part);
            finish.gate = Some(FloatPtr::reading(gate.as_ptr()));
        }
        product(pool, x, [m, k], &layer.weight, &finish);
        drop(gate);
    }
    Ok(())
}

fn gather<X: Float>(x: &View<X>) -> Vec<X> {
    let [m, k] = [x.shape()[0], x.shape()[1]];
    (0..m * k).filter_map(|i| x.get(&[i / k, i % k]).copied()).collect()
}

fn product<X: Float>(pool: &Pool, x: &[X], [m, k]: [usize; 2], weight: &Weight, to: &Finish) {
    let x = FloatPtr::reading(x.as_ptr());
    match weight {
        Weight::Codes(w) => quant::product(pool, x, w, m, to),
        Weight::Float(w) => {
            let (n, step) = (w.shape()[0], w.strides());
            // SAFETY: `x` is `[m, k]`, and the weight's view is inside its data.
            let (a, b) = unsafe { (Dense::new(x, [k as isize, 1]), Dense::new(w.origin(), [step[1], step[0]])) };
            dense_linear(pool, [m, n, k], &a, &b, to);
        }
    }
}

/// A view's sizes as a shape.
fn full(m: usize, n: usize) -> Shape {
    Shape::from_slice(&[m, n])
}

#[cfg(test)]
mod tests;
