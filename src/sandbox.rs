//! A local Agents API with a scripted model, for trying handlers, for the demo and for tests.
