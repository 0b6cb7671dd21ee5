//! What a webhook says.
