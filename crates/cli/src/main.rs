//! The `flambeau` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    flambeau_cli::run(std::env::args_os())
}
