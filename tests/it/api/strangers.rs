//! Who does not get in, and requests that cannot be meant.

use super::{OBJECT, ask, bearer, get, start};
use crate::rig::{Pair, Setup};

/// Case 35: an empty token is none, and only the token is it.
#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let rig = start(Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT)).await;
    let daemon = rig.worker.as_ref().unwrap();
    for value in [
        None,
        Some(""),
        Some("Bearer"),
        Some("Bearer "),
        Some("Bearer case-token-case-tokem"),
        Some("Bearer dase-token-case-token"),
        Some("Basic case-token-case-token"),
    ] {
        let headers: Vec<_> = value.map(|value| ("authorization", value)).into_iter().collect();
        let asked =
            [("GET", "/api/calls"), ("GET", "/api/openapi.json"), ("GET", "/api/none"), ("POST", "/api/dead/purge")];
        for (method, path) in asked {
            let answer = ask(daemon, method, path, &headers, None).await;
            assert_eq!((answer.status, answer.error()), (401, "unauthorized"), "{method} {path} {value:?}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"actiond\"");
        }
    }
    for value in ["Bearer case-token-case-token", "bearer case-token-case-token"] {
        assert_eq!(ask(daemon, "GET", "/api/calls", &[("authorization", value)], None).await.status, 200);
    }
    let closed = "admin: { listen: \"0.0.0.0:9109\", token: \"${ACTIOND_ADMIN_TOKEN:-}\" }";
    let refused = actiond::config::parse(closed, &|_| None).unwrap_err();
    assert!(refused.problems()[0].starts_with("admin.token: "), "{refused}");
}

#[tokio::test]
async fn without_a_token_pages_of_other_sites_do_not_get_in() {
    let rig = Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT).start().await;
    let daemon = rig.worker.as_ref().unwrap();
    assert_eq!(ask(daemon, "GET", "/api/calls", &[], None).await.status, 200);
    assert_eq!(ask(daemon, "GET", "/api/calls", &[("host", "evil.example")], None).await.error(), "forbidden");
    let own = format!("http://{}", daemon.admin);
    for (headers, status) in [
        (vec![], 200),
        (vec![("origin", &*own)], 200),
        (vec![("origin", "http://evil.example")], 403),
        (vec![("origin", "null")], 403),
        (vec![("sec-fetch-site", "cross-site")], 403),
    ] {
        let answer = ask(daemon, "POST", "/api/functions/a/resume", &headers, None).await;
        assert_eq!(answer.status, status, "{headers:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_meant_is_told_and_breaks_nothing() {
    for pair in [Pair::EmbeddedSqlite, Pair::RabbitPostgres] {
        let rig = start(Setup::new(pair).http("a", OBJECT)).await;
        let missing = "WyJhIiwiYiIsImMiLCJkIl0";
        for (path, status) in [
            ("/api/calls?limit=0", 400),
            ("/api/calls?limit=1001", 400),
            ("/api/calls?limit=-1", 400),
            ("/api/calls?limit=x", 400),
            ("/api/calls?state=dead", 400),
            ("/api/calls?older_than=yesterday", 400),
            ("/api/calls?newer_than=1e300d", 400),
            ("/api/calls?cursor=x", 400),
            ("/api/calls?cursor=WyJhIl0", 400),
            ("/api/calls?stat=settled", 400),
            ("/api/calls?function=%00", 400),
            ("/api/calls?function=%ff", 200),
            ("/api/calls?after=none", 404),
            ("/api/calls/x", 404),
            ("/api/calls/%00", 404),
            ("/api/calls/%ff", 400),
            ("/api/calls/WyJhIiwiYiIsImMiLCJcdTAwMDAiXQ", 404),
            (&format!("/api/calls/{missing}"), 404),
            ("/api/dead?cursor=none", 404),
            ("/api/dead?limit=0", 400),
            ("/api/dead/none", 404),
            ("/api/dead/%ff", 400),
            ("/api/sessions/due?cursor=x", 400),
            ("/api/approvals?cursor=x", 400),
            ("/api/approvals?all=maybe", 400),
            ("/api/calls/x/retry", 405),
            ("/api/none", 404),
            ("/api", 404),
        ] {
            let answer = get(&rig, path).await;
            assert_eq!(answer.status, status, "{path} {answer:?}");
            if status != 200 {
                answer.error();
            }
        }
        let json = ("content-type", "application/json");
        let daemon = rig.worker.as_ref().unwrap();
        for (path, headers, body, status) in [
            ("/api/dead/redrive", vec![json], "{", 400),
            ("/api/dead/redrive", vec![json], "[]", 400),
            ("/api/dead/redrive", vec![json], "{}", 400),
            ("/api/dead/redrive", vec![], "{}", 415),
            ("/api/dead/redrive", vec![("content-type", "text/plain")], "{\"all\":true}", 415),
            ("/api/dead/redrive", vec![json], "{\"all\":true,\"more\":1}", 400),
            ("/api/dead/redrive", vec![json], "{\"all\":true,\"max\":0}", 400),
            ("/api/dead/redrive", vec![json], "{\"all\":true,\"max\":1e9}", 400),
            ("/api/dead/redrive", vec![json], "{\"all\":true,\"pause\":\"2m\"}", 400),
            ("/api/dead/purge", vec![json], "{\"all\":true,\"force\":true}", 400),
            ("/api/dead/purge", vec![json], "{\"platform\":\"\\u0000\"}", 400),
            (&format!("/api/calls/{missing}/resolve"), vec![json], "{\"output\":\"a\"}", 404),
            (&format!("/api/calls/{missing}/cancel"), vec![], "", 404),
            (&format!("/api/approvals/{missing}/approve"), vec![], "", 404),
            (&format!("/api/approvals/{missing}/deny"), vec![json], "{\"asked_at\":\"now\"}", 400),
            ("/api/functions/%00/pause", vec![], "", 404),
            ("/api/functions/%00/resume", vec![], "", 404),
            ("/api/functions/a/pause", vec![json], "{\"a\":1}", 400),
        ] {
            let headers = [vec![bearer()], headers].concat();
            let answer = ask(daemon, "POST", path, &headers, Some(body.as_bytes().to_vec())).await;
            assert_eq!(answer.status, status, "{path} {body} {answer:?}");
            answer.error();
        }
        let large = vec![b' '; (4 << 20) + 1];
        let answer = ask(daemon, "POST", "/api/dead/redrive", &[bearer(), json], Some(large)).await;
        assert_eq!((answer.status, answer.error()), (413, "too_large"));
        assert_eq!(get(&rig, "/api/openapi.json").await.ok()["openapi"], "3.1.0");
    }
}

#[tokio::test]
async fn a_process_without_a_store_says_whom_to_ask() {
    let mut rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).prepare().await;
    let public_url = format!(", public_url: \"http://{}\"", rig.ingress_at);
    rig.replace(&public_url, "");
    let ingress = rig.daemon("ingress").await;
    for (method, path) in [("GET", "/api/calls"), ("GET", "/api/platforms"), ("POST", "/api/functions/a/pause")] {
        let answer = ask(&ingress, method, path, &[], None).await;
        assert_eq!((answer.status, answer.error()), (503, "no_store"), "{path}");
    }
}
