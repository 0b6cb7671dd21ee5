//! Calls that wait for a person: asked, decided by command or link, told to the model.

use actiond::sandbox::{Rule, generate_secret};
use serde_json::Value;

use crate::{
    operator::{actiond, actiond_with, listed},
    over_every_pair,
    rig::{Pair, Reply, Rig, Setup},
};

over_every_pair!(
    an_approved_call_starts_its_handler_once,
    a_denied_call_tells_the_model_why,
    a_call_that_nobody_approves_ends_with_a_sentence,
    a_rule_says_which_calls_wait,
    an_approval_outlives_the_death_of_every_worker,
    a_call_whose_worker_dies_after_its_approval_goes_on_as_any_call,
    a_cancelled_call_is_not_made_however_late_it_is_approved,
    a_link_decides_once_and_looking_at_it_decides_nothing,
);

const ASKS: &str = "parameters: { type: object }\napproval: { required: true }";

/// The one call that waits.
async fn waiting(rig: &Rig) -> Value {
    listed(rig, "approvals list --json", 1).await.remove(0)
}

fn call(approval: &Value) -> &str {
    approval["call"].as_str().unwrap()
}

fn error(session: &actiond::sandbox::Session) -> String {
    let result = session.calls(None).next().unwrap().result.clone().unwrap().result;
    assert!(!result.success);
    result.error.unwrap()
}

async fn an_approved_call_starts_its_handler_once(pair: Pair) {
    let rig = Setup::new(pair).http("a", ASKS).http("b", "parameters: { type: object }").start().await;
    let id = rig.session(r#"call a {"to":"s3cret","n":1.50} & call b"#).await;
    let asked = waiting(&rig).await;
    assert_eq!((asked["function"].as_str(), asked["session"].as_str()), (Some("a"), Some(&*id)));
    rig.until(&id, |session| session.calls(Some("b")).any(|call| call.result.is_some())).await;
    assert!(rig.handler.requests("a").is_empty(), "nothing is started before somebody said so");
    let worker = rig.worker.as_ref().unwrap();
    worker.metric("actiond_approvals_pending", "", "1").await;

    let hidden = actiond(&rig, &format!("approvals show {}", call(&asked))).await;
    assert!(hidden.out.contains("pending") && !hidden.out.contains("s3cret"), "{}", hidden.out);
    let shown = actiond(&rig, &format!("approvals show {} --show-arguments", call(&asked))).await;
    assert!(shown.out.contains("\"to\": \"s3cret\"") && shown.out.contains("1.50"), "{}", shown.out);
    let listed = actiond(&rig, "calls list --state waiting --json").await.lines();
    assert_eq!((listed[0]["approval"].as_str(), listed[0]["attempt"].as_u64()), (Some("pending"), Some(0)));

    let call_id = asked["call_id"].as_str().unwrap();
    let approved =
        actiond_with(&rig, &format!("approvals approve {call_id} --by alice --reason"), &["looks right"]).await;
    assert!(approved.status == 0 && approved.out.contains("approved: its handler starts"), "{}", approved.err);
    let session = rig.settled(&id).await;
    assert!(session.answer().unwrap().contains("a: ok"));
    let requests = rig.handler.requests("a");
    assert_eq!((requests.len(), &*requests[0].body), (1, &br#"{"n":1.50,"to":"s3cret"}"#[..]));

    let twice = actiond(&rig, &format!("approvals deny {call_id} --by bob")).await;
    assert_eq!(twice.status, 1);
    assert!(twice.err.contains("was approved by alice at") && twice.err.contains("changes nothing"), "{}", twice.err);
    let after = actiond(&rig, &format!("approvals show {call_id} --show-arguments --json")).await.lines().remove(0);
    let kept = (after["state"].as_str(), after["decided_by"].as_str(), after["reason"].as_str());
    assert_eq!(kept, (Some("approved"), Some("alice"), Some("looks right")));
    assert_eq!(after.get("arguments"), None, "what was decided is forgotten");
    worker.metric("actiond_approvals_pending", "", "0").await;
    worker.metric("actiond_approvals_total", "outcome=\"approved\"", "1").await;
    assert!(!rig.logs().contains("s3cret"), "arguments are not logged");
    assert!(actiond(&rig, "approvals list").await.err.contains("nothing waits"));
}

async fn a_denied_call_tells_the_model_why(pair: Pair) {
    let rig = Setup::new(pair).http("a", &format!("{ASKS}\nif_interrupted: fail")).start().await;
    let id = rig.session("call a").await;
    let asked = waiting(&rig).await;
    let why = "the order\nis too large";
    let denied = actiond_with(&rig, &format!("approvals deny {} --by bob --reason", call(&asked)), &[why]).await;
    assert_eq!(denied.status, 0, "{}", denied.err);
    let session = rig.settled(&id).await;
    assert!(
        error(&session).starts_with("An operator denied this call: the order is too large."),
        "{}",
        error(&session)
    );
    assert!(rig.handler.requests("a").is_empty());
    let settled = listed(&rig, "calls list --state settled --json", 1).await.remove(0);
    assert_eq!((settled["detail"].as_str(), settled["approval"].as_str()), (Some("denied by bob"), Some("denied")));
    let all = actiond(&rig, "approvals list --all").await.out;
    assert!(all.contains("denied") && all.contains("bob") && all.contains("too large"), "{all}");
}

async fn a_call_that_nobody_approves_ends_with_a_sentence(pair: Pair) {
    let keys = "parameters: { type: object }\napproval: { required: true, expires: 1s }";
    let rig = Setup::new(pair).http("a", keys).start().await;
    let session = rig.play("call a").await;
    assert!(error(&session).starts_with("Nobody approved this call in time"), "{}", error(&session));
    assert!(rig.handler.requests("a").is_empty());
    rig.worker.as_ref().unwrap().metric("actiond_approvals_total", "outcome=\"expired\"", "1").await;
    let late = listed(&rig, "approvals list --all --json", 1).await.remove(0);
    let decided = actiond(&rig, &format!("approvals approve {}", call(&late))).await;
    assert!(decided.status == 1 && decided.err.contains("was not decided in time"), "{}", decided.err);
}

async fn a_rule_says_which_calls_wait(pair: Pair) {
    let keys = "parameters: { type: object }\napproval: { required: \"arguments.amount > 100\" }";
    let rig = Setup::new(pair).http("a", keys).start().await;
    rig.play(r#"call a {"amount":100}"#).await;
    assert_eq!(rig.handler.requests("a").len(), 1);
    rig.session(r#"call a {"amount":101} & call a {"amount":"?"}"#).await;
    listed(&rig, "approvals list --json", 2).await;
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn an_approval_outlives_the_death_of_every_worker(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", &format!("{ASKS}\nif_interrupted: fail")).start().await;
    let id = rig.session("call a").await;
    let asked = waiting(&rig).await;
    rig.kill_worker().await;
    assert_eq!(actiond(&rig, &format!("approvals approve {}", call(&asked))).await.status, 0, "nobody needs to run");
    rig.start_all().await;
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn a_call_whose_worker_dies_after_its_approval_goes_on_as_any_call(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", ASKS).extra("worker: { lease: 2s }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    let asked = waiting(&rig).await;
    assert_eq!(actiond(&rig, &format!("approvals approve {}", call(&asked))).await.status, 0);
    rig.handler.arrived("a", 1).await;
    rig.kill_worker().await;
    rig.handler.release();
    rig.start_all().await;
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    let keys: Vec<_> = rig.handler.requests("a").into_iter().map(|request| request.key).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "rerun with the same key, and nobody is asked twice: {keys:?}");
    assert!(actiond(&rig, "approvals list --json").await.lines().is_empty());
}

async fn a_cancelled_call_is_not_made_however_late_it_is_approved(pair: Pair) {
    let rig = Setup::new(pair).http("a", ASKS).start().await;
    let id = rig.session("call a").await;
    let asked = waiting(&rig).await;
    rig.cancel(&id).await;
    assert_eq!(actiond(&rig, &format!("approvals approve {}", call(&asked))).await.status, 0);
    listed(&rig, "calls list --state obsolete --json", 1).await;
    assert!(rig.handler.requests("a").is_empty());
}

/// Status, and the page as text.
async fn open(url: &str) -> (u16, String) {
    let response = actiond::http::client().unwrap().get(url).send().await.unwrap();
    let headers = response.headers().clone();
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert!(headers["content-security-policy"].to_str().unwrap().contains("frame-ancestors 'none'"));
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn choose(url: &str, form: &'static str) -> (u16, String) {
    let client = actiond::http::client().unwrap();
    let request = client.post(url).header("content-type", "application/x-www-form-urlencoded").body(form);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn a_link_decides_once_and_looking_at_it_decides_nothing(pair: Pair) {
    let secret = generate_secret();
    let keys = format!(
        "parameters: {{ type: object }}\n\
         approval: {{ required: true, by: link, notify: {{ url: \"http://HANDLER/notice\", sign: {{ standard: \"{secret}\" }}, \
         headers: {{ X-Team: ops }} }} }}"
    );
    let rig = Setup::new(pair).http("a", &keys).start().await;
    rig.handler.reply("notice", [Reply::new(503, ""), Reply::new(204, "")]);
    let id = rig.session(r#"call a {"note":"<b>\u202e</b>"}"#).await;

    let sent = rig.handler.arrived("notice", 2).await;
    assert_eq!(sent[0].body, sent[1].body, "what was not taken is sent again");
    assert!(sent[0].key.starts_with("approval-") && sent[0].key == sent[1].key);
    assert_eq!(sent[1].headers["x-team"], "ops");
    standardwebhooks::Webhook::new(&secret).unwrap().verify(&sent[1].body, &sent[1].headers).unwrap();
    let notice: Value = serde_json::from_slice(&sent[1].body).unwrap();
    let asked = waiting(&rig).await;
    for name in ["call", "function", "call_id", "expires_at", "asked_at"] {
        assert_eq!(notice.get(name), asked.get(name), "{name}");
    }
    assert_eq!((notice["type"].as_str(), notice.get("arguments")), (Some("approval_requested"), None));
    let link = notice["link"].as_str().unwrap();
    assert!(link.starts_with(&format!("http://{}/approvals/", rig.ingress_at)), "{link}");

    for _ in 0..3 {
        let (status, page) = open(link).await;
        assert_eq!(status, 200);
        assert!(page.contains("Approve this call?") && page.contains("value=\"deny\""), "{page}");
        assert!(page.contains("&lt;b&gt;\\u{202e}&lt;/b&gt;"), "what hides or acts is shown as text: {page}");
    }
    assert!(actiond::http::client().unwrap().head(link).send().await.unwrap().status().is_success());
    assert_eq!(open(&format!("{link}A")).await.0, 404);
    assert_eq!(choose(&format!("{link}A"), "decision=approve").await.0, 404);
    for form in ["", "decision=maybe", "reason=x"] {
        assert_eq!(choose(link, form).await.0, 400, "{form}");
    }
    waiting(&rig).await;

    let (status, page) = choose(link, "decision=deny&by=Eve+%3Ci%3E&reason=not+today").await;
    assert!(status == 200 && page.contains("This call was denied") && page.contains("Eve &lt;i&gt; (link)"), "{page}");
    let (status, page) = choose(link, "decision=approve").await;
    assert!(status == 409 && page.contains("This call was denied") && page.contains("not today"), "{page}");
    let (status, page) = open(link).await;
    assert!(status == 200 && page.contains("This call was denied") && !page.contains("<form"), "{page}");
    let session = rig.settled(&id).await;
    assert!(error(&session).starts_with("An operator denied this call: not today."));
    assert!(rig.handler.requests("a").is_empty());
    assert!(!rig.logs().contains(link.rsplit('/').next().unwrap()), "a link is not logged");
}

#[tokio::test]
async fn a_notice_that_nobody_takes_holds_nothing_up_and_can_hold_the_arguments() {
    let keys = "parameters: { type: object }\napproval: { required: true, notify: { url: \"http://HANDLER/notice\", \
                arguments: true } }";
    let rig = Setup::new(Pair::EmbeddedSqlite).http("a", keys).http("b", "").start().await;
    rig.handler.hold();
    let id = rig.session(r#"call a {"n":1.50}"#).await;
    let sent = rig.handler.arrived("notice", 1).await;
    let notice: Value = serde_json::from_slice(&sent[0].body).unwrap();
    assert_eq!((notice["arguments"].to_string(), notice.get("link")), (r#"{"n":1.50}"#.to_owned(), None));
    assert_eq!(sent[0].headers.get("webhook-signature"), None);
    // The notice is on its way still; the decision does not wait for it.
    let asked = waiting(&rig).await;
    assert_eq!(actiond(&rig, &format!("approvals approve {}", call(&asked))).await.status, 0);
    rig.handler.arrived("a", 1).await;
    rig.handler.release();
    assert_eq!(rig.settled(&id).await.answer(), Some("a: ok"));
}

#[tokio::test]
async fn a_sweep_does_not_take_a_call_that_waits_for_one_whose_webhook_was_lost() {
    let rig = Setup::new(Pair::EmbeddedSqlite)
        .http("a", ASKS)
        .http("b", "parameters: { type: object }")
        .extra("sweep: { every: 1s }")
        .start()
        .await;
    rig.session("call a").await;
    waiting(&rig).await;
    for found in ["1", "2"] {
        rig.faults(|faults| faults.webhook_drop = Rule::Next(1));
        rig.play("call b").await;
        rig.worker.as_ref().unwrap().metric("actiond_swept_sessions_total", "openai", found).await;
    }
}

#[tokio::test]
async fn what_runs_is_what_was_approved() {
    let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", ASKS).start().await;
    let id = rig.session("call a").await;
    let asked = waiting(&rig).await;
    rig.kill_worker().await;
    assert_eq!(actiond(&rig, &format!("approvals approve {}", call(&asked))).await.status, 0);
    rig.sql("UPDATE approvals SET digest = x'00'").await;
    rig.start_all().await;
    let again = waiting(&rig).await;
    assert_eq!(again["call"], asked["call"]);
    assert!(rig.handler.requests("a").is_empty(), "other arguments are another question");
    assert_eq!(actiond(&rig, &format!("approvals approve {}", call(&again))).await.status, 0);
    rig.settled(&id).await;
    assert_eq!(rig.handler.requests("a").len(), 1);
}

#[tokio::test]
async fn an_operator_s_result_ends_the_question_too() {
    let rig = Setup::new(Pair::EmbeddedSqlite).http("a", ASKS).start().await;
    let id = rig.session("call a").await;
    let asked = waiting(&rig).await;
    assert_eq!(actiond(&rig, &format!("calls resolve {} --output done", call(&asked))).await.status, 0);
    assert_eq!(rig.settled(&id).await.answer(), Some("a: done"));
    rig.worker.as_ref().unwrap().metric("actiond_approvals_total", "outcome=\"withdrawn\"", "1").await;
    let decided = actiond(&rig, &format!("approvals approve {}", call(&asked))).await;
    assert!(decided.status == 1 && decided.err.contains("has ended otherwise"), "{}", decided.err);
    let row = rig.sql("SELECT coalesce(arguments, 'forgotten') FROM approvals").await;
    assert_eq!(row, ["forgotten"]);
}
