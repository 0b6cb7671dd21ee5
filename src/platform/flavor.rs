//! How platforms of one type differ in what they let be declared and returned.

use crate::session::{Output, Part, ToolResult};

/// Names that Rebyte keeps for its own tools.
const REBYTE_BUILT_INS: [&str; 11] = [
    "apply_patch",
    "call_tool",
    "exec_command",
    "list_mcp_resource_templates",
    "list_mcp_resources",
    "read_mcp_resource",
    "run_code",
    "search_tools",
    "tool_search",
    "view_image",
    "write_stdin",
];
const REBYTE_PREFIX: &str = "rebyte_";
/// Bytes of an image's URL that Rebyte takes.
const REBYTE_IMAGE: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    OpenAi,
    Rebyte,
    Aivax,
}

impl Flavor {
    /// Whether a function may have this name here. The error says what clashes.
    pub fn check_name(self, name: &str) -> Result<(), &'static str> {
        let within = |range: std::ops::RangeInclusive<usize>, extra: &[u8]| {
            range.contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
        };
        match self {
            Self::OpenAi | Self::Rebyte if !within(1..=64, b"-_") => {
                Err("must be 1 to 64 letters, digits, dashes or underscores")
            }
            Self::Rebyte if name.starts_with(REBYTE_PREFIX) => Err("must not begin with rebyte_, which is reserved"),
            Self::Rebyte if REBYTE_BUILT_INS.contains(&name) => Err("is the name of a built-in tool"),
            Self::Aivax if !within(3..=64, b"_") || name.starts_with(|c: char| c.is_ascii_digit()) => {
                Err("must be 3 to 64 letters, digits or underscores, no digit first")
            }
            _ => Ok(()),
        }
    }

    /// The result itself, or an error that tells the model why it cannot be returned. Nothing is ever cut.
    pub fn fitting(self, result: ToolResult) -> ToolResult {
        let ToolResult::Success(Output::Content(parts)) = &result else { return result };
        let urls = parts.iter().filter_map(|part| match part {
            Part::Image { image_url } => Some(image_url),
            Part::Text { .. } => None,
        });
        for url in urls {
            if !url.starts_with("https://") && !url.starts_with("data:image/") {
                return ToolResult::Error("The function ran, but its image has no https or data URL.".to_owned());
            }
            if self == Self::Rebyte && url.len() > REBYTE_IMAGE {
                return ToolResult::Error(format!(
                    "The function ran, but its image is too large to be returned: {} bytes as a URL, at most \
                     {REBYTE_IMAGE} are taken. Ask for a smaller image and call it again.",
                    url.len()
                ));
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flavor_has_its_names() {
        for (name, openai, rebyte, aivax) in [
            ("lookup_order", true, true, true),
            ("lookup-order", true, true, false),
            ("1st_order", true, true, false),
            ("go", true, true, false),
            ("_go", true, true, true),
            ("rebyte_lookup", true, false, true),
            ("Rebyte_lookup", true, true, true),
            ("run_code", true, false, true),
            ("look up", false, false, false),
            ("", false, false, false),
            ("naïve", false, false, false),
        ] {
            let allowed = [Flavor::OpenAi, Flavor::Rebyte, Flavor::Aivax].map(|flavor| flavor.check_name(name).is_ok());
            assert_eq!(allowed, [openai, rebyte, aivax], "{name}");
        }
        for (length, allowed) in [(64, true), (65, false)] {
            assert_eq!(Flavor::OpenAi.check_name(&"a".repeat(length)).is_ok(), allowed);
            assert_eq!(Flavor::Aivax.check_name(&"a".repeat(length)).is_ok(), allowed);
        }
    }

    fn image(url: String) -> ToolResult {
        ToolResult::Success(Output::Content(vec![
            Part::Text { text: "a chart".to_owned() },
            Part::Image { image_url: url },
        ]))
    }

    #[test]
    fn an_image_that_is_too_large_becomes_a_sentence_for_the_model() {
        let sized = |size: usize| image(format!("data:image/png;base64,{}", "A".repeat(size - 22)));
        assert_eq!(Flavor::Rebyte.fitting(sized(REBYTE_IMAGE)), sized(REBYTE_IMAGE));
        let ToolResult::Error(sentence) = Flavor::Rebyte.fitting(sized(REBYTE_IMAGE + 1)) else {
            panic!("it is taken");
        };
        assert!(sentence.contains("1000001 bytes") && sentence.contains("smaller image"), "{sentence}");
        assert_eq!(Flavor::OpenAi.fitting(sized(REBYTE_IMAGE + 1)), sized(REBYTE_IMAGE + 1));
        let text = ToolResult::Success(Output::Text("t".repeat(REBYTE_IMAGE + 1)));
        assert_eq!(Flavor::Rebyte.fitting(text.clone()), text);
    }

    #[test]
    fn an_image_without_a_fitting_url_is_not_sent() {
        for url in ["http://h/a.png", "file:///a.png", "data:text/html,x", ""] {
            assert!(matches!(Flavor::OpenAi.fitting(image(url.to_owned())), ToolResult::Error(_)), "{url}");
        }
    }
}
