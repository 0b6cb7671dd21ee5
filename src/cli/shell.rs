//! What a shell and `man` want to know of the commands, made from their definitions.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Arguments, Failure, show::print};

pub(super) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "actiond", &mut out);
    print(&String::from_utf8(out).context("the completions are no text")?)
}

/// The page of one command, or every page into a folder.
pub(super) fn man(words: &[String], folder: Option<&Path>) -> Result<(), Failure> {
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        clap_mangen::generate_to(Arguments::command(), folder)
            .with_context(|| format!("cannot write into {}", folder.display()))?;
        println!("the pages are in {}: man -l {}", folder.display(), folder.join("actiond.1").display());
        return Ok(());
    }
    let mut all = Arguments::command().disable_help_subcommand(true);
    all.build();
    let command = words.iter().try_fold(&all, |command: &Command, word| command.find_subcommand(word));
    let command = command.ok_or_else(|| anyhow!("there is no command {}", words.join(" ")))?;
    let mut out = Vec::new();
    Man::new(command.clone()).render(&mut out).context("cannot render the page")?;
    print(&String::from_utf8(out).context("the page is no text")?)
}

/// `man` in its arguments.
#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// The command whose page is wanted, such as `calls list`; actiond's own by default
    pub(super) words: Vec<String>,
    /// Write every page into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "words")]
    pub(super) out: Option<PathBuf>,
}
