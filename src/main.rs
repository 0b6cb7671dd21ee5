//! The command line.

use std::process::ExitCode;

use clap::Parser;

/// What a job takes of memory is small and short-lived, which this one is made for: a sixth of a worker's time went into the
/// system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    actiond::cli::main(actiond::cli::Arguments::parse())
}
