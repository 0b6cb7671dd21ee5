//! The OpenAPI document, made from the routes.

use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

use super::{approvals, calls, dead, functions, platforms, stats};

#[derive(OpenApi)]
#[openapi(
    info(title = "actiond", description = "What an operator of actiond sees and does."),
    paths(
        calls::list, calls::show, calls::retry, calls::resubmit, calls::resolve, calls::cancel,
        approvals::list, approvals::approve, approvals::deny,
        dead::list, dead::show, dead::redrive, dead::purge,
        functions::list, functions::pause, functions::resume,
        platforms::list, stats::due, stats::stats,
    ),
    tags(
        (name = "calls", description = "Every function call, whatever became of it"),
        (name = "approvals", description = "Calls that wait for a person"),
        (name = "dead", description = "Messages that could not be worked on"),
        (name = "functions", description = "What models may call"),
        (name = "platforms", description = "The accounts whose agents are answered"),
        (name = "stats", description = "What waits, and the last hour"),
    ),
    security(("token" = [])),
    modifiers(&Token),
)]
pub(super) struct Document;

/// `admin.token`
struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("admin.token")).build();
        document.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_route_with_its_answers() {
        let document: serde_json::Value = serde_json::from_str(&Document::openapi().to_json().unwrap()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 19, "{:?}", paths.keys());
        for (path, methods) in paths {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["responses"]["200"]["content"]["application/json"].is_object(), "{method} {path}");
                assert!(operation["responses"]["4XX"].is_object(), "{method} {path}");
                assert!(operation["summary"].is_string(), "{method} {path}");
            }
        }
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document["components"]["schemas"][reference].is_object(), "{reference} is not described");
        }
    }
}
