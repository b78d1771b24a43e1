//! The `op_test_runner` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    flambeau_cli::op_test_runner::main(std::env::args_os())
}
