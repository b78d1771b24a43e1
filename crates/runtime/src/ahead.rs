//! Runs of a language model that begin before the token of the one before is read.

use flambeau_ir::engine::{Ahead, Draw, TokenRun};
use flambeau_wire::pte::{ExecutionPlan, Instruction};

use crate::{Error, Method, Result, Value, run};

/// The only instruction of a method that runs ahead: a delegate's number, inputs and outputs by value.
struct Call<'a> {
    delegate: usize,
    inputs: &'a [u32],
    outputs: &'a [u32],
}

/// What calling delegates once, and nothing else, consists of.
fn only_call<'a>(plan: &'a ExecutionPlan, inputs: usize) -> Option<Call<'a>> {
    let mut instructions = plan.chains.iter().flat_map(|chain| &chain.instructions);
    let (Some(Instruction::DelegateCall { delegate, args }), None) = (instructions.next(), instructions.next()) else {
        return None;
    };
    let (inputs, outputs) = args.split_at(inputs.min(args.len()));
    Some(Call { delegate: *delegate as usize, inputs, outputs })
}

impl Method {
    /// The session to run ahead in, with what the call takes and returns; `None` where [`Method::runs_ahead`] is false.
    fn ahead(&mut self) -> Option<(&mut dyn Ahead, Vec<u32>, Vec<u32>)> {
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        let inputs = self.delegates.first()?.graph.inputs.len();
        let call = only_call(plan, inputs).filter(|call| call.delegate == 0 && self.carries_nothing())?;
        let (inputs, outputs) = (call.inputs.to_vec(), call.outputs.to_vec());
        Some((self.delegates.first_mut()?.session.ahead()?, inputs, outputs))
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
