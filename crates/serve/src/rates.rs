//! Rate limits per key: requests and tokens per minute.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::{
    error::{ApiError, Result},
    keys::Caller,
    time::rfc3339_after,
};

/// A token bucket that refills within a minute. Generated tokens are counted late, so the level may
/// become negative.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: f64,
    level: f64,
    filled: Duration,
}

impl Bucket {
    fn new(limit: u64) -> Bucket {
        Bucket { limit: limit as f64, level: limit as f64, filled: Duration::ZERO }
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.level = (self.level + passed * self.limit / 60.0).min(self.limit);
        self.filled = now;
    }

    /// Time until the level reaches `wanted`.
    fn time_to(&self, wanted: f64) -> Duration {
        Duration::try_from_secs_f64((wanted - self.level).max(0.0) * 60.0 / self.limit).unwrap_or(Duration::MAX)
    }
}

/// The buckets of a key.
#[derive(Debug)]
pub(crate) struct Meter {
    began: Instant,
    /// Buckets for requests and for tokens; `None` means no limit.
    buckets: Mutex<[Option<Bucket>; 2]>,
}

const NAMES: [&str; 2] = ["requests", "tokens"];

impl Meter {
    fn buckets(&self, now: Duration) -> MutexGuard<'_, [Option<Bucket>; 2]> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.iter_mut().flatten().for_each(|bucket| bucket.fill(now));
        buckets
    }

    /// Counts prompt or answer tokens.
    pub(crate) fn add_tokens(&self, count: usize) {
        if let [_, Some(tokens)] = &mut *self.buckets(self.began.elapsed()) {
            tokens.level -= count as f64;
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The error states the time until a spent bucket refills.
    fn add_request(&self, now: Duration) -> Result<(), (ApiError, Duration)> {
        let mut buckets = self.buckets(now);
        let spent =
            NAMES.iter().zip(&*buckets).find_map(|(name, bucket)| Some((name, bucket.filter(|bucket| bucket.level < 1.0)?)));
        if let Some((name, bucket)) = spent {
            let message = format!("the key has used its {} {name} a minute", bucket.limit);
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("rate_limit_exceeded"), message);
            return Err((error, bucket.time_to(1.0)));
        }
        if let [Some(requests), _] = &mut *buckets {
            requests.level -= 1.0;
        }
        Ok(())
    }
}

/// The buckets of all keys.
#[derive(Debug)]
pub(crate) struct Rates {
    began: Instant,
    /// Limits of requests and tokens per minute.
    limits: [Option<u64>; 2],
    meters: Mutex<HashMap<u64, Arc<Meter>>>,
}

impl Rates {
    pub(crate) fn new(requests: Option<u64>, tokens: Option<u64>) -> Rates {
        Rates { began: Instant::now(), limits: [requests, tokens], meters: Mutex::default() }
    }

    /// The buckets of a key; `None` without limits.
    pub(crate) fn meter(&self, caller: Caller) -> Option<Arc<Meter>> {
        if self.limits == [None, None] {
            return None;
        }
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let buckets = Mutex::new(self.limits.map(|limit| limit.map(Bucket::new)));
            Arc::new(Meter { began: self.began, buckets })
        };
        Some(Arc::clone(meters.entry(caller.number()).or_insert_with(new)))
    }

    /// Counts a request of a key.
    ///
    /// # Errors
    /// The error states the time until a spent bucket refills.
    pub(crate) fn enter(&self, caller: Caller) -> Result<(), (ApiError, Duration)> {
        self.meter(caller).map_or(Ok(()), |meter| meter.add_request(self.began.elapsed()))
    }

    /// Writes rate limit headers under OpenAI's or Anthropic's names.
    pub(crate) fn describe(&self, caller: Caller, is_anthropic: bool, headers: &mut HeaderMap) {
        let Some(meter) = self.meter(caller) else { return };
        let buckets = *meter.buckets(self.began.elapsed());
        for (what, bucket) in NAMES.iter().zip(buckets) {
            let Some(bucket) = bucket else { continue };
            let full = bucket.time_to(bucket.limit);
            let (limit, remaining) = (bucket.limit.to_string(), bucket.level.max(0.0).floor().to_string());
            let values = if is_anthropic {
                [("limit", limit), ("remaining", remaining), ("reset", rfc3339_after(full))]
            } else {
                [("limit", limit), ("remaining", remaining), ("reset", short(full))]
            };
            for (kind, value) in values {
                let name =
                    if is_anthropic { format!("anthropic-ratelimit-{what}-{kind}") } else { format!("x-ratelimit-{kind}-{what}") };
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            }
        }
    }
}

/// A duration in OpenAI's format: `120ms`, `1s`, `6m0s`.
fn short(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (0, milliseconds) => format!("{milliseconds}ms"),
        (seconds @ 1..60, milliseconds) => format!("{}s", seconds + u64::from(milliseconds > 0)),
        (seconds, _) => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(requests: Option<u64>, tokens: Option<u64>) -> Arc<Meter> {
        Rates::new(requests, tokens).meter(Caller::default()).unwrap()
    }

    #[test]
    fn allowances_fill_again_within_a_minute() {
        let at = Duration::from_secs;
        let requests = meter(Some(2), None);
        assert!(requests.add_request(at(0)).is_ok() && requests.add_request(at(0)).is_ok());
        let (error, wait) = requests.add_request(at(0)).unwrap_err();
        assert_eq!((error.status.as_u16(), wait), (429, at(30)));
        assert!(requests.add_request(at(31)).is_ok() && requests.add_request(at(31)).is_err());
        assert!(requests.add_request(at(600)).is_ok() && requests.add_request(at(600)).is_ok());
        assert!(requests.add_request(at(600)).is_err(), "an allowance does not grow beyond a minute's");
    }

    #[test]
    fn tokens_may_be_owed() {
        let tokens = meter(None, Some(60));
        assert!(tokens.add_request(Duration::ZERO).is_ok());
        tokens.buckets(Duration::ZERO)[1].as_mut().unwrap().level -= 120.0;
        let (error, wait) = tokens.add_request(Duration::ZERO).unwrap_err();
        assert!(error.message.contains("60 tokens a minute") && wait == Duration::from_secs(61), "{wait:?}");
        assert!(tokens.add_request(Duration::from_secs(62)).is_ok());
    }

    #[test]
    fn keys_have_allowances_of_their_own() {
        let rates = Rates::new(Some(1), None);
        let [one, other] = [Caller::new("a"), Caller::new("b")];
        assert!(rates.enter(one).is_ok() && rates.enter(one).is_err() && rates.enter(other).is_ok());
        let mut headers = HeaderMap::new();
        rates.describe(one, false, &mut headers);
        assert_eq!(headers["x-ratelimit-limit-requests"], "1");
        assert_eq!(headers["x-ratelimit-remaining-requests"], "0");
        assert_eq!(headers.len(), 3);
        rates.describe(one, true, &mut headers);
        assert_eq!(headers["anthropic-ratelimit-requests-remaining"], "0");
        assert!(Rates::new(None, None).enter(one).is_ok());
    }

    #[test]
    fn times_are_short() {
        let of = |milliseconds| short(Duration::from_millis(milliseconds));
        assert_eq!([of(0), of(120), of(1000), of(1001), of(360_000)], ["0ms", "120ms", "1s", "2s", "6m0s"]);
    }
}
