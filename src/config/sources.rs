//! `function_sources`: catalogues in AIVAX's listing format.

use secrecy::ExposeSecret;

use super::{
    functions::{headers, platforms, query_account},
    reader::Item,
    sections::{HOUR, MOMENT, SECOND, pool},
};
use crate::{function::source::Config, platform, retry};

pub(super) fn sources(item: &Item, retry: &retry::Policy, known: &[platform::Config], pools: &[String]) -> Vec<Config> {
    let mut sources: Vec<Config> = Vec::new();
    for item in item.list() {
        let source = source(&item, retry, known, pools);
        let key = |config: &Config| config.hook_key.as_ref().map(|key| key.expose_secret().to_owned());
        if sources.iter().any(|s| !s.url.is_empty() && s.url == source.url && key(s) == key(&source)) {
            item.error_at(".url", "is listed already with the same hook_key");
        }
        sources.push(source);
    }
    sources
}

fn source(item: &Item, retry: &retry::Policy, known: &[platform::Config], pools: &[String]) -> Config {
    let section = item.section();
    let url = section.key("url").required("required, such as https://catalog.internal/functions");
    let config = Config {
        url: url.url().unwrap_or_default().into(),
        ttl: section.key("ttl").duration(SECOND..=24 * HOUR).unwrap_or(600 * SECOND),
        allow_hosts: section.key("allow_hosts").list().iter().filter_map(host).collect(),
        headers: headers(&section.key("headers")),
        hook_key: section.key("hook_key").some_secret(),
        platforms: platforms(&section.key("platforms"), known),
        pool: pool(&section.key("pool"), pools),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(10 * SECOND),
        retry: super::sections::retry(&section.key("retry"), retry),
        account: query_account(&section.key("platform"), known),
    };
    section.finish();
    config
}

/// A name or an address as it stands in a URL, without port and brackets; a star stands for the labels before a domain.
fn host(item: &Item) -> Option<String> {
    let allowed = "must be a host such as catalog.internal or *.internal, without port";
    let is_host = |text: &str| {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_address = text.parse::<std::net::IpAddr>().is_ok();
        let part = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        is_address || (!name.is_empty() && name.bytes().all(part) && name.bytes().any(|b| b != b'.'))
    };
    item.text_that(allowed, is_host).map(String::from)
}
