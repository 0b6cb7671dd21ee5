//! `actiond subscription`: where the platform sends its webhooks, and the secrets it signs them with.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, anyhow, bail};
use clap::Subcommand;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{
    ConfigFile, Failure,
    show::{age, escape, json_line, print, table, time},
};
use crate::{
    config, http,
    platform::{AgentsApi, Endpoint, EndpointsError, Kind},
};

/// What wakes a session. The others tell nothing that has to be answered.
const EVENT: &str = "agent.session.action_required";
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Subcommand)]
pub(super) enum SubscriptionCommand {
    /// Let the platform send webhooks to ingress.public_url; its secret is shown this once
    Create {
        /// What the endpoint is called at the platform
        #[arg(long, default_value = "actiond")]
        name: String,
        /// Where to send them, if not to /webhooks/PLATFORM below ingress.public_url
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        /// What to send; repeatable
        #[arg(long = "event", value_name = "TYPE", default_value = EVENT)]
        events: Vec<String>,
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// List the endpoints of the account
    List {
        /// One JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Let the platform send a sample; fails unless the endpoint answers 2xx
    Test {
        /// The endpoint, if not the one of ingress.public_url
        id: Option<String>,
        /// What to send
        #[arg(long = "event", value_name = "TYPE", default_value = EVENT)]
        event: String,
    },
    /// Have a new secret; the old one stays good beside it for 24 hours
    Rotate {
        /// The endpoint, if not the one of ingress.public_url
        id: Option<String>,
        /// The old secret is no longer good at once: for one that leaked
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// Take an endpoint away
    Delete {
        id: String,
        /// Needed: nothing is sent there any more
        #[arg(long)]
        yes: bool,
    },
}

/// What becomes of a secret.
#[derive(clap::Args)]
pub(super) struct SecretArgs {
    /// Write the secret to this new file, readable by its owner alone, instead of showing it
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn subscription(
    file: &ConfigFile,
    platform: Option<&str>,
    command: SubscriptionCommand,
) -> Result<(), Failure> {
    // Its secret may be what is missing yet.
    let config = config::load_without_webhooks(file.path()).map_err(|errors| Failure::Config(errors.to_string()))?;
    let account = Account::of(&config, platform)?;
    match command {
        SubscriptionCommand::Create { name, url, events, secret } => account.create(&name, url, &events, secret).await,
        SubscriptionCommand::List { json } => account.list(json).await,
        SubscriptionCommand::Test { id, event } => account.test(id, &event).await,
        SubscriptionCommand::Rotate { id, now, secret } => account.rotate(id, now, secret).await,
        SubscriptionCommand::Delete { id, yes } => account.delete(&id, yes).await,
    }
}

/// The platform that is spoken to.
struct Account {
    name: String,
    api: AgentsApi,
    /// Where its webhooks arrive, if the config says it.
    url: Option<String>,
}

impl Account {
    fn of(config: &config::Config, platform: Option<&str>) -> anyhow::Result<Self> {
        let sends: Vec<_> = config.platforms.iter().filter(|p| matches!(p.kind, Kind::AgentsApi { .. })).collect();
        let found = match (platform, &sends[..]) {
            (Some(name), _) => config.platforms.iter().find(|p| p.name == name),
            (None, [only]) => Some(*only),
            (None, []) => bail!("no platform here sends webhooks"),
            (None, _) => bail!("name one with --platform: {}", names(&sends)),
        };
        let platform = found.ok_or_else(|| anyhow!("there is no such platform in the config: {}", names(&sends)))?;
        let Kind::AgentsApi { base_url, api_key, .. } = &platform.kind else {
            bail!("{} sends no webhooks: it calls functions itself", platform.name)
        };
        let api = AgentsApi::new(&platform.name, base_url, api_key, http::client()?)
            .map_err(|why| anyhow!("platform {}: {why}", platform.name))?;
        let public = config.ingress.public_url.as_deref();
        let url = public.map(|url| format!("{url}/webhooks/{}", platform.name));
        Ok(Self { name: platform.name.clone(), api, url })
    }

    async fn create(
        &self,
        name: &str,
        url: Option<String>,
        events: &[String],
        secret: SecretArgs,
    ) -> Result<(), Failure> {
        let url = url.or_else(|| self.url.clone());
        let url = url.ok_or_else(|| anyhow!("set ingress.public_url in the config, or give --url"))?;
        let twin = self.api.endpoints().await.map_err(|error| self.explain(error))?;
        if let Some(twin) = twin.iter().find(|endpoint| endpoint.url == url) {
            let id = escape(&twin.id);
            return Err(
                anyhow!("{id} sends there already: actiond subscription rotate {id} gives it a new secret").into()
            );
        }
        let keep = Keep::open(secret)?;
        let made = self.api.create_endpoint(name, &url, events).await;
        let (endpoint, secret) = made.map_err(|error| keep.give_up(self.explain(error)))?;
        keep.keep(&endpoint, &secret, None)?;
        eprintln!(
            "next: put it into webhook.secrets of platform {}, start, and try actiond subscription test",
            self.name
        );
        Ok(())
    }

    async fn list(&self, json: bool) -> Result<(), Failure> {
        let endpoints = self.api.endpoints().await.map_err(|error| self.explain(error))?;
        if json {
            let line = |e: &Endpoint| {
                json_line(&json!({
                    "id": e.id, "name": e.name, "url": e.url, "event_types": e.event_types,
                    "signing_secret_hint": e.hint, "created_at": e.created_at, "updated_at": e.updated_at,
                    "ours": self.url.as_ref() == Some(&e.url),
                }))
            };
            return print(&endpoints.iter().map(line).collect::<String>());
        }
        let head = ["ID", "NAME", "CHANGED", "SECRET", "EVENTS", "URL"].map(str::to_owned).to_vec();
        let row = |e: &Endpoint| {
            let changed = e.updated_at.or(e.created_at).map_or_else(|| "-".to_owned(), |at| age(at * 1000));
            let ours = if self.url.as_ref() == Some(&e.url) { " (ours)" } else { "" };
            vec![
                escape(&e.id),
                escape(&e.name),
                changed,
                escape(e.hint.as_deref().unwrap_or("-")),
                escape(&e.event_types.join(",")),
                format!("{}{ours}", escape(&e.url)),
            ]
        };
        print(&table(&std::iter::once(head).chain(endpoints.iter().map(row)).collect::<Vec<_>>()))
    }

    async fn test(&self, id: Option<String>, event: &str) -> Result<(), Failure> {
        let id = self.chosen(id).await?;
        let status = self.api.test_endpoint(&id, event).await.map_err(|error| self.explain(error))?;
        let remedy = match status {
            200..300 => {
                println!("the platform sent {event} to {} and was answered {status}", escape(&id));
                return Ok(());
            }
            300..=399 => "platforms follow no redirects: register the last URL",
            401 => "the secret in webhook.secrets is another one",
            404 => "actiond does not listen there, or the platform has another name in its config",
            502..=504 => "something stands before actiond and does not reach it, or its queue is away",
            _ => "look at the log of the ingress",
        };
        Err(anyhow!("the endpoint answered {status}: {remedy}").into())
    }

    async fn rotate(&self, id: Option<String>, now: bool, secret: SecretArgs) -> Result<(), Failure> {
        let id = self.chosen(id).await?;
        let keep = Keep::open(secret)?;
        let rotated = self.api.rotate_secret(&id, !now).await;
        let (endpoint, secret) = rotated.map_err(|error| keep.give_up(self.explain(error)))?;
        let until = (!now).then(|| SystemTime::now() + DAY);
        keep.keep(&endpoint, &secret, until)?;
        match until {
            Some(until) => eprintln!(
                "next: put it before the old one in webhook.secrets of platform {}, and restart. The old one signs too until \
                 {}; nothing uses it any more once actiond_webhook_secrets_total{{secret=\"1\"}} stands still. Then take it out.",
                self.name,
                unix(until).map_or_else(String::new, time),
            ),
            None => eprintln!(
                "next: put it in the place of the old one in webhook.secrets of platform {}, and restart: until then \
                 webhooks are refused",
                self.name
            ),
        }
        Ok(())
    }

    async fn delete(&self, id: &str, yes: bool) -> Result<(), Failure> {
        if !yes {
            return Err(anyhow!("nothing is sent to {} any more after this: --yes does it", escape(id)).into());
        }
        self.api.delete_endpoint(id).await.map_err(|error| self.explain(error))?;
        println!("deleted {}", escape(id));
        Ok(())
    }

    /// The endpoint that is meant: named, or the one that sends to us.
    async fn chosen(&self, id: Option<String>) -> anyhow::Result<String> {
        if let Some(id) = id {
            return Ok(id);
        }
        let url = self.url.as_ref().context("set ingress.public_url in the config, or name an endpoint")?;
        let endpoints = self.api.endpoints().await.map_err(|error| self.explain(error))?;
        let ours: Vec<_> = endpoints.into_iter().filter(|endpoint| endpoint.url == *url).collect();
        match &ours[..] {
            [one] => Ok(one.id.clone()),
            [] => bail!("no endpoint sends to {url}: actiond subscription create makes one"),
            _ => bail!("{} endpoints send to {url}: name one", ours.len()),
        }
    }

    fn explain(&self, error: EndpointsError) -> anyhow::Error {
        let name = &self.name;
        match (error, &self.url) {
            (EndpointsError::Absent, Some(url)) => {
                anyhow!("{name} knows no such endpoint, or lets none be managed by API: then enter {url} there by hand")
            }
            (EndpointsError::Absent, None) => anyhow!("{name} knows no such endpoint, or lets none be managed by API"),
            (error, _) => anyhow!("{name}: {}", escape(&error.to_string())),
        }
    }
}

fn names(platforms: &[&crate::platform::Config]) -> String {
    platforms.iter().map(|platform| platform.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn unix(time: SystemTime) -> Option<i64> {
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// Where a secret goes: made before the platform is asked, since it tells the secret only once.
struct Keep {
    file: Option<(PathBuf, File)>,
    json: bool,
}

impl Keep {
    fn open(args: SecretArgs) -> anyhow::Result<Self> {
        let open = |path: PathBuf| match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!(
                    "{} is there already: an old secret is still needed for a while, name another file",
                    path.display()
                )
            }
            opened => {
                let opened = opened.with_context(|| format!("cannot write {}", path.display()))?;
                Ok((path, opened))
            }
        };
        Ok(Self { file: args.secret_file.map(open).transpose()?, json: args.json })
    }

    /// There is no secret.
    fn give_up(&self, why: anyhow::Error) -> anyhow::Error {
        if let Some((path, _)) = &self.file {
            let _ = std::fs::remove_file(path);
        }
        why
    }

    fn keep(self, endpoint: &Endpoint, secret: &SecretString, old_until: Option<SystemTime>) -> Result<(), Failure> {
        let written = match self.file {
            Some((path, mut file)) => match write(&mut file, secret) {
                Ok(()) => Some(path),
                Err(error) => {
                    eprintln!("error: cannot write {}: {error}; the secret is shown instead", path.display());
                    None
                }
            },
            None => None,
        };
        let shown = written.is_none().then(|| secret.expose_secret());
        print(&match self.json {
            true => json_line(&json!({
                "id": endpoint.id, "url": endpoint.url, "event_types": endpoint.event_types, "signing_secret": shown,
                "secret_file": written.as_deref().map(Path::to_string_lossy),
                "old_secret_until": old_until.and_then(unix).map(time),
            })),
            false => {
                let place = match (&written, shown) {
                    (Some(path), _) => format!("in {}", path.display()),
                    (None, secret) => escape(secret.unwrap_or_default()),
                };
                let rows = [
                    ("endpoint", escape(&endpoint.id)),
                    ("url", escape(&endpoint.url)),
                    ("events", escape(&endpoint.event_types.join(", "))),
                    ("secret", place),
                ];
                table(&rows.map(|(name, value)| vec![name.to_owned(), value]))
            }
        })
    }
}

fn write(file: &mut File, secret: &SecretString) -> std::io::Result<()> {
    file.write_all(secret.expose_secret().as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}
