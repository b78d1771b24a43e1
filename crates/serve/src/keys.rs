//! API keys, reloadable while the server runs.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Identity of a client: its key, or one shared identity if requests need no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    number: u64,
    in_background: bool,
}

impl Caller {
    /// The client with this key. Its number is the same in every run, because stored files refer to
    /// it.
    pub(crate) fn new(key: &str) -> Caller {
        let digest = Sha256::digest(key.as_bytes());
        Caller::of(digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// The client with this number.
    pub(crate) fn of(number: u64) -> Caller {
        Caller { number, in_background: false }
    }

    /// The same client at background priority: all other requests come first.
    pub(crate) fn in_background(self) -> Caller {
        Caller { in_background: true, ..self }
    }

    /// Whether the client has background priority.
    pub(crate) fn yields(self) -> bool {
        self.in_background
    }

    /// The client's number.
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

/// Source for reloading keys. The error tells why it is unreadable.
type Source = dyn Fn() -> Result<Vec<String>, String> + Send + Sync;

/// Accepted API keys; if empty, requests need no key. Clones share the set.
#[derive(Clone, Default)]
pub struct Keys {
    list: Arc<RwLock<Vec<String>>>,
    #[cfg_attr(not(unix), allow(dead_code, reason = "only SIGHUP reloads keys"))]
    source: Option<Arc<Source>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secret: only their number is shown.
        f.debug_struct("Keys").field("count", &self.read().len()).finish_non_exhaustive()
    }
}

impl Keys {
    /// A fixed set of keys.
    pub fn new(list: Vec<String>) -> Keys {
        Keys { list: Arc::new(RwLock::new(list)), source: None }
    }

    /// Keys that are reloaded from `source` on SIGHUP.
    #[must_use]
    pub fn reloadable(list: Vec<String>, source: impl Fn() -> Result<Vec<String>, String> + Send + Sync + 'static) -> Keys {
        Keys { source: Some(Arc::new(source)), ..Keys::new(list) }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<String>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests may have different keys.
    pub(crate) fn are_several(&self) -> bool {
        self.read().len() > 1
    }

    /// Looks up a key; `None` if it is invalid. Compares with every key in constant time.
    pub(crate) fn caller(&self, given: &str) -> Option<Caller> {
        let list = self.read();
        if list.is_empty() {
            return Some(Caller::default());
        }
        let is_known = list.iter().fold(Choice::from(0), |any, key| any | key.as_bytes().ct_eq(given.as_bytes()));
        bool::from(is_known).then(|| Caller::new(given))
    }

    /// Reloads the keys. If the source is unreadable or empty, the old keys remain.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only SIGHUP reloads keys"))]
    pub(crate) fn reload(&self) {
        let Some(source) = &self.source else { return };
        match source() {
            Ok(list) if list.is_empty() && !self.read().is_empty() => {
                tracing::error!("there is no key any more: the old ones stay")
            }
            Ok(list) => {
                tracing::info!("{} keys were read again", list.len());
                *self.list.write().unwrap_or_else(PoisonError::into_inner) = list;
            }
            Err(error) => tracing::error!("the keys cannot be read again, and the old ones stay: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn keys_change_only_for_others() {
        let found = Arc::new(Mutex::new(Ok(vec!["new".to_owned()])));
        let source = Arc::clone(&found);
        let keys = Keys::reloadable(vec!["old".into()], move || source.lock().unwrap().clone());
        let same = keys.clone();
        let has = |key: &str| same.caller(key).is_some();
        assert!(has("old") && !has("new") && !has(""));
        keys.reload();
        assert!(has("new") && !has("old"));
        for bad in [Ok(Vec::new()), Err("no file".to_owned())] {
            *found.lock().unwrap() = bad;
            keys.reload();
            assert!(has("new") && !has(""));
        }
        assert_eq!(Keys::default().caller("anything"), Some(Caller::default()));
        assert_ne!(same.caller("new"), Some(Caller::default()));
        assert!(!format!("{same:?}").contains("new"));
    }
}
