//! Linear layers of one input, as a step computes them from its operands.

use flambeau_kernels::{
    Pool,
    linear::{Epilogue, Gate, Layer, Residual, Weight, layers},
    math::Unary,
    quant::Format,
};
use flambeau_tensor::DType;
use smallvec::SmallVec;

use crate::{
    array::Array,
    error::Result,
    ops::{float_dtype, linalg::float_view, quantized::matrix},
};

/// How a weight is stored; its operands follow one another.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightStorage {
    /// `[N, K]`
    Float,
    /// Words, scales and, if `true`, biases.
    Codes(Format, bool),
}

/// Where a product's operands stand among those of a call.
#[derive(Debug)]
pub(super) struct ProductArgs {
    pub(super) storage: WeightStorage,
    pub(super) weight: usize,
    pub(super) bias: Option<usize>,
}

/// Where a layer's operands stand among those of a call, and what it does with them.
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
}

impl LayerArgs {
    fn epilogue<'a>(&self, ins: &'a [Array]) -> Result<Epilogue<'a>> {
        let view = |at: Option<usize>| at.map(|at| float_view(&ins[at])).transpose();
        let gate = match &self.gate {
            Some((at, activation)) => Some(Gate { weight: at.weight(ins)?, bias: view(at.bias)?, activation: *activation }),
            None => None,
        };
        let residual = view(self.residual)?.map_or(Residual::None, Residual::View);
        Ok(Epilogue { bias: view(self.product.bias)?, activation: self.activation, gate, residual })
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
                all.push(Layer { weight: layer.product.weight(ins)?, epilogue: layer.epilogue(ins)?, out: out.view_mut()? });
            }
            float_dtype!(ins[0].dtype, X => Ok(layers::<X, Y>(pool, &ins[0].view()?, &mut all)?))
        })
    }
}
