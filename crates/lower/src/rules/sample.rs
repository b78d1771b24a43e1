//! Sampling of tokens from logits on the device.

use flambeau_ir::{Argmax, If, In, InVid, Index, Int, ItemInt, Node, Out, RandomBits, Spec, SubtractInt, Take, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    random::uniform_from_bits,
    row,
};
use crate::{
    Call, Item, Lower, Origin, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
};

type Items = Result<Vec<Item>, Refuse>;

/// Sorts an axis in descending order.
fn descending(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    let negative = ops::neg(cx, x)?;
    let sorted = ops::sort(cx, negative, axis)?;
    ops::neg(cx, sorted)
}

/// Gumbel noise: `-ln(-ln u)`.
fn gumbel(cx: &mut Lower, dims: &[Expr], seed: Option<Tid>) -> Emitted {
    let seed = seed.map(|s| cx.emit_value(ItemInt { x: In(s), out: NEW_VALUE })).transpose()?.map(InVid);
    let shape = cx.ints(dims)?;
    let bits = cx.emit(RandomBits { out: NEW, shape, seed, width: 4 })?;
    let uniform = uniform_from_bits(cx, bits)?;
    let inner = ops::log(cx, uniform)?;
    let inner = ops::neg(cx, inner)?;
    let outer = ops::log(cx, inner)?;
    ops::neg(cx, outer)
}

/// `x` with minus infinity where `below` is less than `threshold`.
fn cut(cx: &mut Lower, x: Tid, below: Tid, threshold: Tid) -> Emitted {
    let lost = ops::lt(cx, below, threshold)?;
    let lowest = ops::number_like(cx, x, f64::NEG_INFINITY)?;
    ops::select(cx, lost, lowest, x)
}

/// Keeps the `top_k` largest logits, including ties.
fn filter_top_k(cx: &mut Lower, x: Tid, top_k: Tid, axis: usize) -> Emitted {
    let size = cx.spec(x).dims[axis].as_int();
    let Some(size) = size else { return unsupported("a vocabulary of unknown size") };
    let size = ops::number_like(cx, top_k, size as f64)?;
    let k = ops::minimum(cx, top_k, size)?;
    let k = cx.emit_value(ItemInt { x: In(k), out: NEW_VALUE })?;
    let last = cx.emit_value(SubtractInt { a: Int::Vid(k), b: Int::Lit(1), out: NEW_VALUE })?;
    let sorted = descending(cx, x, axis)?;
    let smallest = cx.emit(Take { x: In(sorted), out: NEW, index: Index::Vid(last), axis: axis as i32 })?;
    let smallest = cx.unsqueeze(smallest, axis)?;
    cut(cx, x, x, smallest)
}

/// Keeps the most likely tokens: those where the sum of all likelier tokens is at most `top_p`.
fn filter_top_p(cx: &mut Lower, x: Tid, top_p: Tid, axis: usize) -> Emitted {
    let top_p = cx.cast(top_p, DType::F32)?;
    let probabilities = ops::softmax(cx, x, axis)?;
    let sorted = descending(cx, probabilities, axis)?;
    let total = ops::cumsum(cx, sorted, axis)?;
    let before = ops::sub(cx, total, sorted)?;
    let lost = ops::gt(cx, before, top_p)?;
    let highest = ops::number_like(cx, sorted, f64::INFINITY)?;
    let kept = ops::select(cx, lost, highest, sorted)?;
    let smallest = ops::min(cx, kept, &[axis], true)?;
    cut(cx, x, probabilities, smallest)
}

/// One token for each row of `logits` `[B, V]`: the likeliest at temperature 0, else a random one.
fn sample(cx: &mut Lower, call: &Call) -> Items {
    let (logits, temperature) = (call.tensor("logits")?, call.tensor("temperature")?);
    let (top_k, top_p, seed) = (call.tensor("top_k")?, call.tensor("top_p")?, call.tensor_opt("seed")?);
    let spec = cx.spec(logits).clone();
    let Some(axis) = spec.rank().checked_sub(1) else { return unsupported("a single logit") };
    let out = cx.slot(Spec { dtype: DType::U32, dims: spec.dims[..axis].iter().cloned().collect() }, Origin::Node);
    let best = |cx: &mut Lower, x: Tid| {
        cx.emit_all(Node::Argmax(Argmax { x: In(x), out: Out(out), axis: axis as i32, keepdims: false })).map(drop)
    };
    let zero = ops::number_like(cx, temperature, 0.0)?;
    let random = ops::gt(cx, temperature, zero)?;
    let cond = Int::Vid(cx.emit_value(ItemInt { x: In(random), out: NEW_VALUE })?);
    let (then_chain, ()) = cx.chain(|cx| {
        let noise = gumbel(cx, &spec.dims, seed)?;
        let scores = cx.cast(logits, DType::F32)?;
        let temperature = cx.cast(temperature, DType::F32)?;
        let scores = ops::div(cx, scores, temperature)?;
        let scores = filter_top_k(cx, scores, top_k, axis)?;
        let scores = filter_top_p(cx, scores, top_p, axis)?;
        let noisy = ops::add(cx, scores, noise)?;
        best(cx, noisy)
    })?;
    let (else_chain, ()) = cx.chain(|cx| best(cx, logits))?;
    let (then_chain_idx, else_chain_idx) = (flambeau_ir::ChainId(then_chain), flambeau_ir::ChainId(else_chain));
    cx.emit_all(Node::If(If { cond, then_chain_idx, else_chain_idx }))?;
    one(out)
}

pub(super) const ROWS: &[RuleRow] = &[row("mlx.sample.default", sample)];
