//! What strangers send, as random bytes and as valid inputs gone wrong. `tests/fuzz/run` looks longer and deeper.

use std::path::PathBuf;

use proptest::{collection::vec, prelude::*, sample::Index};

#[path = "../fuzz/checks.rs"]
mod checks;

/// The inputs that the fuzz targets start from.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// One thing that goes wrong with an input.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Cut(Index, Index),
    Repeat(Index, Index),
    Insert(Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let spots = || (any::<Index>(), any::<Index>());
    let odd: Vec<&[u8]> = vec![
        b"\0",
        b"\n",
        b"\"",
        b"\\",
        b"{",
        b"}",
        b"[",
        b",",
        b":",
        b"null",
        b"-1",
        b"1e999",
        b"\\ud800",
        b"\xff",
        b"..",
        b"${",
        b"${S}",
        b"${X:-y}",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!binary ",
        b"|\n",
        b"SIGN",
        b"v1,",
        b" ",
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Flip(at, byte)),
        spots().prop_map(|(from, to)| Damage::Cut(from, to)),
        spots().prop_map(|(from, to)| Damage::Repeat(from, to)),
        (any::<Index>(), vec(any::<u8>(), 0..8)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), proptest::sample::select(odd)).prop_map(|(at, bytes)| Damage::Insert(at, bytes.to_vec())),
    ]
}

fn suffer(mut input: Vec<u8>, damages: Vec<Damage>) -> Vec<u8> {
    for damage in damages {
        let spot = |at: &Index| at.index(input.len() + 1);
        let range = |a: &Index, b: &Index| spot(a).min(spot(b))..spot(a).max(spot(b));
        match &damage {
            Damage::Flip(at, byte) => {
                let spot = spot(at);
                if let Some(there) = input.get_mut(spot) {
                    *there = *byte;
                }
            }
            Damage::Cut(from, to) => drop(input.drain(range(from, to))),
            Damage::Repeat(from, to) => {
                let range = range(from, to);
                let copy = input[range.clone()].to_vec();
                input.splice(range.end..range.end, copy);
            }
            Damage::Insert(at, bytes) => {
                let spot = spot(at);
                input.splice(spot..spot, bytes.iter().copied());
            }
        }
    }
    input
}

/// Random bytes, or a valid input with up to six damages.
fn inputs(target: &str) -> impl Strategy<Value = Vec<u8>> {
    let valid = proptest::sample::select(corpus(target));
    prop_oneof![
        1 => vec(any::<u8>(), 0..300),
        4 => (valid, vec(damage(), 0..6)).prop_map(|(input, damages)| suffer(input, damages)),
    ]
}

#[test]
fn each_check_starts_from_an_input_that_is_taken() {
    type Check = fn(&[u8]) -> bool;
    let checks: [(&str, Check); 5] = [
        ("signature", checks::signature),
        ("event", checks::event),
        ("session", checks::session),
        ("config", checks::config),
        ("message", checks::message),
    ];
    for (target, check) in checks {
        assert!(corpus(target).iter().any(|input| check(input)), "{target}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn only_what_was_signed_passes(input in inputs("signature")) {
        checks::signature(&input);
    }

    #[test]
    fn any_event_names_a_usable_session_or_nothing(input in inputs("event")) {
        checks::event(&input);
    }

    #[test]
    fn any_session_is_read_call_by_call(input in inputs("session")) {
        checks::session(&input);
    }

    #[test]
    fn any_config_is_taken_or_refused_without_its_secrets(input in inputs("config")) {
        checks::config(&input);
    }

    #[test]
    fn any_message_is_an_action_or_a_reason(input in inputs("message")) {
        checks::message(&input);
    }
}
