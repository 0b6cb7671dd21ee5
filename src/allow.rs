//! `allow` and `approval.required`: CEL expressions over a call; the only file that knows the `cel` crate.

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cel::{
    Context, IdedExpr, Program, Value as Cel,
    common::ast::{EntryExpr, Expr},
};
use serde_json::{Map, Value};

use crate::{arguments::Arguments, platform};

/// Bytes of an expression.
const MAX_EXPRESSION: usize = 500;
/// The function itself is no variable: CEL keeps the word, and a rule belongs to one.
const VARIABLES: [&str; 3] = ["arguments", "metadata", "platform"];

/// A compiled expression. What it costs is bounded by its length and by what it looks at: it loops once at most.
#[derive(Clone)]
pub struct Rule {
    text: String,
    program: Arc<Program>,
}

impl Rule {
    /// The error says what is wrong, on one line.
    pub fn compile(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() || text.len() > MAX_EXPRESSION {
            return Err(format!("must be an expression of at most {MAX_EXPRESSION} bytes"));
        }
        let program = catch_unwind(|| Program::compile(text)).map_err(|_| "is not a CEL expression".to_owned())?;
        let program = program.map_err(|_| "is not a CEL expression".to_owned())?;
        let loops = loops(program.expression());
        if loops > 1 {
            return Err("must not have more than one of all, exists, exists_one, filter, map".into());
        }
        let references = program.references();
        if let Some(name) = references.variables().into_iter().find(|name| loops == 0 && !VARIABLES.contains(name)) {
            return Err(format!("knows no {name}; there are {}", VARIABLES.join(", ")));
        }
        Ok(Self { text: text.to_owned(), program: Arc::new(program) })
    }

    /// Whether it says true. What cannot be evaluated, a missing key for example, is a refusal.
    pub fn allows(&self, platform: &str, arguments: &Arguments, metadata: &Map<String, Value>) -> bool {
        self.says(platform, arguments, metadata) == Some(true)
    }

    /// True or false, of an account's runs as of its sessions; `None` where it cannot be evaluated, or to something else.
    pub fn says(&self, platform: &str, arguments: &Arguments, metadata: &Map<String, Value>) -> Option<bool> {
        let evaluate = || {
            let mut context = Context::default();
            context.add_variable_from_value("platform", platform::named(platform));
            context.add_variable_from_value("arguments", cel(arguments.value()));
            context.add_variable_from_value("metadata", object(metadata));
            match self.program.execute(&context) {
                Ok(Cel::Bool(said)) => Some(said),
                _ => None,
            }
        };
        catch_unwind(AssertUnwindSafe(evaluate)).unwrap_or(None)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

fn cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Cel::Int(whole),
            (None, Some(float)) => Cel::Float(float),
            (None, None) => Cel::Null,
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(cel).collect::<Vec<_>>().into(),
        Value::Object(map) => object(map),
    }
}

fn object(map: &Map<String, Value>) -> Cel {
    map.iter().map(|(key, value)| (key.clone(), cel(value))).collect::<HashMap<String, Cel>>().into()
}

/// How many comprehensions an expression has.
fn loops(expression: &IdedExpr) -> usize {
    let all = |expressions: &[IdedExpr]| expressions.iter().map(loops).sum::<usize>();
    let entry = |entry: &EntryExpr| match entry {
        EntryExpr::StructField(field) => loops(&field.value),
        EntryExpr::MapEntry(entry) => loops(&entry.key) + loops(&entry.value),
    };
    match &expression.expr {
        Expr::Comprehension(c) => {
            let parts = [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result];
            1 + parts.into_iter().map(loops).sum::<usize>()
        }
        Expr::Call(call) => call.target.as_deref().map_or(0, loops) + all(&call.args),
        Expr::Select(select) => loops(&select.operand),
        Expr::List(list) => all(&list.elements),
        Expr::Map(map) => map.entries.iter().map(|e| entry(&e.expr)).sum(),
        Expr::Struct(value) => value.entries.iter().map(|e| entry(&e.expr)).sum(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn allows(rule: &str) -> bool {
        let arguments =
            r#"{"amount":50,"price":1.5,"to":"eu","deep":{"list":[1,2]},"big":123456789012345678901234567890}"#;
        let arguments = Arguments::parse(Some(arguments)).unwrap();
        let metadata = json!({ "plan": "gold", "roles": ["clerk", "admin"] });
        Rule::compile(rule).unwrap().allows("openai", &arguments, metadata.as_object().unwrap())
    }

    #[test]
    fn a_rule_looks_at_metadata_platform_and_arguments() {
        for rule in [
            "true",
            "metadata.plan == 'gold' && arguments.amount <= 100",
            "metadata['plan'] in ['gold', 'silver']",
            "platform == 'openai' && metadata.plan.startsWith('go')",
            "arguments.deep.list[1] == 2 && size(arguments.deep.list) == 2",
            "arguments.price < 2.0",
            "arguments.big > 1.0e29",
            "!has(metadata.blocked)",
            "metadata.roles.exists(role, role == 'admin')",
        ] {
            assert!(allows(rule), "{rule}");
        }
    }

    #[test]
    fn an_account_s_runs_are_of_the_account() {
        let arguments = Arguments::parse(Some("{}")).unwrap();
        let says =
            |platform: &str| Rule::compile("platform == 'rebyte'").unwrap().allows(platform, &arguments, &Map::new());
        assert!(says("rebyte") && says("rebyte.runs") && !says("other.runs") && !says("rebyte.walks"));
    }

    #[test]
    fn what_is_not_plainly_true_is_refused() {
        for rule in [
            "false",
            "metadata.plan == 'silver'",
            "metadata.missing == 'x'",
            "metadata.missing != 'x'",
            "metadata.plan > 5",
            "metadata.plan",
            "arguments.amount",
            "null",
            "1 / (arguments.amount - 50) > 0",
        ] {
            assert!(!allows(rule), "{rule}");
        }
    }

    #[test]
    fn what_cannot_be_a_rule_is_told() {
        let wrong = |rule: &str| Rule::compile(rule).unwrap_err();
        assert!(wrong("metadata.plan ==").contains("not a CEL expression"));
        assert!(wrong("metdata.plan == 'x'").contains("knows no metdata"));
        assert!(wrong("").contains("an expression"));
        assert!(wrong(&format!("'{}' == 'x'", "a".repeat(500))).contains("at most 500"));
        let nested = "arguments.deep.list.all(a, arguments.deep.list.all(b, a + b > 0))";
        assert!(wrong(nested).contains("more than one"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = Rule::compile(&text);
        }
    }
}
