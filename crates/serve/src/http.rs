//! Connections, access checks and request bodies.

pub(crate) mod body;
mod framing;
pub(crate) mod guard;
pub(crate) mod listener;
mod timed;
pub(crate) mod trace;
pub(crate) mod upload;
