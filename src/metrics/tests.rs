use super::*;

fn all() -> Metrics {
    let metrics = Metrics::new();
    metrics.webhook("openai", "queued");
    metrics.published(0.002);
    metrics.call("openai", "f", "success");
    metrics.handler("f", 0.3);
    metrics.result_latency("openai", 70.0);
    metrics.in_flight(1);
    metrics.in_flight(1);
    metrics.in_flight(-1);
    metrics.unknown_function("openai");
    metrics.sessions_due(3);
    metrics.broker_up(true);
    metrics.dead(2);
    metrics.oldest_pending(1.5);
    metrics.queue_depth(4);
    metrics.paused("f", true);
    metrics.submission("openai", "accepted");
    metrics.swept("openai", 2);
    metrics.poll("openai", "found");
    metrics.watched(4);
    metrics.other_action("openai", "mcp_approval_request", "seen");
    metrics.config_reload("applied");
    metrics.webhook_secret("openai", 1);
    metrics.handed_over("gpu");
    metrics.pool("gpu", 3, 0);
    metrics.approval("f", "asked");
    metrics.approvals_pending(1);
    metrics.callback("aivax", "answered");
    metrics.function_source("0:h", "fetched");
    metrics
}

#[test]
fn the_text_has_exactly_the_promised_names() {
    let metrics = all();
    metrics.delivered();
    let text = metrics.render();
    let mut types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    types.sort_unstable();
    assert_eq!(
        types,
        [
            "actiond_approvals_pending gauge",
            "actiond_approvals_total counter",
            "actiond_broker_up gauge",
            "actiond_callbacks_total counter",
            "actiond_calls_in_flight gauge",
            "actiond_calls_total counter",
            "actiond_config_reloads_total counter",
            "actiond_dead gauge",
            "actiond_function_paused gauge",
            "actiond_function_sources_total counter",
            "actiond_handler_seconds histogram",
            "actiond_handovers_total counter",
            "actiond_last_delivery_age_seconds gauge",
            "actiond_oldest_pending_seconds gauge",
            "actiond_other_actions_total counter",
            "actiond_polls_total counter",
            "actiond_pool_sessions gauge",
            "actiond_pool_workers gauge",
            "actiond_publish_seconds histogram",
            "actiond_queue_depth gauge",
            "actiond_result_latency_seconds histogram",
            "actiond_sessions_due gauge",
            "actiond_submissions_total counter",
            "actiond_swept_sessions_total counter",
            "actiond_unknown_function_total counter",
            "actiond_watched_sessions gauge",
            "actiond_webhook_secrets_total counter",
            "actiond_webhooks_total counter",
        ]
    );
    assert_eq!(text.lines().filter(|line| line.starts_with("# HELP ") && line.ends_with('.')).count(), types.len());
}

#[test]
fn the_text_has_the_labels_and_values() {
    let text = all().render();
    for line in [
        r#"actiond_webhooks_total{outcome="queued",platform="openai"} 1"#,
        r#"actiond_calls_total{function="f",outcome="success",platform="openai"} 1"#,
        r#"actiond_publish_seconds_bucket{le="0.0025"} 1"#,
        r#"actiond_handler_seconds_bucket{function="f",le="0.25"} 0"#,
        r#"actiond_handler_seconds_sum{function="f"} 0.3"#,
        r#"actiond_result_latency_seconds_bucket{platform="openai",le="60"} 0"#,
        r#"actiond_result_latency_seconds_count{platform="openai"} 1"#,
        "actiond_calls_in_flight 1",
        r#"actiond_unknown_function_total{platform="openai"} 1"#,
        "actiond_sessions_due 3",
        "actiond_broker_up 1",
        "actiond_dead 2",
        "actiond_oldest_pending_seconds 1.5",
        "actiond_queue_depth 4",
        r#"actiond_function_paused{function="f"} 1"#,
        r#"actiond_submissions_total{outcome="accepted",platform="openai"} 1"#,
        r#"actiond_swept_sessions_total{platform="openai"} 2"#,
        r#"actiond_pool_sessions{pool="gpu"} 3"#,
        r#"actiond_pool_workers{pool="gpu"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn the_age_of_the_last_delivery_is_shown_from_the_first_one() {
    let metrics = Metrics::new();
    assert!(!metrics.render().contains("last_delivery"));
    metrics.delivered();
    assert!(metrics.render().contains("\nactiond_last_delivery_age_seconds 0"));
}
