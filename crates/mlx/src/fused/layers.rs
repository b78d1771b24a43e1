//! Decoder layers in one launch: five steps each, separated by grid-wide barriers.
//!
//! A step of one token reads every weight once. On a fast device the launches and their host
//! overhead take longer than these reads. Consecutive layers share a launch if they differ only in
//! their weights.

use std::collections::BTreeMap;

use flambeau_ir::{Node, Role, Slot as GraphSlot, Tid};
use flambeau_tensor::{DType, Shape};

use super::{
    FusedNodes, Kind, Linear, StepState,
    attention::{Attention, Position},
    find::Scope,
    layers_text::{self, LayerSizes},
    linear::{Activation, Format, content, rows_of},
};
use crate::{
    cuda,
    cx::{Cx, Machine},
    error::Result,
    eval,
    ffi::{Array, Kernel, Launch},
    open::Origins,
    values::Slot,
};

/// Steps of a layer: query, key and value; attention; its output; gate and up; down.
pub(super) const STEPS_OF_LAYER: usize = 5;

/// First nodes of a layer's steps.
type Starts = [usize; STEPS_OF_LAYER];

/// Layers that follow one another.
#[derive(Debug)]
pub(crate) struct Layers {
    pub(super) at: usize,
    pub(super) end: usize,
    starts: Vec<Starts>,
    /// Slots whose contents the launch does not produce, including the second-to-last result.
    inner: Vec<Tid>,
    /// Slots that the integer nodes between the steps write.
    kept_writes: Vec<Tid>,
    made: Option<(LayerSizes, Kernel)>,
}

/// The steps of one layer.
struct Layer<'a> {
    qkv: &'a Linear,
    attention: &'a Attention,
    o: &'a Linear,
    gate_up: &'a Linear,
    down: &'a Linear,
}

impl<'a> Layer<'a> {
    fn of(steps: &'a BTreeMap<usize, FusedNodes>, starts: &Starts) -> Option<Layer<'a>> {
        let linear = |i: usize| match &steps.get(&starts[i])?.kind {
            Kind::Linear(linear) => Some(&**linear),
            Kind::Attention(_) | Kind::Mixture(_) | Kind::Delta(_) => None,
        };
        let Kind::Attention(attention) = &steps.get(&starts[1])?.kind else { return None };
        Some(Layer { qkv: linear(0)?, attention, o: linear(2)?, gate_up: linear(3)?, down: linear(4)? })
    }

    /// The layer whose first step begins at node `at`, the first node of each step, and the end of
    /// the last.
    fn find(steps: &'a BTreeMap<usize, FusedNodes>, at: usize) -> Option<(Layer<'a>, Starts, usize)> {
        let (mut starts, mut next) = ([at; STEPS_OF_LAYER], at);
        for start in &mut starts {
            *start = next;
            next = steps.get(&next)?.end;
        }
        let layer = Layer::of(steps, &starts)?;
        let Layer { qkv, attention: a, o, gate_up, down } = &layer;
        let fresh = a.fresh.as_ref()?;
        let sources = [a.q.source, fresh.k.source, fresh.v.source];
        let attends = qkv.norm.is_some() && qkv.residual.is_none() && !qkv.gated && qkv.outs[..] == sources;
        let returns = o.norm.is_none() && o.weights.len() == 1 && o.x == a.out && o.residual == Some(qkv.x);
        let has_bias = |l: &Linear| l.weights.iter().any(|w| w.bias.is_some());
        let is_usual = |l: &Linear| l.joined.is_none() && l.updates.is_empty() && l.activation == Activation::Silu && !has_bias(l);
        let plain = [qkv, o, gate_up, down].iter().all(|l| is_usual(l));
        let widens = plain && gate_up.norm.is_some() && gate_up.gated && gate_up.x == o.outs[0];
        let narrows =
            down.norm.is_none() && down.weights.len() == 1 && down.x == gate_up.outs[0] && down.residual == Some(o.outs[0]);
        let is_one = layer.has_one_format() && layer.has_one_eps() && a.is_plain();
        (attends && returns && widens && narrows && is_one).then_some((layer, starts, next))
    }

    fn linears(&self) -> [&'a Linear; 4] {
        [self.qkv, self.o, self.gate_up, self.down]
    }

    fn format(&self) -> Format {
        self.qkv.weights[0].format
    }

    fn has_one_format(&self) -> bool {
        self.linears().iter().flat_map(|l| &l.weights).all(|w| w.format == self.format())
    }

    /// Epsilon of the first norm.
    fn eps(&self) -> f32 {
        self.qkv.norm.map_or(0.0, |n| n.1)
    }

    fn has_one_eps(&self) -> bool {
        self.gate_up.norm.is_some_and(|n| n.1 == self.eps())
    }

    /// Whether another layer agrees in every property that the kernel is compiled for, according to
    /// the program.
    fn is_like(&self, other: &Layer<'_>) -> bool {
        self.format() == other.format() && self.eps() == other.eps() && self.attention.is_like(other.attention)
    }

    /// Constants and caches, in the order in which the kernel's text numbers them.
    fn places(&self) -> Vec<Tid> {
        let matrices = |l: &Linear| l.weights.iter().flat_map(|w| w.slots.clone()).collect::<Vec<_>>();
        let mut places: Vec<Tid> = self.qkv.norm.iter().map(|n| n.0).collect();
        places.extend(matrices(self.qkv));
        let key = self.attention.fresh.as_ref().map(|fresh| &fresh.k);
        places.extend([Some(&self.attention.q), key].iter().filter_map(|heads| heads.as_ref()?.norm?.0));
        places.extend(self.attention.caches);
        places.extend(matrices(self.o));
        places.extend(self.gate_up.norm.map(|n| n.0));
        places.extend(matrices(self.gate_up));
        places.extend(matrices(self.down));
        places
    }

    /// Slots that the layer's steps write.
    fn writes(&self) -> Vec<Tid> {
        let linears = self.linears().into_iter().flat_map(|l| l.outs.clone());
        linears.chain([self.attention.out]).collect()
    }

    /// Hidden and inner size, if the slots hold matrices that belong together.
    fn sizes(&self, m: &Machine, dtype: DType, hidden: usize) -> Option<usize> {
        let attention = self.attention;
        let (heads, keys) = (attention.q.count * attention.q.dim, attention.key_heads * attention.q.dim);
        let rows = |l: &Linear, k: usize| l.weights.iter().map(|w| rows_of(m, w, dtype, k)).collect::<Option<Vec<_>>>();
        let inner = *rows(self.gate_up, hidden)?.first()?;
        let fits = rows(self.qkv, hidden)? == [heads, keys, keys]
            && rows(self.o, heads)? == [hidden]
            && rows(self.gate_up, hidden)? == [inner, inner]
            && rows(self.down, inner)? == [hidden];
        for linear in [self.qkv, self.gate_up] {
            content(m, linear.norm?.0, dtype, hidden)?;
        }
        attention.holds_constants(m, dtype)?;
        fits.then_some(inner)
    }
}

/// Finds the longest run of equal layers. At most one is fused: two launches at the same time would
/// each keep the other from being wholly resident.
pub(super) fn find(scope: &Scope<'_>, steps: &BTreeMap<usize, FusedNodes>) -> Option<Layers> {
    let (mut longest, mut done): (Option<Layers>, usize) = (None, 0);
    for &at in steps.keys() {
        if at < done {
            continue;
        }
        let Some(row) = row(scope, steps, at) else { continue };
        done = row.end;
        if longest.as_ref().is_none_or(|l| l.starts.len() < row.starts.len()) {
            longest = Some(row);
        }
    }
    longest
}

/// The layers from a node on; `None` if there are less than two.
fn row(scope: &Scope<'_>, steps: &BTreeMap<usize, FusedNodes>, at: usize) -> Option<Layers> {
    let (first, starts, mut end) = Layer::find(steps, at)?;
    let (mut all, mut x) = (vec![starts], first.down.outs[0]);
    while let Some((layer, starts, next)) = Layer::find(steps, end)
        && layer.qkv.x == x
        && first.is_like(&layer)
    {
        all.push(starts);
        (x, end) = (layer.down.outs[0], next);
    }
    let (inner, kept_writes) = inner_slots(steps, &all)?;
    let is_dead = inner.iter().all(|&t| t == x || scope.is_dead(t, end));
    (all.len() > 1 && is_dead).then_some(Layers { at, end, starts: all, inner, kept_writes, made: None })
}

/// Slots written by the steps, and slots written by the integer nodes between them. `None` if an
/// integer node reads a step's result; only the sizes of the row `x` are allowed.
fn inner_slots(steps: &BTreeMap<usize, FusedNodes>, all: &[Starts]) -> Option<(Vec<Tid>, Vec<Tid>)> {
    let (mut inner, mut kept_writes) = (Vec::new(), Vec::new());
    let (mut computed, mut rows): (Vec<Tid>, Vec<Tid>) = (Vec::new(), Vec::new());
    for starts in all {
        let layer = Layer::of(steps, starts)?;
        // The projections come before the integer nodes.
        computed.extend(&layer.qkv.outs);
        rows.retain(|t| !layer.qkv.outs.contains(t));
        for node in &layer.attention.kept {
            let may_be_computed = |t: &Tid| matches!(node, Node::SymSize(_)) && rows.contains(t);
            let mut fits = true;
            node.walk(&mut |role, slot| {
                let GraphSlot::Tensor(t) = slot else { return };
                fits &= role == Role::Write || !computed.contains(&t) || may_be_computed(&t);
                if role != Role::Read {
                    computed.retain(|&other| other != t);
                    kept_writes.push(t);
                }
            });
            fits.then_some(())?;
        }
        let writes = layer.writes();
        computed.extend(&writes);
        rows = vec![layer.down.outs[0]];
        inner.extend(writes);
    }
    Some((inner, kept_writes))
}

/// A snapshot of the state that integer nodes may change.
pub(super) struct Snapshot {
    values: Vec<Option<i32>>,
    origins: Origins,
    slots: Vec<(Tid, Option<Slot>)>,
}

impl Snapshot {
    pub(super) fn of<'t>(m: &Machine, tids: impl Iterator<Item = &'t Tid>) -> Result<Snapshot> {
        let kept = |&t: &Tid| Ok((t, m.env.tensors.get(t.0 as usize).and_then(Option::as_ref).map(Slot::share).transpose()?));
        let slots = tids.map(kept).collect::<Result<_>>()?;
        Ok(Snapshot { values: m.env.values.clone(), origins: m.env.origins.clone(), slots })
    }

    pub(super) fn restore(self, m: &mut Machine) {
        (m.env.values, m.env.origins) = (self.values, self.origins);
        for (tid, slot) in self.slots {
            match slot {
                Some(slot) => m.set(tid, slot),
                None => m.empty(tid),
            }
        }
    }
}

impl Layers {
    /// Number of layers.
    pub(super) fn count(&self) -> usize {
        self.starts.len()
    }

    /// Adds the launch to MLX's graph; returns `false` and leaves every slot unchanged if the
    /// kernel does not support the layers.
    pub(super) fn run(&mut self, m: &mut Machine, shared: &mut StepState, steps: &BTreeMap<usize, FusedNodes>) -> Result<bool> {
        let Some(layers) = self.starts.iter().map(|s| Layer::of(steps, s)).collect::<Option<Vec<_>>>() else { return Ok(false) };
        let Some((sizes, x)) = self.sizes(m, &layers)? else { return Ok(false) };
        // A trace computes nothing, so it cannot create state that later runs share.
        if m.open.is_some() && shared.counters.is_none() {
            return Ok(false);
        }
        let x = x.share()?;
        let before = Snapshot::of(m, self.kept_writes.iter().chain(&self.inner))?;
        let Some(position) = positions(m, &layers, &x)? else {
            before.restore(m);
            return Ok(false);
        };
        if self.made.as_ref().is_none_or(|(made, _)| *made != sizes) {
            self.made = Some((sizes.clone(), layers_text::kernel(m, &sizes, layers[0].attention, layers[0].eps())?));
        }
        self.launch(m, shared, &layers, x, position)?;
        Ok(true)
    }

    /// The sizes and the row that the layers begin with, if the kernel takes them.
    fn sizes<'m>(&self, m: &'m Machine, layers: &[Layer<'_>]) -> Result<Option<(LayerSizes, &'m Slot)>> {
        let find = || {
            let first = layers.first()?;
            let x = m.env.tensors.get(first.qkv.x.0 as usize)?.as_ref()?;
            let (dtype, hidden) = (x.dtype, *x.shape.last()?);
            cuda::type_name(dtype)?;
            content(m, first.qkv.x, dtype, hidden)?;
            let mut inner = layers.iter().map(|l| l.sizes(m, dtype, hidden));
            let first_inner = inner.next()??;
            let alike =
                inner.all(|i| i == Some(first_inner)) && layers.iter().all(|l| first.attention.rotates_like(l.attention, m));
            alike.then_some((x, dtype, hidden, first_inner))
        };
        let Some((x, dtype, hidden, inner)) = find() else { return Ok(None) };
        let Some(device) = m.residency()? else { return Ok(None) };
        let format = layers[0].format();
        Ok(LayerSizes::of(device, dtype, format, layers.len(), [hidden, inner], layers[0].attention).map(|sizes| (sizes, x)))
    }

    fn launch(&self, m: &mut Machine, shared: &mut StepState, layers: &[Layer<'_>], x: Slot, position: Position) -> Result<()> {
        let (Some((sizes, kernel)), [first, .., last]) = (&self.made, layers) else { return Ok(()) };
        let position = first.attention.position_array(m, shared, position)?;
        let counters = shared.counters(m.api)?;
        let mut places: Vec<Tid> = first.attention.q.rope.and_then(|r| r.periods).into_iter().collect();
        places.extend(layers.iter().flat_map(Layer::places));
        let slot = |t: &Tid| m.env.tensors.get(t.0 as usize).and_then(Option::as_ref).map(|s| &s.array);
        let mut inputs: Vec<&Array> = vec![&x.array, &position, &counters];
        inputs.extend(places.iter().filter_map(slot));
        let row = |n: usize| -> Shape { [n].as_slice().into() };
        let outputs = [(x.dtype, x.shape.clone()), (x.dtype, row(sizes.scratch())), (DType::F32, row(sizes.parts()))];
        let threads = layers_text::THREADS as i32;
        let grid = [sizes.blocks() as i32 * threads, 1, 1];
        let launch = Launch { outputs: &outputs, grid, threads: [threads, 1, 1], templates: &[], init: None };
        let array = kernel.launch(&inputs, &launch)?.into_iter().next();
        self.inner.iter().for_each(|&t| m.empty(t));
        if let Some(array) = array {
            m.set(last.down.outs[0], Slot::new(array, x.dtype, x.shape));
        }
        Ok(())
    }
}

/// Runs the integer nodes of all layers; the position, if every layer names the same.
fn positions(m: &mut Machine, layers: &[Layer<'_>], x: &Slot) -> Result<Option<Position>> {
    let mut found: Option<Position> = None;
    for layer in layers {
        for node in &layer.attention.kept {
            eval::eval(node, &mut Cx { m: &mut *m })?;
        }
        let position = layer.attention.position(m);
        if position.is_none() || found.is_some() && found != position {
            return Ok(None);
        }
        found = position;
        // The next layer's integer nodes may read the sizes of its row; all rows have the same
        // sizes.
        m.set(layer.down.outs[0], x.share()?);
    }
    Ok(found)
}
