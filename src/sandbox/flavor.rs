//! Which platform the sandbox behaves like, where they differ.

use serde_json::{Map, Value};

use super::{error::ApiError, input::Input};
use crate::{platform, session::Part};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Flavor {
    /// OpenAI's Agents API
    #[default]
    Openai,
    /// Rebyte: results need an Idempotency-Key and are answered 204, images are capped, some names are reserved, and there
    /// are workflow runs
    Rebyte,
}

impl Flavor {
    /// The status of an accepted result.
    pub fn accepted_status(self) -> u16 {
        match self {
            Self::Openai => 202,
            Self::Rebyte => 204,
        }
    }

    /// Whether a result without Idempotency-Key is refused.
    pub fn requires_key(self) -> bool {
        self == Self::Rebyte
    }

    fn rules(self) -> platform::Flavor {
        match self {
            Self::Openai => platform::Flavor::OpenAi,
            Self::Rebyte => platform::Flavor::Rebyte,
        }
    }

    /// Whether an agent's functions may be named so.
    pub(super) fn check(self, agent: &Map<String, Value>) -> Result<(), ApiError> {
        let tools = agent.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (index, tool) in tools.iter().enumerate().filter(|(_, tool)| tool["type"] == "function") {
            let name = tool["name"].as_str().unwrap_or_default();
            let wrong = |what| ApiError::invalid(format!("tools[{index}].name: {what}"));
            self.rules().check_name(name).map_err(wrong)?;
        }
        Ok(())
    }

    /// Whether the images of a result may be as large as they are.
    pub(super) fn check_images(self, input: &Input) -> Result<(), ApiError> {
        let Input::ToolResult { result, .. } = input else { return Ok(()) };
        let images = result.output.as_array().into_iter().flatten().filter_map(|part| part["image_url"].as_str());
        for image_url in images {
            let content = vec![Part::Image { image_url: image_url.to_owned() }];
            let result = crate::session::ToolResult::Success(content.into());
            if let crate::session::ToolResult::Error(_) = self.rules().fitting(result) {
                return Err(ApiError::invalid("output: an image is too large, or has no https or data URL"));
            }
        }
        Ok(())
    }
}
