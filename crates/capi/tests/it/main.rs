//! Compiles C against the header, links it with the shared library of this build, and runs it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

mod examples;
mod executorch;
mod header;
mod install;
mod toolchain;

fn main() -> ExitCode {
    flambeau_testcases::run(
        [examples::tests(), header::tests(), install::tests(), executorch::tests()].into_iter().flatten().collect(),
    )
}
