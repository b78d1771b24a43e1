//! Matrix products over dense and packed operands, with `f32` accumulation.
//!
//! # How a product is cut
//! A *product* multiplies rows by columns of K elements. An *operand* is one of its matrices:
//! *dense* (floats with any two strides), or *codes* of a quantized weight
//! ([`quant`](crate::quant)). Products of one input run together as *jobs*. A job names the operand
//! of its rows, an optional *gate* of the same size, and the *epilogue* for its sums. A job is
//! *transposed* if rows of its product are columns of its output. This is the case for the weights
//! `[N, K]` of a linear layer.
//!
//! The unit of reading is the *word* of 32 bits: one `f32`, or a *pair* of consecutive bf16 along
//! K. Pairs need a CPU with their dot product, and operands in bf16 or with permission to round to
//! it ([`quantized`]). Sizes and strides select one of two paths:
//!
//! - *Skinny* (`skinny`): up to eight rows, or columns, of activations, of one input or of several.
//!   Activations are widened and laid out once for each kind of weight; nothing is packed. A task
//!   owns some 16 KB of weights and reads them once, in memory order: dense rows by dot products
//!   (`gemv`), codes straight into registers (`quant/gemv`). A dense matrix with contiguous N is
//!   accumulated row by row (`gemv::by_columns`; `gemv::columns` in a linear layer of short K).
//! - *Blocked* (`block`): everything else. *Packing:* separate tasks pack the columns, one *panel*
//!   each, about a thousand columns (a *chunk*) at a time. A panel is as wide as the register tile
//!   and holds, step by step along K, one word of each of its columns. In a linear layer the
//!   shorter side is packed, so that the longer side is read only once. *Multiplying:* each task
//!   then owns a *block* of one job's output: 48 rows by a *group* of panels that fits the L2
//!   cache. It reads the rows' words in place, or first makes them from codes or other types. Then
//!   it runs the register *tile* (`tile`) over all of K. The sums of a transposed job are
//!   transposed before the epilogue.
//!
//! *Finishing:* the task with a block's sums runs the `epilogue` on *lines* of raw sums in the L1
//! cache. It scales them, adds the bias, applies the activation and the gate, adds the residual,
//! and stores them in the output's type.
//!
//! Convolutions and attention use the tile, the panels and the operands as well. Nothing in
//! [`quant`](crate::quant) calls back: it reads codes and multiplies skinny rows by them, and whole
//! products with codes are in [`quantized`].

mod block;
mod epilogue;
mod gemv;
mod operand;
pub mod quantized;
mod skinny;
mod tile;

use flambeau_tensor::Shape;

use crate::{Error, Float, Pool, View, ViewMut, convert::FloatPtr, error::same, pool::Team, view::Walk};
pub(crate) use block::{Job, Panels, multiply as blocks};
pub(crate) use epilogue::RawEpilogue;
pub(crate) use operand::{Columns, Dense, Operand, words};
pub(crate) use skinny::Input;
pub(crate) use tile::{Inputs, MAX_ROWS, accumulate, tile};

/// A float view of any of the three types.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FloatView<'a> {
    /// 32 bits.
    F32(View<'a, f32>),
    /// IEEE half.
    F16(View<'a, half::f16>),
    /// bfloat16.
    BF16(View<'a, half::bf16>),
}

macro_rules! from_view {
    ($($t:ty => $v:ident),*) => { $(impl<'a> From<View<'a, $t>> for FloatView<'a> {
        fn from(view: View<'a, $t>) -> FloatView<'a> { FloatView::$v(view) }
    })* };
}
from_view!(f32 => F32, half::f16 => F16, half::bf16 => BF16);

impl<'a> FloatView<'a> {
    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            FloatView::F32(v) => v.shape(),
            FloatView::F16(v) => v.shape(),
            FloatView::BF16(v) => v.shape(),
        }
    }

    /// The same data seen in `shape`.
    ///
    /// # Errors
    /// [`Error::Broadcast`] if the shapes do not fit.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<FloatView<'a>, Error> {
        Ok(match self {
            FloatView::F32(v) => FloatView::F32(v.broadcast_to(shape)?),
            FloatView::F16(v) => FloatView::F16(v.broadcast_to(shape)?),
            FloatView::BF16(v) => FloatView::BF16(v.broadcast_to(shape)?),
        })
    }

    /// Element 0, for reading.
    pub(crate) fn origin(&self) -> FloatPtr {
        match self {
            FloatView::F32(v) => FloatPtr::reading(v.origin()),
            FloatView::F16(v) => FloatPtr::reading(v.origin()),
            FloatView::BF16(v) => FloatPtr::reading(v.origin()),
        }
    }

    pub(crate) fn strides(&self) -> &[isize] {
        match self {
            FloatView::F32(v) => v.strides(),
            FloatView::F16(v) => v.strides(),
            FloatView::BF16(v) => v.strides(),
        }
    }
}

/// Parameters of `alpha · (a·b) + beta · bias`.
#[derive(Clone, Debug)]
pub struct Addmm<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the bias.
    pub beta: f32,
    /// Added; broadcasts to the output.
    pub bias: Option<FloatView<'a>>,
}

impl Default for Addmm<'_> {
    fn default() -> Self {
        Addmm { alpha: 1.0, beta: 1.0, bias: None }
    }
}

/// `out[..., M, N] = alpha · a[..., M, K] · b[..., K, N] + beta · bias`; leading axes of `a`, `b`
/// and `bias` broadcast.
///
/// Strides are free: a linear layer passes its weight `[N, K]` permuted, and nothing is transposed
/// in memory.
///
/// # Errors
/// [`Error::Size`] or [`Error::Broadcast`] if the operands do not fit, or a rank is below 2.
pub fn matmul<A: Float, B: Float, C: Float>(
    pool: &Pool,
    a: &View<A>,
    b: &View<B>,
    out: &mut ViewMut<C>,
    addmm: &Addmm,
) -> Result<(), Error> {
    let rank = out.shape().len();
    if rank < 2 || a.rank() < 2 || b.rank() < 2 {
        return Err(Error::Size { what: "rank of a matrix product", expected: 2, found: rank.min(a.rank()).min(b.rank()) });
    }
    let shape = Shape::from_slice(out.shape());
    let (m, n, k) = (shape[rank - 2], shape[rank - 1], a.shape()[a.rank() - 1]);
    same("rows of b", k, b.shape()[b.rank() - 2])?;
    let with = |d: [usize; 2]| shape[..rank - 2].iter().copied().chain(d).collect::<Shape>();
    let (a, b) = (a.broadcast_to(&with([m, k]))?, b.broadcast_to(&with([k, n]))?);
    let bias = addmm.bias.as_ref().map(|v| v.broadcast_to(&shape)).transpose()?;
    let (lead, none) = (rank - 2, [0isize; 16]);
    if lead > none.len() {
        return Err(Error::Size { what: "rank of a matrix product", expected: none.len() + 2, found: rank });
    }
    let bias_strides = bias.as_ref().map_or(&none[..lead], |v| &v.strides()[..lead]);
    let batch = Walk::new(&shape[..lead], [&a.strides()[..lead], &b.strides()[..lead], &out.strides()[..lead], bias_strides]);
    if shape.contains(&0) {
        return Ok(());
    }
    let last = |s: &[isize]| [s[rank - 2], s[rank - 1]];
    let (a_step, b_step, out_step) = (last(a.strides()), last(b.strides()), last(out.strides()));
    let out_origin = out.origin();
    let rows_fold = fold_batch(&batch, [m, k], a_step, out_step, bias.as_ref().map(|v| last(v.strides())));
    let size = [if rows_fold { m * batch.len() } else { m }, n, k];
    let products = Products { size, a: FloatPtr::reading(a.origin()), a_step, b: FloatPtr::reading(b.origin()), b_step };
    let epilogue = RawEpilogue { alpha: addmm.alpha, beta: addmm.beta, ..RawEpilogue::plain(FloatPtr::of(out_origin), out_step) };
    let count = if rows_fold { 1 } else { batch.len() };
    let one = |i: usize| {
        batch.runs(i, i + 1, |at, _| {
            // SAFETY: `at` is an index on the views' leading axes, so each origin is inside its
            // data.
            unsafe { products.run(pool, at, epilogue, bias.as_ref()) };
        });
    };
    // Small products are not worth a fork-join each.
    if count > 1 && m * n * k < SMALL {
        pool.run(count, one)
    } else {
        (0..count).for_each(one)
    }
    Ok(())
}

/// Multiplications of a product that one thread does.
const SMALL: usize = 1 << 22;

/// Parameters shared by the products of a batch.
struct Products {
    /// m, n, k
    size: [usize; 3],
    a: FloatPtr,
    a_step: [isize; 2],
    b: FloatPtr,
    b_step: [isize; 2],
}

impl Products {
    /// The product whose matrices start at these offsets of `a`, `b`, output and bias.
    ///
    /// # Safety
    /// The offsets `at` are inside the operands' data, and the data fits the product's sizes.
    unsafe fn run(&self, pool: &Pool, at: [isize; 4], epilogue: RawEpilogue, bias: Option<&FloatView>) {
        // SAFETY: the caller's offsets lead to matrices of the product's sizes inside their data.
        unsafe {
            let a = Dense::new(self.a.offset(at[0]), self.a_step);
            let b = Dense::new(self.b.offset(at[1]), self.b_step);
            let out = Dense { origin: epilogue.out.origin.offset(at[2]), step: epilogue.out.step };
            let epilogue = RawEpilogue { out, bias: bias.map(|view| Dense::of(view, at[3])), ..epilogue };
            product(&mut pool.team(), self.size, &a, &b, epilogue);
        }
    }
}

/// `a[m, k] · b[k, n]`
///
/// # Safety
/// The operands have these sizes.
unsafe fn product(team: &mut Team, [m, n, k]: [usize; 3], a: &Dense, b: &Dense, epilogue: RawEpilogue) {
    let transposed = Job { rows: n, operand: Operand::Dense(b.transposed()), gate: None, epilogue, transposed: true };
    // SAFETY: the caller states the operands' sizes, and each arm passes them on.
    unsafe {
        if b.step[0] == 1 || k == 1 {
            linear(team, [m, k], a, &[transposed]);
        } else if m <= skinny::ROWS && b.step[1] == 1 {
            let (rows, stride) = skinny::widen(team, &[Input { m, x: *a, jobs: &[] }], k);
            gemv::by_columns(team, [m, n, k], rows.as_floats(), stride, b, &epilogue);
            team.give_back(rows);
        } else if n <= skinny::ROWS && a.step[1] == 1 {
            let job = Job { rows: m, operand: Operand::Dense(*a), epilogue: epilogue.transposed(), ..transposed };
            skinny::multiply(team, k, &[Input { m: n, x: b.transposed(), jobs: &[job] }]);
        } else {
            let job = Job { rows: m, operand: Operand::Dense(*a), transposed: false, ..transposed };
            blocks(team, [n, k], Columns::Lines(Operand::Dense(*b)), &[job]);
        }
    }
}

/// Computes `x · rowsᵀ` of each job for `x` `[m, k]`. A job's rows are the columns of its output,
/// and all jobs are `transposed`.
///
/// # Safety
/// The operands have these sizes.
pub(crate) unsafe fn linear(team: &mut Team, [m, k]: [usize; 2], x: &Dense, jobs: &[Job]) {
    if m == 0 {
        return;
    }
    // SAFETY: the caller states the operands' sizes, and each arm passes them on.
    unsafe {
        if is_skinny([m, k], jobs) {
            skinny::multiply(team, k, &[Input { m, x: *x, jobs }]);
        } else if jobs.iter().all(|j| j.gate.is_none() && j.rows < m) {
            // The shorter side is packed, the longer side is read in place, and no output is
            // transposed.
            for job in jobs {
                let own = Job { rows: m, operand: Operand::Dense(*x), transposed: false, ..*job };
                blocks(team, [job.rows, k], Columns::Rows(job.operand), &[own]);
            }
        } else {
            blocks(team, [m, k], Columns::Rows(Operand::Dense(*x)), jobs);
        }
    }
}

/// As [`linear`] for each input. All inputs have one element type, and their jobs have the same
/// operands. Operands are read once for up to [`skinny::ROWS`] rows. Results are bit-identical to
/// separate calls.
///
/// # Safety
/// The operands have these sizes.
pub(crate) unsafe fn linear_of_each(team: &mut Team, k: usize, inputs: &[Input]) {
    let mut rest = inputs;
    while !rest.is_empty() {
        let mut rows = 0;
        let few = rest.iter().take_while(|input| {
            rows += input.m;
            is_skinny([rows, k], input.jobs)
        });
        let (together, others) = rest.split_at(few.count().max(1));
        rest = others;
        // SAFETY: the caller states the sizes.
        unsafe {
            match together {
                [one] => linear(team, [one.m, k], &one.x, one.jobs),
                several => skinny::multiply(team, k, several),
            }
        }
    }
}

fn is_skinny([m, k]: [usize; 2], jobs: &[Job]) -> bool {
    let mut operands = jobs.iter().flat_map(|j| std::iter::once(&j.operand).chain(&j.gate));
    m <= skinny::ROWS && operands.all(|operand| skinny::readable(operand, k))
}

/// Whether the batch only adds rows of `a` for one `b`, as in a linear layer over
/// `[batch, time, features]`.
fn fold_batch(batch: &Walk<4>, [m, _]: [usize; 2], a: [isize; 2], out: [isize; 2], bias: Option<[isize; 2]>) -> bool {
    let step = batch.inner();
    let follows = |outer: isize, row: isize| m == 1 || outer == row * m as isize;
    batch.is_single_axis()
        && batch.len() > 1
        && step[1] == 0
        && m > 1
        && follows(step[0], a[0])
        && follows(step[2], out[0])
        && bias.is_none_or(|b| follows(step[3], b[0]))
}

#[cfg(test)]
mod tests;
