//! Tools that run on the servers of the protocols' owners, such as a search of the web.

use crate::error::{ApiError, Result};

/// Hosted tools of a request. Clients list some without need, so that a server may drop them.
#[derive(Debug)]
pub(crate) struct HostedTools {
    drops: bool,
    dropped: Vec<String>,
}

impl HostedTools {
    /// None so far. The server refuses all, or `drops` them.
    pub(crate) fn new(drops: bool) -> HostedTools {
        HostedTools { drops, dropped: Vec::new() }
    }

    /// Drops a tool of this kind.
    ///
    /// # Errors
    /// The server refuses hosted tools; the error names `param`.
    pub(crate) fn drop_tool(&mut self, param: &str, kind: &str) -> Result<()> {
        if !self.drops {
            let message = format!("`{param}` {kind:?} is not supported: nothing here runs it; --drop-hosted-tools leaves it out");
            return Err(ApiError::unsupported(param, message));
        }
        tracing::warn!("the hosted tool {kind:?} is left out of a request");
        self.dropped.push(kind.to_owned());
        Ok(())
    }

    /// The kinds of the tools that were dropped.
    pub(crate) fn dropped(self) -> Vec<String> {
        self.dropped
    }
}
