//! The `flambeau` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Returns the memory of earlier requests to the system, which glibc's allocator keeps:
/// `docs/request-sharing.md` has the figures.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    flambeau_cli::run(std::env::args_os())
}
