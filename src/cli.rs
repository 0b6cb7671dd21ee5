//! What a person types: arguments in, exit status out. 0 done, 1 failed, 2 wrong usage or bad config.

mod approvals;
mod call;
mod calls;
mod dead;
mod doctor;
mod export;
mod files;
mod office;
mod send;
mod serve;
mod shell;
mod show;
mod subscription;
mod tools;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use crate::{app::Role, config, demo, sandbox::cli::SandboxArgs, send::SendArgs, telemetry};

/// Answers the required actions of AI agents: signed webhook, durable queue, your handler, stored result, idempotent tool_result
#[derive(Parser)]
#[command(
    version,
    after_help = "Try it without an account:  actiond demo\nStart for real:             actiond init && actiond check && actiond serve"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    #[command(after_help = "Example:  actiond serve --config actiond.yaml --role worker")]
    Serve {
        #[command(flatten)]
        config: ConfigFile,
        /// Which half of the path this process runs
        #[arg(long, value_enum, default_value = "all")]
        role: Role,
        /// The pool of worker.pools that this process works for; without it, a worker runs the functions without a pool
        #[arg(long, env = "ACTIOND_POOL", value_name = "NAME")]
        pool: Option<String>,
    },
    /// Watch an agent's calls being answered: platform, ingress, worker and handlers in this process, on loopback
    Demo(demo::DemoArgs),
    /// Write a commented actiond.yaml
    #[command(after_help = "Example:  actiond init --config deploy/actiond.yaml")]
    Init {
        #[command(flatten)]
        config: ConfigFile,
        /// Overwrite a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Check a config file; every problem is printed with its path
    Check {
        #[command(flatten)]
        config: ConfigFile,
        /// Ask the daemon that runs here with this config whether it is alive, for a container's health check
        #[arg(long, conflicts_with = "online")]
        live: bool,
        /// Also look at what it names: broker, store, platforms with key and clock, handlers; changes nothing
        #[arg(long)]
        online: bool,
        /// With --online: one JSON object per finding
        #[arg(long, requires = "online")]
        json: bool,
    },
    /// Validate arguments, run one handler, and print the result that would be sent
    #[command(after_help = "Example:  actiond call lookup_order --args '{\"order_id\":\"42\"}'")]
    Call(call::CallArgs),
    /// Print what to paste into a platform so that its model knows the functions
    #[command(after_help = "Example:  actiond tools --platform openai > tools.json")]
    Tools(tools::ToolsArgs),
    /// Run a local Agents API with a scripted model
    Sandbox(Box<SandboxArgs>),
    /// Send a signed test webhook
    #[command(after_help = "Example:  actiond send --platform openai --session sess_1")]
    Send {
        #[command(flatten)]
        config: ConfigFile,
        #[command(flatten)]
        args: SendArgs,
    },
    /// See calls; retry, resubmit, resolve or cancel those that do not go on
    #[command(after_help = "Example:  actiond calls list --state interrupted")]
    Calls {
        #[command(flatten)]
        config: ConfigFile,
        #[command(flatten)]
        server: office::ServerArgs,
        #[command(subcommand)]
        command: calls::CallsCommand,
    },
    /// See calls that wait for a person; approve or deny them
    #[command(after_help = "Example:  actiond approvals list")]
    Approvals {
        #[command(flatten)]
        config: ConfigFile,
        #[command(subcommand)]
        command: approvals::ApprovalsCommand,
    },
    /// See messages that were put aside; redrive or purge them
    #[command(after_help = "Example:  actiond dead list")]
    Dead {
        #[command(flatten)]
        config: ConfigFile,
        #[command(flatten)]
        server: office::ServerArgs,
        #[command(subcommand)]
        command: dead::DeadCommand,
    },
    /// Create or update the store's schema
    Migrate {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Register at the platform where it sends webhooks; test, rotate the secret
    #[command(after_help = "Example:  actiond subscription create --secret-file webhook-secret")]
    Subscription {
        #[command(flatten)]
        config: ConfigFile,
        /// Whose endpoints, if the config has several platforms
        #[arg(long, global = true, value_name = "NAME")]
        platform: Option<String>,
        #[command(subcommand)]
        command: subscription::SubscriptionCommand,
    },
    /// Print completions for a shell
    #[command(after_help = "Example:  actiond completions bash > ~/.local/share/bash-completion/completions/actiond")]
    Completions { shell: clap_complete::Shell },
    /// Print a manual page, or write all of them
    #[command(after_help = "Example:  actiond man calls list | man -l -")]
    Man(shell::ManArgs),
}

/// Where the config is.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ConfigFile {
    /// The config file
    #[arg(long, short, global = true, default_value = "actiond.yaml", env = "ACTIOND_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

impl ConfigFile {
    fn path(&self) -> &Path {
        &self.config
    }

    /// Reads it; warnings go to standard error.
    fn load(&self) -> Result<config::Config, Failure> {
        self.read().map(|loaded| loaded.config)
    }

    fn read(&self) -> Result<config::Loaded, Failure> {
        let loaded = config::load(&self.config).map_err(|errors| Failure::Config(errors.to_string()))?;
        for warning in &loaded.warnings {
            eprintln!("warning: {warning}");
        }
        Ok(loaded)
    }
}

/// Why a command ends with another status than 0.
pub(crate) enum Failure {
    /// 1: it was tried and failed.
    Failed(anyhow::Error),
    /// 1: what there is to say has been printed.
    Said,
    /// 2: the config is wrong.
    Config(String),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs the command in a runtime of its own.
pub fn main(arguments: Arguments) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(run(arguments.command));
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Said) => ExitCode::FAILURE,
        Err(Failure::Failed(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
        Err(Failure::Config(text)) => {
            eprintln!("error: {text}");
            ExitCode::from(2)
        }
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve { config, role, pool } => serve::serve(&config, role, pool).await,
        Command::Demo(args) => Ok(demo::run(args).await?),
        Command::Init { config, force } => files::init(config.path(), force),
        Command::Check { config, live: true, .. } => files::live(&config).await,
        Command::Check { config, online: true, json, .. } => doctor::check(&config, json).await,
        Command::Check { config, .. } => files::check(&config),
        Command::Call(args) => call::call(args).await,
        Command::Tools(args) => tools::tools(args),
        Command::Sandbox(args) => {
            let stop = serve::signals(None);
            Ok(crate::sandbox::cli::run(*args, stop.cancelled_owned()).await?)
        }
        Command::Send { config, args } => send::send(&config, args).await,
        Command::Calls { config, server, command } => calls::calls(&config, &server, command).await,
        Command::Approvals { config, command } => approvals::approvals(&config, command).await,
        Command::Dead { config, server, command } => dead::dead(&config, &server, command).await,
        Command::Migrate { config } => files::migrate(&config).await,
        Command::Subscription { config, platform, command } => {
            subscription::subscription(&config, platform.as_deref(), command).await
        }
        Command::Completions { shell } => shell::completions(shell),
        Command::Man(args) => shell::man(&args.words, args.out.as_deref()),
    }
}

/// Logs for commands that talk to a person: warnings only, unless RUST_LOG says more.
pub(crate) fn quiet_logs() -> telemetry::Config {
    telemetry::Config { log: telemetry::LogFormat::Text, otlp: None }
}
