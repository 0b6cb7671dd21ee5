#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::{
    platform::{
        Listed,
        api::AGENT,
        peer::{Answer, Peer},
    },
    session::{Output, Part, RequiredAction},
};

fn api(base_url: &str) -> AgentsApi {
    AgentsApi::new("openai", base_url, &"sk-case\n".into(), crate::http::client().unwrap()).unwrap()
}

fn status(status: u16) -> Answer {
    (status, &[], Vec::new())
}

fn api_error(status: u16, code: &str, message: &str) -> Answer {
    (status, &[], json!({"error": {"code": code, "message": message}}).to_string().into_bytes())
}

fn session_key() -> SessionKey {
    SessionKey::new("openai", "sess_1")
}

fn call() -> CallKey {
    CallKey::new(session_key(), "turn_1", "call_1")
}

/// A session with the given raw arguments, and a harmless call beside it.
fn session_with(arguments: &str) -> Vec<u8> {
    format!(
        r#"{{"id":"sess_1","object":"agent.session","status":"requires_action","metadata":{{"n":12345678901234567890123}},"required_actions":[
        {{"type":"function_call","turn_id":"turn_1","call_id":"call_1","name":"f","arguments":{arguments}}},
        {{"type":"function_call","turn_id":"turn_1","call_id":"call_ok","name":"f","arguments":{{}}}}]}}"#
    )
    .into_bytes()
}

fn read(body: &[u8]) -> Option<Session> {
    wire::session(&session_key(), body)
}

/// `call_id(name)=arguments` of a function call, `kind` of another action.
fn pending(session: &Session) -> Vec<String> {
    let text = |action: &RequiredAction| match action {
        RequiredAction::FunctionCall(call) => {
            let arguments = call.arguments.as_deref().unwrap_or("-");
            format!("{}/{}({})={arguments}", call.key.turn, call.key.call_id, call.name)
        }
        RequiredAction::Other(other) => other.key.kind.clone(),
    };
    session.required_actions.iter().map(text).collect()
}

#[tokio::test]
async fn a_session_is_retrieved_with_its_pending_list() {
    let peer = Peer::start([(200, &[][..], session_with(r#"{"n": 1.50}"#))]).await;
    let session = api(&peer.base_url).retrieve(&session_key()).await.unwrap();
    assert_eq!(session.key, session_key());
    assert_eq!(session.status, "requires_action");
    assert_eq!(session.metadata["n"].to_string(), "12345678901234567890123");
    assert_eq!(pending(&session), [r#"turn_1/call_1(f)={"n": 1.50}"#, "turn_1/call_ok(f)={}"]);

    let seen = &peer.seen()[0];
    assert_eq!(seen.line, "GET /v1/agents/sessions/sess_1");
    assert_eq!(seen.headers["authorization"], "Bearer sk-case");
    assert_eq!(seen.headers["openai-beta"], "agents=v1");
    assert_eq!(seen.headers["user-agent"], AGENT);
}

#[tokio::test]
async fn an_id_is_one_segment_or_is_never_sent() {
    let peer = Peer::start([status(404)]).await;
    let ids = ["../../files", "%2e%2e", "sess_1?x=1", "sess_1#f", "sess_1/turns", "a b", "é\\", "..a"];
    let never = ["", ".", "..", "...", "a\u{0}b", "a\r\nb", &"x".repeat(513)];
    for id in ids.iter().chain(&never) {
        let key = SessionKey::new("openai", *id);
        assert!(matches!(api(&peer.base_url).retrieve(&key).await, Err(Error::Gone)), "{id:?}");
        let call = CallKey::new(key, "t", "c");
        let submission = api(&peer.base_url).encode(&call, &ToolResult::Error("e".to_owned()), 0);
        assert_eq!(api(&peer.base_url).submit(&call, &submission).await, Submitted::Gone, "{id:?}");
    }
    let lines: Vec<_> = peer.seen().into_iter().map(|seen| seen.line).collect();
    let escaped = [
        "..%2F..%2Ffiles",
        "%252e%252e",
        "sess_1%3Fx%3D1",
        "sess_1%23f",
        "sess_1%2Fturns",
        "a%20b",
        "%C3%A9%5C",
        "..a",
    ];
    let expected = escaped
        .iter()
        .flat_map(|id| [format!("GET /v1/agents/sessions/{id}"), format!("POST /v1/agents/sessions/{id}/events")]);
    assert_eq!(lines, expected.collect::<Vec<_>>());
}

#[test]
fn what_one_call_carries_hurts_no_other() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    for arguments in [
        "1e400",
        "-0",
        "null",
        r#""\ud800""#,
        r#"{"a":1,"a":2}"#,
        r#"{"q":"a\u0000b"}"#,
        &"9".repeat(5000),
        &deep,
        &long,
    ] {
        let session = read(&session_with(arguments)).unwrap();
        assert_eq!(pending(&session), [format!("turn_1/call_1(f)={arguments}"), "turn_1/call_ok(f)={}".to_owned()]);
    }
}

#[test]
fn actions_that_are_no_readable_call_are_other() {
    let actions = r#"[7, null, {}, {"type":"mcp_approval_request","request_id":"r"}, {"type":"Odd Type"},
        {"type":"function_call"}, {"type":"function_call","call_id":"","name":"f"},
        {"type":"function_call","call_id":"c\u0000","name":"f"}, {"type":"function_call","turn_id":7,"call_id":"c","name":"f"},
        {"type":"function_call","call_id":"c","call_id":"d","name":"f"},
        {"type":"function_call","turn_id":null,"call_id":"c","name":"f","arguments":"{\"a\":1}"}]"#;
    let session = read(format!(r#"{{"status":"idle","required_actions":{actions}}}"#).as_bytes()).unwrap();
    let unreadable = "unreadable";
    assert_eq!(
        pending(&session),
        [
            unreadable,
            unreadable,
            unreadable,
            "mcp_approval_request",
            unreadable,
            unreadable,
            unreadable,
            unreadable,
            unreadable,
            "/d(f)=-",
            r#"/c(f)="{\"a\":1}""#,
        ]
    );
}

#[test]
fn a_session_without_a_list_has_nothing_pending() {
    for body in [r#"{"status":"idle"}"#, r#"{"status":"idle","required_actions":null}"#, r#"{"required_actions":[]}"#] {
        assert!(read(body.as_bytes()).unwrap().required_actions.is_empty(), "{body}");
    }
    for metadata in ["null", "[]", "7", r#""x""#, r#"{"k":"\ud800"}"#] {
        let body = format!(r#"{{"status":"idle","metadata":{metadata}}}"#);
        assert!(read(body.as_bytes()).unwrap().metadata.is_empty(), "{metadata}");
    }
    for body in ["", "null", "[]", "{}", "<html>", r#"{"status":"idle","required_actions":{}}"#, r#"{"status":"idle""#]
    {
        assert!(read(body.as_bytes()).is_none(), "{body}");
    }
    let latin = b"{\"status\":\"idle\",\"metadata\":{\"k\":\"caf\xe9\"}}";
    assert_eq!(read(latin).unwrap().metadata["k"], "caf\u{fffd}");
}

#[tokio::test]
async fn each_failure_to_retrieve_says_what_to_do_next() {
    let outcome = async |answer: Answer| match api(&Peer::start([answer]).await.base_url).retrieve(&session_key()).await
    {
        Ok(_) => "session".to_owned(),
        Err(Error::Gone) => "gone".to_owned(),
        Err(Error::Unauthorized { detail }) => format!("unauthorized: {detail}"),
        Err(Error::Retryable { after, detail }) => format!("retryable after {after:?}: {detail}"),
    };
    assert_eq!(outcome(api_error(404, "not_found_error", "No such session")).await, "gone");
    assert_eq!(outcome(api_error(401, "unauthorized", "key sk-x")).await, "unauthorized: status 401 unauthorized");
    assert_eq!(outcome(status(403)).await, "unauthorized: status 403");
    assert_eq!(outcome(api_error(400, "invalid_beta", "")).await, "retryable after None: status 400 invalid_beta");
    assert_eq!(outcome(api_error(500, "Not A Code\n", "")).await, "retryable after None: status 500");
    assert_eq!(outcome((503, &[], vec![b'['; 200_000])).await, "retryable after None: status 503");
    assert_eq!(outcome((429, &[("retry-after", "7")], vec![])).await, "retryable after Some(7s): status 429");
    assert_eq!(outcome((302, &[("location", "/v1/elsewhere")], vec![])).await, "retryable after None: status 302");
    assert_eq!(outcome((200, &[], b"<html>".to_vec())).await, "retryable after None: the answer is no session");
    assert!(outcome((200, &[], vec![b' '; MAX_SESSION + 1])).await.starts_with("retryable after None: "));
}

#[tokio::test]
async fn no_connection_is_worth_another_try() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let api = api(&format!("http://{closed}/v1"));
    let Err(Error::Retryable { detail, after: None }) = api.retrieve(&session_key()).await else {
        panic!("not retryable");
    };
    assert_eq!(detail, "no connection");
    let submission = api.encode(&call(), &ToolResult::Error("e".to_owned()), 0);
    assert_eq!(api.submit(&call(), &submission).await, Submitted::Retry { after: None, detail });
}

#[test]
fn a_result_is_encoded_to_exact_bytes() {
    let api = api("https://api.example.com/v1");
    let encode = |call: &CallKey, result: ToolResult| String::from_utf8(api.encode(call, &result, 0).body).unwrap();
    let text = |text: &str| ToolResult::Success(Output::Text(text.to_owned()));
    let head = r#"{"events":[{"type":"agent.session.input.tool_result","turn_id":"turn_1","call_id":"call_1","#;
    assert_eq!(
        encode(&call(), text(r#"{"ok":true}"#)),
        format!(r#"{head}"success":true,"output":"{{\"ok\":true}}"}}]}}"#)
    );
    assert_eq!(encode(&call(), text("")), format!(r#"{head}"success":true,"output":""}}]}}"#));
    assert_eq!(encode(&call(), text("a\0b")), format!(r#"{head}"success":true,"output":"a\u0000b"}}]}}"#));
    let failure = ToolResult::Error("try again".to_owned());
    assert_eq!(encode(&call(), failure), format!(r#"{head}"success":false,"error":"try again"}}]}}"#));
    let parts = ToolResult::Success(Output::Content(vec![
        Part::Text { text: "t".to_owned() },
        Part::Image { image_url: "https://x/y.png".to_owned() },
    ]));
    assert_eq!(
        encode(&call(), parts),
        format!(
            r#"{head}"success":true,"output":[{{"type":"input_text","text":"t"}},{{"type":"input_image","image_url":"https://x/y.png"}}]}}]}}"#
        )
    );
    assert_eq!(
        encode(&CallKey::new(session_key(), "", "call_1"), text("x")),
        r#"{"events":[{"type":"agent.session.input.tool_result","call_id":"call_1","success":true,"output":"x"}]}"#
    );
    let again = api.encode(&call(), &text("x"), 1);
    assert_eq!(again.idempotency_key, call().submission_idempotency_key(1));
}

#[tokio::test]
async fn the_stored_bytes_are_posted_with_their_key() {
    let submission = Submission { body: b"{ \"stored\" : 1 }".to_vec(), idempotency_key: "result-abc".to_owned() };
    for accepted in [200, 202, 204] {
        let peer = Peer::start([status(accepted)]).await;
        assert_eq!(api(&peer.base_url).submit(&call(), &submission).await, Submitted::Accepted);
        let seen = peer.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].line, "POST /v1/agents/sessions/sess_1/events");
        assert_eq!(seen[0].body, submission.body);
        assert_eq!(seen[0].headers["idempotency-key"], "result-abc");
        assert_eq!(seen[0].headers["content-type"], "application/json");
        assert_eq!(seen[0].headers["openai-beta"], "agents=v1");
    }
}

#[tokio::test]
async fn each_failure_to_submit_says_what_to_do_next() {
    let submission = Submission { body: b"{}".to_vec(), idempotency_key: "k".to_owned() };
    let outcome = async |answer: Answer| {
        let peer = Peer::start([answer]).await;
        let submitted = api(&peer.base_url).submit(&call(), &submission).await;
        assert_eq!(peer.seen().len(), 1, "one request");
        submitted
    };
    let detail = |text: &str| text.to_owned();
    assert_eq!(outcome(status(401)).await, Submitted::Unauthorized { detail: detail("status 401") });
    assert_eq!(
        outcome(api_error(403, "forbidden", "")).await,
        Submitted::Unauthorized { detail: detail("status 403 forbidden") }
    );
    assert_eq!(outcome(status(404)).await, Submitted::Gone);
    assert_eq!(
        outcome(api_error(409, "conflict_error", "secret")).await,
        Submitted::Unclear { detail: detail("status 409 conflict_error") }
    );
    assert_eq!(outcome(status(413)).await, Submitted::TooLarge { detail: detail("status 413") });
    assert_eq!(
        outcome(api_error(400, "invalid_request_error", "output is not valid")).await,
        Submitted::Refused { detail: detail("status 400 invalid_request_error") }
    );
    assert_eq!(outcome(status(422)).await, Submitted::Refused { detail: detail("status 422") });
    let later = Some(Duration::from_secs(2));
    assert_eq!(
        outcome((429, &[("retry-after", "2")], vec![])).await,
        Submitted::Retry { after: later, detail: detail("status 429") }
    );
    for code in [301, 307, 408, 500, 502, 503, 504] {
        assert_eq!(outcome(status(code)).await, Submitted::Retry { after: None, detail: format!("status {code}") });
    }
}

#[tokio::test]
async fn a_call_that_registers_late_is_answered_with_the_same_bytes_and_key() {
    let unknown = || api_error(400, "invalid_request_error", "Unknown pending tool call: call_1");
    let peer = Peer::start([unknown(), unknown(), status(202)]).await;
    let submission = api(&peer.base_url).encode(&call(), &ToolResult::Success(Output::Text("x".to_owned())), 0);
    assert_eq!(api(&peer.base_url).submit(&call(), &submission).await, Submitted::Accepted);
    let seen = peer.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|s| s.body == submission.body));
    assert!(seen.iter().all(|s| s.headers["idempotency-key"] == submission.idempotency_key[..]));
}

#[tokio::test]
async fn a_call_that_never_registers_is_unclear() {
    let peer = Peer::start([api_error(400, "invalid_request_error", "Unknown pending tool call")]).await;
    let submission = Submission { body: b"{}".to_vec(), idempotency_key: "k".to_owned() };
    let detail = "status 400 invalid_request_error".to_owned();
    assert_eq!(api(&peer.base_url).submit(&call(), &submission).await, Submitted::Unknown { detail });
    assert_eq!(peer.seen().len(), 4);
}

#[tokio::test]
async fn a_submission_over_the_cap_is_not_sent() {
    let peer = Peer::start([status(202)]).await;
    let submission = Submission { body: vec![b' '; MAX_SUBMISSION + 1], idempotency_key: "k".to_owned() };
    assert!(matches!(api(&peer.base_url).submit(&call(), &submission).await, Submitted::TooLarge { .. }));
    assert!(peer.seen().is_empty());
}

#[test]
fn a_base_url_or_key_that_cannot_work_is_refused() {
    let new = |base_url: &str, key: &str| {
        AgentsApi::new("p", base_url, &key.into(), crate::http::client().unwrap()).map(|_| ()).unwrap_err()
    };
    for base_url in ["", "api.example.com/v1", "ftp://x/v1", "https://x/v1?y=1", "https://x/v1#z"] {
        assert!(new(base_url, "sk-case").starts_with("base_url: "), "{base_url}");
    }
    for key in ["", "\n", "sk-\ncase", "sk-\u{0}"] {
        let error = new("https://x/v1", key);
        assert!(error.starts_with("api_key: ") && !error.contains("sk-"), "{error}");
    }
}

#[test]
fn an_error_body_of_any_shape_is_read_without_panic() {
    let deep = "[".repeat(50_000);
    for body in
        ["", "null", "7", "[]", r#"{"error":"x"}"#, r#"{"error":{"code":7}}"#, r#"{"error":{"message":[]}}"#, &deep]
    {
        assert_eq!(wire::error(body.as_bytes()).unwrap_or_default(), wire::ApiError::default(), "{body:.40}");
    }
    let by_type: Value =
        json!({"error": {"type": "invalid_request_error", "code": null, "message": "Unknown pending tool call: c"}});
    assert!(wire::error(by_type.to_string().as_bytes()).unwrap().unknown_call);
}

fn list_of(elements: &str, rest: &str) -> Vec<u8> {
    format!(r#"{{"object":"list","data":[{elements}],{rest}}}"#).into_bytes()
}

#[tokio::test]
async fn a_list_is_asked_newest_first_and_after_an_escaped_id() {
    let first = list_of(r#"{"id":"sess_9"}"#, r#""has_more":true,"first_id":"sess_9","last_id":"sess_9""#);
    let last = list_of("", r#""has_more":false,"first_id":null,"last_id":null"#);
    let peer = Peer::start([(200, &[][..], first), (200, &[][..], last)]).await;
    let api = api(&peer.base_url);
    assert_eq!(api.list(None).await.unwrap().next.as_deref(), Some("sess_9"));
    assert_eq!(api.list(Some("a&b=c d#é")).await.unwrap(), Page { sessions: Vec::new(), next: None });
    let lines: Vec<_> = peer.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(
        lines,
        [
            "GET /v1/agents/sessions?limit=100&order=desc",
            "GET /v1/agents/sessions?limit=100&order=desc&after=a%26b%3Dc%20d%23%C3%A9"
        ]
    );
    assert_eq!(peer.seen()[0].headers["openai-beta"], "agents=v1");
}

#[test]
fn a_listed_session_waits_if_a_function_call_is_or_may_be_pending() {
    for (fields, waiting) in [
        (r#""status":"requires_action","required_actions":[{"type":"function_call","call_id":"c","name":"f"}]"#, true),
        (r#""status":"in_progress","required_actions":[{"type":"function_call","call_id":"c","name":"f"}]"#, true),
        (r#""status":"requires_action","required_actions":[{"type":"mcp_approval_request"}]"#, false),
        (r#""status":"requires_action","required_actions":[]"#, false),
        (r#""status":"requires_action","required_actions":"?""#, false),
        (r#""status":"requires_action","required_actions":null"#, true),
        (r#""status":"requires_action""#, true),
        (r#""status":"a_word_of_tomorrow""#, true),
        (r#""object":"agent.session""#, true),
        (r#""status":"idle""#, false),
        (r#""status":"in_progress""#, false),
        (r#""status":"failed""#, false),
    ] {
        let page =
            wire::page(&"openai".into(), &list_of(&format!(r#"{{"id":"sess_1",{fields}}}"#), r#""x":1"#)).unwrap();
        let asking = fields.contains("approval");
        let running = fields.contains("in_progress");
        let listed = Listed { key: session_key(), last_active_at: None, waiting, asking, running, version: None };
        assert_eq!(page, Page { sessions: vec![listed], next: None }, "{fields}");
    }
}

#[test]
fn a_list_tells_when_a_session_was_active_and_leaves_out_what_is_none() {
    let elements = r#"7,{"object":"agent.session"},{"id":""},{"id":"a\u0000b"},
        {"id":"s1","created_at":5,"last_active_at":9},{"id":"s2","created_at":5,"last_active_at":null},
        {"id":"s3","created_at":"x","last_active_at":1.5,"metadata":1e999,"agent":"\ud800"}"#;
    let page = wire::page(&"openai".into(), &list_of(elements, r#""has_more":true"#)).unwrap();
    let seen: Vec<_> = page.sessions.iter().map(|one| (&*one.key.session, one.last_active_at)).collect();
    assert_eq!(seen, [("s1", Some(9)), ("s2", Some(5)), ("s3", None)]);
    assert_eq!(page.next.as_deref(), Some("s3"), "the last id, where the list does not say it");
    for none in [&b""[..], b"null", b"[]", b"{}", br#"{"data":null}"#, br#"{"data":{}}"#] {
        assert_eq!(wire::page(&"openai".into(), none), None);
    }
}

#[tokio::test]
async fn a_list_that_is_refused_says_why_as_a_session_does() {
    for (status, wanted) in
        [(404, "the session is gone"), (401, "status 401"), (429, "status 429"), (500, "status 500")]
    {
        let peer = Peer::start([(status, &[][..], Vec::new())]).await;
        assert_eq!(api(&peer.base_url).list(None).await.unwrap_err().to_string(), wanted);
    }
    let peer = Peer::start([(200, &[][..], b"<html>".to_vec())]).await;
    assert!(matches!(api(&peer.base_url).list(None).await, Err(Error::Retryable { .. })));
}
