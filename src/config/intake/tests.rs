#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::{
    config::{Errors, Loaded, parse},
    platform::{Intake, Kind, Poll, WebhookConfig},
};

const WEBHOOK: &str = "webhook: { insecure: true }";

/// A config with one account that has these keys too.
fn with(keys: &str) -> Result<Loaded, Errors> {
    let account = "name: p, type: agents_api, base_url: \"https://h/v1\", api_key: k";
    let function = "name: f, description: d, handler: { type: echo }, platforms: [p]";
    parse(&format!("platforms: [{{ {account}, {keys} }}]\nfunctions: [{{ {function} }}]"), &|_| None)
}

fn intake(keys: &str) -> Intake {
    with(keys).unwrap().config.platforms.remove(0).intake
}

fn seconds(every: u64, max: u64) -> Poll {
    Poll { every: Duration::from_secs(every), max: Duration::from_secs(max) }
}

#[test]
fn webhooks_are_the_intake_unless_something_else_is_said() {
    let told = |keys: &str| {
        let Intake { webhook, poll, stream } = intake(keys);
        (webhook.is_some(), poll, stream)
    };
    assert_eq!(told(WEBHOOK), (true, None, false));
    assert_eq!(told(&format!("intake: webhook, {WEBHOOK}")), (true, None, false));
    assert_eq!(told("intake: poll"), (false, Some(seconds(2, 30)), false));
    assert_eq!(told("intake: [poll], poll: { every: 5s, max: 1m }"), (false, Some(seconds(5, 60)), false));
    assert_eq!(told("intake: [stream]"), (false, None, true));
    assert_eq!(told(&format!("intake: [stream, poll, webhook], {WEBHOOK}")), (true, Some(seconds(2, 30)), true));
    assert!(matches!(intake(WEBHOOK).webhook, Some(WebhookConfig::Insecure)));
}

#[test]
fn what_does_not_fit_together_is_told() {
    for (keys, path, part) in [
        ("call_deadline: 1h", "webhook", "required"),
        ("intake: pole", "intake", "webhook, poll, stream"),
        ("intake: [poll, pole]", "intake[1]", "webhook, poll, stream"),
        (&format!("intake: [], {WEBHOOK}"), "intake", "at least one"),
        (&format!("intake: poll, {WEBHOOK}"), "webhook", "not used"),
        (&format!("poll: {{ every: 2s }}, {WEBHOOK}"), "poll", "not used"),
        ("intake: poll, poll: { every: 1m }", "poll.every", "must not be longer than max"),
        ("intake: poll, poll: { every: 1ms }", "poll.every", "from 100ms"),
        ("intake: poll, poll: { evry: 1s }", "poll.evry", "did you mean every?"),
        ("intake: poll, workflow_runs: true", "workflow_runs", "flavor: rebyte"),
        ("intake: poll, workflow_runs: perhaps", "workflow_runs", "true or false"),
        ("intake: poll, forward_other_actions: {}", "forward_other_actions.url", "required"),
        ("intake: poll, forward_other_actions: { url: h }", "forward_other_actions.url", "http:// or https://"),
        (
            "intake: poll, forward_other_actions: { url: \"https://h\", sign: {} }",
            "forward_other_actions.sign",
            "must hold",
        ),
    ] {
        let found = with(keys).unwrap_err().problems().to_vec();
        assert_eq!(found.len(), 1, "{keys}: {found:?}");
        assert!(
            found[0].starts_with(&format!("platforms[0].{path}: ")) && found[0].contains(part),
            "{keys}: {found:?}"
        );
    }
}

#[test]
fn the_runs_of_an_account_are_an_account_that_is_polled() {
    let keys = format!("flavor: rebyte, workflow_runs: true, poll: {{ every: 1s }}, {WEBHOOK}");
    let config = with(&keys).unwrap().config;
    let [sessions, runs] = &config.platforms[..] else { panic!("{:?}", config.platforms) };
    assert_eq!((&*sessions.name, &*runs.name), ("p", "p.runs"));
    assert!(matches!((&sessions.kind, &runs.kind), (Kind::AgentsApi { .. }, Kind::WorkflowRuns { .. })));
    assert_eq!((sessions.intake.poll, runs.intake.poll), (None, Some(seconds(1, 30))));
    assert!(sessions.intake.webhook.is_some() && runs.intake.webhook.is_none());
    assert!(config.functions[0].answers("p.runs") && !config.functions[0].answers("q.runs"));
}

#[test]
fn a_name_that_the_platform_reserves_is_told_once_and_runs_can_be_named_alone() {
    let config = |function: &str| {
        let account = "name: p, type: agents_api, flavor: rebyte, base_url: \"https://h/v1\", api_key: k, intake: poll, workflow_runs: true";
        parse(
            &format!("platforms: [{{ {account} }}]\nfunctions: [{{ {function}, handler: {{ type: echo }} }}]"),
            &|_| None,
        )
    };
    let found = config("name: run_code").unwrap_err().problems().to_vec();
    assert!(found.len() == 1 && found[0].contains("at platform p:"), "{found:?}");
    let found = config("name: run_code, platforms: [p.runs]").unwrap_err().problems().to_vec();
    assert!(found.len() == 1 && found[0].contains("at platform p.runs:"), "{found:?}");
    let functions = config("name: f, platforms: [p.runs]").unwrap().config.functions;
    assert!(functions[0].answers("p.runs") && !functions[0].answers("p"));
}
