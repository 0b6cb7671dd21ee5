//! Server-sent events: which of them say that a session waits. Nothing else of them is kept.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use reqwest::Response;
use serde_json::value::RawValue;

use super::Waits;

/// A connection that says nothing for so long is given up: streams send comments to stay alive.
const QUIET: Duration = Duration::from_secs(300);
/// Of one event, which carries the whole session. A larger one is taken for a wait: a look costs a read.
const MAX_EVENT: usize = 16 << 20;
/// Of an event's id that can stand in a log line.
const MAX_ID: usize = 128;
const WAITS: &str = "agent.session.requires_action";

pub(super) fn waits(response: Response) -> Waits {
    let state = (response, Parser::default(), VecDeque::new());
    stream::unfold(state, |(mut response, mut parser, mut found)| async move {
        loop {
            if let Some(id) = found.pop_front() {
                return Some((id, (response, parser, found)));
            }
            match tokio::time::timeout(QUIET, response.chunk()).await {
                Ok(Ok(Some(chunk))) => parser.feed(&chunk, &mut found),
                Ok(Ok(None) | Err(_)) | Err(_) => return None,
            }
        }
    })
    .boxed()
}

/// What has come of an event that is not complete.
#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    /// The line before ended with a carriage return, so that a line feed ends no other.
    returned: bool,
    kind: Vec<u8>,
    data: Vec<u8>,
    size: usize,
}

impl Parser {
    fn feed(&mut self, chunk: &[u8], found: &mut VecDeque<String>) {
        for &byte in chunk {
            let returned = std::mem::replace(&mut self.returned, byte == b'\r');
            match byte {
                b'\n' if returned => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    found.extend(self.take(&line));
                }
                // What is too large is counted, not kept.
                _ => {
                    self.size += 1;
                    if self.size <= MAX_EVENT {
                        self.line.push(byte);
                    }
                }
            }
        }
    }

    /// An empty line ends the event: its id, if it says that the session waits.
    fn take(&mut self, line: &[u8]) -> Option<String> {
        let value = |name: &[u8]| {
            let value = line.strip_prefix(name)?.strip_prefix(b":")?;
            Some(value.strip_prefix(b" ").unwrap_or(value))
        };
        if let Some(kind) = value(b"event") {
            self.kind = kind.to_vec();
        } else if let Some(data) = value(b"data") {
            self.data.extend_from_slice(data);
            self.data.push(b'\n');
        } else if line.is_empty() {
            let event = std::mem::take(self);
            self.returned = event.returned;
            return event.wait();
        }
        None
    }

    fn wait(&self) -> Option<String> {
        if self.size > MAX_EVENT {
            return Some(String::new());
        }
        // Most events are others, and are not read further.
        if !self.kind.is_empty() && self.kind != WAITS.as_bytes() {
            return None;
        }
        let fields: HashMap<String, &RawValue> = serde_json::from_slice(&self.data).ok()?;
        let text = |name: &str| serde_json::from_str::<String>(fields.get(name)?.get()).ok();
        let kind = text("type").unwrap_or_else(|| String::from_utf8_lossy(&self.kind).into_owned());
        let is_plain = |id: &String| id.len() <= MAX_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
        (kind == WAITS).then(|| text("event_id").filter(is_plain).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8], cut: usize) -> Vec<String> {
        let (mut parser, mut found) = (Parser::default(), VecDeque::new());
        for chunk in text.chunks(cut.max(1)) {
            parser.feed(chunk, &mut found);
        }
        found.into()
    }

    const STREAM: &str = ": hello\n\n\
        event: agent.session.in_progress\ndata: {\"event_id\":\"e0\",\"type\":\"agent.session.in_progress\"}\n\n\
        event: agent.session.requires_action\ndata: {\"event_id\":\"e1\",\"type\":\"agent.session.requires_action\",\"session\":{}}\n\n\
        data:{\"event_id\":\"e2\",\ndata:\"type\":\"agent.session.requires_action\"}\n\n\
        event: agent.session.requires_action\ndata: {\"x\":\"\\ud800\"}\n\n\
        event: agent.session.requires_action\ndata: not json\n\n\
        data: {\"event_id\":\"e3\"}\n\n\
        event: agent.session.requires_action\ndata: {\"event_id\":\"e4\"}\n";

    #[test]
    fn only_events_that_say_that_the_session_waits_are_told() {
        for cut in 1..40 {
            for end in ["\n", "\r\n", "\r"] {
                let text = STREAM.replace('\n', end);
                assert_eq!(read(text.as_bytes(), cut), ["e1", "e2", ""], "{cut} {end:?}: the last one is not complete");
            }
        }
    }

    #[test]
    fn an_event_that_is_too_large_is_a_wait_and_takes_no_room() {
        let mut text = b"event: agent.session.idle\ndata: ".to_vec();
        text.resize(MAX_EVENT + 100, b'x');
        text.extend_from_slice(b"\n\n");
        text.extend_from_slice(b"event: agent.session.requires_action\ndata: {\"event_id\":\"e\"}\n\n");
        assert_eq!(read(&text, 1 << 16), ["", "e"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), any::<u8>()], 0..300), cut in 1..50usize) {
            read(&text, cut);
        }
    }
}
