//! Settings and limits of a server.

use std::time::Duration;

use crate::keys::Keys;

/// Limits and access rules of a server. All fields have defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Accepted API keys. If empty, requests need no key.
    pub keys: Keys,
    /// Additional accepted host names. If empty and the server listens on a public address, every
    /// name is accepted.
    pub hosts: Vec<String>,
    /// Allowed origins of other web pages; `*` allows all.
    pub origins: Vec<String>,
    /// Whether `/metrics` is served.
    pub metrics: bool,
    /// Whether `/metrics` needs no key, for gateways and autoscalers.
    pub public_metrics: bool,
    /// Whether `/` serves the chat page.
    pub page: bool,
    /// Whether hosted tools, such as web search, are dropped from requests instead of rejected.
    pub drop_hosted_tools: bool,
    /// Memory for stored responses, in bytes of JSON; 0 stores none.
    pub response_bytes: usize,
    /// Maximum requests per minute per key, or for all clients together if no key is needed.
    pub requests_per_minute: Option<u64>,
    /// Maximum tokens per minute per key, prompts and answers together.
    pub tokens_per_minute: Option<u64>,
    /// Maximum request body size in bytes.
    pub body_bytes: usize,
    /// Maximum recording size in bytes.
    pub upload_bytes: usize,
    /// Maximum number of connections; more wait.
    pub connections: usize,
    /// Maximum number of answers per request (`n`).
    pub choices: usize,
    /// Timeout for a request's head.
    pub head_time: Duration,
    /// Timeout for a request's body.
    pub body_time: Duration,
    /// Timeout for a client that does not read its response.
    pub write_time: Duration,
    /// Timeout for a request, including its wait in the queue.
    pub request_time: Duration,
    /// Maximum number of loaded on-demand models.
    pub loaded_models: usize,
    /// Idle time after which an on-demand model is unloaded. `None`: only when another model needs
    /// its place.
    pub idle_time: Option<Duration>,
    /// Grace period for running requests at shutdown.
    pub grace: Duration,
}

/// Longer than any request, and short enough to be added to any instant.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

impl Config {
    /// The request timeout, bounded so that it can be added to any instant.
    pub(crate) fn longest_request(&self) -> Duration {
        self.request_time.min(FOREVER)
    }
}

impl Default for Config {
    fn default() -> Config {
        let seconds = Duration::from_secs;
        Config {
            keys: Keys::default(),
            hosts: Vec::new(),
            origins: Vec::new(),
            metrics: false,
            public_metrics: false,
            page: true,
            drop_hosted_tools: false,
            response_bytes: 64 << 20,
            requests_per_minute: None,
            tokens_per_minute: None,
            body_bytes: 16 << 20,
            upload_bytes: 512 << 20,
            connections: 1024,
            choices: 16,
            head_time: seconds(10),
            body_time: seconds(30),
            write_time: seconds(30),
            request_time: seconds(600),
            loaded_models: usize::MAX,
            idle_time: None,
            grace: seconds(30),
        }
    }
}
