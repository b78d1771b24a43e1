//! Counters of a batch's requests and tokens.

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// Numbers of requests and of generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) total: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    /// Failed requests that the batch's deadline prevented from running.
    #[serde(default)]
    pub(crate) expired: usize,
    input: u64,
    cached: u64,
    output: u64,
}

impl Sums {
    /// Counters of a batch of `total` requests that has not begun.
    pub(crate) fn of(total: usize) -> Sums {
        Sums { total, ..Sums::default() }
    }

    /// Counts a request by its response, and the usage that it states.
    pub(crate) fn add(&mut self, response: &Json) {
        match response["status_code"].as_u64() {
            Some(200..300) => self.completed += 1,
            Some(_) => self.failed += 1,
            None => {
                self.failed += 1;
                self.expired += 1;
            }
        }
        let usage = &response["body"]["usage"];
        let first = |names: [&str; 2]| names.iter().find_map(|name| usage[*name].as_u64()).unwrap_or(0);
        let of = |name: &str| usage[name]["cached_tokens"].as_u64();
        self.input += first(["prompt_tokens", "input_tokens"]);
        self.output += first(["completion_tokens", "output_tokens"]);
        self.cached += of("prompt_tokens_details").or_else(|| of("input_tokens_details")).unwrap_or(0);
    }

    /// OpenAI's `request_counts`.
    pub(crate) fn counts(&self) -> Json {
        json!({ "total": self.total, "completed": self.completed, "failed": self.failed })
    }

    /// OpenAI's `usage`.
    pub(crate) fn usage(&self) -> Json {
        json!({
            "input_tokens": self.input,
            "input_tokens_details": { "cached_tokens": self.cached },
            "output_tokens": self.output,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.input + self.output,
        })
    }
}
