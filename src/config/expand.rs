//! `${NAME}`, `${NAME:-default}` and `${file:/path}` in the values of a parsed file. What is put in is data: always text,
//! never syntax, never expanded again. `$${` is a literal `${`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
};

use serde_json::Value;

use super::path;

/// A file put in may be this long.
const MAX_FILE: u64 = 1024 * 1024;

/// What happened, by path.
#[derive(Debug, Default)]
pub(super) struct Expansion {
    /// Values that could not be made, and why. They are null now.
    pub(super) failed: BTreeMap<String, String>,
    /// Values that hold something from outside, which no message may show.
    pub(super) expanded: BTreeSet<String>,
}

/// Expands every text value in place; keys stay as they are.
pub(super) fn expand(value: &mut Value, env: &dyn Fn(&str) -> Option<String>) -> Expansion {
    let mut expansion = Expansion::default();
    walk(value, String::new(), env, &mut expansion);
    expansion
}

fn walk(value: &mut Value, path: String, env: &dyn Fn(&str) -> Option<String>, expansion: &mut Expansion) {
    match value {
        Value::String(text) if text.contains("${") => match text_of(text, env) {
            Ok(new) => {
                *text = new;
                expansion.expanded.insert(path);
            }
            Err(why) => {
                *value = Value::Null;
                expansion.failed.insert(path, why);
            }
        },
        Value::Array(items) => {
            items.iter_mut().enumerate().for_each(|(i, v)| walk(v, path::index(&path, i), env, expansion));
        }
        Value::Object(map) => map.iter_mut().for_each(|(k, v)| walk(v, path::key(&path, k), env, expansion)),
        _ => {}
    }
}

fn text_of(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, inner) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            out += before;
            out += "${";
            rest = inner;
            continue;
        }
        let end = inner.find('}').ok_or("`${` has no `}`; a literal `${` is written `$${`")?;
        out += before;
        out += &lookup(&inner[..end], env)?;
        rest = &inner[end + 1..];
    }
    Ok(out + rest)
}

fn lookup(inner: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    if let Some(path) = inner.strip_prefix("file:").filter(|path| !path.starts_with('-')) {
        return read(path);
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    if !is_variable(name) {
        return Err("a variable is written ${NAME}, ${NAME:-default} or ${file:/path}".into());
    }
    if default.is_some_and(|d| d.contains("${")) {
        return Err(format!("the default of {name} cannot hold another variable"));
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.into()),
        (None, None) => Err(format!("{name} is not set; set it, or write ${{{name}:-default}}")),
    }
}

/// The file's text without one trailing line end.
fn read(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|e| format!("cannot open {path}: {e}"))?;
    let length = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|e| format!("cannot read {path}: {e}"))?;
    if length as u64 > MAX_FILE {
        return Err(format!("{path} is larger than 1MiB"));
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).into())
}

pub(super) fn is_variable(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "K" => "pa$$w0rd${HOME}#x: \"y",
            "J" => "a\"\nadmin: { token: \"\" }",
            "N" => "0123456",
            "EMPTY" => "",
            "HOME" => "wrong",
            _ => return None,
        };
        Some(value.into())
    }

    #[test]
    fn what_is_put_in_is_data() {
        for (text, expected) in [
            ("${K}", "pa$$w0rd${HOME}#x: \"y"),
            ("${J}", "a\"\nadmin: { token: \"\" }"),
            ("a${N}b${N}", "a0123456b0123456"),
            ("${MISSING:-}", ""),
            ("${MISSING:-a:-b}", "a:-b"),
            ("${EMPTY}|${EMPTY:-d}", "|d"),
            ("$${K}", "${K}"),
            ("$$${K}", "$${K}"),
            ("$${", "${"),
            ("$K $$ {K} $", "$K $$ {K} $"),
            ("é${N}é", "é0123456é"),
        ] {
            assert_eq!(text_of(text, &env).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_put_in_is_told_without_its_value() {
        for text in [
            "${MISSING}",
            "${",
            "${K",
            "${}",
            "${1}",
            "${a b}",
            "${:-x}",
            "${K:-${N}}",
            "${file:/no/such/file}",
            "${file:}",
        ] {
            let error = text_of(text, &env).unwrap_err();
            assert!(!error.contains("pa$$"), "{text}: {error}");
        }
        assert!(text_of("${MISSING}", &env).unwrap_err().contains("MISSING is not set"));
    }

    #[test]
    fn a_file_loses_one_line_end() {
        let file = std::env::temp_dir().join(format!("actiond-expand-{}", std::process::id()));
        for (content, expected) in [("s3cret\n", "s3cret"), ("s3cret\r\n", "s3cret"), ("a\n\n", "a\n"), ("", "")] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(text_of(&format!("${{file:{}}}", file.display()), &env).unwrap(), expected);
        }
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(text_of(&format!("${{file:{}}}", file.display()), &env).is_err());
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn values_are_expanded_at_every_depth_and_keys_are_not() {
        let mut value = json!({"${N}": ["${N}", {"a b": "${MISSING}"}], "n": 1});
        let expansion = expand(&mut value, &env);
        assert_eq!(value, json!({"${N}": ["0123456", {"a b": null}], "n": 1}));
        assert_eq!(expansion.failed.keys().collect::<Vec<_>>(), [r#"["${N}"][1]["a b"]"#]);
        assert_eq!(expansion.expanded.into_iter().collect::<Vec<_>>(), [r#"["${N}"][0]"#]);
    }
}
