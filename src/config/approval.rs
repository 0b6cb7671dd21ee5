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
    function, platform,
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

/// Nobody can be asked while AIVAX waits.
pub(super) fn has_time(item: &Item, function: &function::Config, platforms: &[platform::Config]) {
    let waits = |p: &&platform::Config| matches!(p.kind, platform::Kind::Aivax(_)) && function.answers(&p.name);
    if let (Some(_), Some(aivax)) = (&function.approval, platforms.iter().find(waits)) {
        let what = "does not wait for a person: calls that need an approval are answered there with an error";
        item.warn(&format!("platform {} {what}", aivax.name));
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Errors, Loaded, parse};

    const LINKED: &str = "{ by: link, notify: { url: \"https://chat.internal/a\" } }";

    fn config(approval: &str, more: &str) -> Result<Loaded, Errors> {
        let platform = "{ name: p, type: agents_api, base_url: \"http://127.0.0.1:1/v1\", api_key: k, webhook: { insecure: true } }";
        let aivax = "{ name: x, type: aivax, hook_keys: [hook-key-hook-key] }";
        let text = format!(
            "platforms: [{platform}{}]\nfunctions: [{{ name: pay, handler: {{ type: echo }}, approval: {approval} }}]\n{more}",
            if more.contains("public_url") { format!(", {aivax}") } else { String::new() }
        );
        parse(&text, &|_| None)
    }

    fn policy(approval: &str) -> Option<Policy> {
        config(approval, "ingress: { public_url: \"https://h\" }").unwrap().config.functions.remove(0).approval
    }

    fn problem(approval: &str, more: &str) -> String {
        let errors = config(approval, more).unwrap_err();
        let [problem] = errors.problems() else { panic!("{approval}: {errors}") };
        problem.clone()
    }

    #[test]
    fn an_approval_is_required_always_by_a_rule_or_not() {
        let default = policy("{}").unwrap();
        assert!(matches!(default.required, Required::Always));
        assert_eq!((default.by, default.expires, default.notify.is_none()), (By::Token, 12 * HOUR, true));
        assert!(matches!(policy("{ required: 'true' }").unwrap().required, Required::Always));
        assert!(policy("{ required: false }").is_none());
        let rule = policy("{ required: \"arguments.amount > 100\", expires: 90s }").unwrap();
        assert!(matches!(rule.required, Required::If(_)));
        assert_eq!(rule.expires, Duration::from_secs(90));
        assert_eq!(policy(LINKED).unwrap().by, By::Link);
    }

    #[test]
    fn what_cannot_be_an_approval_is_told_by_path() {
        for (approval, problem_at) in [
            ("{ required: \"arguments.amount >\" }", "functions[0].approval.required: is not a CEL"),
            ("{ required: \"amount > 1\" }", "functions[0].approval.required: knows no amount"),
            ("{ required: 5 }", "functions[0].approval.required: must be true, false, or"),
            ("{ by: mail }", "functions[0].approval.by: must be one of token, link"),
            ("{ by: link }", "functions[0].approval: by: link needs notify"),
            ("{ expires: 0s }", "functions[0].approval.expires: must be a duration"),
            ("{ notify: {} }", "functions[0].approval.notify.url: required"),
            ("{ notify: { url: \"ftp://h\" } }", "functions[0].approval.notify.url: must be"),
            ("{ notify: { url: \"http://h/\", headers: { Host: x } } }", ".notify.headers.Host: is set by"),
            ("{ notify: { url: \"http://h/\", sign: {} } }", ".notify.sign: must hold"),
            ("{ who: me }", "functions[0].approval.who: unknown key"),
        ] {
            let found = problem(approval, "ingress: { public_url: \"https://h\" }");
            assert!(found.contains(problem_at), "{approval}: {found}");
        }
        assert!(problem(LINKED, "").contains("ingress.public_url: required; it is where the approval links of"));
    }

    #[test]
    fn a_platform_that_cannot_wait_is_warned_of() {
        let warnings = config("{}", "ingress: { public_url: \"https://h\" }").unwrap().warnings;
        assert!(warnings.iter().any(|w| w.starts_with("functions[0]: platform x does not wait")), "{warnings:?}");
    }

    #[test]
    fn calls_are_kept_a_month_or_as_long_as_is_said() {
        let kept = |store: &str, more: &str| config("{}", &format!("store: {store}\n{more}"));
        let retention = |store: &str| kept(store, "").unwrap().config.store.retention;
        let days = |n: u64| Some(Duration::from_secs(86_400 * n));
        assert_eq!(retention("{}"), days(30));
        assert_eq!(retention("{ retention: 1d }"), days(1));
        for never in ["never", "0", "'0'"] {
            assert_eq!(retention(&format!("{{ retention: {never} }}")), None, "{never}");
        }
        for (store, more, problem) in [
            ("{ retention: 23h }", "", "store.retention: must be a duration"),
            ("{ retention: forever }", "", "store.retention: must be a duration"),
            ("{ retention: 2d }", "sweep: { window: 3d }", "store.retention: must not be shorter than sweep.window"),
        ] {
            let errors = kept(store, more).unwrap_err();
            assert!(errors.problems()[0].starts_with(problem), "{errors}");
        }
    }
}
