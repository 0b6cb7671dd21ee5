//! `approval` of a function: which calls wait for a person, and who is told.

use serde_json::Value;

use super::{
    functions::{headers, sign},
    reader::Item,
    sections::{HOUR, SECOND},
};
use crate::{
    allow::Rule,
    approval::{By, Notify, Policy, Required},
};

pub(super) fn approval(item: &Item) -> Option<Policy> {
    if item.is_absent() {
        return None;
    }
    let section = item.section();
    let required = required(&section.key("required"));
    let policy = Policy {
        by: section.key("by").choice(&[("token", By::Token), ("link", By::Link)]).unwrap_or(By::Token),
        expires: section.key("expires").duration(SECOND..=30 * 24 * HOUR).unwrap_or(12 * HOUR),
        notify: notify(&section.key("notify")),
        required: required.clone().unwrap_or(Required::Always),
    };
    if policy.by == By::Link && policy.notify.is_none() {
        item.error("by: link needs notify: nobody else would get the link");
    }
    section.finish();
    required.map(|_| policy)
}

/// `None`: nobody is asked.
fn required(item: &Item) -> Option<Required> {
    match item.value() {
        Some(Value::String(text)) if !matches!(text.as_str(), "true" | "false") => {
            Some(Rule::compile(text).map_or_else(
                |why| {
                    item.error(&why);
                    Required::Always
                },
                Required::If,
            ))
        }
        _ => {
            let what = "must be true, false, or a CEL expression over metadata, platform and arguments";
            let always = item.parse(what, |value| match value {
                Value::Bool(always) => Some(*always),
                Value::String(text) => text.parse().ok(),
                _ => None,
            });
            always.unwrap_or(true).then_some(Required::Always)
        }
    }
}

fn notify(item: &Item) -> Option<Notify> {
    if item.is_absent() {
        return None;
    }
    let section = item.section();
    let url = section.key("url").required("required, such as https://chat.internal/approvals");
    let notify = Notify {
        url: url.url().unwrap_or_default().into(),
        headers: headers(&section.key("headers")),
        sign: sign(&section.key("sign")),
        arguments: section.key("arguments").bool().unwrap_or(false),
    };
    section.finish();
    Some(notify)
}
