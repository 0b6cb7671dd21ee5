//! `limits` of a function.

use super::{reader::Item, sections::SECOND};
use crate::limits::{Config, Rate};

pub(super) fn limits(item: &Item) -> Config {
    let section = item.section();
    let allowed = "must be a count and a unit, such as 50/s, 100/m or 1000/h";
    let limits = Config {
        concurrency: section.key("concurrency").number(1..=10_000).map(|n| n as usize),
        rate: section.key("rate").parse(allowed, |value| rate(value.as_str()?)),
        adaptive: section.key("adaptive").bool().unwrap_or(false),
    };
    section.finish();
    limits
}

fn rate(text: &str) -> Option<Rate> {
    let (count, unit) = text.split_once('/')?;
    let seconds = match unit.trim() {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let count = count.trim().parse().ok().filter(|count| (1..=1_000_000).contains(count))?;
    Some(Rate { count, per: seconds * SECOND })
}
