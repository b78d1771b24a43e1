//! Metrics in Prometheus's format.

use std::{
    collections::BTreeSet,
    fmt::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use flambeau::runners::llm::{FinishReason, Load};

mod times;

pub(crate) use times::Times;

/// Metrics of one model. All but the load are counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) requests: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) audio_seconds: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
    idle: AtomicU64,
    tokens: AtomicU64,
    kept_bytes: AtomicU64,
    /// Maximum total context of concurrent generations, in tokens; 0 before the first load.
    capacity: AtomicU64,
    pub(crate) times: Times,
    adapters: Mutex<AdapterLoad>,
    /// Finished generations by reason: stop text or token, token limit, cancelled by the client,
    /// error.
    ended: [AtomicU64; 4],
}

/// Adapters in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdapterLoad {
    /// Number of the model's adapters.
    pub(crate) count: usize,
    /// Names of the adapters of running requests, without duplicates.
    pub(crate) running: BTreeSet<String>,
    /// Names of the adapters of waiting requests, without duplicates.
    pub(crate) waiting: BTreeSet<String>,
}

/// vLLM's names for finish reasons, in the order of [`Metrics::ended`].
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// Tokens per block, the unit in which gateways measure a cache. Flambeau's caches have no blocks.
const BLOCK: u64 = 16;

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, count: usize) {
    counter.fetch_sub(count as u64, Ordering::Relaxed);
}

impl Metrics {
    /// Counts a finished generation.
    pub(crate) fn count_end(&self, reason: FinishReason) {
        let [stop, length, abort, _] = &self.ended;
        let counter = match reason {
            FinishReason::Stop => stop,
            FinishReason::Length | FinishReason::Context => length,
            FinishReason::Cancelled => abort,
        };
        add(counter, 1);
    }

    /// Counts a failed generation.
    pub(crate) fn count_error(&self, panicked: bool) {
        add(if panicked { &self.panics } else { &self.failed }, 1);
        let [.., error] = &self.ended;
        add(error, 1);
    }

    pub(crate) fn set_capacity(&self, tokens: usize) {
        self.capacity.store(tokens as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_load(&self, load: Load) {
        for (gauge, value) in [
            (&self.running, load.running),
            (&self.waiting, load.waiting),
            (&self.idle, load.idle),
            (&self.tokens, load.tokens),
            (&self.kept_bytes, load.kept_bytes),
        ] {
            gauge.store(value as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_adapters(&self, load: AdapterLoad) {
        *self.adapters.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }

    fn adapters(&self) -> AdapterLoad {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn load(&self) -> Load {
        let read = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed) as usize;
        Load {
            running: read(&self.running),
            waiting: read(&self.waiting),
            idle: read(&self.idle),
            tokens: read(&self.tokens),
            kept_bytes: read(&self.kept_bytes),
        }
    }

    fn rows(&self) -> [(&'static str, &'static str, &'static str, &AtomicU64); 14] {
        [
            ("requests_total", "counter", "Generations, transcriptions and requests for vectors.", &self.requests),
            ("refused_total", "counter", "Requests refused before a model computed anything.", &self.refused),
            ("failed_total", "counter", "Requests that ended with an error.", &self.failed),
            ("cancelled_total", "counter", "Requests whose client disconnected.", &self.cancelled),
            ("panics_total", "counter", "Requests that an internal error ended.", &self.panics),
            ("prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.", &self.prompt_tokens),
            ("cached_tokens_total", "counter", "Tokens of prompts taken from a cache.", &self.cached_tokens),
            ("generated_tokens_total", "counter", "Generated tokens.", &self.generated_tokens),
            ("audio_seconds_total", "counter", "Seconds of transcribed recordings.", &self.audio_seconds),
            ("running", "gauge", "Requests that a model computes now.", &self.running),
            ("waiting", "gauge", "Requests that wait for their turn.", &self.waiting),
            ("idle_sequences", "gauge", "Loaded sequences that no request uses.", &self.idle),
            ("tokens_in_flight", "gauge", "Tokens that running generations may reach.", &self.tokens),
            ("kept_bytes", "gauge", "Size in bytes of the copies of idle sequences.", &self.kept_bytes),
        ]
    }

    /// Writes counters and gauges under vLLM's names, which gateways, autoscalers and dashboards
    /// expect.
    fn vllm_rows(&self) -> [(&'static str, &'static str, &'static str, f64); 8] {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
        let usage = read(&self.tokens) / read(&self.capacity).max(1.0);
        [
            ("vllm:num_requests_running", "gauge", "Requests that a model computes now.", read(&self.running)),
            ("vllm:num_requests_waiting", "gauge", "Requests that wait for their turn.", read(&self.waiting)),
            (
                "vllm:kv_cache_usage_perc",
                "gauge",
                "Share of the cache's tokens that running requests may use, 0 to 1.",
                usage.min(1.0),
            ),
            ("vllm:prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.", read(&self.prompt_tokens)),
            ("vllm:prompt_tokens_cached_total", "counter", "Tokens of prompts taken from a cache.", read(&self.cached_tokens)),
            ("vllm:generation_tokens_total", "counter", "Generated tokens.", read(&self.generated_tokens)),
            ("vllm:prefix_cache_queries_total", "counter", "Tokens of prompts looked up in the cache.", read(&self.prompt_tokens)),
            ("vllm:prefix_cache_hits_total", "counter", "Tokens of prompts found in the cache.", read(&self.cached_tokens)),
        ]
    }
}

/// Escapes a label's value.
fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Writes a metric's description and type.
fn describe(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

/// Metrics of all models in Prometheus's text format: Flambeau's own, and vLLM's with the label
/// `model_name`.
pub(crate) fn exposition(models: &[(&str, &Metrics)]) -> String {
    let mut text = String::new();
    let none = Metrics::default();
    let labels: Vec<String> = models.iter().map(|(model, _)| format!("model=\"{}\"", escaped(model))).collect();
    for (i, (name, kind, help, _)) in none.rows().into_iter().enumerate() {
        let name = format!("flambeau_{name}");
        describe(&mut text, &name, kind, help);
        for (labels, (_, metrics)) in labels.iter().zip(models) {
            let _ = writeln!(text, "{name}{{{labels}}} {}", metrics.rows()[i].3.load(Ordering::Relaxed));
        }
    }
    let labels: Vec<String> = models.iter().map(|(model, _)| format!("model_name=\"{}\",engine=\"0\"", escaped(model))).collect();
    for (i, (name, kind, help, _)) in none.vllm_rows().into_iter().enumerate() {
        describe(&mut text, name, kind, help);
        for (labels, (_, metrics)) in labels.iter().zip(models) {
            let _ = writeln!(text, "{name}{{{labels}}} {}", metrics.vllm_rows()[i].3);
        }
    }
    let name = "vllm:request_success_total";
    describe(&mut text, name, "counter", "Generations that ended, by reason.");
    for (labels, (_, metrics)) in labels.iter().zip(models) {
        for (reason, count) in REASONS.iter().zip(&metrics.ended) {
            let _ = writeln!(text, "{name}{{{labels},finished_reason=\"{reason}\"}} {}", count.load(Ordering::Relaxed));
        }
    }
    let name = "vllm:cache_config_info";
    describe(&mut text, name, "gauge", "Size of the cache, in blocks of tokens.");
    for (labels, (_, metrics)) in labels.iter().zip(models) {
        let blocks = metrics.capacity.load(Ordering::Relaxed) / BLOCK;
        let _ = writeln!(text, "{name}{{{labels},block_size=\"{BLOCK}\",num_gpu_blocks=\"{blocks}\"}} 1");
    }
    write_adapters(&mut text, &labels, models);
    for (i, (name, help, _)) in none.times.rows().into_iter().enumerate() {
        describe(&mut text, name, "histogram", help);
        for (labels, (_, metrics)) in labels.iter().zip(models) {
            metrics.times.rows()[i].2.write(&mut text, name, labels);
        }
    }
    text
}

/// Writes vLLM's gauge of adapters in use, for models with adapters. Its value is the Unix time in
/// seconds.
fn write_adapters(text: &mut String, labels: &[String], models: &[(&str, &Metrics)]) {
    let loads: Vec<AdapterLoad> = models.iter().map(|(_, metrics)| metrics.adapters()).collect();
    if loads.iter().all(|load| load.count == 0) {
        return;
    }
    let name = "vllm:lora_requests_info";
    describe(text, name, "gauge", "Adapters of running and waiting requests, at the time that is the value.");
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let joined = |names: &BTreeSet<String>| escaped(&names.iter().map(String::as_str).collect::<Vec<_>>().join(","));
    for (labels, load) in labels.iter().zip(loads).filter(|(_, load)| load.count > 0) {
        let (running, waiting) = (joined(&load.running), joined(&load.waiting));
        let own = format!("max_lora=\"{}\",waiting_lora_adapters=\"{waiting}\",running_lora_adapters=\"{running}\"", load.count);
        let _ = writeln!(text, "{name}{{{labels},{own}}} {time}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_told_of_every_model() {
        let (a, b) = (Metrics::default(), Metrics::default());
        add(&b.generated_tokens, 7);
        let text = exposition(&[("a", &a), ("b\"\n", &b)]);
        assert!(text.contains("# TYPE flambeau_generated_tokens_total counter\nflambeau_generated_tokens_total{model=\"a\"} 0\n"));
        assert!(text.contains("flambeau_generated_tokens_total{model=\"b\\\"\\n\"} 7\n"));
        assert!(text.contains("vllm:generation_tokens_total{model_name=\"b\\\"\\n\",engine=\"0\"} 7\n"));
        assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE")).count(), 14 + 8 + 2 + 12);
        assert!(!text.contains("lora"), "{text}");
    }

    #[test]
    fn adapters_in_use_are_labels() {
        let metrics = Metrics::default();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        metrics.set_adapters(AdapterLoad { count: 3, running: names(&["b", "a"]), waiting: names(&["c\""]) });
        let text = exposition(&[("base", &metrics), ("other", &Metrics::default())]);
        let labels =
            "{model_name=\"base\",engine=\"0\",max_lora=\"3\",waiting_lora_adapters=\"c\\\"\",running_lora_adapters=\"a,b\"} ";
        let value =
            text.lines().find_map(|line| line.strip_prefix("vllm:lora_requests_info")?.strip_prefix(labels)).expect("a row");
        assert!(value.parse::<f64>().unwrap() > 1.7e9);
        assert_eq!(text.matches("\nvllm:lora_requests_info").count(), 1);
    }
}
