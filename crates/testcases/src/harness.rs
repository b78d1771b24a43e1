//! Tests of their own names that are ignored, with the reason, where what they need is missing.

use std::{path::Path, process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::Case;

/// What came of a test.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    /// Why the test does not apply here.
    Ignored(String),
    Failed(String),
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Outcome {
        result.map_or_else(Outcome::Failed, |()| Outcome::Passed)
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Outcome {
        Outcome::Passed
    }
}

impl From<Outcome> for Result<Completion, Failed> {
    fn from(outcome: Outcome) -> Result<Completion, Failed> {
        match outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Outcome::Failed(what) => Err(what.into()),
        }
    }
}

/// What tests need: it is there, or the reason why it is not.
pub type Requirement = fn() -> Result<(), String>;

/// A test that is ignored where the requirement is not met. A panic is a failure.
pub fn test<T: Into<Outcome>>(name: &str, requirement: Requirement, test: impl FnOnce() -> T + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || requirement().map_or_else(Outcome::Ignored, |()| test().into()).into())
}

/// A test of each case, given its name and folder.
pub fn per_case<T: Into<Outcome>>(cases: Vec<Case>, test: impl Fn(&str, &Path) -> T + Send + Sync + 'static) -> Vec<Trial> {
    let test = Arc::new(test);
    let trial = |Case { name, folder }: Case| {
        let test = Arc::clone(&test);
        Trial::ignorable_test(name.clone(), move || match folder {
            Ok(folder) => test(&name, &folder).into().into(),
            Err(missing) => Outcome::Ignored(missing).into(),
        })
    };
    cases.into_iter().map(trial).collect()
}

/// Runs the tests that the command line asks for, which it does in the words of the standard harness.
pub fn run(tests: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Functions without arguments as tests of their names, under a [`Requirement`].
#[macro_export]
macro_rules! functions {
    ($requirement:expr; $($name:ident),+ $(,)?) => { vec![$($crate::test(stringify!($name), $requirement, $name)),+] };
}
