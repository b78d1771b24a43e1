//! Times of requests, as histograms of Prometheus.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Bounds in seconds of the time to a first token, as vLLM has them.
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
];
/// Bounds in seconds of the time between tokens, as vLLM has them.
const BETWEEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// Bounds in seconds of longer times, as vLLM has them.
const LATENCY: &[f64] =
    &[0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0];

/// A cumulative histogram of times.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// Number of times up to each bound and above the one before it; the last count is of longer
    /// times.
    counts: Vec<AtomicU64>,
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, nanoseconds: AtomicU64::new(0) }
    }

    /// Counts a time.
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Writes the buckets, sum and count of one set of labels.
    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        let bounds = self.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
        }
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(text, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {total}");
    }
}

/// Times of the generations of a model.
#[derive(Debug)]
pub(crate) struct Times {
    /// From the submission to the first token.
    pub(crate) first_token: Histogram,
    /// From one token to the next.
    pub(crate) between_tokens: Histogram,
    /// From the submission to the end.
    pub(crate) whole: Histogram,
    /// From the submission to the first step.
    pub(crate) queue: Histogram,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            first_token: Histogram::new(FIRST),
            between_tokens: Histogram::new(BETWEEN),
            whole: Histogram::new(LATENCY),
            queue: Histogram::new(LATENCY),
        }
    }
}

impl Times {
    /// Name as vLLM has it, description and histogram of each time.
    pub(super) fn rows(&self) -> [(&'static str, &'static str, &Histogram); 4] {
        [
            ("vllm:time_to_first_token_seconds", "Time to the first token", &self.first_token),
            ("vllm:inter_token_latency_seconds", "Time between tokens", &self.between_tokens),
            ("vllm:e2e_request_latency_seconds", "Time of whole generations", &self.whole),
            ("vllm:request_queue_time_seconds", "Time before the first step", &self.queue),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_hold_their_bound() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for seconds in [0.25, 0.5, 0.75, 2.0] {
            histogram.observe(Duration::from_secs_f64(seconds));
        }
        let mut text = String::new();
        histogram.write(&mut text, "t", "a=\"b\"");
        let lines = [
            "t_bucket{a=\"b\",le=\"0.5\"} 2",
            "t_bucket{a=\"b\",le=\"1\"} 3",
            "t_bucket{a=\"b\",le=\"+Inf\"} 4",
            "t_sum{a=\"b\"} 3.5",
            "t_count{a=\"b\"} 4",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }
}
