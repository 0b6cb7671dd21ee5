//! The command line.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    actiond::cli::main(actiond::cli::Arguments::parse())
}
