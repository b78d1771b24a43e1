//! Quantization of float weights.

mod codes;

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::{Dequantize, In, Index, Node, Out, QuantMode, SlotRef, Spec, Tid};
use flambeau_lower::{ConstExpr, Constant, Fit, Origin, QuantPart, Scheme, SsaGraph, SsaNode, TensorInfo};
use flambeau_tensor::{DType, Shape};

pub(crate) use self::codes::{Parts, factor};
use crate::{Options, rule};

/// Reads a scheme from its name on the command line.
pub trait SchemeName: Sized {
    /// `2w`, `3w`, `4w`, `5w`, `6w`, `8w` with a group size, or `nvfp4`, `mxfp4`, `mxfp8`, whose
    /// groups are fixed.
    ///
    /// # Errors
    /// [`SchemeError`] lists the valid names and group sizes.
    fn from_name(name: &str, group_size: Option<u32>) -> Result<Self, SchemeError>;
}

/// Reason why a name is not a quantization scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeError {
    #[error("unknown quantization `{0}`, expected 2w, 3w, 4w, 5w, 6w, 8w, nvfp4, mxfp4 or mxfp8")]
    Unknown(String),
    /// A group size for a scheme whose groups are fixed.
    #[error("{name} has groups of {group}, not {found}")]
    FixedGroup { name: String, group: u32, found: u32 },
    /// A group size that no kernel supports.
    #[error("group size {0} is not one of 32, 64, 128")]
    Group(u32),
}

/// Default group size of affine schemes.
const DEFAULT_GROUP: u32 = 64;

impl SchemeName for Scheme {
    fn from_name(name: &str, group_size: Option<u32>) -> Result<Scheme, SchemeError> {
        let fixed = |mode, bits, group| match group_size {
            Some(found) if found != group => Err(SchemeError::FixedGroup { name: name.to_owned(), group, found }),
            _ => Ok(Scheme { mode, bits, group_size: group, fit: Fit::Range }),
        };
        let bits = match name {
            "nvfp4" => return fixed(QuantMode::Nvfp4, 4, 16),
            "mxfp4" => return fixed(QuantMode::Mxfp4, 4, 32),
            "mxfp8" => return fixed(QuantMode::Mxfp8, 8, 32),
            "2w" => 2,
            "3w" => 3,
            "4w" => 4,
            "5w" => 5,
            "6w" => 6,
            "8w" => 8,
            _ => return Err(SchemeError::Unknown(name.to_owned())),
        };
        let group_size = group_size.unwrap_or(DEFAULT_GROUP);
        if ![32, 64, 128].contains(&group_size) {
            return Err(SchemeError::Group(group_size));
        }
        Ok(Scheme { mode: QuantMode::Affine, bits, group_size, fit: Fit::Range })
    }
}

/// Replaces every float weight that the options select by a packed weight and a `Dequantize` node.
/// Fusions absorb that node later.
pub(crate) fn quantize(ssa: &mut SsaGraph, options: &Options) {
    let mut done: HashMap<(Tid, Scheme), Tid> = HashMap::new();
    let mut front = Vec::new();
    let (transposed, choice) = (transposed_weights(ssa), Choice::new(ssa, options));
    let chain = std::mem::take(&mut ssa.chains[0]);
    let mut rerouted = Vec::with_capacity(chain.len());
    for mut entry in chain {
        let request = match &entry.node {
            Node::Transpose(n) => {
                let found = transposed.iter().find(|(t, axes)| *t == n.out.0 && swaps_last(&n.perm, *axes));
                found.and_then(|(_, axes)| choice.of_product(ssa, n.x.0).map(|s| (n.x.0, *axes, s)))
            }
            Node::Take(n) if n.axis == 0 && matches!(n.index, Index::Tid(_)) => choice.of_table(ssa, n.x.0).map(|s| (n.x.0, 2, s)),
            _ => None,
        };
        if let Some((weight, axes, scheme)) = request
            && let Some(constant) = quantizable(ssa, weight, axes, scheme)
        {
            let unpacked = *done.entry((weight, scheme)).or_insert_with(|| unpack(ssa, &constant, scheme, entry.call, &mut front));
            entry.node.walk_mut(&mut |_, slot| {
                if let SlotRef::Tensor(t) = slot
                    && *t == weight
                {
                    *t = unpacked;
                }
            });
        }
        rerouted.push(entry);
    }
    front.extend(rerouted);
    ssa.chains[0] = front;
}

/// A product of inputs with a weight that the options quantize to affine codes.
pub(crate) struct Product {
    pub(crate) weight: Arc<Constant>,
    /// The inputs, `[.., M, K]`.
    pub(crate) input: Tid,
    /// Whether [`Options::linear`] decides, not a rule or the head's scheme.
    pub(crate) is_plain: bool,
    /// For a stack of experts: the number of the expert of each row, and how many there are.
    pub(crate) experts: Option<(Tid, usize)>,
}

/// The products of the main chain whose weights the options quantize to affine codes. A product
/// that a node computes in another way is left out.
pub(crate) fn quantized_products(ssa: &SsaGraph, options: &Options) -> Vec<Product> {
    let choice = Choice::new(ssa, options);
    let turned: HashMap<Tid, (Tid, &[i32])> = ssa.chains[0]
        .iter()
        .filter_map(|entry| if let Node::Transpose(n) = &entry.node { Some((n.out.0, (n.x.0, &n.perm[..]))) } else { None })
        .collect();
    let product = |entry: &SsaNode| {
        let (input, factor, axes, indices) = match &entry.node {
            Node::Addmm(n) => (n.mat1.0, n.mat2.0, 2, None),
            Node::GatherMm(n) if n.lhs_indices.is_none() => (n.a.0, n.b.0, 3, Some(n.rhs_indices?.0)),
            _ => return None,
        };
        let &(weight, _) = turned.get(&factor).filter(|(_, perm)| swaps_last(perm, axes))?;
        let scheme = choice.of_product(ssa, weight).filter(|scheme| scheme.mode == QuantMode::Affine)?;
        let constant = quantizable(ssa, weight, axes, scheme)?;
        let experts = indices.map(|indices| (indices, constant.shape[0]));
        Some(Product { weight: constant, input, is_plain: choice.is_plain(ssa, weight), experts })
    };
    ssa.chains[0].iter().filter_map(product).collect()
}

/// Selects schemes for a program's weights by the options.
struct Choice<'a> {
    options: &'a Options,
    layers: usize,
    /// Embedding tables.
    tables: Vec<Tid>,
}

/// Weight name of heads that do not share the embedding table.
const HEAD: &str = "lm_head.weight";

impl Choice<'_> {
    fn new<'a>(ssa: &SsaGraph, options: &'a Options) -> Choice<'a> {
        let constants = ssa.tensors.iter().filter_map(|info| match &info.origin {
            Origin::Constant(constant) => Some(constant.name.as_str()),
            _ => None,
        });
        let tables = ssa.chains.iter().flatten().filter_map(|entry| match &entry.node {
            Node::Take(n) if matches!(n.index, Index::Tid(_)) => Some(n.x.0),
            _ => None,
        });
        Choice { options, layers: rule::layer_count(constants), tables: tables.collect() }
    }

    /// The scheme of the first rule that matches the weight's name. The outer `None` means that no
    /// rule matches.
    fn ruled(&self, ssa: &SsaGraph, weight: Tid) -> Option<Option<Scheme>> {
        let name = &ssa.constant(weight)?.name;
        self.options.rules.iter().find(|rule| rule.is_about(name, self.layers)).map(|rule| rule.scheme)
    }

    fn of_product(&self, ssa: &SsaGraph, weight: Tid) -> Option<Scheme> {
        let linear = self.options.linear;
        self.ruled(ssa, weight).unwrap_or_else(|| match self.options.head {
            Some(head) if self.is_head(ssa, weight) => head,
            _ => linear,
        })
    }

    /// Whether a product's weight is an embedding table, or has the name of a head.
    fn is_head(&self, ssa: &SsaGraph, weight: Tid) -> bool {
        self.tables.contains(&weight) || ssa.constant(weight).is_some_and(|c| c.name == HEAD)
    }

    fn is_plain(&self, ssa: &SsaGraph, weight: Tid) -> bool {
        !self.is_head(ssa, weight) && self.ruled(ssa, weight).is_none()
    }

    fn of_table(&self, ssa: &SsaGraph, weight: Tid) -> Option<Scheme> {
        self.ruled(ssa, weight).unwrap_or(self.options.embedding)
    }
}

/// Transposed constants that matrix products read, with their number of axes. They are weights of
/// linear layers (2 axes) or of experts (3 axes).
fn transposed_weights(ssa: &SsaGraph) -> Vec<(Tid, usize)> {
    let products = ssa.chains.iter().flatten().filter_map(|e| match &e.node {
        Node::Addmm(n) => Some((n.mat2.0, 2)),
        Node::GatherMm(n) => Some((n.b.0, 3)),
        _ => None,
    });
    products.collect()
}

/// Whether the permutation exchanges exactly the last two axes.
fn swaps_last(perm: &[i32], axes: usize) -> bool {
    match axes {
        2 => matches!(perm, [1, 0] | [-1, -2]),
        _ => matches!(perm, [0, 2, 1] | [0, -1, -2] | [-3, -1, -2]),
    }
}

/// The constant behind a slot, if it is a float tensor with `axes` axes and the scheme can pack its
/// rows.
fn quantizable(ssa: &SsaGraph, weight: Tid, axes: usize, scheme: Scheme) -> Option<Arc<Constant>> {
    let constant = ssa.constant(weight)?;
    let columns = *constant.shape.last()?;
    let fits = constant.shape.len() == axes
        && matches!(constant.dtype, DType::F32 | DType::F16 | DType::BF16)
        && columns.is_multiple_of(scheme.group_size as usize)
        && (columns * usize::from(scheme.bits)).is_multiple_of(32);
    fits.then(|| constant.clone())
}

fn unpack(ssa: &mut SsaGraph, weight: &Arc<Constant>, scheme: Scheme, call: u32, front: &mut Vec<SsaNode>) -> Tid {
    let columns = weight.shape.last().copied().unwrap_or(0);
    let groups = columns / scheme.group_size as usize;
    let affine = scheme.mode == QuantMode::Affine;
    let mut part = |part, suffix: &str, dtype, n| {
        let expr = ConstExpr::Quantize { weight: weight.clone(), scheme, part };
        let name = format!("{}_{suffix}", weight.name);
        let constant = Constant { name, dtype, shape: with_columns(&weight.shape, n), expr };
        add(ssa, constant.spec(), Origin::Constant(Arc::new(constant)))
    };
    let words = part(QuantPart::Codes, "packed", DType::U32, columns * usize::from(scheme.bits) / 32);
    let scales = part(QuantPart::Scales, "scales", if affine { weight.dtype } else { DType::U8 }, groups);
    let biases = affine.then(|| part(QuantPart::Biases, "biases", weight.dtype, groups));
    let out = add(ssa, weight.spec(), Origin::Node);
    let node = Dequantize {
        w: In(words),
        scales: In(scales),
        out: Out(out),
        biases: biases.map(In),
        group_size: scheme.group_size as i32,
        bits: i32::from(scheme.bits),
        mode: scheme.mode,
        global_scale: None,
        dtype: Some(weight.dtype),
    };
    front.push(SsaNode { node: node.into(), call });
    out
}

fn add(ssa: &mut SsaGraph, spec: Spec, origin: Origin) -> Tid {
    ssa.tensors.push(TensorInfo { spec, origin });
    Tid(ssa.tensors.len() as u32 - 1)
}

/// The shape with its last axis replaced.
fn with_columns(shape: &[usize], columns: usize) -> Shape {
    let mut shape = Shape::from_slice(shape);
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_of_the_last_two_axes_transposes_matrices() {
        assert!(swaps_last(&[0, 2, 1], 3) && !swaps_last(&[0, 2, 1], 2) && !swaps_last(&[2, 1, 0], 3));
    }

    #[test]
    fn names_say_what_there_is() {
        let error = |name, group| Scheme::from_name(name, group).unwrap_err().to_string();
        assert!(error("7w", None).contains("expected 2w"));
        assert!(error("4w", Some(48)).contains("32, 64, 128"));
        assert!(error("nvfp4", Some(32)).contains("groups of 16"));
    }
}
