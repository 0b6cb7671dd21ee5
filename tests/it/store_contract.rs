//! One story over every store.

use std::{sync::Arc, time::Duration};

use actiond::{
    session::{CallKey, IfInterrupted, SessionKey, Submission},
    store::{
        Claim, ClaimRequest, Completion, Config, Database, Due, Lease, Mark, Postgres, Sqlite, Store, Stored,
        Transition,
    },
};
use secrecy::SecretString;

/// A store of its own for one test, over both databases.
macro_rules! over_every_store {
    ($($story:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $story() {
                let (store, _folder) = super::sqlite_store().await;
                super::$story(store).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $story() {
                super::$story(super::postgres_store().await).await;
            })*
        }
    };
}

over_every_store!(
    the_first_claim_runs_and_the_second_is_busy,
    a_lease_that_ran_out_is_judged_by_the_function,
    a_redelivered_call_is_taken_over_only_if_it_may_run_again,
    a_late_writer_cannot_overwrite,
    a_stored_result_is_answered_to_every_later_claim,
    a_retry_is_busy_until_its_time,
    a_deadline_that_passed_ends_the_call,
    a_submitted_call_is_left_alone_until_it_must_be_confirmed,
    a_larger_generation_replaces_a_result,
    due_sessions_are_shared_and_forgotten_once,
    a_session_postponed_while_it_is_published_stays_due,
    many_claims_at_once_have_one_winner_each,
    any_bytes_are_kept_in_a_body,
    unfinished_business_is_listed_until_it_ends,
    calls_left_behind_are_found_unless_something_comes_back_to_them,
    a_session_is_in_hand_under_a_claim_or_when_it_is_due_soon,
);

async fn sqlite_store() -> (Arc<dyn Store>, tempdir::Folder) {
    let folder = tempdir::Folder::new();
    let config = config(&format!("sqlite://{}/store.db", folder.path()));
    let store = Sqlite::new(Database::open(&config).await.unwrap());
    store.migrate().await.unwrap();
    (Arc::new(store), folder)
}

async fn postgres_store() -> Arc<dyn Store> {
    let store = Postgres::new(&config(&crate::services::new_database().await)).unwrap();
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    Arc::new(store)
}

fn config(url: &str) -> Config {
    Config { url: SecretString::from(url), max_connections: 8, timeout: Duration::from_secs(10) }
}

use crate::services::tempdir;

const LONG: Duration = Duration::from_secs(60);

fn request(call: &str) -> ClaimRequest {
    ClaimRequest {
        key: CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", call),
        function: "f".to_owned(),
        lease: LONG,
        deadline: LONG * 60,
        if_interrupted: IfInterrupted::Rerun,
        takeover: false,
    }
}

async fn claim(store: &Arc<dyn Store>, request: ClaimRequest) -> Claim {
    store.claim(&[request]).await.unwrap().remove(0)
}

async fn run(store: &Arc<dyn Store>, request: ClaimRequest) -> Lease {
    match claim(store, request).await {
        Claim::Run(lease) => lease,
        other => panic!("expected to run, got {other:?}"),
    }
}

fn result(lease: &Lease, body: &[u8]) -> Completion {
    let stored = Stored {
        key: lease.key.clone(),
        function: "f".to_owned(),
        fence: lease.fence,
        success: true,
        submission: Submission { body: body.to_vec(), idempotency_key: lease.key.submission_idempotency_key(0) },
        generation: 0,
        submissions: 0,
    };
    Completion { stored, detail: None }
}

async fn complete(store: &Arc<dyn Store>, completion: Completion) -> bool {
    store.complete(&[completion]).await.unwrap()[0]
}

async fn mark(store: &Arc<dyn Store>, lease: &Lease, transition: Transition) -> bool {
    let mark = Mark { key: lease.key.clone(), fence: lease.fence, transition, detail: Some("why\0".to_owned()) };
    store.mark(&[mark]).await.unwrap()[0]
}

async fn the_first_claim_runs_and_the_second_is_busy(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert_eq!((lease.fence, lease.attempt), (1, 1));
    match claim(&store, request("call_1")).await {
        Claim::Busy(left) => assert!(left <= LONG && left > LONG / 2, "{left:?}"),
        other => panic!("{other:?}"),
    }
    let mut other_turn = request("call_1");
    other_turn.key.turn = "turn_2".into();
    run(&store, other_turn).await;
}

async fn a_lease_that_ran_out_is_judged_by_the_function(store: Arc<dyn Store>) {
    for (call, policy) in
        [("rerun", IfInterrupted::Rerun), ("fail", IfInterrupted::Fail), ("hold", IfInterrupted::Hold)]
    {
        let asked = ClaimRequest { if_interrupted: policy, ..request(call) };
        let first = run(&store, asked.clone()).await;
        assert!(mark(&store, &first, Transition::Released).await);
        let second = claim(&store, asked.clone()).await;
        match (policy, &second) {
            (IfInterrupted::Rerun, Claim::Run(lease)) => assert_eq!((lease.fence, lease.attempt), (2, 2)),
            (IfInterrupted::Fail, Claim::Interrupted(lease)) => assert_eq!(lease.fence, 2),
            (IfInterrupted::Hold, Claim::Held(_)) => {
                assert!(matches!(claim(&store, asked).await, Claim::Held(left) if left > LONG));
            }
            _ => panic!("{policy:?}: {second:?}"),
        }
    }
}

async fn a_redelivered_call_is_taken_over_only_if_it_may_run_again(store: Arc<dyn Store>) {
    for (call, policy) in [("rerun", IfInterrupted::Rerun), ("fail", IfInterrupted::Fail)] {
        let asked = ClaimRequest { if_interrupted: policy, ..request(call) };
        run(&store, asked.clone()).await;
        let again = claim(&store, ClaimRequest { takeover: true, ..asked }).await;
        match policy {
            IfInterrupted::Rerun => assert!(matches!(again, Claim::Run(Lease { fence: 2, .. })), "{again:?}"),
            _ => assert!(matches!(again, Claim::Busy(_)), "{again:?}"),
        }
    }
}

async fn a_late_writer_cannot_overwrite(store: Arc<dyn Store>) {
    let late = run(&store, request("call_1")).await;
    let taker = run(&store, ClaimRequest { takeover: true, ..request("call_1") }).await;
    assert!(!complete(&store, result(&late, b"late")).await);
    assert!(!mark(&store, &late, Transition::Renewed(LONG)).await);
    assert!(complete(&store, result(&taker, b"mine")).await);
    assert!(!complete(&store, result(&taker, b"twice")).await);
    match claim(&store, request("call_1")).await {
        Claim::Stored(stored) => assert_eq!(stored.submission.body, b"mine"),
        other => panic!("{other:?}"),
    }
}

async fn a_stored_result_is_answered_to_every_later_claim(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    let completion = result(&lease, b"{}");
    assert!(complete(&store, completion.clone()).await);
    for _ in 0..2 {
        assert_eq!(claim(&store, request("call_1")).await, Claim::Stored(completion.stored.clone()));
    }
    assert!(mark(&store, &lease, Transition::Settled).await);
    assert!(!mark(&store, &lease, Transition::Submitted(LONG)).await, "settled is the end");
}

async fn a_retry_is_busy_until_its_time(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(mark(&store, &lease, Transition::Retrying(LONG)).await);
    let takeover = ClaimRequest { takeover: true, ..request("call_1") };
    assert!(matches!(claim(&store, takeover).await, Claim::Busy(left) if left > LONG / 2));
    assert!(mark(&store, &lease, Transition::Retrying(Duration::ZERO)).await);
    assert_eq!(run(&store, request("call_1")).await.attempt, 2);
}

async fn a_deadline_that_passed_ends_the_call(store: Arc<dyn Store>) {
    let asked = ClaimRequest { deadline: Duration::ZERO, ..request("call_1") };
    let lease = run(&store, asked).await;
    assert!(mark(&store, &lease, Transition::Retrying(Duration::ZERO)).await);
    let expired = claim(&store, request("call_1")).await;
    let Claim::Expired(lease) = expired else { panic!("{expired:?}") };
    assert!(complete(&store, result(&lease, b"too late")).await);
}

async fn a_submitted_call_is_left_alone_until_it_must_be_confirmed(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(complete(&store, result(&lease, b"{}")).await);
    assert!(mark(&store, &lease, Transition::Submitted(LONG)).await);
    assert!(matches!(claim(&store, request("call_1")).await, Claim::Busy(_)));
    assert!(mark(&store, &lease, Transition::Submitted(Duration::ZERO)).await);
    match claim(&store, request("call_1")).await {
        Claim::Stored(stored) => assert_eq!(stored.submissions, 2),
        other => panic!("{other:?}"),
    }
}

async fn a_larger_generation_replaces_a_result(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    let completion = result(&lease, b"large");
    assert!(complete(&store, completion.clone()).await);
    let mut smaller = completion;
    smaller.stored.generation = 1;
    smaller.stored.submission.body = b"small".to_vec();
    assert!(complete(&store, smaller.clone()).await);
    assert!(!complete(&store, smaller.clone()).await);
    assert_eq!(claim(&store, request("call_1")).await, Claim::Stored(smaller.stored));
}

fn due(session: &str, after: Duration) -> Due {
    Due { session: SessionKey::new("openai", session), after, tries: 1, accepted_at: 7, traceparent: Some("t".into()) }
}

async fn due_sessions_are_shared_and_forgotten_once(store: Arc<dyn Store>) {
    let now = Duration::ZERO;
    store.postpone(&[due("a", now), due("b", now), due("b", LONG), due("later", LONG)]).await.unwrap();
    assert_eq!(store.overdue().await.unwrap(), 2);
    let (one, two) = (store.due(1, LONG).await.unwrap(), store.due(8, LONG).await.unwrap());
    let mut sessions: Vec<String> = one.iter().chain(&two).map(|t| t.due.session.session.to_string()).collect();
    sessions.sort();
    assert_eq!(sessions, ["a", "b"]);
    assert_eq!(one[0].due.tries, 1);
    assert_eq!(one[0].due.traceparent.as_deref(), Some("t"));
    assert!(store.due(8, LONG).await.unwrap().is_empty(), "held");
    store.forget(&one).await.unwrap();
    store.forget(&two).await.unwrap();
    store.postpone(&[due("later", now)]).await.unwrap();
    assert_eq!(store.due(8, now).await.unwrap().len(), 1, "an earlier time wins");
    assert_eq!(store.due(8, now).await.unwrap().len(), 1, "a hold that ran out frees the session");
}

async fn a_session_postponed_while_it_is_published_stays_due(store: Arc<dyn Store>) {
    store.postpone(&[due("a", Duration::ZERO)]).await.unwrap();
    let taken = store.due(1, LONG).await.unwrap();
    store.postpone(&[due("a", Duration::ZERO)]).await.unwrap();
    store.forget(&taken).await.unwrap();
    assert_eq!(store.due(1, LONG).await.unwrap().len(), 1);
}

async fn many_claims_at_once_have_one_winner_each(store: Arc<dyn Store>) {
    let claims = (0..8).map(|worker| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut calls: Vec<_> = (0..50).map(|n| request(&format!("call_{n}"))).collect();
            if worker % 2 == 1 {
                calls.reverse();
            }
            store.claim(&calls).await.unwrap()
        })
    });
    let mut runs = 0;
    for claims in futures_util::future::join_all(claims).await {
        runs += claims.unwrap().iter().filter(|claim| matches!(claim, Claim::Run(_))).count();
    }
    assert_eq!(runs, 50);
}

async fn any_bytes_are_kept_in_a_body(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    let bytes: Vec<u8> = (0..=255).collect();
    assert!(complete(&store, result(&lease, &bytes)).await);
    match claim(&store, request("call_1")).await {
        Claim::Stored(stored) => assert_eq!(stored.submission.body, bytes),
        other => panic!("{other:?}"),
    }
}

async fn unfinished_business_is_listed_until_it_ends(store: Arc<dyn Store>) {
    let session = SessionKey::new("openai", "sess_1");
    let claimed = run(&store, request("claimed")).await;
    let lease = run(&store, request("completed")).await;
    assert!(complete(&store, result(&lease, b"{}")).await);
    let gone = run(&store, request("gone")).await;
    assert!(mark(&store, &gone, Transition::Obsolete).await);
    let mut unfinished = store.unfinished(&session).await.unwrap();
    unfinished.sort_by(|a, b| a.key.cmp(&b.key));
    let found: Vec<_> = unfinished.iter().map(|u| (&*u.key.call_id, u.stored.is_some())).collect();
    assert_eq!(found, [("claimed", false), ("completed", true)]);
    assert_eq!(unfinished[0].key, claimed.key);
    assert!(store.unfinished(&SessionKey::new("openai", "other")).await.unwrap().is_empty());
}

async fn calls_left_behind_are_found_unless_something_comes_back_to_them(store: Arc<dyn Store>) {
    let now = Duration::ZERO;
    let of = |session: &str, lease| {
        let mut asked = request("call_1");
        asked.key.session.session = session.into();
        ClaimRequest { lease, ..asked }
    };
    for session in ["claimed", "due"] {
        run(&store, of(session, now)).await;
    }
    let mut twice = of("claimed", now);
    twice.key.call_id = "call_2".into();
    run(&store, twice).await;
    run(&store, of("held", LONG)).await;
    for (session, transition) in [
        ("submitted", Transition::Submitted(now)),
        ("retrying", Transition::Retrying(now)),
        ("retrying later", Transition::Retrying(LONG)),
        ("settled", Transition::Settled),
        ("refused", Transition::Refused),
        ("obsolete", Transition::Obsolete),
    ] {
        let lease = run(&store, of(session, now)).await;
        assert!(mark(&store, &lease, transition).await);
    }
    let completed = run(&store, of("completed", now)).await;
    assert!(complete(&store, result(&completed, b"{}")).await);
    let mut elsewhere = of("elsewhere", now);
    elsewhere.key.session.platform = "other".into();
    run(&store, elsewhere).await;
    store.postpone(&[due("due", LONG)]).await.unwrap();

    let mut found = store.stranded("openai", LONG, now, 100).await.unwrap();
    found.sort();
    let found: Vec<&str> = found.iter().map(|key| &*key.session).collect();
    assert_eq!(found, ["claimed", "completed", "retrying", "submitted"]);
    assert_eq!(store.stranded("openai", LONG, now, 3).await.unwrap().len(), 3);
    assert!(store.stranded("openai", LONG * 2, LONG, 100).await.unwrap().is_empty(), "not quiet for so long");
    assert_eq!(store.stranded("other", LONG, now, 100).await.unwrap(), [SessionKey::new("other", "elsewhere")]);
}

async fn a_session_is_in_hand_under_a_claim_or_when_it_is_due_soon(store: Arc<dyn Store>) {
    let key = |session: &str| SessionKey::new("openai", session);
    run(&store, request("call_1")).await;
    let mut ended = request("call_1");
    ended.key.session = key("ended");
    let lease = run(&store, ended).await;
    assert!(complete(&store, result(&lease, b"{}")).await);
    store.postpone(&[due("soon", Duration::ZERO), due("later", LONG)]).await.unwrap();
    let asked = ["sess_1", "ended", "soon", "unknown", "later", "sess_1"].map(key);
    assert_eq!(store.in_hand(&asked, LONG / 2).await.unwrap(), [true, false, true, false, false, true]);
    assert_eq!(store.in_hand(&asked[4..5], LONG * 2).await.unwrap(), [true]);
    assert!(store.in_hand(&[], LONG).await.unwrap().is_empty());
}
