//! Linear layers with the low-rank updates of adapters: `x W + ((x A) scales) B`.
//!
//! The program computes all products of a row first, each followed by its product of low rank. The
//! updates follow, and then a gate or the residual sum.

use std::{cell::Cell, fmt::Write as _};

use flambeau_ir::{Node, Tid};
use flambeau_tensor::DType;

use super::{
    find::{Content, Matcher, Norm, Scope, node},
    launch::Builder,
    linear::{Activation, Format, Linear, LinearSizes, Weights, content, rows_of},
    mixture::matrix_product,
};
use crate::{cuda, cx::Machine, error::Result};

/// Maximum number of products of a step.
const MOST: usize = 3;

/// Maximum number of columns per warp: 64 for each thread.
const WARP_COLUMNS: usize = 64 * 32;

/// The low-rank update of a product.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LowRank {
    /// A [rank, columns].
    down: Weights,
    /// Scales [1, 1, rank] of the text's adapters.
    pub(crate) scales: Tid,
    /// B [rank, rows].
    up: Tid,
}

impl LowRank {
    /// The rank, if the slots hold matrices for a product `[k, rows]` and the scales of `count`
    /// sequences.
    pub(super) fn rank(&self, m: &Machine, dtype: DType, [k, rows]: [usize; 2], count: usize) -> Option<usize> {
        let rank = rows_of(m, &self.down, dtype, k)?;
        let up = m.env.tensors.get(self.up.0 as usize)?.as_ref()?;
        let fits = up.dtype == dtype && up.shape[..] == [rank, rows] && content(m, self.scales, dtype, count * rank).is_some();
        fits.then_some(rank)
    }

    /// The update as the kernels' texts state it. `low` is the result of [`matrices`].
    pub(super) fn operand(&self, m: &Machine, b: &mut Builder, low: &Low) -> Result<String> {
        let (name, scales, up) = (b.earlier(&low.name), b.slot(m, self.scales)?, b.slot(m, self.up)?);
        Ok(format!("{{{name},{scales},{up},{}}}", low.rank))
    }
}

/// Rows of low rank `[sequences, rank]`: their name in the kernel's text, and the rank.
pub(super) struct Low {
    name: String,
    rank: usize,
}

/// The declaration of the matrices A of some updates, as `lows`, and the results for `count`
/// sequences, which the part under construction writes.
pub(super) fn matrices(
    updates: &[LowRank],
    ranks: &[usize],
    m: &Machine,
    b: &mut Builder,
    dtype: DType,
    count: usize,
) -> Result<(String, Vec<Low>)> {
    let (mut text, mut lows) = (format!("Matrix<{}> lows[]={{", cuda::type_name(dtype).unwrap_or_default()), Vec::new());
    for (update, &rank) in updates.iter().zip(ranks) {
        let (down, name) = (b.slot(m, update.down.slots[0])?, b.inner(dtype, count * rank));
        // Writing to a string cannot fail.
        let _ = write!(text, "{{{down},nullptr,nullptr,{name},{rank},nullptr,{{}}}},");
        lows.push(Low { name, rank });
    }
    text.push_str("};");
    Ok((text, lows))
}

/// Adds the part that computes the rows of low rank of a step. `None` if the kernel does not
/// support their sizes; no rows without updates.
///
/// # Errors
/// If MLX fails.
pub(super) fn build(linear: &Linear, m: &mut Machine, b: &mut Builder, sizes: &LinearSizes) -> Result<Option<Vec<Low>>> {
    let LinearSizes { dtype, k, .. } = *sizes;
    let ranks = linear.updates.iter().zip(&sizes.rows).map(|(update, &rows)| update.rank(m, dtype, [k, rows], 1));
    let Some(ranks) = ranks.collect::<Option<Vec<_>>>() else { return Ok(None) };
    if ranks.is_empty() {
        return Ok(Some(Vec::new()));
    }
    if !k.is_multiple_of(8) || k > WARP_COLUMNS * b.warps() {
        return Ok(None);
    }
    let (ty, norm_type) = (cuda::type_name(dtype).unwrap_or_default(), cuda::value_type(sizes.norm).unwrap_or_default());
    let x = b.slot(m, linear.x)?;
    let norm = linear.norm.map_or_else(|| Ok(format!("static_cast<const {norm_type}*>(nullptr)")), |(norm, _)| b.slot(m, norm))?;
    let eps = linear.norm.map_or(0.0, |(_, eps)| eps);
    let (mut text, lows) = matrices(&linear.updates, &ranks, m, b, dtype, 1)?;
    // Writing to a string cannot fail.
    let _ = write!(text, "low_rows<{ty},{norm_type},kW>({x},{norm},{eps:e}f,{k},lows,wait);");
    b.part(text, 0, ranks.iter().sum());
    Ok(Some(lows))
}

/// A product and its product of low rank.
struct Pair {
    product: Content,
    weights: Weights,
    low: Content,
    down: Weights,
}

/// Finds a step with updates that begins at a node. Also returns the index of the next node.
pub(super) fn find(scope: &Scope<'_>, at: usize) -> Option<(Linear, usize)> {
    let place = Cell::new(at);
    let mut r = Matcher::new(scope, &place);
    let (x, norm, narrows, row) = row(&mut r)?;
    let mut pairs = Vec::new();
    while pairs.len() < MOST && matches!(scope.nodes.get(r.at)?, Node::QuantizedMatmul(_) | Node::Transpose(_)) {
        pairs.push(pair(&mut r, row)?);
    }
    let (mut outs, mut weights, mut updates) = (Vec::new(), Vec::new(), Vec::new());
    for pair in pairs {
        let (update, out) = update(&mut r, &pair)?;
        outs.push(out);
        weights.push(pair.weights);
        updates.push(update);
    }
    let plain = Linear { norm, narrows, updates, ..Linear::plain(x, weights, Vec::new()) };
    let linear = finished(&mut r, plain, &outs)?;
    r.leaves_only(&linear.outs)?;
    (r.kept.is_empty() && linear.has_known_formats()).then_some((linear, r.at))
}

/// The row that the products read: its source, the norm, the type after the norm, and the content.
type Row = (Tid, Option<(Tid, f32)>, Option<DType>, Content);

fn row(r: &mut Matcher<'_, '_>) -> Option<Row> {
    let x = match r.scope.nodes.get(r.at)? {
        Node::RMSNorm(_) => {
            let Norm { x, weight, eps, narrows, row } = r.norm()?;
            return Some((x, Some((weight, eps)), narrows, row));
        }
        Node::QuantizedMatmul(product) => product.x.0,
        Node::Transpose(_) => match r.scope.nodes.get(r.at + 1)? {
            Node::Addmm(product) => product.mat1.0,
            _ => return None,
        },
        _ => return None,
    };
    Some((x, None, None, (x, None)))
}

/// A product with an optional bias, and its product of low rank.
fn pair(r: &mut Matcher<'_, '_>, row: Content) -> Option<Pair> {
    let (mut product, mut weights) = matrix_product(r, row)?;
    if let Some(Node::Add(_)) = r.scope.nodes.get(r.at) {
        let add = node!(r, Add);
        weights.bias = Some(r.constant_operand(add.a, add.b, product)?);
        product = r.wrote(add.out.0);
    }
    let (low, down) = matrix_product(r, row)?;
    (down.format == Format::Float).then_some(())?;
    Some(Pair { product, weights, low, down })
}

/// The update of a pair, and the updated product.
fn update(r: &mut Matcher<'_, '_>, pair: &Pair) -> Option<(LowRank, Content)> {
    let multiply = node!(r, Multiply);
    let (scales, None) = r.other_operand(multiply.a, multiply.b, pair.low)? else { return None };
    let scaled = r.wrote(multiply.out.0);
    let product = node!(r, Addmm);
    r.reads(product.mat1, scaled)?;
    let is_plain = product.bias.is_none() && product.alpha == 1.0 && r.scope.is_constant(product.mat2.0);
    let raised = r.wrote(product.out.0);
    let sum = node!(r, Add);
    r.reads_both(sum.a, sum.b, pair.product, raised)?;
    let update = LowRank { down: pair.down.clone(), scales, up: product.mat2.0 };
    is_plain.then(|| (update, r.wrote(sum.out.0)))
}

/// The step with its results, after a gate or the residual sum.
fn finished(r: &mut Matcher<'_, '_>, linear: Linear, outs: &[Content]) -> Option<Linear> {
    match (outs, r.scope.nodes.get(r.at)) {
        (&[gate, up], Some(Node::Silu(_))) => {
            let silu = node!(r, Silu);
            r.reads(silu.x, gate)?;
            gated(r, linear, Activation::Silu, silu.out.0, up)
        }
        (&[gate, up], Some(Node::Gelu(_))) => {
            let gelu = node!(r, Gelu);
            r.reads(gelu.x, gate)?;
            (gelu.approximate == "tanh").then_some(())?;
            gated(r, linear, Activation::Gelu, gelu.out.0, up)
        }
        (&[product], Some(Node::Add(_))) if linear.norm.is_none() => {
            let add = node!(r, Add);
            let (residual, None) = r.other_operand(add.a, add.b, product)? else { return None };
            Some(Linear { residual: Some(residual), outs: vec![add.out.0], ..linear })
        }
        _ => {
            // A result is gone if a later node of the step wrote its slot.
            let is_whole = outs.iter().all(|(out, at)| r.writers.get(out) == at.as_ref());
            (is_whole && !outs.is_empty()).then(|| Linear { outs: outs.iter().map(|(out, _)| *out).collect(), ..linear })
        }
    }
}

/// The step with the product of an activated gate and `up`.
fn gated(r: &mut Matcher<'_, '_>, linear: Linear, activation: Activation, gate: Tid, up: Content) -> Option<Linear> {
    let gate = r.wrote(gate);
    let multiply = node!(r, Multiply);
    r.reads_both(multiply.a, multiply.b, gate, up)?;
    Some(Linear { gated: true, activation, outs: vec![multiply.out.0], ..linear })
}
