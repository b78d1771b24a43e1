//! Linear layers of one row: `[residual +] act(norm(x) W)` for up to three matrices.

use std::fmt::Write as _;

use flambeau_ir::{Node, QuantMode, Tid};
use flambeau_tensor::{DType, Shape};

use super::{Kind, Made, Step, find::Scope};
use crate::{
    cuda,
    cx::{Machine, Slot},
    error::Result,
    ffi::{Array, Kernel, KernelText, Launch},
};

/// Warps of a block.
const WARPS: usize = 8;
/// Blocks of a launch at most; each then computes several tiles and puts the row into shared memory once.
const MAX_BLOCKS: usize = 1056;
/// Rows of all matrices from which a warp takes four rows at a time instead of two.
const MANY_ROWS: usize = 16384;
/// Shared memory that a block may have on every device with 16-bit floats.
const MAX_SHARED: usize = 96 << 10;

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The element type itself.
    Float,
    /// Affine codes.
    Coded { bits: usize, group: usize },
}

impl Format {
    /// Bits of an element, and elements of a group as kernels state them.
    pub(super) fn bits_and_group(self) -> (usize, usize) {
        match self {
            Format::Float => (16, 64),
            Format::Coded { bits, group } => (bits, group),
        }
    }
}

/// A matrix: its values or codes, then scales and biases of codes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weights {
    pub(super) format: Format,
    pub(super) slots: Vec<Tid>,
}

/// A product of `x` with a constant matrix.
struct Product {
    x: Tid,
    weights: Weights,
    out: Tid,
}

/// A fused linear step.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(super) x: Tid,
    pub(super) norm: Option<(Tid, f32)>,
    pub(super) residual: Option<Tid>,
    pub(super) gated: bool,
    pub(super) weights: Vec<Weights>,
    pub(super) outs: Vec<Tid>,
    made: Made<Sizes>,
}

/// What a kernel is compiled for.
#[derive(Clone, Debug, PartialEq)]
struct Sizes {
    dtype: DType,
    k: usize,
    rows: Vec<usize>,
}

/// Reads a product at a node; where the next node stands.
fn product(scope: &Scope<'_>, at: usize) -> Option<(Product, usize)> {
    match scope.nodes.get(at)? {
        Node::QuantizedMatmul(q) if q.transpose && q.mode == QuantMode::Affine => {
            let slots = vec![q.w.0, q.scales.0, q.biases?.0];
            let (bits, group) = (usize::try_from(q.bits).ok()?, usize::try_from(q.group_size).ok()?);
            let fits = matches!(bits, 4 | 8) && group >= 32 && slots.iter().all(|&t| scope.is_constant(t));
            let weights = Weights { format: Format::Coded { bits, group }, slots };
            fits.then_some((Product { x: q.x.0, weights, out: q.out.0 }, at + 1))
        }
        Node::Transpose(t) if t.perm[..] == [1, 0] && scope.is_constant(t.x.0) => {
            let Node::Addmm(mm) = scope.nodes.get(at + 1)? else { return None };
            let plain = mm.mat2.0 == t.out.0 && mm.mat1.0 != t.out.0 && mm.bias.is_none() && mm.alpha == 1.0;
            let unread = t.out.0 == mm.out.0 || scope.is_dead(t.out.0, at + 2);
            let weights = Weights { format: Format::Float, slots: vec![t.x.0] };
            (plain && unread).then_some((Product { x: mm.mat1.0, weights, out: mm.out.0 }, at + 2))
        }
        _ => None,
    }
}

/// Finds a linear step that begins at a node.
pub(super) fn find(scope: &Scope<'_>, at: usize) -> Option<Step> {
    let (linear, end, spent) = match scope.nodes.get(at)? {
        Node::RMSNorm(norm) => {
            let weight = norm.weight.filter(|w| scope.is_constant(w.0))?.0;
            let (mut linear, end, mut spent) = products(scope, at + 1, norm.out.0)?;
            linear.x = norm.x.0;
            linear.norm = Some((weight, norm.eps));
            spent.push(norm.out.0);
            (linear, end, spent)
        }
        _ => {
            let (first, end) = product(scope, at)?;
            with_residual(scope, first, end)
        }
    };
    let dead = spent.iter().all(|&t| linear.outs.contains(&t) || scope.is_dead(t, end));
    let one_format = linear.weights.windows(2).all(|w| w[0].format == w[1].format);
    (dead && one_format).then(|| Step { end, kind: Kind::Linear(Box::new(linear)) })
}

/// The products of `x` from a node on, and a gate between two of them; with where they end and what they leave unread.
fn products(scope: &Scope<'_>, at: usize, x: Tid) -> Option<(Linear, usize, Vec<Tid>)> {
    let (first, mut end) = product(scope, at).filter(|(p, _)| p.x == x)?;
    let mut gate = silu(scope, end, first.out);
    let mut list = vec![first];
    if gate.is_some() {
        end += 1;
    }
    while list.len() < 3
        && list.last().is_some_and(|p| p.out != x)
        && gate.is_none_or(|_| list.len() < 2)
        && let Some((next, after)) = product(scope, end).filter(|(p, _)| p.x == x)
    {
        if list.iter().any(|p| p.out == next.out) || gate == Some(next.out) {
            return None;
        }
        list.push(next);
        end = after;
        if list.len() == 2 && gate.is_none() {
            gate = silu(scope, end, list[0].out);
            end += usize::from(gate.is_some());
        }
    }
    let outs: Vec<Tid> = list.iter().map(|p| p.out).collect();
    let weights = list.into_iter().map(|p| p.weights).collect();
    let linear = Linear { x, norm: None, residual: None, gated: false, weights, outs, made: None };
    let Some(gate) = gate else { return Some((linear, end, Vec::new())) };
    let (Node::Multiply(mul), [low, high]) = (scope.nodes.get(end)?, &linear.outs[..]) else { return None };
    let factors = [mul.a.0, mul.b.0];
    if factors != [gate, *high] && factors != [*high, gate] {
        return None;
    }
    let spent = vec![*low, *high, gate];
    Some((Linear { gated: true, outs: vec![mul.out.0], ..linear }, end + 1, spent))
}

/// The result of a SiLU of `x` at a node.
fn silu(scope: &Scope<'_>, at: usize, x: Tid) -> Option<Tid> {
    match scope.nodes.get(at)? {
        Node::Silu(silu) if silu.x.0 == x => Some(silu.out.0),
        _ => None,
    }
}

/// One product, and the sum that it enters at once.
fn with_residual(scope: &Scope<'_>, p: Product, end: usize) -> (Linear, usize, Vec<Tid>) {
    let linear =
        Linear { x: p.x, norm: None, residual: None, gated: false, weights: vec![p.weights], outs: vec![p.out], made: None };
    match scope.nodes.get(end) {
        Some(Node::Add(add)) if (add.a.0 == p.out) != (add.b.0 == p.out) => {
            let other = if add.a.0 == p.out { add.b.0 } else { add.a.0 };
            (Linear { residual: Some(other), outs: vec![add.out.0], ..linear }, end + 1, vec![p.out])
        }
        _ => (linear, end, Vec::new()),
    }
}

/// A slot's content, if it has a type and a number of elements.
pub(super) fn content(m: &Machine, tid: Tid, dtype: DType, count: usize) -> Option<&Slot> {
    let slot = m.env.tensors.get(tid.0 as usize)?.as_ref()?;
    (slot.dtype == dtype && slot.shape.iter().product::<usize>() == count).then_some(slot)
}

impl Linear {
    /// Its first result.
    pub(super) fn out(&self) -> Tid {
        self.outs[0]
    }

    /// Adds the launch to MLX's graph; `false` if the step's sizes are none of the kernel's.
    pub(super) fn run(&mut self, m: &mut Machine) -> Result<bool> {
        let Some(sizes) = self.sizes(m) else { return Ok(false) };
        if self.made.as_ref().is_none_or(|(made, _)| *made != sizes) {
            let kernel = self.kernel(m, &sizes)?;
            self.made = Some((sizes.clone(), kernel));
        }
        let Some((_, kernel)) = &self.made else { return Ok(false) };
        let mut tids = vec![self.x];
        tids.extend(self.norm.iter().map(|n| n.0).chain(self.residual));
        tids.extend(self.weights.iter().flat_map(|w| &w.slots));
        let slot = |tid: &Tid| m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref);
        let inputs: Vec<&Array> = tids.iter().filter_map(slot).map(|s| &s.array).collect();
        let lead = slot(&self.x).map(|s| s.shape.clone()).unwrap_or_default();
        let shape_of = |rows: usize| -> Shape { lead[..lead.len() - 1].iter().copied().chain([rows]).collect() };
        let outputs: Vec<(DType, Shape)> = self.results(&sizes).iter().map(|&rows| (sizes.dtype, shape_of(rows))).collect();
        let threads = (WARPS * 32) as i32;
        let grid = [self.blocks(&sizes) as i32 * threads, 1, 1];
        let launch = Launch { outputs: &outputs, grid, threads: [threads, 1, 1], templates: &[], init: None };
        let arrays = kernel.launch(&inputs, &launch)?;
        for ((&tid, array), (dtype, shape)) in self.outs.iter().zip(arrays).zip(outputs) {
            m.set(tid, Slot::new(array, dtype, shape));
        }
        Ok(true)
    }

    /// The sizes, if the slots hold one row and matrices that the kernel takes.
    fn sizes(&self, m: &Machine) -> Option<Sizes> {
        let x = m.env.tensors.get(self.x.0 as usize)?.as_ref()?;
        let (dtype, k) = (x.dtype, *x.shape.last()?);
        cuda::type_name(dtype)?;
        content(m, self.x, dtype, k)?;
        if let Some((norm, _)) = self.norm {
            content(m, norm, dtype, k)?;
        }
        let rows = self.weights.iter().map(|w| rows_of(m, w, dtype, k)).collect::<Option<Vec<_>>>()?;
        let sizes = Sizes { dtype, k, rows };
        if let Some(residual) = self.residual {
            content(m, residual, dtype, *sizes.rows.first()?)?;
        }
        let fits = sizes.rows.iter().all(|r| r % 4 == 0) && k % 32 == 0 && self.shared_memory(&sizes) <= MAX_SHARED;
        let same = !self.gated || sizes.rows.windows(2).all(|w| w[0] == w[1]);
        (fits && same).then_some(sizes)
    }

    /// Rows of each result.
    fn results<'a>(&self, sizes: &'a Sizes) -> &'a [usize] {
        if self.gated { &sizes.rows[..1] } else { &sizes.rows }
    }

    /// Rows that a warp reads together.
    fn tile(&self, sizes: &Sizes) -> usize {
        if self.gated || sizes.rows.iter().sum::<usize>() >= MANY_ROWS { 4 } else { 2 }
    }

    fn blocks(&self, sizes: &Sizes) -> usize {
        let results = self.tile(sizes) / if self.gated { 2 } else { 1 };
        self.results(sizes).iter().sum::<usize>().div_ceil(results * WARPS).min(MAX_BLOCKS)
    }

    fn bits_and_group(&self) -> (usize, usize) {
        self.weights.first().map_or(Format::Float, |w| w.format).bits_and_group()
    }

    /// Bytes that the row takes in shared memory, as the kernel lays it out.
    fn shared_memory(&self, sizes: &Sizes) -> usize {
        staged_bytes(self.bits_and_group().0, sizes.k)
    }

    fn kernel(&self, m: &Machine, sizes: &Sizes) -> Result<Kernel> {
        let ty = cuda::type_name(sizes.dtype).unwrap_or_default();
        let ((bits, group), tile, shared) = (self.bits_and_group(), self.tile(sizes), self.shared_memory(sizes));
        let mut inputs = vec!["x".to_owned()];
        inputs.extend(self.norm.map(|_| "norm".to_owned()));
        inputs.extend(self.residual.map(|_| "residual".to_owned()));
        let or_null = |there: bool, name: &'static str| if there { name } else { "nullptr" };
        let (norm, residual) = (or_null(self.norm.is_some(), "norm"), or_null(self.residual.is_some(), "residual"));
        let eps = self.norm.map_or(0.0, |n| n.1);
        let mut source =
            format!("gemv<{ty},{bits},{group},{tile},{WARPS},{}>(x,{norm},{eps:e}f,{residual},{}", self.gated, sizes.k);
        for i in 0..3 {
            match sizes.rows.get(i) {
                None => source.push_str(",{nullptr,nullptr,nullptr,nullptr,0}"),
                Some(rows) => {
                    let y = if self.gated { 0 } else { i };
                    inputs.push(format!("w{i}"));
                    let scales = if bits == 16 {
                        "nullptr,nullptr".to_owned()
                    } else {
                        inputs.extend([format!("s{i}"), format!("b{i}")]);
                        format!("s{i},b{i}")
                    };
                    // Writing to a string cannot fail.
                    let _ = write!(source, ",{{w{i},{scales},y{y},{rows}}}");
                }
            }
        }
        source.push_str(");");
        let outputs: Vec<String> = (0..self.outs.len()).map(|i| format!("y{i}")).collect();
        // MLX sets a kernel's shared memory when it first sees its name and text, so both tell all sizes.
        let name = format!("flambeau_gemv_{ty}_{bits}_{group}_{tile}_{shared}");
        let kernel = KernelText {
            is_cuda: true,
            name: &name,
            source: &source,
            header: cuda::gemv(),
            inputs: &inputs,
            outputs: &outputs,
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: shared as i32,
        };
        Ok(Kernel::new(m.api, &kernel)?)
    }
}

/// Bytes of shared memory that a row of `k` elements takes as the kernels stage it.
pub(super) fn staged_bytes(bits: usize, k: usize) -> usize {
    let codes = 128 / bits;
    let passes = (k / codes).div_ceil(32);
    passes * 32 * codes * 4 + if bits == 16 { 0 } else { passes * 32 * 8 }
}

/// Rows of a matrix with `k` columns; `None` if its slots hold another.
pub(super) fn rows_of(m: &Machine, weights: &Weights, dtype: DType, k: usize) -> Option<usize> {
    let slot = |i: usize| m.env.tensors.get(weights.slots.get(i)?.0 as usize)?.as_ref();
    let w = slot(0)?;
    let &[rows, columns] = &w.shape[..] else { return None };
    match weights.format {
        Format::Float => (w.dtype == dtype && columns == k).then_some(rows),
        Format::Coded { bits, group } => {
            let holds = |s: &Slot| s.dtype == dtype && s.shape[..] == [rows, k / group];
            let fits = w.dtype == DType::U32 && columns * 32 == k * bits && k.is_multiple_of(group);
            (fits && holds(slot(1)?) && holds(slot(2)?)).then_some(rows)
        }
    }
}
