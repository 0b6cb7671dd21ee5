//! Text from outside, as it can be shown to a person.

/// Control characters, and what turns or hides text, are escaped; the rest stays as it is.
pub(crate) fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        match is_harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
        shown
    })
}

/// Whether a terminal would obey it, or a person would not see what is there.
pub(crate) fn is_harmful(c: char) -> bool {
    let formats = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}', '\u{feff}'..='\u{feff}'];
    c.is_control() || formats.iter().any(|range| range.contains(&c))
}

/// Compact JSON over several lines, for a person who decides what is done with it.
pub(crate) fn pretty(json: &str) -> String {
    let value: Result<serde_json::Value, _> = serde_json::from_str(json);
    let text = value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_else(|_| json.to_owned());
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_the_rest_is_left() {
        assert_eq!(escape("a\0b\x1b[2Jc\u{9b}d\u{202e}é\n"), "a\\u{0}b\\u{1b}[2Jc\\u{9b}d\\u{202e}é\\n");
    }

    #[test]
    fn json_is_laid_out_with_its_digits_and_without_what_hides() {
        assert_eq!(pretty("{\"a\":1.50,\"b\":\"x\u{202e}\"}"), "{\n  \"a\": 1.50,\n  \"b\": \"x\\u{202e}\"\n}");
        assert_eq!(pretty("no json"), "no json");
    }
}
