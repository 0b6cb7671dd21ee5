//! The scripted model's language: which functions the input message tells it to call, and in which rounds.
//!
//! ```text
//! lookup_order {"order_id":"42"}                   one call
//! lookup_order {"order_id":"42"} & refund {"id":1} two calls in parallel: one round
//! a {} then b {}                                   two rounds; a new line or `;` does the same as `then`
//! call ping                                        no arguments are `{}`; after `call` any JSON value may follow
//! call ping none                                   the field `arguments` is missing
//! lookup_order#call_0 {"order_id":"42"}            an explicit call id
//! call lookup_order "{\"order_id\":\"42\"}"        arguments as a JSON string
//! lookup_order raw "{\"a\":1}{"                    the string's content is pasted into answers as it is, legal JSON or not
//! await approval                                   an MCP approval request; also `browser`, `environment` or any other type
//! program a {} then b {} & c {}                    a program of the model's makes the calls, to the end of the line: a call that
//!                                                  fails or expires ends the program, not the turn
//! fail: out of credit                              the turn and the session fail
//! ```
//!
//! JSON is passed on byte for byte (`1e400`, duplicate keys, white space). Any other line is prose and calls nothing.

use std::collections::VecDeque;

use serde_json::value::RawValue;

/// What the model will do in one turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    pub rounds: VecDeque<Round>,
    /// Why a line that looked like a call was taken for prose.
    pub problem: Option<String>,
}

/// One move of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Round {
    /// Never empty: all of these are pending at once.
    Act(Vec<Step>),
    /// The same, asked for by a program that the model wrote; the number tells the programs of a script apart.
    Nested(u32, Vec<Step>),
    Fail(String),
}

/// One required action.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Call {
        name: String,
        call_id: Option<String>,
        /// Text that is pasted as the value of `arguments`; `None` leaves the field out.
        arguments: Option<String>,
    },
    /// An action that is no function call; the `type` of the required action.
    Wait { kind: String },
}

impl Script {
    /// Never fails: what is no script is prose.
    pub fn parse(text: &str) -> Self {
        let mut script = Self::default();
        let (mut rest, mut programs, mut within) = (text, 0, false);
        loop {
            rest = rest.trim_start_matches([' ', '\t', '\r', '\n', ';']);
            if rest.is_empty() {
                return script;
            }
            if let Some(after) = keyword(rest, "program").filter(|after| round(after).is_ok()) {
                (rest, programs, within) = (after, programs + 1, true);
            }
            match round(rest) {
                Ok((next, after)) => {
                    script.rounds.push_back(match next {
                        Round::Act(steps) if within => Round::Nested(programs, steps),
                        next => next,
                    });
                    // What follows `then` begins with white space.
                    within = within && after.starts_with([' ', '\t']);
                    rest = after;
                }
                Err(problem) => {
                    script.problem = script.problem.or(problem);
                    within = false;
                    rest = rest.split_once('\n').map_or("", |(_, after)| after);
                }
            }
        }
    }
}

/// `None` as the error: plain prose.
type Parsed<'a, T> = Result<(T, &'a str), Option<String>>;

fn round(text: &str) -> Parsed<'_, Round> {
    if let Some(after) = text.strip_prefix("fail:") {
        let (message, after) = after.split_once('\n').unwrap_or((after, ""));
        return Ok((Round::Fail(message.trim().to_owned()), after));
    }
    let mut steps = Vec::new();
    let mut rest = text;
    loop {
        let (next, after) = step(rest).map_err(|problem| match (problem, steps.is_empty()) {
            (None, false) => Some("a call is missing after `&`".to_owned()),
            (problem, _) => problem,
        })?;
        steps.push(next);
        rest = after.trim_start_matches([' ', '\t', '\r']);
        match rest.strip_prefix('&') {
            Some(after) => rest = after.trim_start(),
            None => break,
        }
    }
    if rest.is_empty() || rest.starts_with(['\n', ';']) {
        return Ok((Round::Act(steps), rest));
    }
    match rest.strip_prefix("then") {
        Some(after) if after.starts_with(char::is_whitespace) => Ok((Round::Act(steps), after)),
        _ => Err(Some("unexpected text after a call; separate calls by `&`, `then`, `;` or a new line".to_owned())),
    }
}

fn step(text: &str) -> Parsed<'_, Step> {
    if let Some(after) = keyword(text, "await") {
        let (kind, after) = word(after);
        if kind.is_empty() {
            return Err(None);
        }
        let kind = match kind {
            "approval" => "mcp_approval_request",
            "browser" => "computer_use_approval_request",
            "environment" => "environment_connection",
            other => other,
        };
        return Ok((Step::Wait { kind: kind.to_owned() }, after));
    }
    let (explicit, text) = keyword(text, "call").map_or((false, text), |after| (true, after));
    let (name, after) = word(text);
    let (call_id, after) = match after.strip_prefix('#') {
        Some(after) => {
            let (id, after) = word(after);
            (Some(id.to_owned()), after)
        }
        None => (None, after),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || call_id.as_deref() == Some("") || !explicit && !name.chars().all(plain) {
        return Err(None);
    }
    let (arguments, after) = arguments(after, explicit)?;
    Ok((Step::Call { name: name.to_owned(), call_id, arguments }, after))
}

/// Without the word `call` only `{…}` and `raw "…"` are arguments, so that prose stays prose.
fn arguments(after_name: &str, explicit: bool) -> Parsed<'_, Option<String>> {
    let text = after_name.trim_start_matches([' ', '\t']);
    if let Some(quoted) = keyword(text, "raw").filter(|quoted| quoted.starts_with('"')) {
        let (json, after) = json(quoted)?;
        let pasted = serde_json::from_str(json).map_err(|error| Some(format!("raw arguments: {error}")))?;
        return Ok((Some(pasted), after));
    }
    if !explicit && !text.starts_with('{') {
        return Err(None);
    }
    if let Some(after) = text.strip_prefix("none") {
        return Ok((None, after));
    }
    if text.is_empty() || text.starts_with(['\r', '\n', ';', '&']) || keyword(text, "then").is_some() {
        return Ok((Some("{}".to_owned()), text));
    }
    let (json, after) = json(text)?;
    Ok((Some(json.to_owned()), after))
}

/// One JSON value at the start of the text, lexically checked only: its numbers, keys and escapes may be absurd.
fn json(text: &str) -> Parsed<'_, &str> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    match values.next() {
        Some(Ok(value)) => Ok((value.get(), &text[values.byte_offset()..])),
        Some(Err(error)) => Err(Some(format!("the arguments of a call are no JSON: {error}"))),
        None => Err(None),
    }
}

fn keyword<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let after = text.strip_prefix(word)?;
    let trimmed = after.trim_start_matches([' ', '\t']);
    (trimmed.len() < after.len()).then_some(trimmed)
}

fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_whitespace() || "#&;{\"".contains(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> Step {
        Step::Call { name: name.to_owned(), call_id: None, arguments: Some(arguments.to_owned()) }
    }

    fn rounds(text: &str) -> Vec<Round> {
        let script = Script::parse(text);
        assert_eq!(script.problem, None, "{text}");
        script.rounds.into()
    }

    #[test]
    fn calls_joined_by_ampersand_share_a_round() {
        let both = Round::Act(vec![call("lookup_order", r#"{"order_id":"42"}"#), call("refund", r#"{"id":1}"#)]);
        assert_eq!(rounds(r#"lookup_order {"order_id":"42"} & refund {"id":1}"#), vec![both.clone()]);
        assert_eq!(rounds("lookup_order {\"order_id\":\"42\"} &\n refund {\"id\":1}\n"), vec![both]);
    }

    #[test]
    fn then_semicolon_and_new_line_start_the_next_round() {
        let expected = vec![Round::Act(vec![call("a", "{}")]), Round::Act(vec![call("b", "{}")])];
        for text in ["a {} then b {}", "a {}; b {}", "a {}\nb {}", "a {}\r\n\r\nb {}", "call a then call b"] {
            assert_eq!(rounds(text), expected, "{text}");
        }
    }

    #[test]
    fn arguments_keep_every_byte() {
        for json in [
            r#"{"a":1e400,"a": 2}"#,
            "{\n \"deep\" : [[[]]] }",
            r#"{"s":"\ud800"}"#,
            r#"{"n":10000000000000000000001}"#,
        ] {
            assert_eq!(rounds(&format!("f {json}")), vec![Round::Act(vec![call("f", json)])]);
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(rounds(&format!("f {deep}")), vec![Round::Act(vec![call("f", &deep)])]);
    }

    #[test]
    fn odd_arguments_have_a_form() {
        assert_eq!(rounds(r#"f raw "{\"a\":1}{""#), vec![Round::Act(vec![call("f", r#"{"a":1}{"#)])]);
        assert_eq!(rounds(r#"call f "{\"a\":1}""#), vec![Round::Act(vec![call("f", r#""{\"a\":1}""#)])]);
        assert_eq!(rounds("call f 7"), vec![Round::Act(vec![call("f", "7")])]);
        let none = Step::Call { name: "f".to_owned(), call_id: Some("call_0".to_owned()), arguments: None };
        assert_eq!(rounds("call f#call_0 none"), vec![Round::Act(vec![none])]);
    }

    #[test]
    fn other_actions_and_failure_have_a_form() {
        let wait = |kind: &str| Round::Act(vec![Step::Wait { kind: kind.to_owned() }]);
        assert_eq!(rounds("await approval\nawait tomorrow"), vec![wait("mcp_approval_request"), wait("tomorrow")]);
        assert_eq!(rounds("fail: out of credit"), vec![Round::Fail("out of credit".to_owned())]);
    }

    #[test]
    fn a_program_goes_to_the_end_of_its_line() {
        let nested = |program, name| Round::Nested(program, vec![call(name, "{}")]);
        let expected = vec![nested(1, "a"), nested(1, "b"), Round::Act(vec![call("c", "{}")]), nested(2, "d")];
        assert_eq!(rounds("program a {} then b {}\nc {}; program d {}"), expected);
        assert!(Script::parse("program notes").rounds.is_empty());
    }

    #[test]
    fn prose_calls_nothing() {
        for text in [
            "",
            "hello",
            "Please call me back.",
            "what does refund do?",
            "{\"a\":1}",
            "payload: {}",
            "a & b",
            "lookup_order",
        ] {
            assert!(Script::parse(text).rounds.is_empty(), "{text}");
        }
        let mixed = Script::parse("Look this up, please:\nlookup_order {\"order_id\":\"42\"}\nThank you");
        assert_eq!(mixed.rounds.len(), 1);
    }

    #[test]
    fn a_broken_call_is_named() {
        for text in ["f {\"a\":}", "f {} & ", "f {} please", "call f {"] {
            let script = Script::parse(text);
            assert!(script.rounds.is_empty() && script.problem.is_some(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "[a-z{}\"#&;\\[\\]:, \n\\\\]{0,60}") {
            Script::parse(&text);
        }
    }
}
