//! The command line.

use std::process::ExitCode;

use clap::Parser;

/// Most of what a job costs in memory is small and short-lived; this takes less time for it than the system's, and keeps less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    actiond::cli::main(actiond::cli::Arguments::parse())
}
