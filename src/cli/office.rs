//! Where an operator's command works: on the store and the queue of the config, or at a running program's API.

use secrecy::SecretString;

use super::{ConfigFile, Failure, calls};
use crate::{
    app, http,
    operator::{self, Act, ListCalls, Operator, Order, Pick, Redaction, Remote, Told, view},
};

/// Whom to ask.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ServerArgs {
    /// Ask the API of a running actiond, such as http://127.0.0.1:9090, instead of the config's store and queue
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// The server's admin.token
    #[arg(long, global = true, value_name = "TOKEN", env = "ACTIOND_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub(super) enum Office {
    Here(Box<Operator>),
    There(Remote),
}

impl Office {
    pub(super) async fn open(server: &ServerArgs, file: &ConfigFile) -> Result<Self, Failure> {
        if let Some(url) = &server.server {
            let token = server.token.clone().filter(|token| !token.is_empty()).map(SecretString::from);
            return Remote::new(url, token).map(Self::There).map_err(|error| Failure::Config(error.to_string()));
        }
        let config = file.load()?;
        let opened = app::open_existing(&config.store).await?;
        let letters = app::dead_letters(&config.queue, &opened)?;
        let accounts = app::accounts(&config.platforms, &http::client()?)?;
        let paths = config.functions.into_iter().map(|function| (function.name, function.redact)).collect();
        Ok(Self::Here(Box::new(Operator::new(opened.store, letters, accounts, Redaction::Config(paths)))))
    }

    pub(super) async fn calls(&self, list: &ListCalls) -> operator::Result<view::Calls> {
        match self {
            Self::Here(operator) => operator.calls(list).await,
            Self::There(remote) => remote.calls(list).await,
        }
    }

    pub(super) async fn show(&self, name: &str) -> operator::Result<view::CallDetail> {
        match self {
            Self::Here(operator) => operator.call(&operator.find(name).await?.key).await,
            Self::There(remote) => remote.call(&remote.find(name).await?.id).await,
        }
    }

    pub(super) async fn detail(&self, id: &str) -> operator::Result<view::CallDetail> {
        match (self, operator::decode(id)) {
            (Self::Here(operator), Some(key)) => operator.call(&key).await,
            (Self::Here(_), None) => Err(operator::Error::NotFound(format!("there is no call {id}"))),
            (Self::There(remote), _) => remote.call(id).await,
        }
    }

    pub(super) async fn act(&self, name: &str, act: &Act) -> operator::Result<view::Done> {
        match self {
            Self::Here(operator) => operator.act(&operator.find(name).await?.key, act, &calls::person()).await,
            Self::There(remote) => remote.act(&remote.find(name).await?.id, act).await,
        }
    }

    pub(super) async fn dead(
        &self,
        pick: &Pick,
        after: Option<String>,
        limit: usize,
    ) -> operator::Result<view::DeadMessages> {
        match self {
            Self::Here(operator) => operator.dead(pick, after, limit).await,
            Self::There(remote) => remote.dead(pick, after, limit).await,
        }
    }

    pub(super) async fn dead_message(&self, id: &str) -> operator::Result<view::DeadDetail> {
        match self {
            Self::Here(operator) => operator.dead_message(id).await,
            Self::There(remote) => remote.dead_message(id).await,
        }
    }

    pub(super) async fn settle(
        &self,
        order: Order,
        tell: &mut (dyn FnMut(Told<'_>) + Send),
    ) -> operator::Result<view::Settled> {
        match self {
            Self::Here(operator) => operator.settle(order, tell).await,
            Self::There(remote) => remote.settle(order, tell).await,
        }
    }
}
