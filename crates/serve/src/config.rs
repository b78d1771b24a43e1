//! Settings and limits of a server.

use std::time::Duration;

use crate::keys::Keys;

/// Bounds of a server and who may talk to it. All have defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Accepted API keys. Without any, requests need no key.
    pub keys: Keys,
    /// Additional host names that requests may use. If there are none and the server listens on a
    /// public address, every name is accepted.
    pub hosts: Vec<String>,
    /// Origins of other web pages that may use the server; `*` allows all.
    pub origins: Vec<String>,
    /// Whether `/metrics` answers.
    pub metrics: bool,
    /// Whether `/metrics` needs no key, as gateways and autoscalers read it.
    pub public_metrics: bool,
    /// Whether `/` is a page to chat on.
    pub page: bool,
    /// Whether tools that nothing here runs, such as a search of the web, are left out of requests
    /// instead of being refused.
    pub drop_hosted_tools: bool,
    /// Memory for responses that later requests continue, in bytes of JSON; 0 keeps none.
    pub response_bytes: usize,
    /// Most requests a minute of each key, or of all clients where requests need none.
    pub requests_per_minute: Option<u64>,
    /// Most tokens a minute of each key, in prompts and answers together.
    pub tokens_per_minute: Option<u64>,
    /// Largest request body in bytes.
    pub body_bytes: usize,
    /// Largest recording in bytes.
    pub upload_bytes: usize,
    /// Most connections at the same time; more wait.
    pub connections: usize,
    /// Most answers that one request may ask for (`n`).
    pub choices: usize,
    /// How long a request's head may take to come.
    pub head_time: Duration,
    /// How long a request's body may take to come.
    pub body_time: Duration,
    /// How long a client may leave what is sent to it unread.
    pub write_time: Duration,
    /// How long a request may take, its wait for a turn included.
    pub request_time: Duration,
    /// Maximum number of on-demand models that are loaded at the same time.
    pub loaded_models: usize,
    /// Idle time after which an on-demand model is unloaded. `None`: only when another model needs
    /// its place.
    pub idle_time: Option<Duration>,
    /// Grace period for running requests at shutdown.
    pub grace: Duration,
}

/// More than any request takes, and less than a clock overflows by.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

impl Config {
    /// How long a request may take, as a time that can be added to any moment.
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
