//! Sessions side by side, on their way through the nodes of their graph.

use std::sync::Arc;

use flambeau_ir::{
    ChainId, Checked, Effect, Node, Role, Slot as GraphSlot, SlotClass, Tid, Vid,
    engine::Value,
    infer::run::{Contents, Inferred},
};
use flambeau_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

use super::results::{BatchResult, Built};
use crate::{
    cx::{Cx, Machine},
    error::{OpError, Result},
    eval,
    ffi::{Array, Unary},
    fused::{Plan, Scratch},
    ops::shape::Window,
    rows::{How, One, Rows},
    state::{Pending, State},
    values::Feedback,
    values::{Env, Slot, cast},
};

/// Maximum size in bytes of a session's value that is copied to join the other sessions' values.
const MAX_JOINED_BYTES: u64 = 1 << 16;

/// The contents of a tensor slot.
#[derive(Debug)]
enum Content {
    /// Nothing, or a value that no node reads.
    Unset,
    /// One value for all, which the first session holds.
    Same,
    /// A value in each session.
    Each,
    /// The values of all, along the first axis of one array.
    Joined(Box<Joined>),
}

#[derive(Debug)]
struct Joined {
    /// `[sessions, ..]`.
    rows: Slot,
    /// Shape of one session's value, whose first axis has size 1.
    one: Shape,
    /// Whether each session holds its own value, too.
    is_parted: bool,
}

/// The slots that a node uses.
#[derive(Debug, Default)]
struct Uses {
    reads: SmallVec<[Tid; 4]>,
    writes: SmallVec<[Tid; 2]>,
    integers: SmallVec<[Vid; 4]>,
}

impl Uses {
    fn of(node: &Node) -> Uses {
        let mut uses = Uses::default();
        node.walk(&mut |role, slot| match slot {
            GraphSlot::Tensor(tid) => {
                if role != Role::Write {
                    uses.reads.push(tid);
                }
                if role != Role::Read {
                    uses.writes.push(tid);
                }
            }
            GraphSlot::Value(vid) if role != Role::Write => uses.integers.push(vid),
            GraphSlot::Value(_) => {}
        });
        uses
    }
}

/// The slots as one session sees them.
struct View<'a> {
    own: &'a Env,
    first: &'a Env,
    contents: &'a [Content],
}

impl Contents for View<'_> {
    fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
        match self.contents.get(tid.0 as usize)? {
            Content::Unset => None,
            Content::Same => self.first.tensor(tid),
            Content::Each => self.own.tensor(tid),
            Content::Joined(joined) => Some((joined.rows.dtype, &joined.one)),
        }
    }

    fn integer(&self, vid: Vid) -> Option<i32> {
        self.own.integer(vid)
    }
}

/// Tokens on the device that replace an input.
#[derive(Debug)]
pub(super) struct DeviceTokens {
    pub(super) input: usize,
    /// By session; absent if the host knows the token.
    pub(super) each: Vec<Option<Feedback>>,
    /// All tokens `[sessions]`, if they are in one array.
    pub(super) rows: Option<Array>,
}

/// Sessions of one graph in one run.
pub(super) struct BatchRun<'m, 's> {
    pub(super) states: &'m mut [&'s mut State],
    graph: Arc<Checked>,
    contents: Vec<Content>,
    /// The previous contents of the buffers that the run has written, by session.
    before: Vec<(usize, Tid, Slot)>,
    pub(super) scratch: Scratch,
}

impl<'m, 's> BatchRun<'m, 's> {
    /// Sessions that have run nothing yet.
    pub(super) fn new(states: &'m mut [&'s mut State]) -> BatchRun<'m, 's> {
        let graph = Arc::clone(&states[0].machine.graph);
        let content = |tid: u32| match graph.slots.class(Tid(tid)) {
            Some(SlotClass::Constant) => Content::Same,
            Some(SlotClass::Input | SlotClass::Buffer) => Content::Each,
            _ => Content::Unset,
        };
        let contents = (0..graph.slots.total() as u32).map(content).collect();
        BatchRun { states, graph, contents, before: Vec::new(), scratch: Scratch::default() }
    }

    /// The run as arrays that MLX has not computed yet.
    ///
    /// # Errors
    /// The first failure of any session; the caller [takes the run back](BatchRun::take_back).
    pub(super) fn build(&mut self, inputs: &[&[Value]], tokens: Option<DeviceTokens>) -> Result<Built> {
        let mut held = Vec::new();
        for (session, (state, inputs)) in self.states.iter_mut().zip(inputs).enumerate() {
            let tokens = tokens.as_ref().and_then(|tokens| tokens.each[session].as_ref());
            held.extend(state.bind(inputs, tokens).map_err(|error| OpError::value(error.to_string()))?);
        }
        if let Some(DeviceTokens { input, rows: Some(rows), .. }) = tokens {
            self.feed(input, &rows)?;
        }
        let graph = Arc::clone(&self.graph);
        let mut plan = self.states[0].main.plan.take();
        let ran = self.run_nodes(&graph, plan.as_mut());
        self.states[0].main.plan = plan;
        ran?;
        let results = graph.outputs.iter().map(|slot| self.result(*slot)).collect::<Result<_>>()?;
        self.contents.clear();
        let written = self.before.drain(..).map(|(session, tid, _)| (session, tid)).collect();
        // Only then does MLX hold the only handles to intermediate arrays, so it may reuse their
        // storage.
        self.states.iter_mut().for_each(|state| state.machine.clear());
        Ok(Built { results, written, _inputs: held })
    }

    /// Binds tokens `[sessions]` on the device in place of an input. Each session already holds its
    /// own token.
    fn feed(&mut self, input: usize, tokens: &Array) -> Result<()> {
        let Some(&GraphSlot::Tensor(tid)) = self.graph.inputs.get(input) else { return Ok(()) };
        let (one, dtype) = {
            let slot = Cx { m: self.machine(0) }.get_slot(tid)?;
            (slot.shape, slot.dtype)
        };
        if one.first() == Some(&1) {
            let mut shape = one.clone();
            shape[0] = self.states.len();
            let rows = Slot::new(tokens.cast(dtype)?.reshape(&shape)?, dtype, shape);
            self.contents[tid.0 as usize] = Content::Joined(Box::new(Joined { rows, one, is_parted: true }));
        }
        Ok(())
    }

    /// Runs the main chain, with fused kernels for the steps of a plan. The first session counts
    /// the steps.
    fn run_nodes(&mut self, graph: &Checked, mut plan: Option<&mut Plan>) -> Result<()> {
        let nodes = graph.chains.get(graph.main as usize).map_or(&[][..], |chain| &chain[..]);
        let mut at = 0;
        while let Some(node) = nodes.get(at) {
            let mut run = || {
                let fused = match &mut plan {
                    Some(plan) => self.run_fused(plan, at)?,
                    None => None,
                };
                if let Some(next) = fused {
                    self.states[0].main.counts.region(at..next, true);
                    return Ok(next);
                }
                self.step(node)?;
                self.states[0].main.counts.single(at);
                Ok(at + 1)
            };
            at = run().map_err(|error: OpError| error.at(graph.main, at, node))?;
        }
        Ok(())
    }

    /// Restores every lasting slot to its contents before the run.
    pub(super) fn take_back(&mut self) {
        for (session, tid, slot) in self.before.drain(..).rev() {
            self.states[session].machine.set(tid, slot);
        }
        self.states.iter_mut().for_each(|state| state.machine.clear());
    }

    pub(super) fn machine(&mut self, session: usize) -> &mut Machine {
        &mut self.states[session].machine
    }

    fn content(&self, tid: Tid) -> &Content {
        self.contents.get(tid.0 as usize).unwrap_or(&Content::Unset)
    }

    fn class(&self, tid: Tid) -> Option<SlotClass> {
        self.graph.slots.class(tid)
    }

    fn view(&self, session: usize) -> View<'_> {
        let env = |session: usize| &self.states[session].machine.env;
        View { own: env(session), first: env(0), contents: &self.contents }
    }

    pub(super) fn step(&mut self, node: &Node) -> Result<()> {
        let uses = Uses::of(node);
        if !node.chains().is_empty() {
            return self.run_chains(node);
        }
        let lasts = |tid: &Tid| !matches!(self.class(*tid), Some(SlotClass::Temp | SlotClass::Output));
        if node.effect() == Effect::Pure && !uses.writes.is_empty() && !uses.writes.iter().any(lasts) {
            let agree = uses.integers.iter().all(|&vid| self.agree_on(vid));
            if agree && uses.reads.iter().all(|&tid| matches!(self.content(tid), Content::Same)) {
                return self.run_once(node, &uses);
            }
            if let Some(rows) = eval::rows(node, One(&self.view(0)))
                && (agree || rows.how == How::Rotated)
                && self.run_joined(node, &uses, &rows)?
            {
                return Ok(());
            }
        }
        if let Node::SymSize(size) = node {
            return self.run_size(size);
        }
        self.run_each(node, &uses)
    }

    /// Whether an integer is the same in all sessions.
    fn agree_on(&self, vid: Vid) -> bool {
        let integer = |state: &&mut State| state.machine.env.integer(vid);
        let first = self.states.first().and_then(integer);
        first.is_some() && self.states.iter().all(|state| integer(state) == first)
    }

    /// Runs a node on values shared by all sessions.
    fn run_once(&mut self, node: &Node, uses: &Uses) -> Result<()> {
        eval::eval(node, &mut Cx { m: self.machine(0) })?;
        for &tid in &uses.writes {
            self.states[1..].iter_mut().for_each(|state| state.machine.empty(tid));
            self.contents[tid.0 as usize] = Content::Same;
        }
        Ok(())
    }

    /// The size of an axis, which needs no value.
    fn run_size(&mut self, size: &flambeau_ir::SymSize) -> Result<()> {
        for session in 0..self.states.len() {
            let mut inferred = Inferred::default();
            inferred.run(&Node::SymSize(size.clone()), &self.view(session))?;
            let value = inferred.value(size.out)?;
            Cx { m: self.machine(session) }.put_value(size.out, value);
        }
        Ok(())
    }

    /// Runs a node for each session.
    fn run_each(&mut self, node: &Node, uses: &Uses) -> Result<()> {
        for &tid in &uses.reads {
            self.part(tid)?;
        }
        self.save(&uses.writes)?;
        for session in 0..self.states.len() {
            eval::eval(node, &mut Cx { m: self.machine(session) })?;
        }
        for &tid in &uses.writes {
            self.contents[tid.0 as usize] = Content::Each;
        }
        Ok(())
    }

    /// Runs a node that runs chains. Its chains may use any slot.
    fn run_chains(&mut self, node: &Node) -> Result<()> {
        let all = (0..self.contents.len() as u32).map(Tid);
        let temporary: Vec<Tid> = all.filter(|&tid| self.class(tid) != Some(SlotClass::Constant)).collect();
        for &tid in &temporary {
            self.part(tid)?;
        }
        let written = self.graph.buffers_written_by(ChainId(self.graph.main));
        self.save(&written)?;
        for session in 0..self.states.len() {
            eval::eval(node, &mut Cx { m: self.machine(session) })?;
        }
        for tid in temporary {
            self.contents[tid.0 as usize] = Content::Each;
        }
        Ok(())
    }

    /// Keeps handles to the buffers among some slots, if this run has not written them yet.
    fn save(&mut self, tids: &[Tid]) -> Result<()> {
        for &tid in tids {
            let is_saved = self.before.iter().any(|(_, saved, _)| *saved == tid);
            if self.class(tid) != Some(SlotClass::Buffer) || is_saved {
                continue;
            }
            for session in 0..self.states.len() {
                let slot = Cx { m: self.machine(session) }.get_slot(tid)?;
                self.before.push((session, tid, slot));
            }
        }
        Ok(())
    }

    /// Sets each session's own value of a slot.
    fn part(&mut self, tid: Tid) -> Result<()> {
        let is_constant = self.class(tid) == Some(SlotClass::Constant);
        match &mut self.contents[tid.0 as usize] {
            Content::Joined(joined) if !joined.is_parted => {
                joined.is_parted = true;
                let (Slot { array, dtype, shape, .. }, one) = (&joined.rows, &joined.one);
                for (row, state) in self.states.iter_mut().enumerate() {
                    let part = Window::whole(shape).narrow(0, row, 1, 1).of(array)?;
                    state.machine.set(tid, Slot::new(part, *dtype, one.clone()));
                }
            }
            Content::Same if !is_constant => {
                let slot = Cx { m: self.machine(0) }.get_slot(tid)?;
                for state in &mut self.states[1..] {
                    state.machine.set(tid, slot.share()?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a slot holds the sessions' rows, or values small enough to be joined by a copy.
    pub(super) fn has_rows(&self, tid: Tid) -> bool {
        let env = |state: &'_ &mut State| state.machine.env.tensor(tid).map(|(dtype, shape)| (dtype, Shape::from_slice(shape)));
        match self.content(tid) {
            Content::Joined(_) => true,
            Content::Each if self.class(tid) != Some(SlotClass::Buffer) => {
                let Some((dtype, shape)) = self.states.first().and_then(env) else { return false };
                let bytes = shape.iter().fold(dtype.size() as u64, |n, &d| n.saturating_mul(d as u64));
                let is_row = shape.first() == Some(&1) && (1..=MAX_JOINED_BYTES).contains(&bytes);
                is_row && self.states.iter().all(|state| env(state) == Some((dtype, shape.clone())))
            }
            _ => false,
        }
    }

    /// Makes one array of the sessions' values of a slot that [has rows](BatchRun::has_rows).
    pub(super) fn join(&mut self, tid: Tid) -> Result<()> {
        if matches!(self.content(tid), Content::Joined(_)) {
            return Ok(());
        }
        let slots = self.states.iter().map(|state| state.machine.env.tensors[tid.0 as usize].as_ref());
        let slots: Vec<&Slot> = slots.collect::<Option<_>>().ok_or_else(|| OpError::value(format!("{tid} is empty")))?;
        let (first, api) = (slots[0], self.states[0].machine.api);
        let (dtype, one) = (first.dtype, first.shape.clone());
        let hosts: Option<Vec<&[u8]>> = slots.iter().map(|slot| slot.host.as_ref().map(|host| &host.bytes()[..])).collect();
        let mut shape = one.clone();
        shape[0] = slots.len();
        let rows = match hosts {
            Some(hosts) => {
                let tensor = Tensor::new(dtype, &shape, hosts.concat().into()).map_err(|e| OpError::value(e.to_string()))?;
                Slot::from_tensor(api, &tensor)?
            }
            None => {
                let arrays = slots.iter().map(|slot| slot.array.share()).collect::<Result<Vec<_>, _>>()?;
                Slot::new(Array::concatenate(api, &arrays, 0)?, dtype, shape)
            }
        };
        self.contents[tid.0 as usize] = Content::Joined(Box::new(Joined { rows, one, is_parted: true }));
        Ok(())
    }

    /// Runs a node once on the rows of all sessions; returns `false` and leaves every slot
    /// unchanged if their contents do not allow it.
    fn run_joined(&mut self, node: &Node, uses: &Uses, rows: &Rows) -> Result<bool> {
        let is_same = |&tid: &Tid| matches!(self.content(tid), Content::Same);
        let is_free = |tid: &Tid| is_same(tid) || (rows.operands.contains(tid) && self.has_rows(*tid));
        if !uses.reads.iter().all(is_free) {
            return Ok(false);
        }
        let mut inferred = Inferred::default();
        let is_sound = inferred.run(node, &self.view(0)).is_ok();
        let ones: Option<SmallVec<[Shape; 2]>> =
            uses.writes.iter().map(|&tid| Some(inferred.tensor(flambeau_ir::Out(tid))?.shape)).collect();
        let Some(ones) = ones.filter(|ones| is_sound && ones.iter().all(|one| one.first() == Some(&1) && !one.contains(&0))) else {
            return Ok(false);
        };
        let joined: SmallVec<[Tid; 3]> = rows.operands.iter().copied().filter(|tid| !is_same(tid)).collect();
        let rank = |tid: &Tid| self.view(0).tensor(*tid).map(|(_, shape)| shape.len());
        if rows.how == How::Aligned && joined.iter().any(|tid| rank(tid) != Some(ones[0].len())) {
            return Ok(false);
        }
        for &tid in &joined {
            self.join(tid)?;
        }
        let made = match rows.how {
            How::View => Some(vec![self.viewed(joined[0], &ones[0])?]),
            How::Rotated => Some(vec![self.rotated(node, joined[0])?]),
            How::Node | How::Aligned => self.run_over(node, &joined, uses, &ones)?,
        };
        let Some(made) = made else { return Ok(false) };
        uses.writes.iter().zip(made).for_each(|(&tid, rows)| self.put_rows(tid, rows));
        Ok(true)
    }

    pub(super) fn rows_of(&self, tid: Tid) -> Result<&Slot> {
        match self.content(tid) {
            Content::Joined(joined) => Ok(&joined.rows),
            _ => Err(OpError::value(format!("{tid} holds no rows"))),
        }
    }

    /// The rows of a slot in the shape of another value.
    fn viewed(&self, x: Tid, one: &Shape) -> Result<Slot> {
        let rows = self.rows_of(x)?;
        let mut shape = one.clone();
        shape[0] = rows.shape[0];
        let host = rows.host.as_ref().and_then(|host| host.reshape(&shape).ok());
        Ok(Slot { host, ..Slot::new(rows.array.reshape(&shape)?, rows.dtype, shape) })
    }

    /// The rows of a slot, each rotated by its session's position.
    fn rotated(&mut self, node: &Node, x: Tid) -> Result<Slot> {
        let Node::Rope(rope) = node else { return Err(OpError::value("no rotation")) };
        let flambeau_ir::VidOrTid::Vid(vid) = rope.offset else { return Err(OpError::value("no position")) };
        let positions = self.states.iter().map(|state| state.machine.env.value(vid)).collect::<Result<Vec<i32>, _>>()?;
        let positions = Tensor::from_slice(&positions, &[positions.len()]).map_err(|e| OpError::value(e.to_string()))?;
        let rows = self.rows_of(x)?.share()?;
        let (dtype, shape) = (rows.dtype, rows.shape.clone());
        let cx = Cx { m: self.machine(0) };
        let offset = Array::from_tensor(cx.api(), &positions)?;
        let y = crate::ops::norm::rotated(&cx, rope, &rows, &offset)?;
        Ok(Slot::new(if y.spec()?.0 == dtype { y } else { y.cast(dtype)? }, dtype, shape))
    }

    /// A node's results for the joined rows; `None` if they do not have the expected shapes.
    fn run_over(&mut self, node: &Node, joined: &[Tid], uses: &Uses, ones: &[Shape]) -> Result<Option<Vec<Slot>>> {
        let count = self.states.len();
        let mut own = Vec::with_capacity(joined.len());
        for &tid in joined {
            let rows = self.rows_of(tid)?.share()?;
            own.push((tid, self.machine(0).env.tensors[tid.0 as usize].replace(rows)));
        }
        let m = self.machine(0);
        let is_expected = |m: &Machine, (&tid, one): (&Tid, &Shape)| {
            m.inferred_shape(tid).is_some_and(|shape| shape[0] == count && shape[1..] == one[1..])
        };
        let fits = m.infer(node).is_ok() && uses.writes.iter().zip(ones).all(|pair| is_expected(m, pair));
        let result = if fits { eval::eval(node, &mut Cx { m: &mut *m }) } else { Ok(()) };
        let made = uses.writes.iter().map(|tid| m.env.tensors[tid.0 as usize].take().filter(|_| fits && result.is_ok()));
        let made: Option<Vec<Slot>> = if fits { made.collect() } else { None };
        for (tid, slot) in own {
            m.env.tensors[tid.0 as usize] = slot;
        }
        result.map(|()| made)
    }

    /// Binds the rows of all sessions.
    pub(super) fn put_rows(&mut self, tid: Tid, rows: Slot) {
        self.machine(0).empty(tid);
        self.promise_rows(tid, rows);
    }

    /// Records the rows that a launch under construction will bind. The first session's slot stays
    /// unchanged.
    pub(super) fn promise_rows(&mut self, tid: Tid, rows: Slot) {
        if !matches!(self.content(tid), Content::Joined(joined) if !joined.is_parted) {
            self.states[1..].iter_mut().for_each(|state| state.machine.empty(tid));
        }
        let mut one = rows.shape.clone();
        one[0] = 1;
        self.contents[tid.0 as usize] = Content::Joined(Box::new(Joined { rows, one, is_parted: false }));
    }

    /// A result of the main chain, which has run.
    fn result(&mut self, slot: GraphSlot) -> Result<BatchResult> {
        let GraphSlot::Tensor(tid) = slot else {
            let value = |state: &&mut State| match slot {
                GraphSlot::Value(vid) => Ok(Pending::Int(state.machine.env.value(vid)?)),
                GraphSlot::Tensor(tid) => Err(OpError::value(format!("{tid} is no integer"))),
            };
            return Ok(BatchResult::Each(self.states.iter().map(value).collect::<Result<_>>()?));
        };
        let meta = self.graph.meta.get(tid.0 as usize).map(|meta| meta.dtype);
        let leaving = |slot: &Slot| Ok::<_, OpError>(cast(slot, meta.unwrap_or(slot.dtype))?.unary(Unary::Contiguous)?);
        if let Content::Joined(joined) = self.content(tid) {
            return Ok(BatchResult::Joined { rows: leaving(&joined.rows)?, one: joined.one.clone() });
        }
        self.part(tid)?;
        let each = self.states.iter_mut().map(|state| {
            let slot = Cx { m: &mut state.machine }.get_slot(tid)?;
            Ok(Pending::Array(leaving(&slot)?))
        });
        Ok(BatchResult::Each(each.collect::<Result<_>>()?))
    }
}
