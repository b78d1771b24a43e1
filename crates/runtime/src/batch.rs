//! Runs several methods at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use flambeau_ir::engine::{EngineError, Outcome, Run, Value as EngineValue};
use flambeau_wire::pte::Instruction;

use crate::{Error, InstructionError, Method, Place, Result, Value, method::only_instruction, run};

/// A prepared run that consists of one delegate call.
struct Call {
    delegate: u32,
    arguments: Vec<EngineValue>,
    /// Values that take the results.
    outputs: Vec<u32>,
    cells: Vec<Option<Value>>,
}

impl Method {
    /// Calls [`Method::run_last`] for each run and returns outcomes in the same order. Methods that
    /// are a single delegate call run as one batch on their engine. The engine
    /// [may](crate::Engine::run_last_of_each) read each weight once for the whole batch. A run that
    /// fails or panics does not affect the others. Do not run a method again after a panic.
    pub fn run_last_of_each(runs: &mut [(&mut Method, &[Value])]) -> Vec<Outcome<Vec<Value>, Error>> {
        let Some(engine) = runs.first().map(|(method, _)| Arc::clone(&method.engine)) else { return Vec::new() };
        let is_of_engine = |method: &Method| Arc::ptr_eq(&method.engine, &engine);
        let mut calls: Vec<Option<Result<Call>>> =
            runs.iter().map(|(method, inputs)| method.only_call(inputs).filter(|_| is_of_engine(method))).collect();
        let starts: Vec<Option<u64>> = runs.iter().map(|(method, _)| method.trace_start()).collect();
        let mut together = Vec::with_capacity(runs.len());
        for ((method, _), call) in runs.iter_mut().zip(&calls) {
            if let Some(Ok(call)) = call {
                let session = &mut *method.delegates[call.delegate as usize].session;
                together.push(Run { session, inputs: &call.arguments });
            }
        }
        let mut ended = engine.run_last_of_each(&mut together).into_iter();
        let outcomes = runs.iter_mut().zip(&mut calls).zip(starts).map(|(((method, inputs), call), start)| match call.take() {
            Some(Ok(call)) => {
                let traced = method.trace_only_call(start);
                ended.next().expect("each run has an outcome").map(|results| traced.and_then(|()| method.take(call, results)))
            }
            Some(Err(error)) => Ok(Err(error)),
            None => catch_unwind(AssertUnwindSafe(|| method.run_last(inputs))),
        });
        outcomes.collect()
    }

    /// The run's only call. `None` if the run has more instructions, keeps state outside of the
    /// delegate, or keeps its results.
    fn only_call(&self, inputs: &[Value]) -> Option<Result<Call>> {
        let plan = &self.program.file().plans[self.plan];
        let Some(Instruction::DelegateCall { delegate, args }) =
            only_instruction(plan).filter(|_| self.carries_nothing() && !self.keeps_results())
        else {
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

    /// Turns the results of the call into results of the method.
    fn take(&mut self, call: Call, results: Result<Vec<EngineValue>, EngineError>) -> Result<Vec<Value>> {
        let Call { delegate, outputs, mut cells, .. } = call;
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        let taken = run::take_results(plan, delegate, &outputs, results, &mut cells);
        taken.map_err(|source| self.call_failed(source))?;
        self.end(plan, cells)
    }

    /// Records a run of one delegate call that ends now.
    fn trace_only_call(&mut self, start: Option<u64>) -> Result<()> {
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        match only_instruction(plan) {
            Some(instruction) => {
                self.trace_instruction(plan, Place::default(), instruction, start, &[])?;
                self.trace_run(start, &[])
            }
            None => Ok(()),
        }
    }

    fn call_failed(&self, source: InstructionError) -> Error {
        Error::Run { method: self.name().to_owned(), place: Place::default(), source: Box::new(source) }
    }
}
