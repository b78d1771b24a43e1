//! Runs of several methods at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use flambeau_ir::engine::{EngineError, Outcome, Run, Value as EngineValue};
use flambeau_wire::pte::Instruction;

use crate::{Error, InstructionError, Method, Place, Result, Value, method::only_instruction, run};

/// A run that is one call of a delegate, ahead of the call.
struct Call {
    delegate: u32,
    arguments: Vec<EngineValue>,
    /// Values that take the results.
    outputs: Vec<u32>,
    cells: Vec<Option<Value>>,
}

impl Method {
    /// [`Method::run_last`] of each; outcomes are in the order of the runs. Methods that are a single call of a delegate are left to
    /// their engine together, which [may](crate::Engine::run_last_of_each) read each weight once for all of them. A run that fails or
    /// panics leaves the others alone; a method that panicked is not to be run again.
    pub fn run_last_of_each(runs: &mut [(&mut Method, &[Value])]) -> Vec<Outcome<Vec<Value>, Error>> {
        let Some(engine) = runs.first().map(|(method, _)| Arc::clone(&method.engine)) else { return Vec::new() };
        let is_of_engine = |method: &Method| Arc::ptr_eq(&method.engine, &engine);
        let mut calls: Vec<Option<Result<Call>>> =
            runs.iter().map(|(method, inputs)| method.only_call(inputs).filter(|_| is_of_engine(method))).collect();
        let mut together = Vec::with_capacity(runs.len());
        for ((method, _), call) in runs.iter_mut().zip(&calls) {
            if let Some(Ok(call)) = call {
                let session = &mut *method.delegates[call.delegate as usize].session;
                together.push(Run { session, inputs: &call.arguments });
            }
        }
        let mut ended = engine.run_last_of_each(&mut together).into_iter();
        let outcomes = runs.iter_mut().zip(&mut calls).map(|((method, inputs), call)| match call.take() {
            Some(Ok(call)) => ended.next().expect("each run has an outcome").map(|results| method.take(call, results)),
            Some(Err(error)) => Ok(Err(error)),
            None => catch_unwind(AssertUnwindSafe(|| method.run_last(inputs))),
        });
        outcomes.collect()
    }

    /// The call that a run comes to; `None` if it comes to more, or hands something on outside of the delegate.
    fn only_call(&self, inputs: &[Value]) -> Option<Result<Call>> {
        let plan = &self.program.file().plans[self.plan];
        let Some(Instruction::DelegateCall { delegate, args }) = only_instruction(plan).filter(|_| self.carries_nothing()) else {
            return None;
        };
        let graph = &self.delegates.get(*delegate as usize)?.graph;
        let (taken, outputs) = args.split_at(graph.inputs.len().min(args.len()));
        let call = self.check_inputs(inputs).and_then(|()| {
            let cells = self.cells(inputs);
            let arguments = run::arguments(*delegate, taken, &cells).map_err(|source| self.call_failed(source))?;
            Ok(Call { delegate: *delegate, arguments, outputs: outputs.to_vec(), cells })
        });
        Some(call)
    }

    /// What the method returns when the call has returned `results`.
    fn take(&mut self, call: Call, results: Result<Vec<EngineValue>, EngineError>) -> Result<Vec<Value>> {
        let Call { delegate, outputs, mut cells, .. } = call;
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        let taken = run::take_results(plan, delegate, &outputs, results, &mut cells);
        taken.map_err(|source| self.call_failed(source))?;
        self.end(plan, cells)
    }

    fn call_failed(&self, source: InstructionError) -> Error {
        Error::Run { method: self.name().to_owned(), place: Place::default(), source: Box::new(source) }
    }
}
