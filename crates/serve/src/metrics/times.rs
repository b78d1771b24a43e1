//! Histograms of request times and sizes.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use flambeau::runners::llm::Stats;

/// vLLM's buckets for the time to the first token, in seconds.
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
];
/// vLLM's buckets for the time between tokens, in seconds.
const BETWEEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// vLLM's buckets for longer times, in seconds.
const LATENCY: &[f64] =
    &[0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0];

/// vLLM's buckets for prompts and answers, in tokens.
const TOKENS: &[f64] = &[
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10_000.0,
    20_000.0,
    50_000.0,
    100_000.0,
    200_000.0,
    500_000.0,
    1_000_000.0,
];
/// vLLM's buckets for the number of answers per request.
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Resolution of summed times: parts of a second.
const NANOSECONDS: f64 = 1e9;

/// A cumulative histogram.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// Counts per bucket, not cumulative; the last one counts values above all bounds.
    counts: Vec<AtomicU64>,
    /// Sum of the values, in fractions of the unit.
    sum: AtomicU64,
    /// Fractions per unit: nanoseconds for seconds, 1 for sizes.
    parts: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64], parts: f64) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0), parts }
    }

    fn of_times(bounds: &'static [f64]) -> Histogram {
        Histogram::new(bounds, NANOSECONDS)
    }

    fn of_sizes(bounds: &'static [f64]) -> Histogram {
        Histogram::new(bounds, 1.0)
    }

    /// Records a duration.
    pub(crate) fn observe(&self, time: Duration) {
        self.add(time.as_secs_f64(), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records a number of tokens or answers.
    pub(crate) fn observe_size(&self, size: usize) {
        self.add(size as f64, size as u64);
    }

    fn add(&self, value: f64, parts: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(parts, Ordering::Relaxed);
    }

    /// Writes the buckets, sum and count of one set of labels.
    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        // As Prometheus's own libraries write bounds: 1.0, not 1.
        let bounds = self.bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
        }
        let sum = self.sum.load(Ordering::Relaxed) as f64 / self.parts;
        let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}");
    }
}

/// Times and sizes of a model's generations.
#[derive(Debug)]
pub(crate) struct Times {
    /// Time to the first token.
    pub(crate) first_token: Histogram,
    /// Time between tokens.
    pub(crate) between_tokens: Histogram,
    /// End-to-end time.
    pub(crate) whole: Histogram,
    /// Time in the queue.
    pub(crate) queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    per_token: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    /// Length of a request's longest answer, in tokens.
    pub(crate) longest_answer: Histogram,
    /// Number of answers per request.
    pub(crate) choices: Histogram,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            first_token: Histogram::of_times(FIRST),
            between_tokens: Histogram::of_times(BETWEEN),
            whole: Histogram::of_times(LATENCY),
            queue: Histogram::of_times(LATENCY),
            prefill: Histogram::of_times(LATENCY),
            decode: Histogram::of_times(LATENCY),
            inference: Histogram::of_times(LATENCY),
            per_token: Histogram::of_times(BETWEEN),
            prompt_tokens: Histogram::of_sizes(TOKENS),
            generated_tokens: Histogram::of_sizes(TOKENS),
            longest_answer: Histogram::of_sizes(TOKENS),
            choices: Histogram::of_sizes(CHOICES),
        }
    }
}

impl Times {
    /// Records a finished generation. `cached` prompt tokens came from a cache.
    pub(crate) fn observe_end(&self, stats: &Stats, cached: usize) {
        let prefill = stats.first_token.unwrap_or(stats.prefill);
        self.prefill.observe(prefill);
        self.decode.observe(stats.decode);
        self.inference.observe(prefill + stats.decode);
        let later = u32::try_from(stats.generated_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        if let Some(time) = stats.decode.checked_div(later) {
            self.per_token.observe(time);
        }
        self.prompt_tokens.observe_size(cached + stats.prompt_tokens);
        self.generated_tokens.observe_size(stats.generated_tokens);
    }

    /// vLLM's name, description and histogram of each time and size.
    pub(super) fn rows(&self) -> [(&'static str, &'static str, &Histogram); 12] {
        [
            ("vllm:time_to_first_token_seconds", "Seconds from a request's arrival to its first token.", &self.first_token),
            ("vllm:inter_token_latency_seconds", "Seconds from one token to the next.", &self.between_tokens),
            ("vllm:e2e_request_latency_seconds", "Seconds from a request's arrival to the end of its answer.", &self.whole),
            ("vllm:request_queue_time_seconds", "Seconds that a request waited for its turn.", &self.queue),
            ("vllm:request_prefill_time_seconds", "Seconds from a request's first step to its first token.", &self.prefill),
            ("vllm:request_decode_time_seconds", "Seconds from a request's first token to its last.", &self.decode),
            ("vllm:request_inference_time_seconds", "Seconds from a request's first step to its last token.", &self.inference),
            ("vllm:request_time_per_output_token_seconds", "Mean seconds between the tokens of an answer.", &self.per_token),
            ("vllm:request_prompt_tokens", "Tokens of a request's prompt, cached ones included.", &self.prompt_tokens),
            ("vllm:request_generation_tokens", "Tokens of an answer.", &self.generated_tokens),
            ("vllm:request_max_num_generation_tokens", "Tokens of a request's longest answer.", &self.longest_answer),
            ("vllm:request_params_n", "Answers that a request asks for.", &self.choices),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_hold_their_bound() {
        let histogram = Histogram::of_times(&[0.5, 1.0]);
        for seconds in [0.25, 0.5, 0.75, 2.0] {
            histogram.observe(Duration::from_secs_f64(seconds));
        }
        let mut text = String::new();
        histogram.write(&mut text, "t", "a=\"b\"");
        let lines = [
            "t_bucket{a=\"b\",le=\"0.5\"} 2",
            "t_bucket{a=\"b\",le=\"1.0\"} 3",
            "t_bucket{a=\"b\",le=\"+Inf\"} 4",
            "t_sum{a=\"b\"} 3.5",
            "t_count{a=\"b\"} 4",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn sizes_add_up_to_whole_numbers() {
        let histogram = Histogram::of_sizes(TOKENS);
        for size in [0, 5, 6, 2_000_000] {
            histogram.observe_size(size);
        }
        let mut text = String::new();
        histogram.write(&mut text, "t", "");
        for line in
            ["t_bucket{,le=\"1.0\"} 1", "t_bucket{,le=\"5.0\"} 2", "t_bucket{,le=\"10.0\"} 3", "t_sum{} 2000011", "t_count{} 4"]
        {
            assert!(text.lines().any(|written| written == line), "no {line} in {text}");
        }
    }

    #[test]
    fn the_mean_time_of_a_token_leaves_out_the_first() {
        let times = Times::default();
        let stats = Stats { generated_tokens: 5, decode: Duration::from_secs(2), ..Stats::default() };
        times.observe_end(&stats, 3);
        times.observe_end(&Stats { generated_tokens: 1, ..stats }, 3);
        let mut text = String::new();
        times.per_token.write(&mut text, "t", "");
        assert!(text.ends_with("t_sum{} 0.5\nt_count{} 1\n"), "{text}");
    }
}
