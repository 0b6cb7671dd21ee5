//! Embedded.

/// Placeholder.
pub struct Embedded;
