//! Linear layers of one input, as a step computes them from its operands.

use flambeau_kernels::{
    Float, Pool, View,
    linear::{Epilogue, Gate, Layer, Residual, Weight, layers, layers_of_each},
    math::Unary,
    quant::Format,
};
use flambeau_tensor::{DType, Element};
use smallvec::SmallVec;

use crate::{
    array::Array,
    error::Result,
    ops::{float_dtype, linalg::float_view, quantized::matrix},
};

/// Storage format of a weight; its operands follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightStorage {
    /// `[N, K]`
    Float,
    /// Words, scales and, if `true`, biases.
    Codes(Format, bool),
}

/// Positions of a product's operands among the call's operands.
#[derive(Debug)]
pub(super) struct ProductArgs {
    pub(super) storage: WeightStorage,
    pub(super) weight: usize,
    pub(super) bias: Option<usize>,
}

/// Positions of a layer's operands among the call's operands, and the layer's operations.
#[derive(Debug)]
pub(super) struct LayerArgs {
    pub(super) product: ProductArgs,
    pub(super) activation: Option<Unary>,
    pub(super) gate: Option<(ProductArgs, Unary)>,
    pub(super) residual: Option<usize>,
}

/// Layers of a call's first operand, with results of one type.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) args: Vec<LayerArgs>,
    pub(super) dtype: DType,
}

impl ProductArgs {
    fn weight<'a>(&self, ins: &'a [Array]) -> Result<Weight<'a>> {
        let w = &ins[self.weight..];
        Ok(match self.storage {
            WeightStorage::Float => Weight::Float(float_view(&w[0])?),
            WeightStorage::Codes(format, has_biases) => Weight::Codes(matrix(format, [&w[0], &w[1]], has_biases.then(|| &w[2]))?),
        })
    }

    /// Whether two calls use the same memory for the weight.
    fn is_same(&self, ins: &[Array], others: &[Array]) -> bool {
        let count = match self.storage {
            WeightStorage::Float => 1,
            WeightStorage::Codes(_, has_biases) => 2 + usize::from(has_biases),
        };
        let range = self.weight..self.weight + count;
        ins[range.clone()].iter().zip(&others[range]).all(|(a, b)| a.is_same(b))
    }
}

impl LayerArgs {
    /// The layer of a call on these operands.
    fn bound<'a, Y: Float + Element>(&self, ins: &'a [Array], out: &'a mut Array) -> Result<Layer<'a, Y>> {
        let gate = self.gate.as_ref().map(|(gate, _)| gate.weight(ins)).transpose()?;
        self.with_weights(self.product.weight(ins)?, gate, ins, out)
    }

    /// Like [`bound`](Self::bound), but reuses the checked weights of another call's layer if they
    /// are the same memory. Comparing is faster than checking again.
    fn bound_like<'a, Y: Float + Element>(
        &self,
        (other, others): (&Layer<'a, Y>, &[Array]),
        ins: &'a [Array],
        out: &'a mut Array,
    ) -> Result<Layer<'a, Y>> {
        let mut products = std::iter::once(&self.product).chain(self.gate.as_ref().map(|(gate, _)| gate));
        if !products.all(|product| product.is_same(ins, others)) {
            return self.bound(ins, out);
        }
        let gate = other.epilogue.gate.as_ref().map(|gate| gate.weight.clone());
        self.with_weights(other.weight.clone(), gate, ins, out)
    }

    fn with_weights<'a, Y: Float + Element>(
        &self,
        weight: Weight<'a>,
        gate: Option<Weight<'a>>,
        ins: &'a [Array],
        out: &'a mut Array,
    ) -> Result<Layer<'a, Y>> {
        let view = |at: Option<usize>| at.map(|at| float_view(&ins[at])).transpose();
        let gate = match (&self.gate, gate) {
            (Some((gate, activation)), Some(weight)) => Some(Gate { weight, bias: view(gate.bias)?, activation: *activation }),
            _ => None,
        };
        let residual = view(self.residual)?.map_or(Residual::None, Residual::View);
        let epilogue = Epilogue { bias: view(self.product.bias)?, activation: self.activation, gate, residual };
        Ok(Layer { weight, epilogue, out: out.view_mut()? })
    }
}

impl Layers {
    /// Computes them.
    ///
    /// # Errors
    /// If an operand does not fit.
    pub(super) fn run(&self, pool: &Pool, ins: &[Array], outs: &mut [Array]) -> Result<()> {
        float_dtype!(self.dtype, Y => {
            let mut all: SmallVec<[Layer<'_, Y>; 3]> = SmallVec::new();
            for (layer, out) in self.args.iter().zip(outs) {
                all.push(layer.bound(ins, out)?);
            }
            float_dtype!(ins[0].dtype, X => Ok(layers::<X, Y>(pool, &ins[0].view()?, &mut all)?))
        })
    }
}

/// Layers of a run with their operands and their allocated results.
#[derive(Debug)]
pub(crate) struct LayersCall<'a> {
    pub(super) layers: &'a Layers,
    pub(super) ins: &'a [Array],
    pub(super) outs: &'a mut [Array],
}

impl LayersCall<'_> {
    /// Computes the layers of this run alone.
    ///
    /// # Errors
    /// If an operand does not fit.
    pub(crate) fn run(&mut self, pool: &Pool) -> Result<()> {
        self.layers.run(pool, self.ins, self.outs)
    }

    /// Computes the layers of several runs of one graph, bit-identical to separate runs.
    ///
    /// # Errors
    /// If an operand of any does not fit; then none has its results.
    pub(crate) fn run_each(pool: &Pool, calls: &mut [LayersCall<'_>]) -> Result<()> {
        let Some(&LayersCall { layers, ins: first, .. }) = calls.first() else { return Ok(()) };
        float_dtype!(layers.dtype, Y => float_dtype!(first[0].dtype, X => {
            let mut xs: SmallVec<[View<'_, X>; 8]> = SmallVec::new();
            let mut all: Vec<Layer<'_, Y>> = Vec::with_capacity(calls.len() * layers.args.len());
            for LayersCall { layers, ins, outs } in calls {
                xs.push(ins[0].view()?);
                for (i, (layer, out)) in layers.args.iter().zip(outs.iter_mut()).enumerate() {
                    all.push(match all.get(i) {
                        Some(known) if xs.len() > 1 => layer.bound_like((known, first), ins, out)?,
                        _ => layer.bound(ins, out)?,
                    });
                }
            }
            Ok(layers_of_each(pool, &xs, &mut all)?)
        }))
    }
}
