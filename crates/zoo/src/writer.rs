//! Writes modules with weights from a checkpoint, found by module name.

mod adapters;
mod experts;

use flambeau_tensor::DType;
use indexmap::IndexMap;

use self::adapters::Adapters;
pub(crate) use self::adapters::Begun;
use crate::{
    Checkpoint, CheckpointTensor, Error, Result,
    builder::{Builder, Val},
    source::Read,
    spec::{Norm, NormKind},
};

/// A program under construction, and the source of its weights.
pub(crate) struct Writer<'a> {
    checkpoint: &'a Checkpoint,
    /// Type of the activations.
    dtype: DType,
    /// Type of the scales of packed weights. `None` means the exact type.
    scales: Option<DType>,
    /// The adapters at run time, if there are some.
    adapters: Option<Adapters>,
    pub(crate) b: Builder,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, dtype: DType, scales: Option<DType>) -> Writer<'a> {
        Writer { checkpoint, dtype, scales, adapters: None, b: Builder::default() }
    }

    /// The tensor with this name, which must have this shape.
    pub(crate) fn source(&self, name: &str, shape: &[usize]) -> Result<CheckpointTensor> {
        let source = self.tensors().get(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        if source.shape() != shape {
            return Err(Error::tensor(name, format!("shape {shape:?}"), format!("{:?}", source.shape())));
        }
        Ok(source.clone())
    }

    /// All tensors of the checkpoint.
    pub(crate) fn tensors(&self) -> &'a IndexMap<String, CheckpointTensor> {
        self.checkpoint.tensors()
    }

    /// Whether the checkpoint has a tensor with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors().contains_key(name)
    }

    /// Rows `from..from + n` of a joined matrix `[rows, cols]`.
    pub(crate) fn part(&self, name: &str, shape: [usize; 2], from: usize, n: usize) -> Result<CheckpointTensor> {
        let whole = self.source(name, &shape)?;
        whole.slice(from, n).ok_or_else(|| Error::tensor(name, "rows in plain order", "interleaved ones"))
    }

    /// A weight with matrices. A packed weight is dequantized by one call per use, as in captured
    /// programs.
    pub(crate) fn matrix(&mut self, name: &str, source: &CheckpointTensor) -> Result<Val> {
        Ok(match source.read(name, self.dtype, self.scales)? {
            Read::Plain(weight) => self.b.parameter(name, weight),
            Read::Packed(packed) => {
                let words = self.b.parameter(&format!("{name}.words"), packed.words);
                let scales = self.b.parameter(&format!("{name}.scales"), packed.scales);
                let biases = packed.biases.map(|biases| self.b.parameter(&format!("{name}.biases"), biases));
                self.b.dequantize([&words, &scales], biases.as_ref(), packed.codes, self.dtype)
            }
        })
    }

    /// An unpacked weight of the given tensor, in the type of the activations.
    pub(crate) fn value_of(&mut self, name: &str, source: &CheckpointTensor) -> Result<Val> {
        self.value_in(name, source, self.dtype)
    }

    /// An unpacked weight of the given tensor in a float type.
    fn value_in(&mut self, name: &str, source: &CheckpointTensor, dtype: DType) -> Result<Val> {
        match source.read(name, dtype, None)? {
            Read::Plain(weight) => Ok(self.b.parameter(name, weight)),
            Read::Packed(_) => Err(Error::tensor(name, "floats", "a quantized tensor")),
        }
    }

    /// A weight that is never packed, in the type of the activations.
    pub(crate) fn plain(&mut self, name: &str, shape: &[usize]) -> Result<Val> {
        self.value_in(name, &self.source(name, shape)?, self.dtype)
    }

    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Val> {
        self.plain(name, &[len])
    }

    /// A weight that is never packed, in f32.
    pub(crate) fn wide(&mut self, name: &str, shape: &[usize]) -> Result<Val> {
        self.value_in(name, &self.source(name, shape)?, DType::F32)
    }

    /// A vector in f32. Its tensor may have additional axes of size 1.
    pub(crate) fn wide_vector(&mut self, name: &str, len: usize) -> Result<Val> {
        let source = self.vector_of(name, len)?;
        self.value_in(name, &source, DType::F32)
    }

    /// Exponentials of a vector that may have further axes of size 1, in f32.
    pub(crate) fn exponentials(&mut self, name: &str, len: usize) -> Result<Val> {
        let source = self.vector_of(name, len)?;
        let negated = source.to_negated_exponential();
        let weight = source.mapped(name, move |value| -negated(value))?;
        Ok(self.b.parameter(name, weight))
    }

    /// A tensor of `len` elements along one axis, without other axes.
    fn vector_of(&self, name: &str, len: usize) -> Result<CheckpointTensor> {
        let source = self.tensors().get(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        let is_vector = source.shape().iter().filter(|&&size| size != 1).eq([len].iter().filter(|&&size| size != 1));
        if is_vector { Ok(source.clone().with_shape(vec![len])) } else { self.source(name, &[len]) }
    }

    /// A vector with `f` applied to each element, in f32.
    pub(crate) fn mapped_vector(&mut self, name: &str, len: usize, f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Result<Val> {
        self.mapped(name, &[len], f)
    }

    /// A tensor with `f` applied to each element, in f32.
    pub(crate) fn mapped(&mut self, name: &str, shape: &[usize], f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Result<Val> {
        let weight = self.source(name, shape)?.mapped(name, f)?;
        Ok(self.b.parameter(name, weight))
    }

    /// The norm of module `path` over the last axis of `x`.
    pub(crate) fn norm(&mut self, x: &Val, path: &str, norm: Norm) -> Result<Val> {
        self.b.enter(path);
        let (name, len) = (format!("{path}.weight"), x.dim(x.dims.len() - 1));
        Ok(match norm.kind {
            NormKind::Rms => {
                let weight = self.vector(&name, len)?;
                self.b.rms_norm(x, Some(&weight), norm.eps)
            }
            NormKind::RmsPlusOne => {
                let weight = self.plus_one(&name, len)?;
                self.b.rms_norm(x, Some(&weight), norm.eps)
            }
            NormKind::RmsPlain => self.b.rms_norm(x, None, norm.eps),
            NormKind::Layer { bias: true } => self.layer_norm(x, path, norm.eps)?,
            NormKind::Layer { bias: false } => self.scaled_layer_norm(x, path, norm.eps)?,
            NormKind::LayerPlusOne => {
                let weight = self.plus_one(&name, len)?;
                let bias = self.wide(&format!("{path}.bias"), &[len])?;
                self.b.layer_norm(x, Some(&weight), Some(&bias), norm.eps)
            }
            NormKind::LayerPlain => self.b.layer_norm(x, None, None, norm.eps),
        })
    }

    /// A vector plus 1, in f32.
    fn plus_one(&mut self, name: &str, len: usize) -> Result<Val> {
        let one = self.source(name, &[len])?.missing_one();
        self.mapped_vector(name, len, move |w| w + one)
    }

    /// The layer norm of module `path` over the last axis of `x`.
    pub(crate) fn layer_norm(&mut self, x: &Val, path: &str, eps: f64) -> Result<Val> {
        self.b.enter(path);
        let len = x.dim(x.dims.len() - 1);
        let (weight, bias) = (self.vector(&format!("{path}.weight"), len)?, self.vector(&format!("{path}.bias"), len)?);
        Ok(self.b.layer_norm(x, Some(&weight), Some(&bias), eps))
    }

    /// The layer norm of module `path` over the last axis of `x`, with a weight but no bias.
    pub(crate) fn scaled_layer_norm(&mut self, x: &Val, path: &str, eps: f64) -> Result<Val> {
        self.b.enter(path);
        let weight = self.vector(&format!("{path}.weight"), x.dim(x.dims.len() - 1))?;
        Ok(self.b.layer_norm(x, Some(&weight), None, eps))
    }

    /// The batch norm of module `path` over the channels of `x` [1, C, ..].
    pub(crate) fn batch_norm(&mut self, x: &Val, path: &str, eps: f64) -> Result<Val> {
        self.b.enter(path);
        let channels = x.dim(1);
        let mut vector = |part: &str| self.wide(&format!("{path}.{part}"), &[channels]);
        let [mean, variance] = [vector("running_mean")?, vector("running_var")?];
        let [weight, bias] = [vector("weight")?, vector("bias")?];
        Ok(self.b.batch_norm(x, [&mean, &variance], [&weight, &bias], eps))
    }

    /// The convolution with one tap of module `path`, as a projection of the last axis of `x` to
    /// `rows` outputs.
    pub(crate) fn pointwise(&mut self, x: &Val, path: &str, rows: usize, bias: bool) -> Result<Val> {
        let (name, cols) = (format!("{path}.weight"), x.dim(x.dims.len() - 1));
        let source = self.source(&name, &[rows, cols, 1])?.with_shape(vec![rows, cols]);
        self.project(x, path, &name, &source, bias)
    }

    /// The projection of module `path` of the last axis of `x` to `rows` outputs.
    pub(crate) fn linear(&mut self, x: &Val, path: &str, rows: usize, bias: bool) -> Result<Val> {
        let name = format!("{path}.weight");
        let source = self.source(&name, &[rows, x.dim(x.dims.len() - 1)])?;
        self.project(x, path, &name, &source, bias)
    }

    /// Begins [`linear`](Self::linear), which [`end`](Self::end) ends. Engines compute products of
    /// one input together if all of them are begun before one is ended.
    pub(crate) fn begin(&mut self, x: &Val, path: &str, rows: usize, bias: bool) -> Result<Begun> {
        let name = format!("{path}.weight");
        let source = self.source(&name, &[rows, x.dim(x.dims.len() - 1)])?;
        let y = self.product(x, path, &name, &source, bias)?;
        self.begin_update(y, x, &name, &source)
    }

    /// As [`linear`](Self::linear), for a router's logits or a gate of each head. An error in one
    /// changes all values that it scales, and the weight is small. Therefore it is not quantized.
    pub(crate) fn gate(&mut self, x: &Val, path: &str, rows: usize, bias: bool) -> Result<Val> {
        let name = format!("{path}.weight");
        let source = self.source(&name, &[rows, x.dim(x.dims.len() - 1)])?;
        self.project_gate(x, path, &name, &source, bias)
    }

    /// As [`project`](Self::project), for a [`gate`](Self::gate).
    pub(crate) fn project_gate(&mut self, x: &Val, path: &str, name: &str, source: &CheckpointTensor, bias: bool) -> Result<Val> {
        self.b.keep_floats(name);
        self.project(x, path, name, source, bias)
    }

    pub(crate) fn project(&mut self, x: &Val, path: &str, name: &str, source: &CheckpointTensor, bias: bool) -> Result<Val> {
        let y = self.product(x, path, name, source, bias)?;
        self.updated(y, x, name, source)
    }

    /// The projection without the updates of adapters.
    fn product(&mut self, x: &Val, path: &str, name: &str, source: &CheckpointTensor, bias: bool) -> Result<Val> {
        self.b.enter(path);
        let weight = self.matrix(name, source)?;
        let rows = source.shape().first().copied().unwrap_or(0);
        let bias = if bias { Some(self.vector(&format!("{path}.bias"), rows)?) } else { None };
        Ok(self.b.linear(x, &weight, bias.as_ref()))
    }
}
