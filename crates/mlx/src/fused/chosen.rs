//! The experts that a router chooses for one row: their gated layers, weighted and summed, in two launches.

use std::collections::BTreeMap;

use flambeau_ir::{GatherQmm, In, Int, Node, QuantMode, Role, Slot as GraphSlot, Tid};
use flambeau_tensor::{DType, Shape};

use super::{
    Kind, Step,
    find::Scope,
    linear::{content, staged_bytes},
};
use crate::{
    cuda,
    cx::{Machine, Slot},
    error::Result,
    ffi::{Array, KernelText, Launch},
};

/// Warps of a block, as the kernels have them.
const WARPS: usize = 8;
/// Bits of a code.
const BITS: usize = 4;
/// Shared memory that a block has without asking, less what the kernels declare.
const MAX_SHARED: usize = 44 << 10;

/// A slot's content: the slot, and the node of the run that wrote it, if one did.
type Content = (Tid, Option<usize>);

/// Matrices of all experts: codes, scales, biases.
type Matrices = [Tid; 3];

/// A fused step of the chosen experts.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The router's logits in the model's type, and the row.
    logits: Tid,
    x: Tid,
    gate: Matrices,
    up: Matrices,
    down: Matrices,
    chosen: usize,
    group: usize,
    out: Tid,
}

/// What the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    dtype: DType,
    experts: usize,
    hidden: usize,
    width: usize,
}

/// The next node of a reader, if it is of a kind.
macro_rules! node {
    ($reader:expr, $kind:ident) => {
        match $reader.next()? {
            Node::$kind(node) => node,
            _ => return None,
        }
    };
}
/// Reads nodes in order, and knows which of them wrote what a slot holds.
struct Reader<'s, 'a> {
    scope: &'s Scope<'a>,
    at: usize,
    writers: BTreeMap<Tid, usize>,
    /// What the node in hand reads, and who wrote it before.
    reads: Vec<Content>,
}

impl<'a> Reader<'_, 'a> {
    fn next(&mut self) -> Option<&'a Node> {
        let node = self.scope.nodes.get(self.at)?;
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        node.walk(&mut |role, slot| {
            if let GraphSlot::Tensor(tid) = slot {
                if role == Role::Write { writes.push(tid) } else { reads.push((tid, self.writers.get(&tid).copied())) }
            }
        });
        self.reads = reads;
        self.writers.extend(writes.into_iter().map(|tid| (tid, self.at)));
        self.at += 1;
        Some(node)
    }

    /// What the node in hand reads from a slot.
    fn read(&self, slot: In) -> Option<Content> {
        self.reads.iter().find(|(tid, _)| *tid == slot.0).copied()
    }

    /// What the node in hand wrote.
    fn wrote(&self, tid: Tid) -> Content {
        (tid, Some(self.at - 1))
    }

    /// Whether the node in hand reads two contents, in either order.
    fn reads_both(&self, a: In, b: In, one: Content, other: Content) -> bool {
        let found = (self.read(a), self.read(b));
        found == (Some(one), Some(other)) || found == (Some(other), Some(one))
    }

    /// A product of rows with the matrices of the experts that `numbers` names: the matrices, their group, the result.
    fn product(&mut self, x: Content, numbers: Content) -> Option<(Matrices, usize, Content)> {
        let n = node!(self, GatherQmm);
        let slots = [n.w.0, n.scales.0, n.biases?.0];
        let coded = n.mode == QuantMode::Affine && n.bits as usize == BITS && n.transpose && n.lhs_indices.is_none();
        let fits = coded && slots.iter().all(|&t| self.scope.is_constant(t)) && self.names(n, x, numbers);
        fits.then_some((slots, usize::try_from(n.group_size).ok()?, self.wrote(n.out.0)))
    }

    fn names(&self, n: &GatherQmm, x: Content, numbers: Content) -> bool {
        self.read(n.x) == Some(x) && n.rhs_indices.and_then(|rhs| self.read(rhs)) == Some(numbers)
    }
}

/// Shares of the best `chosen`, and their numbers: softmax, the last of an ascending order, the share of their sum.
fn route(r: &mut Reader<'_, '_>) -> Option<(Tid, usize, [Content; 2])> {
    let wide = node!(r, AsType);
    let (logits, mut scores) = (wide.x.0, r.wrote(wide.out.0));
    let soft = node!(r, Softmax);
    (wide.scalar_type == DType::F32 && r.read(soft.x) == Some(scores) && matches!(soft.axis, 1 | -1)).then_some(())?;
    scores = r.wrote(soft.out.0);
    let sort = node!(r, Argsort);
    (r.read(sort.x) == Some(scores) && matches!(sort.axis, 1 | -1)).then_some(())?;
    let order = r.wrote(sort.out.0);
    let last = node!(r, Slice);
    let Int::Lit(stop) = last.stop else { return None };
    let chosen = usize::try_from(-1 - stop).ok()?;
    let backwards = last.step == -1 && last.start == Int::Lit(-1) && last.axis == Int::Lit(1) && chosen > 0;
    (r.read(last.x) == Some(order) && backwards).then_some(())?;
    let mut numbers = r.wrote(last.out.0);
    let take = node!(r, TakeAlongAxis);
    (r.read(take.x) == Some(scores) && r.read(take.indices) == Some(numbers) && matches!(take.axis, 1 | -1)).then_some(())?;
    let best = r.wrote(take.out.0);
    let cast = node!(r, AsType);
    (r.read(cast.x) == Some(numbers) && cast.scalar_type == DType::I64).then_some(())?;
    numbers = r.wrote(cast.out.0);
    let sum = node!(r, Sum);
    (r.read(sum.x) == Some(best) && matches!(sum.axes[..], [1 | -1]) && sum.keepdims).then_some(())?;
    let total = r.wrote(sum.out.0);
    let share = node!(r, Divide);
    (r.read(share.a) == Some(best) && r.read(share.b) == Some(total)).then_some(())?;
    let shares = r.wrote(share.out.0);
    let narrow = node!(r, AsType);
    (r.read(narrow.x) == Some(shares) && narrow.scalar_type != DType::F32).then_some(())?;
    Some((logits, chosen, [r.wrote(narrow.out.0), numbers]))
}

/// Finds the experts' step that begins at a node.
pub(super) fn find(scope: &Scope<'_>, at: usize) -> Option<Step> {
    let Node::AsType(_) = scope.nodes.get(at)? else { return None };
    let mut r = Reader { scope, at, writers: BTreeMap::new(), reads: Vec::new() };
    let (logits, chosen, [shares, numbers]) = route(&mut r)?;
    let rows = node!(r, Reshape);
    let (x, row) = (r.read(rows.x)?, r.wrote(rows.out.0));
    let (gate, group, low) = r.product(row, numbers)?;
    let (up, group_of_up, high) = r.product(row, numbers)?;
    let silu = node!(r, Silu);
    (r.read(silu.x) == Some(low)).then_some(())?;
    let low = r.wrote(silu.out.0);
    let mul = node!(r, Multiply);
    r.reads_both(mul.a, mul.b, low, high).then_some(())?;
    let inner = r.wrote(mul.out.0);
    let (down, group_of_down, each) = r.product(inner, numbers)?;
    let flat = node!(r, Reshape);
    (r.read(flat.x) == Some(each)).then_some(())?;
    let each = r.wrote(flat.out.0);
    let expand = node!(r, ExpandDims);
    (r.read(expand.x) == Some(shares) && matches!(expand.axis, 2 | -1)).then_some(())?;
    let shares = r.wrote(expand.out.0);
    let weighted = node!(r, Multiply);
    r.reads_both(weighted.a, weighted.b, each, shares).then_some(())?;
    let weighted = r.wrote(weighted.out.0);
    let sum = node!(r, Sum);
    (r.read(sum.x) == Some(weighted) && sum.axes[..] == [1] && !sum.keepdims).then_some(())?;
    let (out, end) = (sum.out.0, r.at);
    let unread = r.writers.keys().all(|&t| t == out || scope.is_dead(t, end));
    let same = group == group_of_up && group == group_of_down && matches!(group, 32 | 64 | 128);
    let chosen = Chosen { logits, x: x.0, gate, up, down, chosen, group, out };
    (unread && same && x.1.is_none()).then(|| Step { end, kind: Kind::Chosen(Box::new(chosen)) })
}

impl Chosen {
    /// Its result.
    pub(super) fn out(&self) -> Tid {
        self.out
    }

    /// Adds the launches to MLX's graph; `false` if the step's sizes are none of the kernels'.
    ///
    /// # Errors
    /// If MLX refuses a kernel.
    pub(super) fn run(&self, m: &mut Machine) -> Result<bool> {
        let Some(sizes) = self.sizes(m) else { return Ok(false) };
        let Sizes { dtype, experts, hidden, width } = sizes;
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let (chosen, group) = (self.chosen, self.group);
        let head = format!(
            "extern __shared__ float shared[];struct S{{enum{{kExperts={experts},kChosen={chosen},kHidden={hidden},kWidth={width},\
             kGroup={group}}};}};Chosen<{ty},S>::"
        );
        let slot = |t: &Tid| m.env.tensors.get(t.0 as usize).and_then(Option::as_ref).map(|s| s.array.share()).transpose();
        let arrays = |tids: &[Tid]| -> Result<Vec<Array>> {
            Ok(tids.iter().map(slot).collect::<std::result::Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        };
        let inputs = arrays(&[&[self.logits, self.x][..], &self.gate, &self.up].concat())?;
        let down = arrays(&self.down)?;
        let first = Part {
            name: format!("flambeau_chosen_inner_{ty}"),
            source: format!("{head}inner(shared,logits,x,{{gw,gs,gb}},{{uw,us,ub}},y,numbers,shares);"),
            inputs: &["logits", "x", "gw", "gs", "gb", "uw", "us", "ub"],
            outputs: &["y", "numbers", "shares"],
            shapes: &[(dtype, &[chosen * width]), (DType::I32, &[chosen]), (DType::F32, &[chosen])],
            rows: chosen * width,
            shared: staged_bytes(BITS, hidden),
        };
        let mut inner = first.launch(m, &inputs.iter().collect::<Vec<_>>())?;
        let second = Part {
            name: format!("flambeau_chosen_out_{ty}"),
            source: format!("{head}out(shared,inner,numbers,shares,{{dw,ds,db}},y);"),
            inputs: &["inner", "numbers", "shares", "dw", "ds", "db"],
            outputs: &["y"],
            shapes: &[(dtype, &[1, hidden])],
            rows: hidden,
            shared: staged_bytes(BITS, chosen * width),
        };
        inner.extend(down);
        let result = second.launch(m, &inner.iter().collect::<Vec<_>>())?.into_iter().next();
        if let Some(array) = result {
            m.set(self.out, Slot::new(array, dtype, Shape::from_slice(&[1, hidden])));
        }
        Ok(true)
    }

    /// The sizes, if the slots hold one row and matrices that belong together.
    fn sizes(&self, m: &Machine) -> Option<Sizes> {
        let slot = |t: Tid| m.env.tensors.get(t.0 as usize)?.as_ref();
        let x = slot(self.x)?;
        let (dtype, hidden) = (x.dtype, *x.shape.last()?);
        cuda::type_name(dtype)?;
        content(m, self.x, dtype, hidden)?;
        let &[experts, width, _] = &slot(self.gate[0])?.shape[..] else { return None };
        content(m, self.logits, dtype, experts)?;
        let holds = |[w, scales, biases]: Matrices, rows: usize, columns: usize| {
            let is = |t: Tid, dtype: DType, last: usize| {
                slot(t).is_some_and(|s| s.dtype == dtype && s.shape[..] == [experts, rows, last])
            };
            let whole = columns.is_multiple_of(self.group.max(32));
            let groups = columns / self.group;
            whole && is(w, DType::U32, columns * BITS / 32) && is(scales, dtype, groups) && is(biases, dtype, groups)
        };
        let matrices = holds(self.gate, width, hidden) && holds(self.up, width, hidden) && holds(self.down, hidden, width);
        let counts = experts.is_multiple_of(4) && experts <= 1024 && self.chosen <= 32.min(experts);
        let staged = staged_bytes(BITS, hidden).max(staged_bytes(BITS, self.chosen * width));
        (matrices && counts && staged <= MAX_SHARED).then_some(Sizes { dtype, experts, hidden, width })
    }
}

/// One of the two launches.
struct Part<'a> {
    name: String,
    source: String,
    inputs: &'a [&'a str],
    outputs: &'a [&'a str],
    shapes: &'a [(DType, &'a [usize])],
    /// Warps that compute something.
    rows: usize,
    shared: usize,
}

impl Part<'_> {
    fn launch(&self, m: &mut Machine, inputs: &[&Array]) -> Result<Vec<Array>> {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let text = KernelText {
            is_cuda: true,
            name: &format!("{}_{}", self.name, self.shared),
            source: &self.source,
            header: cuda::chosen(),
            inputs: &owned(self.inputs),
            outputs: &owned(self.outputs),
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: self.shared as i32,
        };
        let outputs: Vec<_> = self.shapes.iter().map(|(dtype, shape)| (*dtype, Shape::from_slice(shape))).collect();
        let threads = (WARPS * 32) as i32;
        let grid = [self.rows.div_ceil(WARPS) as i32 * threads, 1, 1];
        cuda::launch(m, &text, inputs, &Launch { outputs: &outputs, grid, threads: [threads, 1, 1], templates: &[], init: None })
    }
}
