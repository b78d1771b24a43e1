//! Counters of the server, in Prometheus's format.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use flambeau::runners::llm::Load;

/// Counters of one model. They only grow, except for the load.
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
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, count: usize) {
    counter.fetch_sub(count as u64, Ordering::Relaxed);
}

impl Metrics {
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
            ("requests_total", "counter", "Generations, transcriptions and requests for vectors", &self.requests),
            ("refused_total", "counter", "Those that were refused at once", &self.refused),
            ("failed_total", "counter", "Those that ended with an error", &self.failed),
            ("cancelled_total", "counter", "Those whose client went away", &self.cancelled),
            ("panics_total", "counter", "Those that an internal error ended", &self.panics),
            ("prompt_tokens_total", "counter", "Tokens of prompts, cached ones included", &self.prompt_tokens),
            ("cached_tokens_total", "counter", "Tokens of prompts that were not computed again", &self.cached_tokens),
            ("generated_tokens_total", "counter", "Tokens that were generated", &self.generated_tokens),
            ("audio_seconds_total", "counter", "Seconds of recordings that were transcribed", &self.audio_seconds),
            ("running", "gauge", "Those that are computed", &self.running),
            ("waiting", "gauge", "Those that wait for their turn", &self.waiting),
            ("idle_sequences", "gauge", "Loaded sequences that nobody uses", &self.idle),
            ("tokens_in_flight", "gauge", "Tokens that running generations may come to", &self.tokens),
            ("kept_bytes", "gauge", "Bytes of copies of texts that no sequence holds any more", &self.kept_bytes),
        ]
    }
}

/// All models' counters in Prometheus's text format.
pub(crate) fn exposition(models: &[(&str, &Metrics)]) -> String {
    let mut text = String::new();
    for i in 0..Metrics::default().rows().len() {
        for (at, (model, metrics)) in models.iter().enumerate() {
            let (name, kind, help, counter) = metrics.rows()[i];
            if at == 0 {
                let _ = write!(text, "# HELP flambeau_{name} {help}\n# TYPE flambeau_{name} {kind}\n");
            }
            let label = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(text, "flambeau_{name}{{model=\"{label}\"}} {}", counter.load(Ordering::Relaxed));
        }
    }
    text
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
        assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE")).count(), 14);
    }
}
