//! `actiond tools`: what to paste into a platform, and what its `tool_search` would find.

use anyhow::anyhow;
use secrecy::ExposeSecret;
use serde_json::json;

use super::{ConfigFile, Failure};
use crate::{
    callback::callback_url,
    config::Config,
    platform,
    tools::{
        Callback, Tool, declaration,
        search::{Ask, DEFAULT_LIMIT, search},
    },
};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ToolsArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// The platform to print for [default: the only one]
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// On one line
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Preview what the model's tool_search would find
    #[command(after_help = "Example:  actiond tools search \"order status\" --limit 3")]
    Search(SearchArgs),
}

#[derive(clap::Args)]
struct SearchArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// Words to rank by, at most 500 characters
    #[arg(required_unless_present = "pattern", conflicts_with = "pattern")]
    query: Option<String>,
    /// A regular expression instead, at most 200 characters; case does not count
    #[arg(long, value_name = "RE")]
    pattern: Option<String>,
    /// Functions to find, at most 20
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LIMIT)]
    limit: usize,
    /// Only what that platform is given [default: every function]
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn tools(args: ToolsArgs) -> Result<(), Failure> {
    match args.command {
        Some(Command::Search(args)) => find(&args),
        None => declare(&args),
    }
}

fn declare(args: &ToolsArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    let own: Vec<_> = config.platforms.iter().filter(|platform| !is_runs(platform)).collect();
    let platform = match (&args.platform, own.as_slice()) {
        (Some(name), _) => named(&config, name)?,
        (None, [only]) => only,
        (None, _) => return Err(anyhow!("which platform? add --platform {}", names(&config).join(" or ")).into()),
    };
    let mut tools = of(&config, Some(platform));
    if is_runs(platform) {
        // A program calls what it is given; nothing is searched for.
        tools.iter_mut().for_each(|tool| tool.deferred = false);
    }
    let url = callback_url(config.ingress.public_url.as_deref().unwrap_or_default(), &platform.name);
    let token = match &platform.kind {
        platform::Kind::Aivax(aivax) => aivax.listing_secrets.first().map(ExposeSecret::expose_secret),
        platform::Kind::AgentsApi { .. } | platform::Kind::WorkflowRuns { .. } => None,
    };
    let callback = Callback { url: &url, token };
    let text = declaration(platform.flavor(), &tools, callback, !args.json).map_err(|why| anyhow!(why))?;
    println!("{text}");
    Ok(())
}

fn find(args: &SearchArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    let platform = args.platform.as_deref().map(|name| named(&config, name)).transpose()?;
    let mut tools = of(&config, platform);
    if tools.iter().any(|tool| tool.deferred) {
        tools.retain(|tool| tool.deferred);
    } else if !args.json {
        eprintln!("no function is deferred: searching all of them");
    }
    let ask = match &args.pattern {
        Some(pattern) => Ask::Pattern(pattern),
        None => Ask::Query(args.query.as_deref().unwrap_or_default()),
    };
    let found = search(&tools, ask, args.limit).map_err(|why| anyhow!(why))?;
    if args.json {
        let found: Vec<_> = found
            .iter()
            .map(|(place, score)| json!({ "name": tools[*place].name, "description": tools[*place].description, "score": score }))
            .collect();
        println!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    for (place, score) in &found {
        println!("{score:6.3}  {:32}  {}", tools[*place].name, tools[*place].description);
    }
    if found.is_empty() {
        println!("nothing is found");
    }
    Ok(())
}

fn of<'a>(config: &'a Config, platform: Option<&platform::Config>) -> Vec<Tool<'a>> {
    let given = config.functions.iter().filter(|f| platform.is_none_or(|p| f.answers(&p.name)));
    given.map(Tool::from).collect()
}

fn named<'a>(config: &'a Config, name: &str) -> anyhow::Result<&'a platform::Config> {
    let found = config.platforms.iter().find(|p| p.name == name);
    found.ok_or_else(|| anyhow!("no platform {name}; there are: {}", names(config).join(", ")))
}

fn is_runs(platform: &platform::Config) -> bool {
    matches!(platform.kind, platform::Kind::WorkflowRuns { .. })
}

fn names(config: &Config) -> Vec<&str> {
    config.platforms.iter().map(|p| p.name.as_str()).collect()
}
