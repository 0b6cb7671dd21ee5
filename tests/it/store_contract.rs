//! One story over every store.

use std::{sync::Arc, time::Duration};

use actiond::{
    session::{ActionKey, CallKey, IfInterrupted, SessionKey, Submission},
    store::{
        Arrival, Arrived, Claim, ClaimRequest, Completion, Config, Database, Details, Due, Filter, Lease, Ledger, Mark,
        Note, Noticed, Origin, Postgres, Reset, Sqlite, Step, Store, Stored, Transition,
    },
};
use secrecy::SecretString;

/// A store of its own for one test, over both databases.
macro_rules! over_every_store {
    ($($story:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $story() {
                let (store, _folder) = $crate::store_contract::sqlite_store().await;
                super::$story(store).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $story() {
                super::$story($crate::store_contract::postgres_store().await).await;
            })*
        }
    };
}

mod approvals;

over_every_store!(
    the_first_claim_runs_and_the_second_is_busy,
    a_lease_that_ran_out_is_judged_by_the_function,
    a_redelivered_call_is_taken_over_only_if_it_may_run_again,
    a_late_writer_cannot_overwrite,
    a_stored_result_is_answered_to_every_later_claim,
    a_retry_is_busy_until_its_time,
    a_postponed_call_has_not_been_attempted,
    a_deadline_that_passed_ends_the_call,
    a_submitted_call_is_left_alone_until_it_must_be_confirmed,
    a_larger_generation_replaces_a_result,
    a_call_with_a_note_goes_on_whatever_its_function_says,
    due_sessions_are_shared_and_forgotten_once,
    a_session_postponed_while_it_is_published_stays_due,
    many_claims_at_once_have_one_winner_each,
    any_bytes_are_kept_in_a_body,
    unfinished_business_is_listed_until_it_ends,
    calls_left_behind_are_found_unless_something_comes_back_to_them,
    a_session_is_in_hand_under_a_claim_or_when_it_is_due_soon,
    calls_are_listed_newest_first_page_by_page,
    a_retried_call_runs_again_and_answers_under_the_next_key,
    a_resubmitted_call_has_its_stored_bytes_submitted_again,
    a_held_call_is_answered_with_the_result_it_is_given,
    a_call_that_changed_meanwhile_is_left_alone,
    a_revived_session_has_fresh_attempts_and_time_but_its_leases_hold,
    the_oldest_pending_session_has_an_age,
    a_waiting_call_is_held_until_its_deadline,
    a_result_that_arrives_is_stored_once_and_makes_its_session_due,
    a_result_may_arrive_before_its_handler_has_said_that_it_comes_later,
    a_result_that_arrives_too_late_is_not_stored,
    calls_are_counted_by_function_and_state,
    sessions_to_come_are_told_page_by_page,
    a_function_is_paused_until_it_is_resumed,
    a_secret_is_the_same_for_everybody,
    an_action_is_new_once_and_stays_forwarded,
    a_call_has_a_history_of_what_happened_to_it,
    marks_of_one_call_that_come_at_once_all_count,
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
    Config { url: SecretString::from(url), max_connections: 8, timeout: Duration::from_secs(10), retention: None }
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
        origin: Origin { by: "here".into(), event: "wh_1".to_owned(), accepted_at: 1 },
    }
}

async fn claim(store: &Arc<dyn Store>, request: ClaimRequest) -> Claim {
    Ledger::new(store.clone(), LONG).claim(request).await.unwrap()
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
        submission: Submission {
            body: body.to_vec(),
            idempotency_key: lease.key.submission_idempotency_key(lease.generation),
        },
        generation: lease.generation,
        submissions: 0,
    };
    Completion { stored, detail: None, took: Some(Duration::from_millis(5)) }
}

async fn complete(store: &Arc<dyn Store>, completion: Completion) -> bool {
    store.take(&[Step::Complete(completion)]).await.unwrap()[0]
}

async fn mark(store: &Arc<dyn Store>, lease: &Lease, transition: Transition) -> bool {
    let detail = Some("why\0".to_owned());
    let mark = Mark { detail, ..Mark::new(lease.key.clone(), lease.fence, transition) };
    store.take(&[Step::Mark(mark)]).await.unwrap()[0]
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

async fn a_postponed_call_has_not_been_attempted(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(mark(&store, &lease, Transition::Postponed(LONG)).await);
    assert!(matches!(claim(&store, request("call_1")).await, Claim::Busy(left) if left > LONG / 2));
    assert!(mark(&store, &lease, Transition::Retrying(Duration::ZERO)).await);
    let lease = run(&store, request("call_1")).await;
    assert_eq!((lease.fence, lease.attempt), (2, 1));
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

async fn a_call_with_a_note_goes_on_whatever_its_function_says(store: Arc<dyn Store>) {
    let fail = ClaimRequest { if_interrupted: IfInterrupted::Fail, ..request("call_1") };
    let lease = run(&store, fail.clone()).await;
    let note = |lease: &Lease, text: &str| Note { key: lease.key.clone(), fence: lease.fence, text: text.to_owned() };
    assert!(store.note(&note(&lease, "task 1")).await.unwrap());
    mark(&store, &lease, Transition::Released).await;
    let next = run(&store, fail.clone()).await;
    assert_eq!((next.note.as_deref(), next.attempt), (Some("task 1"), 2));
    assert!(!store.note(&note(&lease, "late")).await.unwrap(), "a note of an older fence is refused");
    let taken = run(&store, ClaimRequest { takeover: true, ..fail.clone() }).await;
    assert_eq!(taken.note.as_deref(), Some("task 1"));
    assert!(complete(&store, result(&taken, b"{}")).await);
    assert!(!store.note(&note(&taken, "after its end")).await.unwrap());
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
            let mut calls: Vec<_> = (0..50).map(|n| Step::Claim(request(&format!("call_{n}")))).collect();
            if worker % 2 == 1 {
                calls.reverse();
            }
            store.take(&calls).await.unwrap()
        })
    });
    let mut runs = 0;
    for claims in futures_util::future::join_all(claims).await {
        runs += claims.unwrap().into_iter().filter(|won| *won).count();
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
    // One call is found in whatever state.
    let found = store.find(&gone.key).await.unwrap().unwrap();
    assert!(found.key == gone.key && found.stored.is_none());
    assert_eq!(store.find(&lease.key).await.unwrap().unwrap().stored.unwrap().submission.body, b"{}");
    assert!(store.find(&request("never").key).await.unwrap().is_none());
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

async fn calls_are_listed_newest_first_page_by_page(store: Arc<dyn Store>) {
    for n in 0..5 {
        let mut asked = request(&format!("call_{n}"));
        asked.function = if n % 2 == 0 { "even".into() } else { "odd".into() };
        let lease = run(&store, asked).await;
        assert!(complete(&store, result(&lease, b"body")).await);
    }
    let any = Filter::default();
    let all = store.calls(&any, None, 100).await.unwrap();
    let mut sorted = all.clone();
    sorted.sort_by(|a, b| (b.created_at, &b.key).cmp(&(a.created_at, &a.key)));
    assert_eq!(
        all.iter().map(|row| &row.key).collect::<Vec<_>>(),
        sorted.iter().map(|row| &row.key).collect::<Vec<_>>()
    );
    assert_eq!((all.len(), all[0].body_len, all[0].success, all[0].attempt), (5, Some(4), Some(true), 1));

    let mut paged = store.calls(&any, None, 2).await.unwrap();
    while let page = store.calls(&any, paged.last(), 2).await.unwrap()
        && !page.is_empty()
    {
        paged.extend(page);
    }
    assert_eq!(paged, all);

    let text = |text: &str| Some(text.to_owned());
    for (filter, count) in [
        (Filter { function: text("even"), ..any.clone() }, 3),
        (Filter { state: text("completed"), platform: text("openai"), session: text("sess_1"), ..any.clone() }, 5),
        (Filter { state: text("settled"), ..any.clone() }, 0),
        (Filter { call_id: text("call_3"), function: text("odd"), ..any.clone() }, 1),
        (Filter { newer_than: Some(LONG), ..any.clone() }, 5),
        (Filter { older_than: Some(LONG), ..any.clone() }, 0),
        (Filter { older_than: Some(Duration::ZERO), ..any.clone() }, 5),
    ] {
        assert_eq!(store.calls(&filter, None, 100).await.unwrap().len(), count, "{filter:?}");
    }
    let Details { row, body, .. } = store.call(&all[1].key).await.unwrap().unwrap();
    assert_eq!((&row, body.as_deref()), (&all[1], Some(&b"body"[..])));
    assert!(store.call(&request("none").key).await.unwrap().is_none());
}

async fn reset(store: &Arc<dyn Store>, call: &str, reset: &Reset) -> bool {
    let row = store.call(&request(call).key).await.unwrap().unwrap().row;
    assert_eq!(row.refuses(reset), None);
    store.reset(&row, reset, "cli:me").await.unwrap()
}

async fn a_retried_call_runs_again_and_answers_under_the_next_key(store: Arc<dyn Store>) {
    let asked = ClaimRequest { deadline: Duration::ZERO, ..request("call_1") };
    let first = run(&store, asked).await;
    assert!(complete(&store, result(&first, b"wrong")).await);
    assert!(mark(&store, &first, Transition::Refused).await);
    assert_eq!(claim(&store, request("call_1")).await, Claim::Refused);

    assert!(reset(&store, "call_1", &Reset::Retry { deadline: LONG }).await);
    assert_eq!(store.due(8, LONG).await.unwrap().len(), 1, "its session is due");
    assert!(!mark(&store, &first, Transition::Settled).await, "who held it before has lost it");
    let again = run(&store, request("call_1")).await;
    assert_eq!((again.attempt, again.generation), (1, 1));
    assert!(again.deadline > LONG / 2, "{:?}", again.deadline);
    let right = result(&again, b"right");
    assert!(complete(&store, right.clone()).await);
    assert_eq!(claim(&store, request("call_1")).await, Claim::Stored(right.stored));
}

async fn a_resubmitted_call_has_its_stored_bytes_submitted_again(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    let completion = result(&lease, b"bytes");
    assert!(complete(&store, completion.clone()).await);
    for (state, new_key, generation) in
        [(Transition::Refused, false, 0), (Transition::Obsolete, true, 1), (Transition::Submitted(LONG), false, 1)]
    {
        let row = store.call(&lease.key).await.unwrap().unwrap().row;
        assert!(mark(&store, &Lease { fence: row.fence, ..lease.clone() }, state).await);
        assert!(reset(&store, "call_1", &Reset::Resubmit { new_key }).await);
        match claim(&store, request("call_1")).await {
            Claim::Stored(stored) => {
                assert_eq!(stored.submission.body, b"bytes");
                assert_eq!(stored.submission.idempotency_key, lease.key.submission_idempotency_key(generation));
                assert_eq!(stored.fence, row.fence + 1);
                assert_eq!(stored.submissions, u32::from(matches!(state, Transition::Submitted(_))));
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn a_held_call_is_answered_with_the_result_it_is_given(store: Arc<dyn Store>) {
    let asked = ClaimRequest { if_interrupted: IfInterrupted::Hold, ..request("call_1") };
    let lease = run(&store, asked.clone()).await;
    assert!(mark(&store, &lease, Transition::Released).await);
    assert!(matches!(claim(&store, asked.clone()).await, Claim::Held(_)));
    let Details { row, body, .. } = store.call(&lease.key).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), body), ("interrupted", None));

    let submission = Submission { body: b"given".to_vec(), idempotency_key: "key".to_owned() };
    let resolve = Reset::Resolve { success: false, submission: submission.clone(), detail: "by hand\0".to_owned() };
    assert!(reset(&store, "call_1", &resolve).await);
    match claim(&store, asked).await {
        Claim::Stored(stored) => assert_eq!((stored.submission, stored.success), (submission, false)),
        other => panic!("{other:?}"),
    }
    assert!(!complete(&store, result(&lease, b"late")).await);
    let row = store.call(&lease.key).await.unwrap().unwrap().row;
    assert!(row.detail.unwrap().starts_with("by hand"));
}

async fn a_call_that_changed_meanwhile_is_left_alone(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    let seen = store.call(&lease.key).await.unwrap().unwrap().row;
    assert!(mark(&store, &lease, Transition::Retrying(Duration::ZERO)).await);
    assert!(!store.reset(&seen, &Reset::Retry { deadline: LONG }, "cli:me").await.unwrap());
    assert!(store.due(8, LONG).await.unwrap().is_empty(), "nothing was changed");
}

async fn a_revived_session_has_fresh_attempts_and_time_but_its_leases_hold(store: Arc<dyn Store>) {
    let lease = run(&store, ClaimRequest { deadline: Duration::ZERO, ..request("claimed") }).await;
    let held = ClaimRequest { if_interrupted: IfInterrupted::Hold, ..request("held") };
    assert!(mark(&store, &run(&store, held.clone()).await, Transition::Released).await);
    assert!(matches!(claim(&store, held.clone()).await, Claim::Held(_)));
    store.revive(&lease.key.session, LONG).await.unwrap();
    assert!(matches!(claim(&store, request("claimed")).await, Claim::Busy(_)));
    assert!(matches!(claim(&store, held).await, Claim::Held(_)));
    assert!(mark(&store, &lease, Transition::Released).await);
    let again = run(&store, request("claimed")).await;
    assert_eq!(again.attempt, 1);
    assert!(again.deadline > LONG / 2);
}

async fn the_oldest_pending_session_has_an_age(store: Arc<dyn Store>) {
    assert_eq!(store.oldest_pending().await.unwrap(), None);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let old = i64::try_from((now - LONG).as_millis()).unwrap();
    store
        .postpone(&[Due { accepted_at: old, ..due("a", LONG) }, Due { accepted_at: old + 1, ..due("b", LONG) }])
        .await
        .unwrap();
    let age = store.oldest_pending().await.unwrap().unwrap();
    assert!(age >= LONG - Duration::from_secs(5) && age < LONG * 2, "{age:?}");
}

fn arrival(call: &str, body: &[u8]) -> Arrival {
    let key = request(call).key;
    let submission = Submission { body: body.to_vec(), idempotency_key: key.submission_idempotency_key(0) };
    Arrival { key, success: true, submission, at: 7 }
}

async fn a_waiting_call_is_held_until_its_deadline(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(mark(&store, &lease, Transition::Waiting).await);
    let takeover = ClaimRequest { takeover: true, ..request("call_1") };
    assert!(matches!(claim(&store, takeover).await, Claim::Held(left) if left > LONG * 59));

    let short = ClaimRequest { deadline: Duration::ZERO, ..request("call_2") };
    let lease = run(&store, short).await;
    assert!(mark(&store, &lease, Transition::Waiting).await);
    let Claim::Expired(lease) = claim(&store, request("call_2")).await else { panic!("the deadline ends it") };
    assert!(complete(&store, result(&lease, b"too late")).await);
}

async fn a_result_that_arrives_is_stored_once_and_makes_its_session_due(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(mark(&store, &lease, Transition::Waiting).await);
    store.postpone(&[due("sess_1", LONG)]).await.unwrap();
    assert_eq!(store.overdue().await.unwrap(), 0);

    let stored = Arrived::Stored { function: "f".to_owned() };
    assert_eq!(store.arrive(&arrival("call_1", b"done")).await.unwrap(), stored);
    assert_eq!(store.due(8, LONG).await.unwrap().len(), 1);
    assert_eq!(store.arrive(&arrival("call_1", b"done")).await.unwrap(), Arrived::Repeated);
    assert_eq!(store.arrive(&arrival("call_1", b"other")).await.unwrap(), Arrived::Late);
    assert_eq!(store.arrive(&arrival("no such call", b"done")).await.unwrap(), Arrived::Unknown);
    let Claim::Stored(stored) = claim(&store, request("call_1")).await else { panic!("it is stored") };
    assert_eq!((stored.fence, stored.success, &*stored.submission.body), (2, true, &b"done"[..]));
    let settled = Mark::new(stored.key, stored.fence, Transition::Settled);
    assert_eq!(store.take(&[Step::Mark(settled)]).await.unwrap(), [true]);
    assert_eq!(store.arrive(&arrival("call_1", b"done")).await.unwrap(), Arrived::Repeated);
}

async fn a_result_may_arrive_before_its_handler_has_said_that_it_comes_later(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(matches!(store.arrive(&arrival("call_1", b"done")).await.unwrap(), Arrived::Stored { .. }));
    assert!(!mark(&store, &lease, Transition::Waiting).await);
    assert!(!mark(&store, &lease, Transition::Renewed(LONG)).await);
    assert!(!complete(&store, result(&lease, b"mine")).await);
    assert!(matches!(claim(&store, request("call_1")).await, Claim::Stored(s) if s.submission.body == b"done"));
}

async fn a_result_that_arrives_too_late_is_not_stored(store: Arc<dyn Store>) {
    let short = ClaimRequest { deadline: Duration::ZERO, ..request("expired") };
    let lease = run(&store, short).await;
    assert!(mark(&store, &lease, Transition::Waiting).await);
    let gone = run(&store, request("gone")).await;
    assert!(mark(&store, &gone, Transition::Obsolete).await);
    for call in ["expired", "gone"] {
        assert_eq!(store.arrive(&arrival(call, b"done")).await.unwrap(), Arrived::Late, "{call}");
    }
    assert_eq!(store.overdue().await.unwrap(), 0);
}

async fn a_secret_is_the_same_for_everybody(store: Arc<dyn Store>) {
    let secrets = (0..4u8).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { store.secret("results", &[n; 32]).await.unwrap() })
    });
    let secrets: Vec<_> = futures_util::future::join_all(secrets).await.into_iter().map(Result::unwrap).collect();
    assert!(secrets[0].len() == 32 && secrets.iter().all(|secret| *secret == secrets[0]), "{secrets:?}");
    assert_ne!(store.secret("other", &[9; 32]).await.unwrap(), secrets[0]);
}

async fn an_action_is_new_once_and_stays_forwarded(store: Arc<dyn Store>) {
    let action = |turn: &str, kind: &str, id: &str| ActionKey {
        session: SessionKey::new("p", "s"),
        turn: turn.into(),
        kind: kind.to_owned(),
        id: id.into(),
    };
    let actions = [action("t", "k", "1"), action("", "k", "1"), action("t", "l", "1"), action("t", "k", "2")];
    for action in &actions {
        let noticed = store.notice(action).await.unwrap();
        assert_eq!(noticed, Noticed { is_new: true, is_forwarded: false }, "{action:?}");
    }
    store.forwarded(&actions[0]).await.unwrap();
    for (action, is_forwarded) in actions.iter().zip([true, false, false, false]) {
        assert_eq!(store.notice(action).await.unwrap(), Noticed { is_new: false, is_forwarded }, "{action:?}");
    }
}

async fn a_call_has_a_history_of_what_happened_to_it(store: Arc<dyn Store>) {
    let key = request("call_1").key;
    let first = run(&store, request("call_1")).await;
    assert!(mark(&store, &first, Transition::Renewed(LONG)).await);
    assert!(mark(&store, &first, Transition::Retrying(Duration::ZERO)).await);
    let again = run(&store, request("call_1")).await;
    assert!(complete(&store, result(&again, b"x")).await);
    store.tell(&key, "submission retry", "503 \"busy\"\n\0").await.unwrap();
    assert!(mark(&store, &again, Transition::Refused).await);
    let row = store.call(&key).await.unwrap().unwrap().row;
    assert!(store.reset(&row, &Reset::Resubmit { new_key: true }, "cli:me").await.unwrap());
    let stored = Stored { fence: row.fence + 1, ..result(&again, b"x").stored };
    assert!(store.take(&[Step::Mark(Mark::new(stored.key, stored.fence, Transition::Settled))]).await.unwrap()[0]);

    let history = store.call(&key).await.unwrap().unwrap().history;
    let events: Vec<&str> = history.iter().filter_map(|entry| entry["event"].as_str()).collect();
    let expected =
        ["claimed", "retrying", "claimed", "completed", "submission retry", "refused", "resubmit", "settled"];
    assert_eq!(events, expected);
    assert_eq!(history[0]["cause"], "wh_1");
    assert_eq!((history[0]["attempt"].as_u64(), history[2]["attempt"].as_u64()), (Some(1), Some(2)));
    assert_eq!((history[0]["by"].as_str(), history[6]["by"].as_str()), (Some("here"), Some("cli:me")));
    assert_eq!(history[3]["took_ms"], 5);
    assert!(history[4]["detail"].as_str().unwrap().starts_with("503 \"busy\"\n"), "{:?}", history[4]);
    assert!(history.windows(2).all(|pair| pair[0]["at"].as_i64() <= pair[1]["at"].as_i64()), "{history:?}");

    for _ in 0..100 {
        store.tell(&key, "submission retry", &"x".repeat(300)).await.unwrap();
    }
    let history = store.call(&key).await.unwrap().unwrap().history;
    assert!((40..70).contains(&history.len()), "it is bounded: {}", history.len());
}

async fn marks_of_one_call_that_come_at_once_all_count(store: Arc<dyn Store>) {
    let leases = [run(&store, request("call_1")).await, run(&store, request("call_2")).await];
    let ledger = Ledger::new(store.clone(), LONG);
    // The first mark keeps the group's only statement busy, so that the others share the next.
    let transitions =
        [Transition::Renewed(LONG), Transition::Renewed(LONG), Transition::Renewed(LONG), Transition::Waiting];
    let marks = transitions
        .into_iter()
        .flat_map(|transition| leases.iter().map(move |lease| Mark::new(lease.key.clone(), lease.fence, transition)));
    let marked = futures_util::future::join_all(marks.map(|mark| ledger.mark(mark))).await;
    assert!(marked.into_iter().all(|marked| marked.unwrap()));
    for lease in &leases {
        assert_eq!(store.call(&lease.key).await.unwrap().unwrap().row.state, "waiting");
    }
}

async fn calls_are_counted_by_function_and_state(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    run(&store, request("call_2")).await;
    run(&store, ClaimRequest { function: "g".into(), ..request("call_3") }).await;
    assert!(mark(&store, &lease, Transition::Obsolete).await);
    let function = request("call_1").function;
    let mut tally = store.tally(LONG).await.unwrap();
    tally.sort_by(|a, b| (&a.function, &a.state).cmp(&(&b.function, &b.state)));
    let told: Vec<_> = tally.iter().map(|t| (&*t.function, &*t.state, t.count)).collect();
    let mut expected = vec![(&*function, "claimed", 1), (&*function, "obsolete", 1), ("g", "claimed", 1)];
    expected.sort_unstable();
    assert_eq!(told, expected);
}

async fn sessions_to_come_are_told_page_by_page(store: Arc<dyn Store>) {
    store.postpone(&[due("b", LONG), due("a", Duration::ZERO), due("c", LONG * 2), due("", LONG)]).await.unwrap();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.agenda(after.as_ref(), 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        seen.extend(page.into_iter().map(|one| one.session.session.to_string()));
    }
    assert_eq!(seen, ["a", "b", "c"], "a sweep is none");
}

async fn a_function_is_paused_until_it_is_resumed(store: Arc<dyn Store>) {
    assert!(store.set_paused("f", true).await.unwrap() && !store.set_paused("f", true).await.unwrap());
    assert!(store.set_paused("e", true).await.unwrap());
    let pauses = store.pauses().await.unwrap();
    assert_eq!(pauses.iter().map(|pause| &*pause.function).collect::<Vec<_>>(), ["e", "f"]);
    assert!(pauses.iter().all(|pause| pause.since > 1_700_000_000_000));
    assert!(store.set_paused("f", false).await.unwrap() && !store.set_paused("f", false).await.unwrap());
    assert_eq!(store.pauses().await.unwrap().len(), 1);
}
