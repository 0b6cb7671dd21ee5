//! `init`, `check`, `migrate`: what there is to do with a config file at rest.

use std::{
    io::{ErrorKind, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context as _, anyhow};

use super::{ConfigFile, Failure};
use crate::{app, config::EXAMPLE, http};

pub(super) fn init(path: &Path, force: bool) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).truncate(true).create(true).create_new(!force);
    let shown = path.display();
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(anyhow!("{shown} is there already; --force overwrites it").into());
        }
        opened => opened.with_context(|| format!("cannot write {shown}"))?,
    };
    file.write_all(EXAMPLE.as_bytes()).with_context(|| format!("cannot write {shown}"))?;
    println!("wrote {shown}. Set OPENAI_API_KEY and OPENAI_WEBHOOK_SECRET, register your functions, then:");
    println!("  actiond check --config {shown}");
    println!("  actiond serve --config {shown}");
    Ok(())
}

pub(super) fn check(file: &ConfigFile) -> Result<(), Failure> {
    let config = file.load()?;
    let client = http::client()?;
    app::servers(&config, &client)
        .and_then(|servers| app::functions(&config.functions, &client, &servers))
        .map_err(|error| Failure::Config(format!("{error:#}")))?;
    let list = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    println!("{} is fine", file.path().display());
    println!("platforms  {}", list(config.platforms.iter().map(|p| p.name.as_str()).collect()));
    println!("functions  {}", list(config.functions.iter().map(|f| f.name.as_str()).collect()));
    if !config.worker.pools.is_empty() {
        println!("pools      {}", list(config.worker.pools.iter().map(String::as_str).collect()));
    }
    if !config.mcp_servers.is_empty() {
        println!("MCP        {}", list(config.mcp_servers.iter().map(|s| s.name.as_str()).collect()));
    }
    Ok(())
}

/// The config's admin listener must answer; what is away beside the process does not matter.
pub(super) async fn live(file: &ConfigFile) -> Result<(), Failure> {
    let address = reachable(file.load()?.admin.listen);
    match http::local_status(address, "/health/live").await {
        Ok(200) => {
            println!("{address} is live");
            Ok(())
        }
        Ok(status) => Err(anyhow!("{address} answered {status}").into()),
        Err(why) => Err(anyhow!("{address}: {why}").into()),
    }
}

/// Where a listener on all addresses is reached from its own machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

pub(super) async fn migrate(file: &ConfigFile) -> Result<(), Failure> {
    let config = file.load()?;
    let opened = app::open(&config.store).await?;
    opened.store.migrate().await.context("cannot migrate the store")?;
    println!("the store's schema is up to date");
    Ok(())
}
