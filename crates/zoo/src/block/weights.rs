//! Weights by their names in a checkpoint, and the layers that are one weight.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{CheckpointTensor, Error, Result, builder::Val, source::Read, spec::Norm};

impl Decoder<'_> {
    /// The tensor of that name, which must have that shape.
    pub(super) fn source(&self, name: &str, shape: &[usize]) -> Result<CheckpointTensor> {
        let source = self.checkpoint.tensors().get(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        if source.shape() != shape {
            return Err(Error::tensor(name, format!("shape {shape:?}"), format!("{:?}", source.shape())));
        }
        Ok(source.clone())
    }

    /// Whether the checkpoint has a tensor of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.checkpoint.tensors().contains_key(name)
    }

    /// Rows `from..from + n` of a joined matrix `[rows, cols]`.
    pub(super) fn part(&self, name: &str, shape: [usize; 2], from: usize, n: usize) -> Result<CheckpointTensor> {
        let whole = self.source(name, &shape)?;
        whole.slice(from, n).ok_or_else(|| Error::tensor(name, "rows in plain order", "interleaved ones"))
    }

    /// A weight of matrices, with its dequantization where it is packed: one call for each use, as captured programs have it.
    pub(super) fn matrix(&mut self, name: &str, source: &CheckpointTensor) -> Result<Val> {
        Ok(match source.read(name, self.settings.dtype, self.settings.scales)? {
            Read::Plain(weight) => self.b.parameter(name, weight),
            Read::Packed(packed) => {
                let words = self.b.parameter(&format!("{name}.words"), packed.words);
                let scales = self.b.parameter(&format!("{name}.scales"), packed.scales);
                let biases = packed.biases.map(|biases| self.b.parameter(&format!("{name}.biases"), biases));
                self.b.dequantize([&words, &scales], biases.as_ref(), packed.codes, self.settings.dtype)
            }
        })
    }

    /// A weight that is never packed, in the type of the activations.
    pub(super) fn plain(&mut self, name: &str, shape: &[usize]) -> Result<Val> {
        self.plain_in(name, shape, self.settings.dtype)
    }

    fn plain_in(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Val> {
        match self.source(name, shape)?.read(name, dtype, None)? {
            Read::Plain(weight) => Ok(self.b.parameter(name, weight)),
            Read::Packed(_) => Err(Error::tensor(name, "floats", "a quantized tensor")),
        }
    }

    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<Val> {
        self.plain(name, &[len])
    }

    /// A vector in f32.
    pub(super) fn wide_vector(&mut self, name: &str, len: usize) -> Result<Val> {
        self.plain_in(name, &[len], DType::F32)
    }

    /// A vector of what `f` makes of each element, in f32.
    pub(super) fn mapped_vector(&mut self, name: &str, len: usize, f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Result<Val> {
        let weight = self.source(name, &[len])?.mapped(name, f)?;
        Ok(self.b.parameter(name, weight))
    }

    /// The norm of module `path` over the last axis of `x`.
    pub(super) fn norm(&mut self, x: &Val, path: &str) -> Result<Val> {
        self.norm_as(x, path, self.config.norm)
    }

    pub(super) fn norm_as(&mut self, x: &Val, path: &str, norm: Norm) -> Result<Val> {
        self.b.enter(path);
        let (name, len) = (format!("{path}.weight"), x.dim(x.dims.len() - 1));
        let weight = if norm.plus_one {
            let one = self.source(&name, &[len])?.missing_one();
            self.mapped_vector(&name, len, move |w| w + one)?
        } else {
            self.vector(&name, len)?
        };
        Ok(self.b.rms_norm(x, Some(&weight), norm.eps))
    }

    /// The norm of that name in a layer, if there is one.
    pub(super) fn norm_if(&mut self, x: &Val, layer: &str, name: Option<&str>) -> Result<Val> {
        name.map_or_else(|| Ok(x.clone()), |name| self.norm(x, &format!("{layer}.{name}")))
    }

    /// The projection of module `path` of the last axis of `x` to `rows` outputs.
    pub(super) fn linear(&mut self, x: &Val, path: &str, rows: usize, bias: bool) -> Result<Val> {
        let name = format!("{path}.weight");
        let source = self.source(&name, &[rows, x.dim(x.dims.len() - 1)])?;
        self.project(x, path, &name, &source, bias)
    }

    pub(super) fn project(&mut self, x: &Val, path: &str, name: &str, source: &CheckpointTensor, bias: bool) -> Result<Val> {
        self.b.enter(path);
        let weight = self.matrix(name, source)?;
        let rows = source.shape().first().copied().unwrap_or(0);
        let bias = if bias { Some(self.vector(&format!("{path}.bias"), rows)?) } else { None };
        Ok(self.b.linear(x, &weight, bias.as_ref()))
    }
}
