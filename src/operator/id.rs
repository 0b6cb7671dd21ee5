//! Ids and cursors as they stand in an address: base64 of JSON, so that whatever a platform calls its sessions fits.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::session::{CallKey, SessionKey};

/// Longer ones name nothing: each part is a platform's id.
const MAX: usize = 16 << 10;

/// A call's id in the API.
pub fn encode(key: &CallKey) -> String {
    pack(&[&key.session.platform, &key.session.session, &key.turn, &key.call_id])
}

/// The call that an id names; `None` where it names none.
pub fn decode(id: &str) -> Option<CallKey> {
    let [platform, session, turn, call]: [String; 4] = unpack(id)?.try_into().ok()?;
    Some(CallKey::new(SessionKey::new(platform, session), turn, call))
}

/// A place in a list of calls by time: behind the one of that time.
pub(crate) fn cursor(at: i64, key: &CallKey) -> String {
    pack(&[&at.to_string(), &key.session.platform, &key.session.session, &key.turn, &key.call_id])
}

pub(crate) fn read_cursor(cursor: &str) -> Option<(i64, CallKey)> {
    let [at, platform, session, turn, call]: [String; 5] = unpack(cursor)?.try_into().ok()?;
    Some((at.parse().ok()?, CallKey::new(SessionKey::new(platform, session), turn, call)))
}

pub(super) fn pack(parts: &[&str]) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(parts).unwrap_or_default()) // text always serializes
}

/// No database keeps U+0000 in a text.
pub(super) fn unpack(text: &str) -> Option<Vec<String>> {
    let bytes = (text.len() <= MAX).then(|| URL_SAFE_NO_PAD.decode(text).ok())??;
    let parts: Vec<String> = serde_json::from_slice(&bytes).ok()?;
    (!parts.iter().any(|part| part.contains('\0'))).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_comes_back_and_what_is_no_id_names_nothing() {
        let odd = CallKey::new(SessionKey::new("p", "a/../b?c#d é\u{202e}"), "", "call \"0\"\n");
        let id = encode(&odd);
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{id}");
        assert_eq!(decode(&id), Some(odd.clone()));
        assert_eq!(read_cursor(&cursor(-7, &odd)), Some((-7, odd.clone())));
        assert_eq!((decode(&cursor(1, &odd)), read_cursor(&id)), (None, None));
        let long = "A".repeat(MAX + 1);
        for wrong in ["", "x", "====", "bnVsbA", &pack(&["a", "b", "c", "d\0"]), &long, &pack(&["a"])] {
            assert!(decode(wrong).is_none(), "{wrong}");
        }
    }
}
