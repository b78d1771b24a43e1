//! Runs of a language model that begin before the token of the one before is read.

use flambeau_ir::engine::{Ahead, Draw, TokenRun};
use flambeau_wire::pte::Instruction;

use crate::{Error, Method, Result, Value, method::only_instruction, run};

impl Method {
    /// The session to run ahead in, with what the call takes and returns; `None` where [`Method::runs_ahead`] is false.
    fn ahead(&mut self) -> Option<(&mut dyn Ahead, Vec<u32>, Vec<u32>)> {
        let program = self.program.clone();
        let Some(Instruction::DelegateCall { delegate, args }) = only_instruction(&program.file().plans[self.plan]) else {
            return None;
        };
        if !self.carries_nothing() {
            return None;
        }
        let delegate = self.delegates.get_mut(*delegate as usize)?;
        let (inputs, outputs) = args.split_at(delegate.graph.inputs.len().min(args.len()));
        Some((delegate.session.ahead()?, inputs.to_vec(), outputs.to_vec()))
    }

    /// Whether [`Method::submit`] works: the method is one call of a delegate, its engine draws tokens where it computes, and runs
    /// can be taken back.
    pub fn runs_ahead(&mut self) -> bool {
        self.ahead().is_some()
    }

    /// Begins a run behind those submitted before. Its first result holds logits `[.., V]`, of whose last row `draw` takes the
    /// token. With `fed`, the token of the run before replaces that input, which has one element.
    ///
    /// # Errors
    /// The arguments do not fit, or the method does not [run ahead](Method::runs_ahead). What fails later is told to who
    /// [receives](Method::receive) the token.
    pub fn submit(&mut self, inputs: &[Value], fed: Option<usize>, draw: Draw) -> Result<()> {
        self.check_inputs(inputs)?;
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        let cells = self.cells(inputs);
        let fail = |what: &str| Error::Run { method: plan.name.clone(), chain: 0, instruction: 0, what: what.to_owned() };
        let (session, taken, given) = self.ahead().ok_or_else(|| fail("the method does not run ahead"))?;
        let place = |values: &[u32], at: Option<&u32>| values.iter().position(|value| Some(value) == at);
        let logits = place(&given, plan.outputs.first()).ok_or_else(|| fail("the first output is no result"))?;
        let fed = match fed {
            Some(input) => Some(place(&taken, plan.inputs.get(input)).ok_or_else(|| fail("the fed input is not used"))?),
            None => None,
        };
        let inputs = run::arguments(0, &taken, &cells).map_err(|what| fail(&what))?;
        session.submit(TokenRun { inputs, fed, logits, draw });
        Ok(())
    }

    /// Waits for the token of the oldest submitted run.
    ///
    /// # Errors
    /// The run failed, its logits hold no number greater than −∞, or nothing is submitted.
    pub fn receive(&mut self) -> Result<u32> {
        let method = self.name().to_owned();
        let fail = |what| Error::Run { method, chain: 0, instruction: 0, what };
        match self.ahead() {
            Some((session, ..)) => session.receive().map_err(|e| fail(e.to_string())),
            None => Err(fail("the method does not run ahead".to_owned())),
        }
    }

    /// Gives up the runs whose tokens are not received.
    pub fn forget(&mut self) {
        if let Some((session, ..)) = self.ahead() {
            session.forget();
        }
    }
}
