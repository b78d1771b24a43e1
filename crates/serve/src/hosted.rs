//! Hosted tools: tools that a provider runs, such as web search.

use crate::error::{ApiError, Result};

/// Hosted tools of a request. Clients often list unused ones, so a server may drop them.
#[derive(Debug)]
pub(crate) struct HostedTools {
    drops: bool,
    dropped: Vec<String>,
}

impl HostedTools {
    /// Creates an empty list. Hosted tools are dropped if `drops` is set, else rejected.
    pub(crate) fn new(drops: bool) -> HostedTools {
        HostedTools { drops, dropped: Vec::new() }
    }

    /// Drops a tool of this kind.
    ///
    /// # Errors
    /// Fails if the server rejects hosted tools; the error names `param`.
    pub(crate) fn drop_tool(&mut self, param: &str, kind: &str) -> Result<()> {
        if !self.drops {
            let message = format!("`{param}` {kind:?} is not supported: nothing here runs it; --drop-hosted-tools leaves it out");
            return Err(ApiError::unsupported(param, message));
        }
        tracing::warn!("the hosted tool {kind:?} is left out of a request");
        self.dropped.push(kind.to_owned());
        Ok(())
    }

    /// Kinds of the dropped tools.
    pub(crate) fn dropped(self) -> Vec<String> {
        self.dropped
    }
}
