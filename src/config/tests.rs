#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::*;
use crate::handler;

const BASE: &str = r#"
ingress: { listen: "127.0.0.1:9100", max_body: "256KiB" }
admin: { listen: "127.0.0.1:9109", token: "case-token-case-token" }
queue: { type: embedded }
store: { url: "sqlite://case.db" }
worker: { concurrency: 64 }
retry: { max_attempts: 8 }
telemetry: { log: json }
platforms:
  - { name: openai, type: agents_api, base_url: "http://127.0.0.1:9101/v1", api_key: "sk-case", webhook: { scheme: standard, secrets: ["whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="] } }
functions:
  - { name: f, description: d, parameters: { type: object }, handler: { type: http, url: "http://127.0.0.1:9102/f", body: arguments, timeout: "2s" } }
"#;
const SECRETS: &str = r#"secrets: ["whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]"#;
const WEBHOOK: &str = r#"scheme: standard, secrets: ["whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]"#;
const HANDLER: &str = r#"type: http, url: "http://127.0.0.1:9102/f", body: arguments, timeout: "2s""#;

fn env(name: &str) -> Option<String> {
    let value = match name {
        "K" => "pa$$w0rd${HOME}#x: \"y",
        "J" => "a\"\nadmin: { token: \"\" }",
        "N" => "0123456",
        "E" => "1e10",
        "B" => "no",
        "U" => "é",
        "S" => "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
        "KEY_LF" => "sk-case\n",
        "FIVE" => "5",
        "TRUE" => "true",
        "OPENAI_API_KEY" => "sk-openai",
        "OPENAI_WEBHOOK_SECRET" => "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "ORDERS_TOKEN" => "orders",
        "ORDERS_SIGNING_SECRET" => "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "AIVAX_HOOK_KEY" => "hook-key-hook-key",
        "SEARCH_TOKEN" => "search",
        "CHAT_TOKEN" => "chat",
        "CHAT_SIGNING_SECRET" => "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "ACTIOND_AMQP_URL" => "amqp://guest:guest@localhost:5672/%2f",
        _ => return None,
    };
    Some(value.into())
}

/// The base with one text in place of another.
fn with(from: &str, to: &str) -> Result<Loaded, Errors> {
    assert!(BASE.contains(from), "{from}");
    parse(&BASE.replace(from, to), &env)
}

fn lines(result: Result<Loaded, Errors>) -> Vec<String> {
    result.err().map(|errors| errors.problems().to_vec()).unwrap_or_default()
}

fn headers(headers: &str) -> Result<Loaded, Errors> {
    with(HANDLER, &format!("{HANDLER}, headers: {headers}"))
}

fn first_headers(loaded: &Loaded) -> Vec<(&str, &str)> {
    let handler::Config::Http(http) = &loaded.config.functions[0].handler else { panic!("not http") };
    http.headers.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect()
}

fn api_key(loaded: &Loaded) -> &str {
    let platform::Kind::AgentsApi { api_key, .. } = &loaded.config.platforms[0].kind else { panic!("not agents_api") };
    api_key.expose_secret()
}

#[test]
fn the_base_has_no_problem() {
    let loaded = parse(BASE, &env).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.config.ingress.max_body, 262_144);
    assert_eq!(loaded.config.functions[0].retry, retry::Policy::default());
}

#[test]
fn each_problem_has_its_path_and_says_what_is_allowed() {
    let function = format!("- {{ name: f, description: d, parameters: {{ type: object }}, handler: {{ {HANDLER} }} }}");
    let second = format!("{function}\n  {function}");
    for (from, to, path, part) in [
        ("ingress:", "ingres:", "ingres", "did you mean ingress?"),
        ("worker: {", "sweeps: {}\nworker: {", "sweeps", "did you mean sweep?"),
        ("worker: {", "swep_: 1\nworker: {", "swep_", "did you mean sweep?"),
        ("worker: {", "broom: { every: 5m }\nworker: {", "broom", "unknown key; known here: ingress, admin"),
        ("worker: {", "sweep: { every: \"0s\" }\nworker: {", "sweep.every", "1s"),
        ("worker: {", "sweep: { window: 30s }\nworker: {", "sweep.window", "1m"),
        ("worker: {", "sweep: { enabled: off }\nworker: {", "sweep.enabled", "true or false"),
        ("max_body: \"256KiB\"", "max-body: 1", "ingress.max-body", "did you mean max_body?"),
        ("\"127.0.0.1:9100\"", "localhost:80", "ingress.listen", "IP address and a port"),
        ("\"127.0.0.1:9100\"", "8080", "ingress.listen", "IP address and a port"),
        ("\"256KiB\"", "256 KB", "ingress.max_body", "must be a size"),
        ("\"256KiB\"", "0", "ingress.max_body", "from 1024 to 67108864"),
        ("max_body: \"256KiB\"", "public_url: \"ftp://x\"", "ingress.public_url", "http:// or https://"),
        ("{ listen: \"127.0.0.1:9100\", max_body: \"256KiB\" }", "[1]", "ingress", "must be a map"),
        ("case-token-case-token", "short", "admin.token", "at least 16"),
        ("127.0.0.1:9109\", token: \"case-token-case-token\"", "0.0.0.0:9109\"", "admin.token", "not loopback"),
        ("type: embedded", "type: kafka", "queue.type", "must be one of embedded, rabbitmq"),
        ("type: embedded", "type: embedded, url: \"amqp://x\"", "queue.url", "unknown key"),
        ("type: embedded", "type: rabbitmq", "queue.url", "required"),
        ("type: embedded", "type: rabbitmq, url: \"http://x\"", "queue.url", "amqp://"),
        ("type: embedded", "type: rabbitmq, url: \"amqp://x\", prefetch: 0", "queue.prefetch", "from 1 to 65535"),
        ("type: embedded", "type: rabbitmq, url: \"amqp://x\", prefix: \"a b\"", "queue.prefix", "must be"),
        ("type: embedded", "type: rabbitmq, url: \"amqp://x\", topology: no", "queue.topology", "manage, verify"),
        ("sqlite://case.db", "postgres://h/d", "queue.type", "embedded needs a sqlite:// store"),
        ("sqlite://case.db", "mysql://h/d", "store.url", "sqlite://file or postgres://"),
        ("concurrency: 64", "concurrency: -1", "worker.concurrency", "whole number from 1"),
        ("concurrency: 64", "concurrency: 1.5", "worker.concurrency", "whole number from 1"),
        ("concurrency: 64", "lease: 30", "worker.lease", "a duration with a unit"),
        ("concurrency: 64", "lease: 0s", "worker.lease", "from 100ms to 1h"),
        ("concurrency: 64", "unknown_functions: ignore", "worker.unknown_functions", "leave, fail"),
        ("max_attempts: 8", "initial: 10m", "retry.initial", "not be longer than max, which is 5m"),
        ("max_attempts: 8", "multiplier: 0.5", "retry.multiplier", "from 1 to 100"),
        ("log: json", "log: xml", "telemetry.log", "json, text"),
        ("log: json", "otlp: \"localhost:4318\"", "telemetry.otlp", "http:// or https://"),
        ("name: openai", "name: OpenAI", "platforms[0].name", "lower-case"),
        ("name: openai, ", "", "platforms[0].name", "required"),
        ("type: agents_api", "type: openai", "platforms[0].type", "must be one of agents_api, aivax"),
        ("type: agents_api", "type: agents_api, workflow_runs: true", "platforms[0].workflow_runs", "only Rebyte"),
        ("http://127.0.0.1:9101/v1", "127.0.0.1:9101", "platforms[0].base_url", "http:// or https://"),
        ("http://127.0.0.1:9101/v1", "http://u:p@h/v1", "platforms[0].base_url", "without user"),
        ("http://127.0.0.1:9101/v1", "http://h:99999/v1", "platforms[0].base_url", "http:// or https://"),
        ("http://127.0.0.1:9101/v1", "http://h/v1#x", "platforms[0].base_url", "fragment"),
        ("type: agents_api", "type: agents_api, flavor: x", "platforms[0].flavor", "openai, rebyte"),
        ("\"sk-case\"", "\"\"", "platforms[0].api_key", "must not be empty"),
        ("\"sk-case\"", "12345", "platforms[0].api_key", "put it in quotes"),
        ("\"sk-case\"", "\"a\\nb\"", "platforms[0].api_key", "control character"),
        ("scheme: standard", "scheme: hmac", "platforms[0].webhook.scheme", "standard, shared_secret"),
        ("scheme: standard", "scheme: standard, tolerance: 0s", "platforms[0].webhook.tolerance", "from 1s"),
        ("scheme: standard", "insecure: true", "platforms[0].webhook.secrets", "remove one"),
        ("scheme: standard", "scheme: shared_secret, header: \"a b\"", "platforms[0].webhook.header", "HTTP header"),
        (WEBHOOK, "insecure: true, sceme: standard", "platforms[0].webhook.sceme", "did you mean scheme?"),
        ("name: f,", "name: \"f g\",", "functions[0].name", "1 to 64 letters"),
        (&function, &second, "functions[1].name", "item 0 of the list has this name"),
        ("{ type: object }", "{ type: string }", "functions[0].parameters", "type must be object"),
        ("{ type: object }", "[]", "functions[0].parameters", "JSON Schema"),
        ("name: f,", "name: f, if_interrupted: maybe,", "functions[0].if_interrupted", "rerun, fail, hold"),
        ("name: f,", "name: f, retry: { max_attempts: 0 },", "functions[0].retry.max_attempts", "from 1 to 1000"),
        ("name: f,", "name: f, limits: { concurrency: 0 },", "functions[0].limits.concurrency", "from 1"),
        ("name: f,", "name: f, limits: { rate: 50 },", "functions[0].limits.rate", "such as 50/s"),
        ("name: f,", "name: f, limits: { rate: 0/s },", "functions[0].limits.rate", "such as 50/s"),
        ("name: f,", "name: f, limits: { rate: 5/day },", "functions[0].limits.rate", "such as 50/s"),
        ("name: f,", "name: f, limits: { adaptive: 5 },", "functions[0].limits.adaptive", "true or false"),
        ("name: f,", "name: f, limits: { burst: 5 },", "functions[0].limits.burst", "unknown key"),
        ("name: f,", "name: f, allow: \"metadata.plan ==\",", "functions[0].allow", "not a CEL expression"),
        ("name: f,", "name: f, require_metadata: [5],", "functions[0].require_metadata[0]", "put it in quotes"),
        ("name: f,", "name: f, platforms: [rebyte],", "functions[0].platforms[0]", "name of a platform"),
        ("name: f,", "name: f, platforms: [~],", "functions[0].platforms[0]", "must not be empty"),
        ("name: f,", "name: f, platforms: [],", "functions[0].platforms", "must name a platform"),
        ("name: f,", "name: f, platforms: openai,", "functions[0].platforms", "must be a list"),
        ("name: f,", "name: f, deferred: maybe,", "functions[0].deferred", "true or false"),
        (HANDLER, "type: magic", "functions[0].handler.type", "http, command, query_collection, mcp, echo"),
        (HANDLER, "url: x", "functions[0].handler.type", "required"),
        (HANDLER, "type: http", "functions[0].handler.url", "required"),
        (HANDLER, "type: http, url: x", "functions[0].handler.url", "http:// or https://"),
        (HANDLER, "type: echo, url: x", "functions[0].handler.url", "unknown key"),
        (HANDLER, "type: command", "functions[0].handler.command", "required"),
        (HANDLER, "type: command, command: []", "functions[0].handler.command", "begin with the program"),
        (HANDLER, "type: command, command: ls -l", "functions[0].handler.command", "must be a list"),
        (HANDLER, "type: command, command: [a, 5]", "functions[0].handler.command[1]", "put it in quotes"),
        (HANDLER, "type: command, command: [a, \"\\0\"]", "functions[0].handler.command[1]", "NUL"),
        (HANDLER, "type: command, command: [a], env: { A B: c }", "functions[0].handler.env[\"A B\"]", "variable"),
        (
            HANDLER,
            "type: command, command: [a], env: { ACTIOND_X: c }",
            "functions[0].handler.env.ACTIOND_X",
            "actiond",
        ),
        (HANDLER, "type: command, command: [a], pass_env: [a=b]", "functions[0].handler.pass_env[0]", "variable"),
        (HANDLER, "type: command, command: [a], cwd: \"\"", "functions[0].handler.cwd", "empty"),
        ("body: arguments", "body: xml", "functions[0].handler.body", "protocol, arguments"),
        ("body: arguments", "response: xml", "functions[0].handler.response", "text, content, image"),
        ("body: arguments", "max_response: 0", "functions[0].handler.max_response", "size"),
        ("timeout: \"2s\"", "timeout: 2", "functions[0].handler.timeout", "duration"),
    ] {
        let found = lines(with(from, to));
        assert_eq!(found.len(), 1, "{to}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}: ")) && found[0].contains(part), "{to}: {found:?}");
    }
}

const PLATFORMS: &str = "platforms:\n";
const AIVAX: &str = r#"platforms:
  - { name: aivax, type: aivax, hook_keys: ["hook-key-hook-key"], api_key: "sk-aiv-key" }
"#;
const PUBLIC: &str = r#"ingress: { listen: "127.0.0.1:9100", public_url: "https://h" }"#;

/// The base with an AIVAX account, and one text in place of another.
fn with_aivax(from: &str, to: &str) -> Result<Loaded, Errors> {
    let ingress = BASE.lines().nth(1).unwrap();
    let text = BASE.replace(ingress, PUBLIC).replace(PLATFORMS, AIVAX).replace("name: f,", "name: fun,");
    assert!(text.contains(from), "{from}");
    parse(&text.replace(from, to), &env)
}

#[test]
fn an_aivax_account_has_keys_and_no_webhook() {
    let loaded = with_aivax("sk-aiv-key", "sk-aiv-key").unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let platform::Kind::Aivax(aivax) = &loaded.config.platforms[0].kind else { panic!("not aivax") };
    assert_eq!((aivax.cost.clone(), aivax.budget, aivax.hook_keys.len()), (10..=13, Duration::from_secs(25), 1));
    assert_eq!(aivax.base_url, "https://inference.aivax.net/api/v1");
    let two = r#"listing_secret: ["first-token-first", "second-token-second"], type: aivax"#;
    let loaded = with_aivax("type: aivax", two).unwrap();
    let platform::Kind::Aivax(aivax) = &loaded.config.platforms[0].kind else { panic!("not aivax") };
    assert_eq!(aivax.listing_secrets.len(), 2);
    let debug = format!("{loaded:?}");
    for secret in ["sk-aiv", "hook-key", "first-token"] {
        assert!(!debug.contains(secret), "{secret}");
    }
    let keys = r#"hook_keys: ["hook-key-hook-key"]"#;
    for (from, to, path, part) in [
        (PUBLIC, "", "ingress.public_url", "platform aivax is told to call"),
        (keys, "hook_keys: []", "platforms[0].hook_keys", "one key, or two"),
        (keys, "hook_keys: [hook-key-1, hook-key-2, hook-key-3]", "platforms[0].hook_keys", "one key, or two"),
        (keys, "budget: 20s", "platforms[0].hook_keys", "required"),
        (keys, "hook_keys: hook-key-hook-key", "platforms[0].hook_keys", "must be a list"),
        (keys, "hook_keys: [short]", "platforms[0].hook_keys[0]", "at least 8"),
        ("type: aivax", "type: aivax, budget: 1h", "platforms[0].budget", "from 1s to 5m"),
        ("type: aivax", "type: aivax, cost: { min: 3 }", "platforms[0].cost.min", "from 4 to 16"),
        ("type: aivax", "type: aivax, cost: { min: 14 }", "platforms[0].cost.min", "more than max, which is 13"),
        ("type: aivax", "type: aivax, listing_key: short", "platforms[0].listing_key", "at least 16"),
        ("type: aivax", "type: aivax, listing_key: \"a b&c=d/e?f#ghijklmn\"", "platforms[0].listing_key", "URL"),
        ("type: aivax", "type: aivax, listing_secret: [short]", "platforms[0].listing_secret[0]", "at least 16"),
        ("type: aivax", "type: aivax, webhook: { insecure: true }", "platforms[0].webhook", "unknown key"),
        ("name: fun,", "name: fun, dedupe: 2,", "functions[0].dedupe", "duration"),
    ] {
        let found = lines(with_aivax(from, to));
        assert!(
            found.iter().any(|line| line.starts_with(&format!("{path}: ")) && line.contains(part)),
            "{to}: {found:?}"
        );
    }
}

#[test]
fn a_search_needs_its_collection_and_an_account() {
    let search = |keys: &str| with_aivax(HANDLER, &format!("type: query_collection{keys}"));
    let loaded = search(", collection: c-1").unwrap();
    let handler::Config::QueryCollection(query) = &loaded.config.functions[0].handler else { panic!("no search") };
    assert_eq!((query.top, query.min, query.references, query.reranker.as_str()), (5, 0.2, false, "rrf"));
    let text = BASE.replace(HANDLER, "type: query_collection, collection: c-1");
    let found = lines(parse(&text, &env));
    assert!(found.len() == 1 && found[0].starts_with("functions[0].handler.platform: required"), "{found:?}");
    for (keys, path) in [
        ("", "collection"),
        (", collection: c, top: 0", "top"),
        (", collection: c, min: 1.5", "min"),
        (", collection: c, platform: openai", "platform"),
        (", collection: c, url: x", "url"),
    ] {
        let found = lines(search(keys));
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("functions[0].handler.{path}: ")),
            "{keys}: {found:?}"
        );
    }
    let fixed = with_aivax("parameters: { type: object }, ", "").unwrap().config.functions[0].parameters.clone();
    assert_eq!(fixed["type"], "object");
}

#[test]
fn a_handler_can_be_signed_for_in_two_ways() {
    let sign = |keys: &str| with(HANDLER, &format!("{HANDLER}, sign: {keys}"));
    let signed = |keys: &str| match &sign(keys).unwrap().config.functions[0].handler {
        handler::Config::Http(http) => (http.sign.nonce.is_some(), http.sign.standard.is_some()),
        _ => panic!("not http"),
    };
    assert_eq!(signed("{ nonce: sixteen-letters-1 }"), (true, false));
    assert_eq!(signed("{ standard: \"${S}\" }"), (false, true));
    for (keys, path) in [("{}", ""), ("{ nonce: short }", ".nonce"), ("{ standard: whsec_! }", ".standard"), ("x", "")]
    {
        let found = lines(sign(keys));
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("functions[0].handler.sign{path}: ")),
            "{keys}: {found:?}"
        );
    }
}

#[test]
fn sources_are_read_and_told_apart_by_url_and_key() {
    let sources = |list: &str| parse(&format!("{BASE}function_sources: [{list}]"), &env);
    let loaded = sources("{ url: \"https://h/f\" }, { url: \"https://h/f\", hook_key: sixteen-letters-1 }").unwrap();
    assert_eq!(loaded.config.function_sources.len(), 2);
    assert_eq!(loaded.config.function_sources[0].ttl, Duration::from_secs(600));
    for (list, path) in [
        ("{}", "[0].url"),
        ("{ url: \"https://h/f\" }, { url: \"https://h/f\" }", "[1].url"),
        ("{ url: \"aivax://h\" }", "[0].url"),
        ("{ url: \"https://h/f\", ttl: 0s }", "[0].ttl"),
        ("{ url: \"https://h/f\", allow_hosts: [\"h:80\"] }", "[0].allow_hosts[0]"),
        ("{ url: \"https://h/f\", allow_hosts: [\"*\"] }", "[0].allow_hosts[0]"),
        ("{ url: \"https://h/f\", headers: { X-Request-Nonce: x } }", "[0].headers.X-Request-Nonce"),
        ("{ url: \"https://h/f\", platforms: [rebyte] }", "[0].platforms[0]"),
        ("{ url: \"https://h/f\", platform: openai }", "[0].platform"),
    ] {
        let found = lines(sources(list));
        assert!(found.len() == 1 && found[0].starts_with(&format!("function_sources{path}: ")), "{list}: {found:?}");
    }
}

#[test]
fn names_that_clash_at_a_platform_are_told_with_the_platform() {
    let rebyte = |name: &str, keys: &str| {
        let second = r#"- { name: rebyte, type: agents_api, base_url: "https://api.rebyte.ai/v1", api_key: k, webhook: { insecure: true } }"#;
        let text = BASE.replace("name: f,", &format!("name: {name}, {keys}"));
        lines(parse(&text.replace("functions:", &format!("  {second}\nfunctions:")), &env))
    };
    for (name, part) in [("rebyte_orders", "must not begin with rebyte_"), ("run_code", "a built-in tool")] {
        let found = rebyte(name, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("functions[0].name: ") && found[0].contains(part), "{found:?}");
        assert!(found[0].contains("platform rebyte"), "{found:?}");
        assert!(rebyte(name, "platforms: [openai],").is_empty(), "it is not declared there");
    }
    assert!(rebyte("run_codes", "").is_empty());
}

#[test]
fn the_flavor_is_guessed_from_the_host_unless_it_is_said() {
    for (url, keys, flavor) in [
        ("https://api.openai.com/v1", "", platform::Flavor::OpenAi),
        ("https://API.rebyte.ai/v1", "", platform::Flavor::Rebyte),
        ("https://notrebyte.ai/v1", "", platform::Flavor::OpenAi),
        ("https://rebyte.ai.example.com/v1", "", platform::Flavor::OpenAi),
        ("https://proxy.internal/v1", ", flavor: rebyte", platform::Flavor::Rebyte),
        ("https://api.rebyte.ai/v1", ", flavor: openai", platform::Flavor::OpenAi),
    ] {
        let loaded = with("\"http://127.0.0.1:9101/v1\"", &format!("\"{url}\"{keys}")).unwrap();
        assert_eq!(loaded.config.platforms[0].flavor(), flavor, "{url}");
    }
}

#[test]
fn limits_are_read() {
    let keys = "name: f, limits: { concurrency: 8, rate: 100/m, adaptive: true }, require_metadata: [user],";
    let function = with("name: f,", keys).unwrap().config.functions.remove(0);
    let rate = Some(crate::limits::Rate { count: 100, per: Duration::from_secs(60) });
    assert_eq!(function.limits, crate::limits::Config { concurrency: Some(8), rate, adaptive: true });
    assert_eq!(function.require_metadata, ["user"]);
}

#[test]
fn a_digest_tells_which_sections_changed() {
    let digest = |text: &str, n: &str| parse(text, &|name| (name == "N").then(|| n.to_owned())).unwrap().digest;
    let before = digest("telemetry: { log: json }\nworker: { concurrency: \"${N}\" }", "5");
    assert_eq!(before, digest("telemetry: { log: json }\nworker: { concurrency: \"${N}\" }", "5"));
    let spaced = digest("telemetry: {log: json}\nworker: { concurrency: \"${N}\" }", "5");
    assert!(spaced != before && spaced.changed(&before).is_empty());
    assert_eq!(digest("telemetry: { log: json }\nworker: { concurrency: \"${N}\" }", "6").changed(&before), ["worker"]);
    assert_eq!(
        digest("retry: { max: 5m }\ntelemetry: { log: text }", "5").changed(&before),
        ["retry", "telemetry", "worker"]
    );
}

#[test]
fn all_problems_are_told_at_once_and_none_twice() {
    let errors = parse(
        "{ingress: {listen: x, port: 1}, platforms: [{name: a}, {name: a, type: agents_api, api_key: '${NOT_SET}'}], functions: [{}], extra: '${B}'}",
        &env,
    )
    .unwrap_err();
    let paths: Vec<&str> = errors.problems().iter().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        paths,
        [
            "ingress.listen",
            "ingress.port",
            "platforms[0].type",
            "platforms[0].webhook",
            "platforms[1].base_url",
            "platforms[1].api_key",
            "platforms[1].webhook",
            "platforms[1].name",
            "functions[0].name",
            "functions[0].handler",
            "extra",
        ]
    );
    assert!(errors.to_string().starts_with("actiond.yaml: 11 problems\n  ingress.listen: must be"), "{errors}");
}

#[test]
fn a_signing_secret_is_a_key_that_nobody_guesses() {
    for (secrets, part) in [
        (r#"["whsec_!!!!"]"#, "not base64"),
        (r#"["whsec_"]"#, "empty key"),
        (r#"["whsec_AAAA"]"#, "at least 16 bytes"),
        (r#"["whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"]"#, "not base64"),
        (r#"["too-short"]"#, "at least 16 bytes"),
        (r#"[""]"#, "must not be empty"),
        (r#"["\n"]"#, "must not be empty"),
        ("[~]", "must not be empty"),
    ] {
        let found = lines(with(SECRETS, &format!("secrets: {secrets}")));
        assert_eq!(found.len(), 1, "{secrets}: {found:?}");
        assert!(found[0].starts_with("platforms[0].webhook.secrets[0]: ") && found[0].contains(part), "{found:?}");
        assert!(!found[0].contains("!!!!") && !found[0].contains("AAECAw") && !found[0].contains("too-short"));
    }
    for secrets in ["secrets: []", "tolerance: 5m"] {
        let found = lines(with(SECRETS, secrets));
        assert!(found.len() == 1 && found[0].starts_with("platforms[0].webhook.secrets: needs"), "{found:?}");
    }
    let short = with(SECRETS, r#"secrets: ["whsec_AAECAwQFBgcICQoLDA0ODw=="]"#).unwrap();
    assert!(short.warnings[0].starts_with("platforms[0].webhook.secrets[0]: the key is short"), "{:?}", short.warnings);
}

#[test]
fn a_line_feed_at_the_end_of_a_secret_is_dropped() {
    let loaded = with(SECRETS, r#"secrets: ["${S}"]"#).unwrap();
    let Some(platform::WebhookConfig::Standard { secrets, .. }) = &loaded.config.platforms[0].intake.webhook else {
        panic!()
    };
    assert_eq!(secrets[0].expose_secret(), "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    assert_eq!(api_key(&with("sk-case", "${KEY_LF}").unwrap()), "sk-case");
}

#[test]
fn empty_shared_secrets_and_tokens_are_refused() {
    for (from, to, path) in [
        (WEBHOOK, r#"scheme: shared_secret, secrets: [""]"#, "platforms[0].webhook.secrets[0]"),
        (WEBHOOK, r#"scheme: shared_secret, secrets: ["${MISSING:-}"]"#, "platforms[0].webhook.secrets[0]"),
        (WEBHOOK, r#"scheme: shared_secret, secrets: ["fifteen-letters"]"#, "platforms[0].webhook.secrets[0]"),
        (WEBHOOK, "scheme: shared_secret, secrets: []", "platforms[0].webhook.secrets"),
        (WEBHOOK, "scheme: shared_secret", "platforms[0].webhook.secrets"),
        (
            r#"listen: "127.0.0.1:9109", token: "case-token-case-token""#,
            r#"listen: "0.0.0.0:9109", token: "${ACTIOND_ADMIN_TOKEN:-}""#,
            "admin.token",
        ),
    ] {
        let found = lines(with(from, to));
        assert!(found.len() == 1 && found[0].starts_with(&format!("{path}: ")), "{to}: {found:?}");
    }
    let loopback = with("case-token-case-token", "${ACTIOND_ADMIN_TOKEN:-}").unwrap();
    assert!(loopback.config.admin.token.is_none());
}

#[test]
fn a_value_from_outside_is_text_and_never_syntax() {
    let platform = "name: openai\n    type: agents_api\n    base_url: https://h\n    webhook: { insecure: true }";
    for text in [BASE.replace("sk-case", "${K}"), format!("platforms:\n  - {platform}\n    api_key: ${{K}}\n")] {
        assert_eq!(api_key(&parse(&text, &env).unwrap()), "pa$$w0rd${HOME}#x: \"y");
    }
    let found = lines(with("\"sk-case\"", "${K}"));
    assert!(found.len() == 1 && found[0].ends_with("put ${…} in quotes"), "{found:?}");
    assert_eq!(api_key(&with("\"sk-case\"", "\"a${N}b\"").unwrap()), "a0123456b");
    assert_eq!(api_key(&with("\"sk-case\"", "\"$${K}\"").unwrap()), "${K}");
    assert_eq!(api_key(&with("sk-case", "${U}").unwrap()), "é");

    let loaded = headers("{ X-N: \"${N}\", X-E: \"${E}\", X-B: \"${B}\", X-D: \"${MISSING:-}\" }").unwrap();
    assert_eq!(first_headers(&loaded), [("X-B", "no"), ("X-D", ""), ("X-E", "1e10"), ("X-N", "0123456")]);

    let found = lines(headers("{ X-J: \"${J}\" }"));
    assert!(found.len() == 1 && found[0].starts_with("functions[0].handler.headers.X-J: "), "{found:?}");
    assert!(!found[0].contains("token"), "{found:?}");

    let found = lines(with("\"sk-case\"", "\"${MISSING}\", call_deadline: x"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains(&"platforms[0].api_key: MISSING is not set; set it, or write ${MISSING:-default}".into()));
}

#[test]
fn text_from_outside_can_be_a_number_or_a_switch() {
    let loaded = with("concurrency: 64", "concurrency: \"${FIVE}\", lease: \"${FIVE}m\"").unwrap();
    assert_eq!((loaded.config.worker.concurrency, loaded.config.worker.lease), (5, Duration::from_secs(300)));
    let loaded = with(WEBHOOK, "insecure: \"${TRUE}\"").unwrap();
    assert!(matches!(loaded.config.platforms[0].intake.webhook, Some(platform::WebhookConfig::Insecure)));
    let found = lines(with("concurrency: 64", "concurrency: \"${E}\", grace_period: \"${N}\""));
    assert!(
        found.len() == 2 && found.iter().all(|line| !line.contains("1e10") && !line.contains("0123456")),
        "{found:?}"
    );
}

#[test]
fn headers_that_are_ours_or_impossible_are_refused() {
    for (map, path) in [
        ("{ content-type: a }", ".content-type"),
        ("{ Host: a }", ".Host"),
        ("{ Content-Length: '5' }", ".Content-Length"),
        ("{ Idempotency-Key: a }", ".Idempotency-Key"),
        ("{ \"a b\": c }", "[\"a b\"]"),
        ("{ X-A: 5 }", ".X-A"),
        ("{ X-A: ~ }", ".X-A"),
        ("{ X-A: a, x-a: b }", ".x-a"),
        ("{ X-A: \"a\\r\\nb\" }", ".X-A"),
    ] {
        let found = lines(headers(map));
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("functions[0].handler.headers{path}: ")),
            "{map}: {found:?}"
        );
    }
}

#[test]
fn what_is_allowed_but_unwise_is_a_warning() {
    for (from, to, path) in [
        (WEBHOOK, "insecure: true", "platforms[0].webhook.insecure"),
        ("http://127.0.0.1:9101/v1", "http://agents.example.com/v1", "platforms[0].base_url"),
        ("type: embedded", "type: rabbitmq, url: \"amqp://localhost\"", "store"),
    ] {
        let warnings = with(from, to).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].starts_with(&format!("{path}: ")), "{to}: {warnings:?}");
    }
    for host in ["localhost:9101", "[::1]:9101", "127.9.9.9"] {
        assert!(with("127.0.0.1:9101", host).unwrap().warnings.is_empty(), "{host}");
    }
    assert_eq!(parse("{}", &env).unwrap().warnings.len(), 1);
}

#[test]
fn a_schema_that_does_not_compile_is_told_by_path_and_shows_nothing_from_outside() {
    let found = lines(with("{ type: object }", "{ type: object, properties: { a: { type: 5 } } }"));
    assert!(found.len() == 1 && found[0].starts_with("functions[0].parameters"), "{found:?}");
    let found = lines(with("{ type: object }", "{ type: object, required: \"${N}\" }"));
    assert!(found.len() == 1 && !found[0].contains("0123456"), "{found:?}");
    assert!(
        with("{ type: object }", "{ type: object, $defs: { x: {} }, properties: { a: { $ref: '#/$defs/x' } } }")
            .is_ok()
    );
}

#[test]
fn a_function_overrides_only_the_retry_keys_it_has() {
    let text = BASE
        .replace("max_attempts: 8", "initial: 2s, max_attempts: 3")
        .replace("name: f,", "name: f, retry: { max: 10s },");
    let policy = parse(&text, &env).unwrap().config.functions[0].retry.clone();
    assert_eq!((policy.initial, policy.max, policy.max_attempts), (Duration::from_secs(2), Duration::from_secs(10), 3));
}

#[test]
fn secrets_do_not_print() {
    let loaded = headers("{ X-A: \"header-value\" }").unwrap();
    let debug = format!("{loaded:?}");
    for secret in ["sk-case", "case-token", "whsec_", "header-value"] {
        assert!(!debug.contains(secret), "{secret}");
    }
}

#[test]
fn a_server_is_an_address_or_a_program_and_its_tools_are_named_by_handlers() {
    let config = |servers: &str, handler: &str| {
        let text = BASE.replace(HANDLER, handler);
        parse(&format!("{text}mcp_servers: {servers}\n"), &env)
    };
    let tool = "type: mcp, server: s, tool: t, timeout: 1s";
    let loaded =
        config(r#"[{ name: s, url: "http://127.0.0.1:9102/mcp", headers: { X-Key: "${K}" }, import: {} }]"#, tool);
    let loaded = loaded.unwrap().config;
    let mcp::Config { link: mcp::Link::Http { headers, .. }, import: Some(import), .. } = &loaded.mcp_servers[0] else {
        panic!("{loaded:?}")
    };
    assert_eq!(headers[0].1.expose_secret(), "pa$$w0rd${HOME}#x: \"y");
    assert_eq!((import.prefix.as_str(), import.only.len(), import.if_interrupted), ("", 0, None));
    let handler::Config::Mcp(handler) = &loaded.functions[0].handler else { panic!("not mcp") };
    assert_eq!((handler.server.as_str(), handler.tool.as_str()), ("s", "t"));

    let program = "{ name: s, command: [server] }";
    for (servers, handler, problem) in [
        ("[{ name: s }]", tool, "mcp_servers[0]: needs a url"),
        (r#"[{ name: s, url: "http://h/mcp", command: [x] }]"#, tool, "mcp_servers[0].command: a server has either"),
        (r#"[{ name: s, url: "http://h/mcp", cwd: /tmp }]"#, tool, "mcp_servers[0].cwd: unknown key"),
        ("[{ name: s, command: [] }]", tool, "mcp_servers[0].command: must begin with the program"),
        ("[{ name: s, command: [x], headers: {} }]", tool, "mcp_servers[0].headers: unknown key"),
        (r#"[{ name: s, url: "ftp://h/" }]"#, tool, "mcp_servers[0].url: must be an http"),
        (
            r#"[{ name: s, url: "http://h/", headers: { Mcp-Session-Id: x } }]"#,
            tool,
            ".headers.Mcp-Session-Id: is set by",
        ),
        (&format!("[{program}, {program}]"), tool, "mcp_servers[1].name: item 0"),
        ("[{ name: s, command: [x], import: { prefix: 'a b' } }]", tool, "mcp_servers[0].import.prefix: must be"),
        ("[{ name: s, command: [x], import: { only: [] } }]", tool, "mcp_servers[0].import.only: must name a tool"),
        (&format!("[{program}]"), "type: mcp, server: other, tool: t", "functions[0].handler.server: must be the name"),
        (&format!("[{program}]"), "type: mcp, server: s", "functions[0].handler.tool: required"),
        (&format!("[{program}]"), "type: mcp, server: s, tool: t, url: x", "functions[0].handler.url: unknown key"),
    ] {
        let found = lines(config(servers, handler));
        assert!(found.len() == 1 && found[0].contains(problem), "{servers} {handler}: {found:?}");
    }
}

#[test]
fn a_pool_is_named_before_something_is_pinned_to_it() {
    let pinned = |worker: &str, function: &str, more: &str| {
        let text = BASE.replace("concurrency: 64", worker).replace("name: f,", &format!("name: f, {function}"));
        parse(&format!("{text}{more}"), &env)
    };
    let import = |prefix: &str, keys: &str| {
        format!("  - {{ name: m{prefix}, url: 'http://h/', import: {{ prefix: {prefix}, {keys} }} }}\n")
    };
    let servers = format!("mcp_servers:\n{}{}", import("a_", "pool: gpu"), import("b_", "only: [x]"));
    let sources = "function_sources:\n  - { url: 'http://h/list', pool: gpu }\n";
    let config = pinned("pools: [gpu, web-2]", "pool: gpu,", &format!("{servers}{sources}")).unwrap().config;
    assert_eq!(config.worker.pools, ["gpu", "web-2"]);
    assert_eq!(config.functions[0].pool.as_deref(), Some("gpu"));
    assert_eq!(config.function_sources[0].pool.as_deref(), Some("gpu"));
    assert_eq!(config.mcp_servers[0].import.as_ref().unwrap().pool.as_deref(), Some("gpu"));
    let clash = |second: String| format!("mcp_servers:\n{}{second}", import("a_", "pool: gpu"));
    for (worker, function, more, path, part) in [
        ("concurrency: 64", "pool: gpu,", "", "functions[0].pool", "a pool in worker.pools"),
        ("pools: [gpu]", "pool: cpu,", "", "functions[0].pool", "a pool in worker.pools"),
        ("pools: [gpu]", "pool: [gpu],", "", "functions[0].pool", "text"),
        ("pools: gpu", "", "", "worker.pools", "must be a list"),
        ("pools: [gpu, gpu]", "", "", "worker.pools[1]", "listed already"),
        ("pools: [GPU]", "", "", "worker.pools[0]", "lowercase"),
        ("pools: [-gpu]", "", "", "worker.pools[0]", "a dash"),
        ("concurrency: 64", "", sources, "function_sources[0].pool", "a pool in worker.pools"),
        ("concurrency: 64", "", &servers, "mcp_servers[0].import.pool", "a pool in worker.pools"),
        ("pools: [gpu]", "", &clash(import("a_b", "only: [x]")), "mcp_servers[1].import.prefix", "server ma_"),
        ("pools: [gpu]", "", &clash(import("a", "only: [_x]")), "mcp_servers[1].import.prefix", "another pool"),
        ("pools: [gpu]", "", &clash(import("a_b", "retry: {}")), "mcp_servers[1].import", "unknown key"),
    ] {
        let found = lines(pinned(worker, function, more));
        let right = |line: &String| line.starts_with(path) && line.contains(part);
        assert!(found.iter().any(right), "{worker} {function} {more}: {found:?}");
    }
    let apart = pinned("pools: [gpu]", "", &clash(import("a", "only: [x]")));
    assert_eq!(lines(apart), Vec::<String>::new());
}

#[test]
fn a_pinned_function_that_a_platform_calls_by_itself_is_warned_of() {
    let text = BASE.lines().nth(1).unwrap();
    let text = BASE.replace(text, PUBLIC).replace(PLATFORMS, AIVAX).replace("concurrency: 64", "pools: [gpu]");
    let loaded = parse(&text.replace("name: f,", "name: fun, pool: gpu,"), &env).unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("platform aivax calls the ingress"), "{:?}", loaded.warnings);
}

#[test]
fn the_example_is_the_defaults_and_needs_two_variables() {
    let loaded = parse(EXAMPLE, &env).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(lines(parse(EXAMPLE, &|_| None)).len(), 2);
    let least = "{platforms: [{name: openai, type: agents_api, base_url: 'https://api.openai.com/v1', api_key: x, webhook: {secrets: [sixteen-letters-and-more]}}]}";
    let mut example = loaded.config;
    let defaults = parse(least, &env).unwrap().config;
    example.functions.clear();
    assert_eq!(format!("{example:?}"), format!("{defaults:?}"));
}

#[test]
fn every_line_of_the_example_that_is_commented_out_works() {
    let (head, queue) = EXAMPLE.split_once("queue:\n  type: embedded\n").unwrap();
    let uncommented: String = format!("{head}{queue}")
        .lines()
        .map(|line| match line.trim_start().strip_prefix('#') {
            Some(rest) if !rest.is_empty() && (!rest.starts_with(' ') || rest.starts_with("  ")) => {
                format!("{}{rest}\n", &line[..line.len() - rest.len() - 1])
            }
            _ => format!("{line}\n"),
        })
        .collect();
    let config = parse(&uncommented, &env).unwrap_or_else(|errors| panic!("{errors}\n{uncommented}")).config;
    assert!(matches!(config.queue, queue::Config::RabbitMq(_)));
    assert_eq!(
        config.functions.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        ["echo", "lookup_order", "find", "word_count"]
    );
}

#[test]
fn a_file_that_is_no_config_is_one_problem() {
    for text in ["a: [", "[]", "5", "just text", "a: 1\na: 2", "\u{0}"] {
        assert_eq!(lines(parse(text, &env)).len(), 1, "{text:?}");
    }
    let missing = load(Path::new("no-such-actiond.yaml")).unwrap_err();
    assert!(missing.to_string().contains("no no-such-actiond.yaml here; run actiond init"), "{missing}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = parse(&text, &env);
    }

    #[test]
    fn no_change_of_the_example_panics(at in 0usize..5000, cut in 0usize..40, put in "[ -~\\n\\t\u{0}é]{0,12}") {
        let floor = |at: usize| (0..=at.min(EXAMPLE.len())).rev().find(|i| EXAMPLE.is_char_boundary(*i)).unwrap_or(0);
        let (start, end) = (floor(at), floor(at + cut));
        if let Err(errors) = parse(&format!("{}{put}{}", &EXAMPLE[..start], &EXAMPLE[end..]), &env) {
            prop_assert!(errors.problems().iter().all(|line| !line.contains('\n') && !line.contains("sk-openai")));
        }
    }

    #[test]
    fn no_value_in_place_of_another_panics(which in 0usize..200, put in prop::sample::select(vec!["~", "[]", "{}", "5", "-1.5", "''", "'x'", "true", "[[]]", "{a: b}", "'${K}'", "'${J}'", "'${'", "'\\\\'"])) {
        let lines: Vec<String> = EXAMPLE.lines().enumerate().map(|(i, line)| match line.split_once(": ") {
            Some((key, _)) if i == which => format!("{key}: {put}"),
            _ => line.into(),
        }).collect();
        let _ = parse(&lines.join("\n"), &env);
    }
}
