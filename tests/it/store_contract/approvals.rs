//! Approvals, pruning and export order over every store.

use std::{sync::Arc, time::Duration};

use actiond::store::{
    ApprovalFilter, Ask, Claim, ClaimRequest, Decide, Decided, Decision, Filter, Lease, Open, Pruned, Reset, Store,
    Transition,
};

use super::{LONG, arrival, claim, complete, mark, request, result, run};

over_every_store!(
    a_call_that_waits_for_a_person_is_held_and_runs_once_it_is_approved,
    a_denied_call_is_answered_and_never_run,
    a_call_that_nobody_decides_on_ends_by_itself,
    the_first_of_two_decisions_counts,
    only_the_holder_of_a_call_can_ask,
    a_call_that_ended_otherwise_needs_no_decision,
    a_retried_call_is_asked_about_again_unless_it_was_approved,
    approvals_are_listed_in_order_page_by_page,
    a_notice_is_taken_by_one_and_sent_again_until_it_is_taken,
    only_calls_that_ended_long_ago_are_pruned,
    pruning_goes_on_past_what_must_stay,
    the_oldest_calls_come_first_between_two_instants,
);

fn ask(lease: &Lease, expires: Duration) -> Ask {
    Ask {
        key: lease.key.clone(),
        fence: lease.fence,
        function: "f".to_owned(),
        arguments: r#"{"amount":1.50}"#.to_owned(),
        digest: vec![7; 32],
        expires,
        notify: true,
    }
}

fn decide(call: &str, approve: bool) -> Decide {
    Decide {
        key: request(call).key,
        asked_at: None,
        approve,
        by: "alice\0".to_owned(),
        reason: Some("because\0".to_owned()),
    }
}

async fn asked(store: &Arc<dyn Store>, call: &str) -> Lease {
    let lease = run(store, request(call)).await;
    assert!(!lease.approved);
    assert!(store.ask(&ask(&lease, LONG)).await.unwrap());
    lease
}

async fn a_call_that_waits_for_a_person_is_held_and_runs_once_it_is_approved(store: Arc<dyn Store>) {
    let before = asked(&store, "call_1").await;
    let takeover = ClaimRequest { takeover: true, ..request("call_1") };
    assert!(matches!(claim(&store, takeover).await, Claim::Held(left) if left <= LONG && left > LONG / 2));
    assert!(!complete(&store, result(&before, b"{}")).await, "who asked holds it no more");
    let in_hand = store.in_hand(std::slice::from_ref(&before.key.session), Duration::ZERO).await.unwrap();
    assert_eq!(in_hand, [true], "no sweep needs to find it");
    let found = store.approval(&before.key).await.unwrap().unwrap();
    assert_eq!((found.arguments.as_deref(), found.decision), (Some(r#"{"amount":1.50}"#), None));
    assert_eq!(store.due(8, LONG).await.unwrap(), []);

    let Decided::Done(done) = store.decide(&decide("call_1", true)).await.unwrap() else { panic!("it counts") };
    assert_eq!((done.arguments, done.decision), (None, Some(Decision::Approved)));
    assert!(done.decided_by.unwrap().starts_with("alice") && done.reason.unwrap().starts_with("because"));
    assert!(done.decided_at.unwrap() >= done.asked_at);
    assert_eq!(store.due(8, LONG).await.unwrap().len(), 1, "its session is due");
    let lease = run(&store, request("call_1")).await;
    assert_eq!((lease.approved, lease.attempt, lease.fence), (true, 1, before.fence + 2));
    let history = store.call(&lease.key).await.unwrap().unwrap().history;
    let events: Vec<_> = history.iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["claimed", "asked", "approved", "claimed"]);
    assert!(history[2]["by"].as_str().unwrap().starts_with("alice"), "{history:?}");
    assert!(mark(&store, &lease, Transition::Released).await);
    let fail = ClaimRequest { if_interrupted: actiond::session::IfInterrupted::Fail, ..request("call_1") };
    assert!(matches!(claim(&store, fail).await, Claim::Interrupted(_)), "from there on it is as any call");
}

async fn a_denied_call_is_answered_and_never_run(store: Arc<dyn Store>) {
    asked(&store, "call_1").await;
    assert!(matches!(store.decide(&decide("call_1", false)).await.unwrap(), Decided::Done(_)));
    let Claim::Denied(lease) = claim(&store, request("call_1")).await else { panic!("it is denied") };
    assert!(matches!(claim(&store, request("call_1")).await, Claim::Busy(_)), "somebody answers it");
    // Whoever answers it died: the answer is the same, whatever the function says of interruptions.
    assert!(mark(&store, &lease, Transition::Released).await);
    let fail = ClaimRequest { if_interrupted: actiond::session::IfInterrupted::Fail, ..request("call_1") };
    let Claim::Denied(lease) = claim(&store, fail).await else { panic!("it is denied") };
    assert!(complete(&store, result(&lease, b"denied")).await);
    assert!(matches!(claim(&store, request("call_1")).await, Claim::Stored(_)));
}

async fn a_call_that_nobody_decides_on_ends_by_itself(store: Arc<dyn Store>) {
    let lease = run(&store, request("call_1")).await;
    assert!(store.ask(&ask(&lease, Duration::ZERO)).await.unwrap());
    let Decided::Already(late) = store.decide(&decide("call_1", true)).await.unwrap() else { panic!("too late") };
    assert_eq!((late.decision, late.arguments), (Some(Decision::Expired), None));
    assert_eq!(store.in_hand(&[lease.key.session], Duration::ZERO).await.unwrap(), [false], "somebody must answer it");
    assert_eq!(store.open_approvals().await.unwrap(), Open { pending: 0, ended: 1, notices: 0 });
    assert_eq!(store.close_approvals().await.unwrap(), [("f".to_owned(), Decision::Expired)]);
    assert_eq!(store.close_approvals().await.unwrap(), [], "once");
    let Claim::Unapproved(lease) = claim(&store, request("call_1")).await else { panic!("the time is over") };
    assert!(mark(&store, &lease, Transition::Released).await);
    let Claim::Unapproved(lease) = claim(&store, request("call_1")).await else { panic!("still") };
    assert!(complete(&store, result(&lease, b"expired")).await);
}

async fn the_first_of_two_decisions_counts(store: Arc<dyn Store>) {
    let lease = asked(&store, "call_1").await;
    let asked_at = store.approval(&lease.key).await.unwrap().unwrap().asked_at;
    let other = Decide { asked_at: Some(asked_at - 1), ..decide("call_1", true) };
    assert!(
        matches!(store.decide(&other).await.unwrap(), Decided::Already(a) if a.decision.is_none()),
        "another question"
    );
    let decisions = (0..8).map(|n| {
        let store = store.clone();
        let decision = Decide { asked_at: Some(asked_at), by: n.to_string(), ..decide("call_1", n % 2 == 0) };
        tokio::spawn(async move { store.decide(&decision).await.unwrap() })
    });
    let decided: Vec<_> = futures_util::future::join_all(decisions).await.into_iter().map(Result::unwrap).collect();
    let done: Vec<_> = decided.iter().filter(|d| matches!(d, Decided::Done(_))).collect();
    let [Decided::Done(first)] = done.as_slice() else { panic!("{decided:?}") };
    let told = |d: &Decided| matches!(d, Decided::Done(a) | Decided::Already(a) if a == first);
    assert!(decided.iter().all(told), "{decided:?}");
    assert_eq!(store.decide(&decide("none", true)).await.unwrap(), Decided::Unknown);
}

async fn only_the_holder_of_a_call_can_ask(store: Arc<dyn Store>) {
    let late = run(&store, request("call_1")).await;
    let taker = run(&store, ClaimRequest { takeover: true, ..request("call_1") }).await;
    assert!(!store.ask(&ask(&late, LONG)).await.unwrap());
    assert_eq!(store.approval(&late.key).await.unwrap(), None);
    assert!(complete(&store, result(&taker, b"{}")).await);
    assert!(!store.ask(&ask(&taker, LONG)).await.unwrap());
}

async fn a_call_that_ended_otherwise_needs_no_decision(store: Arc<dyn Store>) {
    let gone = asked(&store, "gone").await;
    asked(&store, "by hand").await;
    asked(&store, "left").await;
    assert_eq!(
        store.arrive(&arrival("left", b"x")).await.unwrap(),
        actiond::store::Arrived::Late,
        "no handler was started that could have a result"
    );
    assert!(mark(&store, &gone, Transition::Obsolete).await);
    let row = store.call(&request("by hand").key).await.unwrap().unwrap().row;
    assert_eq!(row.approval.as_deref(), Some("pending"));
    let submission = actiond::session::Submission { body: b"x".to_vec(), idempotency_key: "k".to_owned() };
    let resolve = Reset::Resolve { success: true, submission, detail: String::new() };
    assert!(store.reset(&row, &resolve, "somebody").await.unwrap());

    assert_eq!(store.open_approvals().await.unwrap(), Open { pending: 1, ended: 2, notices: 1 });
    for call in ["gone", "by hand"] {
        let Decided::Already(found) = store.decide(&decide(call, true)).await.unwrap() else { panic!("{call}") };
        assert_eq!((found.decision, found.arguments), (Some(Decision::Withdrawn), None));
    }
    let mut closed = store.close_approvals().await.unwrap();
    closed.sort_by_key(|(function, _)| function.clone());
    assert_eq!(closed, vec![("f".to_owned(), Decision::Withdrawn); 2]);
    assert!(matches!(store.decide(&decide("left", true)).await.unwrap(), Decided::Done(_)));
    assert_eq!(store.open_approvals().await.unwrap(), Open::default());
}

async fn a_retried_call_is_asked_about_again_unless_it_was_approved(store: Arc<dyn Store>) {
    for (call, approve) in [("approved", true), ("denied", false)] {
        asked(&store, call).await;
        assert!(matches!(store.decide(&decide(call, approve)).await.unwrap(), Decided::Done(_)));
        let (Claim::Run(lease) | Claim::Denied(lease)) = claim(&store, request(call)).await else { panic!("{call}") };
        assert!(complete(&store, result(&lease, b"{}")).await);
        assert!(mark(&store, &lease, Transition::Refused).await);
        let row = store.call(&lease.key).await.unwrap().unwrap().row;
        assert!(store.reset(&row, &Reset::Retry { deadline: LONG }, "somebody").await.unwrap());
        let again = run(&store, request(call)).await;
        assert_eq!(again.approved, approve, "{call}");
        if !approve {
            assert!(store.ask(&ask(&again, LONG)).await.unwrap());
            let found = store.approval(&again.key).await.unwrap().unwrap();
            assert_eq!((found.decision, found.decided_by, found.reason), (None, None, None));
        }
    }
}

async fn approvals_are_listed_in_order_page_by_page(store: Arc<dyn Store>) {
    for n in 0..5 {
        let lease = run(&store, request(&format!("call_{n}"))).await;
        let function = if n % 2 == 0 { "even" } else { "odd" };
        assert!(store.ask(&Ask { function: function.to_owned(), ..ask(&lease, LONG) }).await.unwrap());
        // Each has a millisecond of its own.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    store.decide(&decide("call_1", false)).await.unwrap();
    let listed = async |all: bool, function: Option<&str>| {
        let filter = ApprovalFilter { all, function: function.map(str::to_owned) };
        let mut names = Vec::new();
        let mut last = None;
        loop {
            let page = store.approvals(&filter, last.as_ref(), 2).await.unwrap();
            names.extend(page.iter().map(|a| a.key.call_id.trim_start_matches("call_").parse::<u8>().unwrap()));
            match page.into_iter().last() {
                Some(end) => last = Some(end.place()),
                None => return names,
            }
        }
    };
    assert_eq!(listed(false, None).await, [0, 2, 3, 4], "what waits, the oldest first");
    assert_eq!(listed(true, None).await, [4, 3, 2, 1, 0], "all, the newest first");
    assert_eq!(listed(false, Some("odd")).await, [3]);
    assert_eq!(listed(true, Some("odd")).await, [3, 1]);
}

async fn a_notice_is_taken_by_one_and_sent_again_until_it_is_taken(store: Arc<dyn Store>) {
    asked(&store, "call_1").await;
    let silent = run(&store, request("silent")).await;
    assert!(store.ask(&Ask { notify: false, ..ask(&silent, LONG) }).await.unwrap());
    assert_eq!(store.open_approvals().await.unwrap(), Open { pending: 2, ended: 0, notices: 1 });
    let taken = store.notices(8, LONG).await.unwrap();
    assert_eq!((taken.len(), taken[0].notices, taken[0].arguments.as_deref()), (1, 1, Some(r#"{"amount":1.50}"#)));
    assert_eq!(store.notices(8, LONG).await.unwrap(), [], "held");
    store.noticed(&taken[0], Some(Duration::ZERO)).await.unwrap();
    let again = store.notices(8, LONG).await.unwrap();
    assert_eq!((again.len(), again[0].notices), (1, 2));
    store.noticed(&again[0], None).await.unwrap();
    assert_eq!(store.open_approvals().await.unwrap().notices, 0);
    store.noticed(&taken[0], Some(Duration::ZERO)).await.unwrap();
    assert!(matches!(store.decide(&decide("call_1", true)).await.unwrap(), Decided::Done(_)));
    assert_eq!(store.notices(8, LONG).await.unwrap(), [], "nobody is told of what is decided");
    assert_eq!(store.open_approvals().await.unwrap(), Open { pending: 1, ended: 0, notices: 0 });
}

/// Lets the database's clock go on, so that what was written is older than nothing.
async fn tick() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

async fn only_calls_that_ended_long_ago_are_pruned(store: Arc<dyn Store>) {
    for (call, end) in [
        ("claimed", None),
        ("waiting", Some(Transition::Waiting)),
        ("retrying", Some(Transition::Retrying(LONG))),
        ("settled", Some(Transition::Settled)),
        ("refused", Some(Transition::Refused)),
        ("obsolete", Some(Transition::Obsolete)),
    ] {
        let lease = run(&store, request(call)).await;
        if let Some(end) = end {
            assert!(mark(&store, &lease, end).await);
        }
    }
    let completed = run(&store, request("completed")).await;
    assert!(complete(&store, result(&completed, b"{}")).await);
    let denied = asked(&store, "denied").await;
    assert!(mark(&store, &denied, Transition::Obsolete).await);
    tick().await;
    assert_eq!(store.prune(LONG, 0, 100).await.unwrap(), Pruned { deleted: 0, next: None }, "not so long ago");
    assert_eq!(store.prune(Duration::ZERO, 0, 100).await.unwrap(), Pruned { deleted: 4, next: None });
    let left = store.calls(&Filter::default(), None, 100).await.unwrap();
    let mut left: Vec<&str> = left.iter().map(|row| &*row.key.call_id).collect();
    left.sort_unstable();
    assert_eq!(left, ["claimed", "completed", "retrying", "waiting"]);
    assert_eq!(store.approval(&denied.key).await.unwrap(), None, "with all that belongs to it");
}

async fn pruning_goes_on_past_what_must_stay(store: Arc<dyn Store>) {
    for n in 0..12 {
        let lease = run(&store, request(&format!("call_{n}"))).await;
        if n % 4 == 3 {
            assert!(mark(&store, &lease, Transition::Settled).await);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tick().await;
    let (mut from, mut deleted, mut steps) = (Some(0), 0, 0);
    while let Some(at) = from {
        let pruned = store.prune(Duration::ZERO, at, 2).await.unwrap();
        assert!(pruned.deleted <= 2, "no step does more than it was told");
        (from, deleted, steps) = (pruned.next, deleted + pruned.deleted, steps + 1);
    }
    assert_eq!(deleted, 3);
    assert!((6..=24).contains(&steps), "{steps}");
    assert_eq!(store.calls(&Filter::default(), None, 100).await.unwrap().len(), 9);
}

async fn the_oldest_calls_come_first_between_two_instants(store: Arc<dyn Store>) {
    for n in 0..5 {
        run(&store, request(&format!("call_{n}"))).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let newest = store.calls(&Filter::default(), None, 100).await.unwrap();
    let oldest_first = Filter { oldest_first: true, ..Filter::default() };
    let mut paged = store.calls(&oldest_first, None, 2).await.unwrap();
    while let page = store.calls(&oldest_first, paged.last(), 2).await.unwrap()
        && !page.is_empty()
    {
        paged.extend(page);
    }
    assert_eq!(paged, newest.iter().rev().cloned().collect::<Vec<_>>());
    let between = Filter { from: Some(paged[1].created_at), to: Some(paged[3].created_at), ..oldest_first };
    assert_eq!(store.calls(&between, None, 100).await.unwrap(), paged[1..3], "the first instant counts, the last not");
}
