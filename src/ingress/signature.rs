//! Standard Webhooks v1 and shared secrets.
