//! Linear layers: several weights over one input, each with an epilogue that runs while its product
//! is still in cache.

use smallvec::SmallVec;

use crate::{
    Error, Float, FloatView, Pool, View, ViewMut,
    convert::FloatPtr,
    error::same,
    gemm::{self, Dense, Job, Operand, RawEpilogue},
    math::Unary,
    quant::QMatrix,
};

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
    /// `[N, K]`, like the layer's own weight. With f16 activations, pack both or neither: many rows
    /// are multiplied in bf16 if both are packed, but in `f32` if only one is.
    pub weight: Weight<'a>,
    /// Added to the gate's product; broadcasts to `[M, N]`.
    pub bias: Option<FloatView<'a>>,
    /// Applied to the gate.
    pub activation: Unary,
}

/// The residual, added last.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// The output's previous contents.
    Out,
    /// Broadcasts to `[M, N]`.
    View(FloatView<'a>),
}

/// The steps after a product, in this order: `residual + gate · activation(product + bias)`, each
/// optional.
///
/// Each step rounds to the type of the output, so a layer is bit-identical to its separate steps.
/// Product and bias are one step.
#[derive(Clone, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to the product in `f32`; broadcasts to `[M, N]`.
    pub bias: Option<FloatView<'a>>,
    /// Applied after the bias.
    pub activation: Option<Unary>,
    /// A factor that is a product of the same input:
    /// `gate.activation(x · gate.weightᵀ + gate.bias)`.
    pub gate: Option<Gate<'a>>,
    /// Added at the end.
    pub residual: Residual<'a>,
}

/// One output of an input `x` `[M, K]`.
#[derive(Debug)]
pub struct Layer<'a, Y> {
    /// `[N, K]`
    pub weight: Weight<'a>,
    /// Operations on `x · weightᵀ` before it is stored.
    pub epilogue: Epilogue<'a>,
    /// `[M, N]`, any strides.
    pub out: ViewMut<'a, Y>,
}

/// Computes all layers of one input `x` `[M, K]`, which is read and prepared once.
///
/// # Errors
/// [`Error::Size`] or [`Error::Broadcast`] if an operand does not fit; then no output is written.
pub fn layers<X: Float, Y: Float>(pool: &Pool, x: &View<X>, layers: &mut [Layer<'_, Y>]) -> Result<(), Error> {
    let size = size(x)?;
    let mut jobs: SmallVec<[Job; 4]> = SmallVec::new();
    for layer in layers.iter_mut() {
        jobs.push(layer.job(size)?);
    }
    // SAFETY: the views are inside their data and borrowed until the end; sizes are checked above.
    unsafe { gemm::linear(&mut pool.team(), size, &dense(x), &jobs) };
    Ok(())
}

/// [`layers`] for each of several inputs. `layers` lists the first input's layers first, and each
/// input has the same number. Results are bit-identical to separate calls. If inputs of few rows
/// share weights, a weight is read once for up to eight rows.
///
/// # Errors
/// As [`layers`], and if the number of layers is not a multiple of the number of inputs. Then no
/// output is written.
pub fn layers_of_each<X: Float, Y: Float>(pool: &Pool, xs: &[View<X>], layers: &mut [Layer<'_, Y>]) -> Result<(), Error> {
    let each = layers.len() / xs.len().max(1);
    same("layers of several inputs", each * xs.len(), layers.len())?;
    if each == 0 {
        return Ok(());
    }
    let mut jobs: Vec<Job> = Vec::with_capacity(layers.len());
    for (x, layers) in xs.iter().zip(layers.chunks_mut(each)) {
        let size = size(x)?;
        for layer in layers {
            jobs.push(layer.job(size)?);
        }
    }
    let input = |(x, jobs)| gemm::Input { m: View::shape(x)[0], x: dense(x), jobs };
    let inputs: SmallVec<[gemm::Input; 8]> = xs.iter().zip(jobs.chunks(each)).map(input).collect();
    let mut start = 0;
    while let Some(first) = inputs.get(start) {
        let k = xs[start].shape()[1];
        let is_like = |(input, x): &(&gemm::Input, &View<X>)| x.shape()[1] == k && have_same_weights(first.jobs, input.jobs);
        let end = start + inputs.iter().zip(xs).skip(start).take_while(is_like).count().max(1);
        // SAFETY: the views are inside their data and borrowed until the end; sizes are checked
        // above.
        unsafe { gemm::linear_of_each(&mut pool.team(), k, &inputs[start..end]) };
        start = end;
    }
    Ok(())
}

/// `[M, K]` of an input.
fn size<X>(x: &View<X>) -> Result<[usize; 2], Error> {
    same("rank of a linear layer's input", 2, x.rank())?;
    Ok([x.shape()[0], x.shape()[1]])
}

fn dense<X: Float>(x: &View<X>) -> Dense {
    // SAFETY: the view is inside its data.
    unsafe { Dense::new(FloatPtr::reading(x.origin()), [x.strides()[0], x.strides()[1]]) }
}

/// Whether all operands are the same memory, seen alike.
fn have_same_weights(a: &[Job], b: &[Job]) -> bool {
    let is_same = |(a, b): (&Job, &Job)| {
        let gates = match (&a.gate, &b.gate) {
            (Some(a), Some(b)) => a.is_same(b),
            (None, None) => true,
            _ => false,
        };
        gates && a.rows == b.rows && a.operand.is_same(&b.operand)
    };
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}

impl<'a> Weight<'a> {
    fn operand(&self) -> Operand<'a> {
        match self {
            Weight::Codes(w) => Operand::Codes(*w),
            // SAFETY: the view is inside its data, borrowed for `'a`.
            Weight::Float(w) => Operand::Dense(unsafe { Dense::new(w.origin(), [w.strides()[0], w.strides()[1]]) }),
        }
    }
}

impl<'a, Y: Float> Layer<'a, Y> {
    /// Checks all operands against an input `[m, k]`.
    fn job(&mut self, [m, k]: [usize; 2]) -> Result<Job<'a>, Error> {
        let [n, depth] = self.weight.size()?;
        same("depth of a linear weight", k, depth)?;
        same("rank of a linear layer's output", 2, self.out.shape().len())?;
        same("rows of a linear layer's output", m, self.out.shape()[0])?;
        same("columns of a linear layer's output", n, self.out.shape()[1])?;
        let step = [self.out.strides()[0], self.out.strides()[1]];
        let mut epilogue = RawEpilogue::plain(FloatPtr::of(self.out.origin()), step);
        epilogue.bias = broadcast(self.epilogue.bias.as_ref(), [m, n])?;
        epilogue.activation = self.epilogue.activation;
        if let Some(Gate { weight, bias, activation }) = &self.epilogue.gate {
            let [gate_n, gate_k] = weight.size()?;
            same("rows of a gate's weight", n, gate_n)?;
            same("depth of a gate's weight", k, gate_k)?;
            epilogue.gate = Some((*activation, broadcast(bias.as_ref(), [m, n])?));
        }
        epilogue.residual = match &self.epilogue.residual {
            Residual::None => None,
            Residual::Out => Some(epilogue.out),
            Residual::View(view) => broadcast(Some(view), [m, n])?,
        };
        let gate = self.epilogue.gate.as_ref().map(|g| g.weight.operand());
        Ok(Job { rows: n, operand: self.weight.operand(), gate, epilogue, transposed: true })
    }
}

/// An operand broadcast to the output.
fn broadcast(view: Option<&FloatView>, shape: [usize; 2]) -> Result<Option<Dense>, Error> {
    let Some(view) = view else { return Ok(None) };
    let view = view.broadcast_to(&shape)?;
    // SAFETY: offset 0 is inside any non-empty view, and an empty view is never read.
    Ok(Some(unsafe { Dense::of(&view, 0) }))
}

#[cfg(test)]
mod tests;
