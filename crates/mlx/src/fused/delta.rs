//! One token of a gated delta net, from its projections to the gated result. The steps are:
//! convolution over the last tokens, norms of queries and keys, gates, the delta rule on the state,
//! and the norm.

use flambeau_ir::{In, Int, KnownKernel, MetalKernel, Node, Tid, Vid};
use flambeau_tensor::{DType, Shape};

use super::{
    FusedNodes, Kind,
    find::{Content, Matcher, Scope, applied, node},
    launch::Builder,
    layers::Snapshot,
    linear::content,
    refusal::Form,
};
use crate::{cuda, cx::Machine, error::Result};

/// Elements and numbers of heads, and tokens that the convolution sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeltaNetSizes {
    keys: usize,
    values: usize,
    key_heads: usize,
    heads: usize,
    taps: usize,
}

impl DeltaNetSizes {
    /// Elements of all keys, and of all values.
    fn all(&self) -> [usize; 2] {
        [self.key_heads * self.keys, self.heads * self.values]
    }

    fn channels(&self) -> usize {
        let [keys, values] = self.all();
        2 * keys + values
    }
}

/// A fused step of a gated delta net.
#[derive(Debug)]
pub(crate) struct Delta {
    /// Projections: queries, keys and values; the output gate; the write gate; the decay gate.
    qkv: Tid,
    z: Tid,
    b: Tid,
    a: Tid,
    /// Whether a sequence begins, and zeros that the state is then.
    begins: Tid,
    zeros: [Tid; 3],
    taps: Tid,
    /// The previous tokens and the state: before and after the step.
    windows: [Tid; 2],
    states: [Tid; 2],
    bias: Tid,
    decay: Tid,
    /// For query and key: epsilon of the norm, and the factor of the normalised row.
    scales: [(f32, Tid); 2],
    norm: (Tid, f32),
    /// Start and end of the next step's window among all tokens.
    kept_range: [Vid; 2],
    sizes: DeltaNetSizes,
    /// Nodes among the others that compute sizes.
    kept: Vec<Node>,
    pub(super) out: Tid,
}

/// The slot that a node reads, if no node of the run wrote it.
fn given(r: &Matcher<'_, '_>, slot: In) -> Option<Tid> {
    r.read(slot).filter(|(_, writer)| writer.is_none()).map(|(tid, _)| tid)
}

/// A conversion of a projection to f32.
fn widened(r: &mut Matcher<'_, '_>) -> Option<(Tid, Content)> {
    let wide = node!(r, AsType);
    (wide.scalar_type == DType::F32).then_some((given(r, wide.x)?, r.wrote(wide.out.0)))
}

/// The carried state, or zeros at the start of a sequence: condition, zero, buffer, result.
fn carried(r: &mut Matcher<'_, '_>) -> Option<([Tid; 3], Content)> {
    let choose = node!(r, Where);
    let [condition, zero, buffer] = [choose.condition, choose.x, choose.y].map(|slot| given(r, slot));
    let fits = r.scope.is_constant(zero?) && r.scope.is_buffer(buffer?);
    fits.then_some(([condition?, zero?, buffer?], r.wrote(choose.out.0)))
}

/// A query or key: rows of one length, times a constant.
fn normalised(r: &mut Matcher<'_, '_>, part: Content) -> Option<((f32, Tid), [usize; 2], Content)> {
    let (heads, row) = shaped(r, part)?;
    let norm = node!(r, RMSNorm);
    r.reads(norm.x, row)?;
    let (eps, row) = (norm.eps, r.wrote(norm.out.0));
    norm.weight.is_none().then_some(())?;
    let mul = node!(r, Multiply);
    let scale = r.constant_operand(mul.a, mul.b, row)?;
    Some(((eps, scale), heads, r.wrote(mul.out.0)))
}

/// Heads of one row: their number and elements.
fn shaped(r: &mut Matcher<'_, '_>, part: Content) -> Option<([usize; 2], Content)> {
    let reshape = node!(r, Reshape);
    r.reads(reshape.x, part)?;
    let [Int::Lit(1), Int::Lit(1 | -1) | Int::Vid(_), Int::Lit(count), Int::Lit(dim)] = reshape.shape[..] else { return None };
    Some(([usize::try_from(count).ok()?, usize::try_from(dim).ok()?], r.wrote(reshape.out.0)))
}

/// A part of the last axis, from a position on: its end, and the part.
fn cut(r: &mut Matcher<'_, '_>, x: Content, from: i64) -> Option<(i64, Content)> {
    let slice = node!(r, Slice);
    r.reads(slice.x, x)?;
    let (Int::Lit(start), Int::Lit(stop)) = (slice.start, slice.stop) else { return None };
    let fits = slice.axis == Int::Lit(2) && slice.step == 1 && start == from && stop > start;
    fits.then_some((stop, r.wrote(slice.out.0)))
}

/// The convolution over the last tokens.
struct Convolution {
    qkv: Tid,
    begins: Tid,
    zero: Tid,
    windows: [Tid; 2],
    kept_range: [Vid; 2],
    taps: Tid,
    groups: usize,
    /// In f32.
    result: Content,
}

fn convolution(r: &mut Matcher<'_, '_>) -> Option<Convolution> {
    let ([begins, zero, window], before) = carried(r)?;
    let join = node!(r, Concatenate);
    let &[first, second] = &join.tensors[..] else { return None };
    r.reads(first, before)?;
    let (qkv, all) = (given(r, second)?, r.wrote(join.out.0));
    (join.axis == 1).then_some(())?;
    let last = node!(r, Slice);
    r.reads(last.x, all)?;
    let (Int::Vid(start), Int::Vid(stop)) = (last.start, last.stop) else { return None };
    (last.axis == Int::Lit(1) && last.step == 1).then_some(())?;
    let next = last.out.0;
    let conv = node!(r, Conv1D);
    r.reads(conv.x, all)?;
    let plain = (conv.stride, conv.padding, conv.dilation) == (1, 0, 1) && r.scope.is_constant(conv.w.0);
    let (taps, sum) = (conv.w.0, r.wrote(conv.out.0));
    let active = applied!(r, Silu, sum);
    let wide = node!(r, AsType);
    r.reads(wide.x, active)?;
    let result = r.wrote(wide.out.0);
    (plain && wide.scalar_type == DType::F32).then_some(())?;
    let groups = usize::try_from(conv.groups).ok()?;
    Some(Convolution { qkv, begins, zero, windows: [window, next], kept_range: [start, stop], taps, groups, result })
}

/// The logarithm of the state's decay: the projection, the added constant, the factor, a zero.
fn decay(r: &mut Matcher<'_, '_>) -> Option<([Tid; 4], Content)> {
    let (a, wide) = widened(r)?;
    let add = node!(r, Add);
    let bias = r.constant_operand(add.a, add.b, wide)?;
    let sum = r.wrote(add.out.0);
    let plus = node!(r, LogAddExp);
    let zero = r.constant_operand(plus.a, plus.b, sum)?;
    let soft = r.wrote(plus.out.0);
    let mul = node!(r, Multiply);
    let decay = r.constant_operand(mul.a, mul.b, soft)?;
    Some(([a, bias, decay, zero], r.wrote(mul.out.0)))
}

/// The kernel's operands in order, and its sizes, if it is the rule.
fn rule(r: &Matcher<'_, '_>, n: &MetalKernel, operands: [Content; 6]) -> Option<[usize; 4]> {
    (n.known() == Some(KnownKernel::GatedDeltaStep) && n.outputs.len() == 2).then_some(())?;
    n.inputs.iter().zip(operands).try_for_each(|(&slot, content)| r.reads(slot, content))?;
    Some([n.template_size("Dk")?, n.template_size("Dv")?, n.template_size("Hk")?, n.template_size("Hv")?])
}

/// Matches the norm of the result in the model's type, times a gate. Returns the norm's weight and
/// epsilon, the gate's projection, and the result.
fn gated(r: &mut Matcher<'_, '_>, y: Content) -> Option<((Tid, f32), Tid, Tid)> {
    let y = applied!(r, AsType, y);
    let norm = node!(r, RMSNorm);
    r.reads(norm.x, y)?;
    let (weight, eps) = (norm.weight.filter(|w| r.scope.is_constant(w.0))?.0, norm.eps);
    let y = r.wrote(norm.out.0);
    let z = match r.scope.nodes.get(r.at)? {
        Node::Reshape(reshape) => (reshape.x.0, None),
        _ => return None,
    };
    let (_, gate) = shaped(r, z)?;
    let gate = applied!(r, Silu, gate);
    let mul = node!(r, Multiply);
    r.reads_both(mul.a, mul.b, y, gate)?;
    let y = r.wrote(mul.out.0);
    let flat = node!(r, Reshape);
    r.reads(flat.x, y)?;
    (flat.shape.len() == 3).then_some(((weight, eps), z.0, flat.out.0))
}

/// Finds the step that begins at a node.
pub(super) fn find(scope: &Scope<'_>, at: usize) -> Option<FusedNodes> {
    let Node::Where(_) = scope.nodes.get(at)? else { return None };
    scope.candidate(Form::DeltaNet, at, |place| read(Matcher::new(scope, place)))
}

fn read(mut r: Matcher<'_, '_>) -> Option<FusedNodes> {
    let conv = convolution(&mut r)?;
    let (q_end, q) = cut(&mut r, conv.result, 0)?;
    let (k_end, k) = cut(&mut r, conv.result, q_end)?;
    let (v_end, v) = cut(&mut r, conv.result, k_end)?;
    let (q_scale, q_heads, q) = normalised(&mut r, q)?;
    let (k_scale, k_heads, k) = normalised(&mut r, k)?;
    let (v_heads, v) = shaped(&mut r, v)?;
    let ([a, bias, decay, zero], g) = decay(&mut r)?;
    let (b, beta) = widened(&mut r)?;
    let g = applied!(r, Exp, g);
    let beta = applied!(r, Sigmoid, beta);
    let ([begins, state_zero, state], before) = carried(&mut r)?;
    let kernel = node!(r, MetalKernel);
    let [keys, values, key_heads, heads] = rule(&r, kernel, [q, k, v, g, beta, before])?;
    let next = kernel.outputs[1].0;
    let y = r.wrote(kernel.outputs[0].0);
    let (norm, z, out) = gated(&mut r, y)?;
    let (window, taps) = (conv.windows[0], r.scope.graph.meta.get(conv.taps.0 as usize)?.static_shape()?);
    let &[channels, taps, 1] = &taps[..] else { return None };
    let sizes = DeltaNetSizes { keys, values, key_heads, heads, taps };
    let ends = sizes.all();
    let same = [q_heads, k_heads] == [[key_heads, keys]; 2] && v_heads == [heads, values] && begins == conv.begins;
    let whole = (conv.groups, channels) == (sizes.channels(), sizes.channels())
        && [q_end, k_end, v_end] == [ends[0], 2 * ends[0], sizes.channels()].map(|n| n as i64);
    r.leaves_only(&[conv.windows[1], next, out])?;
    let delta = Delta {
        qkv: conv.qkv,
        z,
        b,
        a,
        begins,
        zeros: [conv.zero, zero, state_zero],
        taps: conv.taps,
        windows: [window, conv.windows[1]],
        states: [state, next],
        bias,
        decay,
        scales: [q_scale, k_scale],
        norm,
        kept_range: conv.kept_range,
        sizes,
        kept: r.kept,
        out,
    };
    let fits = same && whole && taps > 1 && heads.is_multiple_of(key_heads);
    r.scope.require(fits, "the sizes of heads, convolution and rule differ")?;
    Some(FusedNodes { end: r.at, kind: Kind::Delta(Box::new(delta)) })
}

impl Delta {
    /// The slots that it leaves.
    pub(super) fn outs(&self) -> [Tid; 3] {
        [self.out, self.windows[1], self.states[1]]
    }

    /// Adds the step's part; `false` if the kernel does not support its sizes.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn build(&self, m: &mut Machine, b: &mut Builder) -> Result<bool> {
        let Some(dtype) = self.dtype(m, b) else { return Ok(false) };
        let DeltaNetSizes { keys, values, key_heads, heads, taps } = self.sizes;
        let inputs = [self.qkv, self.z, self.b, self.a, self.taps, self.windows[0]].map(|t| b.slot(m, t));
        let constants = [self.bias, self.decay, self.scales[0].1, self.scales[1].1, self.norm.0].map(|t| b.slot(m, t));
        let (state, begins) = (b.slot(m, self.states[0])?, b.slot(m, self.begins)?);
        let outer = Snapshot::of(m, [self.qkv, self.z, self.b, self.a, self.begins].iter())?;
        let mut free = true;
        for node in &self.kept {
            free = free && b.keep(m, node)?;
        }
        let range = self.kept_range.map(|vid| m.env.values.get(vid.0 as usize).copied().flatten());
        if !free || range != [Some(1), Some(taps as i32)] {
            outer.restore(m);
            return Ok(false);
        }
        let [qkv, z, beta, a, weights, before] = inputs;
        let [bias, decay, q_scale, k_scale, norm] = constants;
        let channels = self.sizes.channels();
        let after = b.result(m, self.windows[1], dtype, Shape::from_slice(&[1, taps - 1, channels]))?;
        let next = b.result(m, self.states[1], DType::F32, Shape::from_slice(&[1, heads, values, keys]))?;
        let y = b.result(m, self.out, dtype, Shape::from_slice(&[1, 1, heads * values]))?;
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let [q_eps, k_eps] = self.scales.map(|(eps, _)| eps);
        let text = format!(
            "struct S{{enum{{kKeys={keys},kValues={values},kKeyHeads={key_heads},kHeads={heads},kTaps={taps}}};}};\
             DeltaToken<{ty}> s{{{},{},{},{},{},{},{after},{},{},{},{},{},{state},{next},{begins},{y},{q_eps:e}f,{k_eps:e}f,{:e}f}};\
             DeltaHead<{ty},S,kW>{{s,shared}}.run(wait);",
            qkv?, z?, beta?, a?, weights?, before?, bias?, decay?, q_scale?, k_scale?, norm?, self.norm.1
        );
        b.part(text, (2 * keys + values) * 4, heads);
        Ok(true)
    }

    /// The model's type. `None` unless the slots have the shapes and types of a single-token step.
    fn dtype(&self, m: &Machine, b: &Builder) -> Option<DType> {
        let dtype = m.env.tensors.get(self.qkv.0 as usize)?.as_ref()?.dtype;
        cuda::type_name(dtype)?;
        let DeltaNetSizes { keys, values, heads, taps, .. } = self.sizes;
        let channels = self.sizes.channels();
        let [_, all] = self.sizes.all();
        for (tid, count) in [
            (self.qkv, channels),
            (self.z, all),
            (self.b, heads),
            (self.a, heads),
            (self.taps, channels * taps),
            (self.windows[0], channels * (taps - 1)),
            (self.norm.0, values),
        ] {
            content(m, tid, dtype, count)?;
        }
        for (tid, count) in
            [(self.bias, heads), (self.decay, heads), (self.scales[0].1, 1), (self.scales[1].1, 1), (self.states[0], all * keys)]
        {
            content(m, tid, DType::F32, count)?;
        }
        content(m, self.begins, DType::Bool, 1)?;
        let threads = b.warps() * 32;
        let lanes = threads / values.max(1);
        let rows = threads.is_multiple_of(values) && matches!(lanes, 1 | 2 | 4 | 8 | 16 | 32) && keys.is_multiple_of(4 * lanes);
        let small = keys / lanes.max(1) <= 64 && keys.is_multiple_of(32);
        (rows && small && self.zeros.iter().all(|&t| is_zero(m, t))).then_some(dtype)
    }
}

/// Whether the host knows a slot's only element to be zero.
fn is_zero(m: &Machine, tid: Tid) -> bool {
    let host = m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref).and_then(|slot| slot.host.as_ref());
    host.is_some_and(|host| host.numel() == 1 && host.bytes().iter().all(|&byte| byte == 0))
}
