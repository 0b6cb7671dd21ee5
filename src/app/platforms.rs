//! The accounts of the config: what verifies their webhooks, what speaks to them.

use std::{collections::HashMap, sync::Arc};

use anyhow::{anyhow, bail};

use crate::{
    handler::{Forward, Receiver},
    http,
    ingress::signature::Verifier,
    platform::{self, AgentsApi, Kind, Platform, WorkflowRuns},
    worker::Account,
};

/// Of the platforms that send webhooks.
pub(super) fn verifiers(platforms: &[platform::Config]) -> anyhow::Result<HashMap<String, Verifier>> {
    platforms
        .iter()
        .filter_map(|platform| Some((platform, platform.intake.webhook.as_ref()?)))
        .map(|(platform, webhook)| match Verifier::new(webhook) {
            Ok(verifier) => Ok((platform.name.clone(), verifier)),
            Err(problems) => {
                let reasons: Vec<String> =
                    problems.into_iter().map(|(at, why)| format!("secrets[{at}]: {why}")).collect();
                bail!("platform {}: webhook.{}", platform.name, reasons.join("; "))
            }
        })
        .collect()
}

/// What speaks to each account whose sessions are asked for, by its name.
pub fn accounts(
    platforms: &[platform::Config],
    client: &http::Client,
) -> anyhow::Result<HashMap<Arc<str>, Arc<Account>>> {
    platforms
        .iter()
        .filter(|config| !matches!(config.kind, Kind::Aivax(_)))
        .map(|config| {
            let name: Arc<str> = config.name.as_str().into();
            let account = Account::new(name.clone(), adapter(config, client)?, config.call_deadline);
            let receiver = receiver(config, client)?;
            Ok((name, Arc::new(account.polling(config.intake.poll).telling(receiver))))
        })
        .collect()
}

/// The adapters of the accounts whose sessions may be watched; `None` for the others.
pub(super) type Watchable = HashMap<Arc<str>, Option<Arc<dyn Platform>>>;

pub(super) fn watchable(platforms: &[platform::Config], accounts: &HashMap<Arc<str>, Arc<Account>>) -> Watchable {
    let one = |config: &platform::Config| {
        let (name, account) = accounts.get_key_value(config.name.as_str())?;
        Some((name.clone(), config.intake.stream.then(|| account.platform.clone())))
    };
    platforms.iter().filter_map(one).collect()
}

/// Who is told of actions that are no function calls.
fn receiver(config: &platform::Config, client: &http::Client) -> anyhow::Result<Option<Arc<dyn Receiver>>> {
    let Some(forward) = &config.forward else { return Ok(None) };
    let wrong = |(path, why)| anyhow!("platform {}: forward_other_actions.{path}: {why}", config.name);
    Ok(Some(Arc::new(Forward::new(&forward.url, &forward.sign, client.clone()).map_err(wrong)?)))
}

/// The adapter that speaks to a platform.
pub fn adapter(config: &platform::Config, client: &http::Client) -> anyhow::Result<Arc<dyn Platform>> {
    let (name, client) = (&config.name, client.clone());
    let wrong = |why| anyhow!("platform {name}: {why}");
    match &config.kind {
        Kind::AgentsApi { base_url, api_key, flavor } => {
            let adapter = AgentsApi::new(name, base_url, api_key, client).map_err(wrong)?;
            Ok(Arc::new(adapter.with_flavor(*flavor)))
        }
        Kind::WorkflowRuns { base_url, api_key, flavor } => {
            Ok(Arc::new(WorkflowRuns::new(name, base_url, api_key, *flavor, client).map_err(wrong)?))
        }
        Kind::Aivax(_) => bail!("platform {name}: AIVAX calls us; there are no sessions to ask for"),
    }
}
