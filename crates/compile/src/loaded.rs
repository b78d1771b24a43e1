//! Methods that an engine runs without a file between.

use std::{collections::HashMap, fmt, sync::Arc};

use flambeau_ir::{
    check,
    engine::{Constants, Engine, LoadOptions, Session, Value},
};
use flambeau_lower::{Constant, SsaGraph, drop_unread, fuse};
use flambeau_pt2::Exported;
use flambeau_tensor::Bytes;

use crate::{
    Error, Options, error::ObserveError, evaluate::evaluate, fold::fold, quantize::quantize, report::Outcome, slots, trace::Trace,
    usage, weights::Weights,
};

/// A method of an exported program, loaded on an engine. Float weights are slices of the archive.
pub struct Loaded {
    session: Box<dyn Session>,
    /// Numbers of the method's inputs that the session takes, in order.
    inputs: Vec<u32>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Loaded {
    /// Compiles and loads a method.
    ///
    /// # Errors
    /// As [`compile`](crate::compile()). [`Error::Observe`] if the program is not one delegate, or
    /// if the engine cannot load it.
    pub fn new(exported: &Exported, options: &Options, engine: &dyn Engine) -> Result<Loaded, Error> {
        let (mut ssa, trace) = traced(exported, options)?;
        quantize(&mut ssa, options);
        Loaded::of(ssa, &trace, "loaded", engine)
    }

    /// Loads a graph of the method `name`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of(mut ssa: SsaGraph, trace: &Trace<'_>, name: &str, engine: &dyn Engine) -> Result<Loaded, Error> {
        fuse(&mut ssa);
        fold(&mut ssa, &trace.weights, engine)?;
        drop_unread(&mut ssa);
        let names: Vec<String> = trace.state.buffers.iter().map(|b| b.name.clone()).collect();
        let slotted = slots::assign(ssa, name, &names, false);
        let graph = Arc::new(check(slotted.graph).map_err(Error::Check)?);
        let source = Stored { constants: slotted.constants.into_iter().collect(), weights: &trace.weights };
        let session = engine.load(graph, &source, &LoadOptions::default()).map_err(ObserveError::Engine)?;
        Ok(Loaded { session, inputs: slotted.inputs })
    }

    /// Runs the method on its inputs, from the state after loading.
    ///
    /// # Errors
    /// [`Error::Observe`] if the engine fails.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, Error> {
        self.session.reset();
        let chosen = self.inputs.iter().map(|&number| inputs.get(number as usize).cloned().ok_or(ObserveError::Inputs));
        let chosen: Vec<Value> = chosen.collect::<Result<_, _>>()?;
        Ok(self.session.run(&chosen).map_err(ObserveError::Engine)?)
    }
}

/// The graph of a program that is one delegate, in floats.
///
/// # Errors
/// As [`Loaded::new`].
pub(crate) fn traced<'a>(exported: &'a Exported, options: &Options) -> Result<(SsaGraph, Trace<'a>), Error> {
    let state = usage::state_names(&[exported]);
    let (ssa, trace) = Trace::run(exported, options, &state)?.into_graph()?;
    if !trace.fallback.calls.is_empty() || trace.calls.iter().any(|call| matches!(call.outcome, Outcome::Refused(_))) {
        return Err(Error::Observe(ObserveError::Parts));
    }
    Ok((ssa, trace))
}

/// Constants of a graph.
struct Stored<'w> {
    constants: HashMap<String, Arc<Constant>>,
    weights: &'w Weights<'w>,
}

impl Constants for Stored<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        Some(evaluate(self.constants.get(key)?, self.weights).ok()?.bytes().clone())
    }
}
