//! Named tests that report themselves as ignored, with the reason, if a requirement is missing.

use std::{path::Path, process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::Case;

/// Outcome of a test.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    /// Skipped, with the reason.
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

/// Checks a requirement of tests; the error is the reason for skipping them.
pub type Requirement = fn() -> Result<(), String>;

/// A test that is ignored if the requirement is not met. A panic is a failure.
pub fn test<T: Into<Outcome>>(name: &str, requirement: Requirement, test: impl FnOnce() -> T + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || requirement().map_or_else(Outcome::Ignored, |()| test().into()).into())
}

/// One test per case, called with its name and folder.
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

/// Runs the tests selected by the command line, which has the standard harness's options.
pub fn run(tests: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Turns functions without arguments into tests of the same names, with a [`Requirement`].
#[macro_export]
macro_rules! functions {
    ($requirement:expr; $($name:ident),+ $(,)?) => { vec![$($crate::test(stringify!($name), $requirement, $name)),+] };
}
