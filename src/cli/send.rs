//! `actiond send`: takes from the config what the arguments leave out.

use std::time::SystemTime;

use anyhow::{Context as _, anyhow};

use super::{ConfigFile, Failure};
use crate::{
    http,
    platform::WebhookConfig,
    send::{Send, SendArgs, delivery_id},
};

pub(super) async fn send(file: &ConfigFile, args: SendArgs) -> Result<(), Failure> {
    let id = args.id.clone().unwrap_or_else(delivery_id);
    let session = args.session.clone();
    let send = match (args.url, args.secret) {
        (Some(url), Some(secret)) => {
            let webhook = WebhookConfig::Standard { secrets: vec![secret], tolerance: std::time::Duration::ZERO };
            Send { url, session, webhook, id }
        }
        (url, secret) => {
            let config = file.load()?;
            let platform = match &args.platform {
                Some(name) => config.platforms.iter().find(|p| p.name == *name),
                None => config.platforms.first(),
            };
            let platform = platform.ok_or_else(|| anyhow!("no such platform in {}", file.path().display()))?;
            let webhook = platform.intake.webhook.clone();
            let mut webhook = webhook.ok_or_else(|| anyhow!("platform {} takes no webhooks", platform.name))?;
            if let (
                Some(secret),
                WebhookConfig::Standard { secrets, .. } | WebhookConfig::SharedSecret { secrets, .. },
            ) = (secret, &mut webhook)
            {
                *secrets = vec![secret];
            }
            let mut address = config.ingress.listen;
            if address.ip().is_unspecified() {
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            let url = url.unwrap_or_else(|| format!("http://{address}/webhooks/{}", platform.name));
            Send { url, session, webhook, id }
        }
    };
    let client = http::client().context("cannot make an HTTP client")?;
    let answer = send.post(&client, SystemTime::now()).await.map_err(|why| anyhow!("{}: {why}", send.url))?;
    println!("{} answered {answer}", send.url);
    if answer.is_success() { Ok(()) } else { Err(Failure::Said) }
}
