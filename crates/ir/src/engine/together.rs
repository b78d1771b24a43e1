//! Runs of several sessions at once.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{EngineError, Session, Value};

/// A run among others: a session, and what [`Session::run_last`] takes.
pub struct Run<'a> {
    pub session: &'a mut dyn Session,
    pub inputs: &'a [Value],
}

/// How a run among others ended: what it returned, or what it panicked with. A session that panicked is not to be run again.
pub type Outcome<T = Vec<Value>, E = EngineError> = std::thread::Result<Result<T, E>>;

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Run<'_> {
    /// Takes the run by itself.
    pub fn alone(&mut self) -> Outcome {
        catch_unwind(AssertUnwindSafe(|| self.session.run_last(self.inputs)))
    }
}
