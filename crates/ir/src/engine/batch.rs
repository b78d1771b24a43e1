//! Runs of several sessions at once.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{EngineError, Session, Value};

/// A run in a batch: a session, and the arguments of [`Session::run_last`].
pub struct Run<'a> {
    pub session: &'a mut dyn Session,
    pub inputs: &'a [Value],
}

/// Outcome of a run in a batch: its result, or its panic. Do not run a session again after a panic.
pub type Outcome<T = Vec<Value>, E = EngineError> = std::thread::Result<Result<T, E>>;

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Run<'_> {
    /// Runs it separately.
    pub fn run_separately(&mut self) -> Outcome {
        catch_unwind(AssertUnwindSafe(|| self.session.run_last(self.inputs)))
    }
}
