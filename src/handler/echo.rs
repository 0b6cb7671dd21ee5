//! Echo.

/// Placeholder.
pub struct Echo;
