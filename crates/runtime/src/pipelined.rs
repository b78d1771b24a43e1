//! Pipelined decoding: a step of a language model starts before the previous step's token is read.

use flambeau_ir::engine::{DecodeStep, PipelinedDecoding, Sampling};
use flambeau_wire::pte::Instruction;

use crate::{Error, InstructionError, Method, Place, Result, Value, method::only_instruction, run};

impl Method {
    /// The delegate's session, with the values that its call takes and returns. `None` if
    /// [`Method::can_pipeline`] is false.
    fn pipelined(&mut self) -> Option<(&mut dyn PipelinedDecoding, Vec<u32>, Vec<u32>)> {
        let program = self.program.clone();
        let Some(Instruction::DelegateCall { delegate, args }) = only_instruction(&program.file().plans[self.plan]) else {
            return None;
        };
        if !self.carries_nothing() {
            return None;
        }
        let delegate = self.delegates.get_mut(*delegate as usize)?;
        let (inputs, outputs) = args.split_at(delegate.graph.inputs.len().min(args.len()));
        Some((delegate.session.pipelined()?, inputs.to_vec(), outputs.to_vec()))
    }

    /// Whether [`Method::submit`] works. The method must be a single delegate call, its engine must
    /// sample on the device, and its steps must be cancellable.
    pub fn can_pipeline(&mut self) -> bool {
        self.pipelined().is_some()
    }

    /// Enqueues a step. The method's first result holds logits `[.., V]`, and the engine samples a
    /// token from their last row. With `feedback`, the previous step's token replaces the input of
    /// that number. This input has one element.
    ///
    /// # Errors
    /// The arguments do not match the inputs, or the method [cannot
    /// pipeline](Method::can_pipeline). [`Method::receive`] reports later failures.
    pub fn submit(&mut self, inputs: &[Value], feedback: Option<usize>, sampling: Sampling) -> Result<()> {
        self.check_inputs(inputs)?;
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        let cells = self.cells(inputs);
        let fail = |source| Error::Run { method: plan.name.clone(), place: Place::default(), source: Box::new(source) };
        let (session, taken, given) = self.pipelined().ok_or_else(|| fail(InstructionError::NotPipelined))?;
        let place = |values: &[u32], at: Option<&u32>| values.iter().position(|value| Some(value) == at);
        let logits = place(&given, plan.outputs.first()).ok_or_else(|| fail(InstructionError::NoLogits))?;
        let feedback = match feedback {
            Some(input) => {
                let unused = || fail(InstructionError::UnusedInput);
                Some(place(&taken, plan.inputs.get(input)).ok_or_else(unused)?)
            }
            None => None,
        };
        let inputs = run::arguments(0, &taken, &cells).map_err(fail)?;
        session.submit(DecodeStep { inputs, feedback, logits, sampling });
        Ok(())
    }

    /// Waits for the token of the oldest step in flight.
    ///
    /// # Errors
    /// The step failed, all its logits are −∞ or NaN, or no step is in flight.
    pub fn receive(&mut self) -> Result<u32> {
        let method = self.name().to_owned();
        let result = match self.pipelined() {
            Some((session, ..)) => session.receive().map_err(InstructionError::Engine),
            None => Err(InstructionError::NotPipelined),
        };
        result.map_err(|source| Error::Run { method, place: Place::default(), source: Box::new(source) })
    }

    /// Drops the steps in flight.
    pub fn cancel(&mut self) {
        if let Some((session, ..)) = self.pipelined() {
            session.cancel();
        }
    }
}
