//! Where a value stands: `functions[2].handler.url`.

/// The path of a key's value.
pub(super) fn key(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'$'));
    match (path.is_empty(), plain) {
        (true, true) => key.into(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

/// The path of a list's item.
pub(super) fn index(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// The key of `known` that was probably meant.
pub(super) fn meant<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let far = if unknown.len() < 5 { 1 } else { 2 };
    known.into_iter().map(|k| (distance(unknown, k), k)).filter(|(d, _)| *d <= far).min().map(|(_, k)| k)
}

/// Levenshtein distance; long words are never near.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let next = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_meant() {
        let known = ["listen", "max_body", "public_url", "url"];
        assert_eq!(meant("lisen", known), Some("listen"));
        assert_eq!(meant("max-body", known), Some("max_body"));
        assert_eq!(meant("uri", known), Some("url"));
        assert_eq!(meant("sweep", known), None);
        assert_eq!(meant("", known), None);
        assert_eq!(meant(&"x".repeat(100_000), known), None);
    }
}
