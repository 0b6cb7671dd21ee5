//! YAML text to a JSON value, strictly: one document, no key twice, no tags, bounded work.

use serde_json::Value;

/// The document. The error is one line that begins with line and column and quotes nothing of the file but keys.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 200_000,
            max_nodes: 100_000,
            max_depth: 64,
            max_total_scalar_bytes: 4 * 1024 * 1024,
        },
        // `no` and `0123` are what they look like; booleans are `true` and `false`.
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| describe(&error, text))
}

fn describe(error: &serde_saphyr::Error, text: &str) -> String {
    let message = error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let message =
        message.split(" at line ").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let Some(at) = error.location() else { return message };
    let line = usize::try_from(at.line()).ok().and_then(|n| text.lines().nth(n.checked_sub(1)?));
    let hint = if line.is_some_and(|line| line.contains("${")) { "; put ${…} in quotes" } else { "" };
    format!("line {}, column {}: {message}{hint}", at.line(), at.column())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_what_they_look_like() {
        let value = parse("{a: no, b: 0123456, c: 1_000, d: 0.1, e: true, f: ~, g: 1048576, h: '5'}").unwrap();
        assert_eq!(
            value,
            json!({"a": "no", "b": "0123456", "c": "1_000", "d": 0.1, "e": true, "f": null, "g": 1_048_576, "h": "5"})
        );
    }

    #[test]
    fn numbers_up_to_64_bits_keep_their_digits() {
        let value = parse("[2512292042121000001, 18446744073709551615, -9223372036854775808, 0.1, 10.15]").unwrap();
        assert_eq!(value.to_string(), "[2512292042121000001,18446744073709551615,-9223372036854775808,0.1,10.15]");
    }

    #[test]
    fn what_is_wrong_is_told_with_line_and_column() {
        for text in
            ["a: 1\nb: 2\na: 3\n", "a: [1\n", "a: \"x\n", "a: !exec x\n", "a: *b\n", "a: 1\n---\nb: 2\n", "a: 1e999\n"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("line "), "{text:?}: {error}");
            assert!(!error.contains('\n') && !error.contains("serde"), "{text:?}: {error}");
        }
        let error = parse("a: 1\nb: 2\na: 3\n").unwrap_err();
        assert!(error.starts_with("line 3, column 1: duplicate"), "{error}");
    }

    #[test]
    fn a_small_file_cannot_ask_for_endless_work() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for i in 1..12 {
            let aliases = vec![format!("*a{}", i - 1); 9].join(", ");
            bomb += &format!("a{i}: &a{i} [{aliases}]\n");
        }
        assert!(parse(&bomb).is_err());
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
