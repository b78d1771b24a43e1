//! The models of a server: names, state, loading and eviction.

mod source;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use flambeau::runners::llm::{AdapterFacts, DiskCache};
use serde_json::{Value as Json, json};
use tokio::{
    sync::Mutex as AsyncMutex,
    task::spawn_blocking,
    time::{Instant, sleep},
};

pub use self::source::{AnyModel, Loader, ModelKind, ModelOnDemand, ModelSource};
use crate::{
    config::Config,
    encoder::ServedEncoder,
    error::{ApiError, Result},
    metrics::Metrics,
    model::{Handle, Served, now},
    speech::ServedSpeech,
};

/// A model with its threads.
#[derive(Clone, Debug)]
enum Running {
    Language(Arc<Served>),
    Encoder(Arc<ServedEncoder>),
    Speech(Arc<ServedSpeech>),
}

impl Running {
    fn start(model: AnyModel, metrics: &Arc<Metrics>, disk: Option<&DiskCache>) -> std::io::Result<Running> {
        let metrics = Arc::clone(metrics);
        Ok(match model {
            AnyModel::Language(model) => Running::Language(Arc::new(Served::start(*model, metrics, disk.cloned())?)),
            AnyModel::Encoder(model) => Running::Encoder(Arc::new(ServedEncoder::start(model, metrics)?)),
            AnyModel::Speech(model) => Running::Speech(Arc::new(ServedSpeech::start(model, metrics)?)),
        })
    }

    /// Capabilities and limits in `/v1/models`.
    fn facts(&self) -> Json {
        match self {
            Running::Language(model) => model.facts(),
            Running::Encoder(model) => model.facts(),
            Running::Speech(_) => json!({ "capabilities": { "transcription": true } }),
        }
    }

    /// Number of requests that use it.
    fn holders(&self) -> usize {
        match self {
            Running::Language(model) => Arc::strong_count(model),
            Running::Encoder(model) => Arc::strong_count(model),
            Running::Speech(model) => Arc::strong_count(model),
        }
        .saturating_sub(1)
    }
}

/// A model with its names.
struct Entry {
    name: String,
    aliases: Vec<String>,
    adapters: Vec<AdapterFacts>,
    /// Unix time in seconds.
    created: u64,
    kind: ModelKind,
    metrics: Arc<Metrics>,
    /// Loader of an on-demand model.
    load: Option<Loader>,
    state: Mutex<State>,
}

struct State {
    running: Option<Running>,
    used: Instant,
    /// Properties known without loading.
    facts: Json,
}

impl Entry {
    fn new(source: ModelSource, disk: Option<&DiskCache>) -> std::io::Result<Entry> {
        let metrics = Arc::new(Metrics::default());
        let (name, aliases, adapters, kind, running, load) = match source {
            ModelSource::Loaded(model) => {
                let ((name, aliases), adapters, kind) = (model.names(), model.adapters(), model.kind());
                let (name, aliases) = (name.to_owned(), aliases.to_vec());
                (name, aliases, adapters, kind, Some(Running::start(model, &metrics, disk)?), None)
            }
            ModelSource::OnDemand(ModelOnDemand { name, aliases, kind, adapters, load }) => {
                (name, aliases, adapters, kind, None, Some(load))
            }
        };
        let facts = running.as_ref().map_or_else(|| json!({ "capabilities": kind.capabilities() }), Running::facts);
        let state = Mutex::new(State { running, used: Instant::now(), facts });
        Ok(Entry { name, aliases, adapters, created: now(), kind, metrics, load, state })
    }

    fn is_called(&self, wanted: &str) -> bool {
        self.name == wanted || self.aliases.iter().any(|alias| alias == wanted)
    }

    /// Index of the adapter with this name.
    fn adapter(&self, wanted: &str) -> Option<usize> {
        self.adapters.iter().position(|adapter| adapter.name == wanted)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, if it is loaded. Updates its last use.
    fn running(&self) -> Option<Running> {
        let mut state = self.state();
        state.used = Instant::now();
        state.running.clone()
    }

    /// Start of the idle period; `None` while in use, unloaded or pinned.
    fn idle_since(&self) -> Option<Instant> {
        let mut state = self.state();
        let running = state.running.as_ref().filter(|_| self.load.is_some())?;
        let load = self.metrics.load();
        if running.holders() > 0 || load.running + load.waiting > 0 {
            state.used = Instant::now();
            return None;
        }
        Some(state.used)
    }

    /// Unloads the model unless it is in use.
    fn unload_if_unused(&self, since: Instant) {
        let mut state = self.state();
        if state.used == since && state.running.as_ref().is_some_and(|running| running.holders() == 0) {
            // Its threads end and drop their state.
            state.running = None;
            tracing::info!("{} is let go", self.name);
        }
    }

    /// Entries of `/v1/models`: the model and its adapters.
    fn describe_all(&self) -> Vec<Json> {
        let adapters = (0..self.adapters.len()).map(|at| self.describe_adapter(at));
        std::iter::once(self.describe()).chain(adapters).collect()
    }

    /// Entry of an adapter: a copy of the model's entry under the adapter's names.
    fn describe_adapter(&self, at: usize) -> Json {
        let mut entry = self.describe();
        let name = &self.adapters[at].name;
        (entry["id"], entry["root"], entry["parent"], entry["aliases"]) = (json!(name), json!(name), json!(self.name), json!([]));
        entry
    }

    /// Entry of the model. A loaded model's idle time starts at its last request.
    fn describe(&self) -> Json {
        let load = self.metrics.load();
        let requests = load.running + load.waiting;
        let mut state = self.state();
        if requests > 0 {
            state.used = Instant::now();
        }
        let idle = state.running.is_some().then(|| state.used.elapsed().as_secs());
        let mut entry = json!({
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "flambeau",
            "aliases": self.aliases,
            "status": { "value": if state.running.is_some() { "loaded" } else { "unloaded" } },
            "requests": requests,
            "idle_seconds": idle,
        });
        if let (Some(entry), Some(facts)) = (entry.as_object_mut(), state.facts.as_object()) {
            entry.extend(facts.clone());
        }
        entry
    }
}

/// All models of a server. Clones share the list.
#[derive(Clone)]
pub(crate) struct Models {
    entries: Arc<Vec<Entry>>,
    /// Maximum number of loaded on-demand models.
    most: usize,
    disk: Option<DiskCache>,
    /// Lock held during a load.
    loading: Arc<AsyncMutex<()>>,
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| &entry.name)).finish()
    }
}

impl Models {
    /// Starts the threads of preloaded models. Language models cache prompts in a folder, if given.
    ///
    /// # Errors
    /// Fails if a model cannot be loaded, an adapter's name is taken, or a thread cannot start.
    pub(crate) fn start(models: Vec<ModelSource>, config: &Config, disk: Option<DiskCache>) -> std::io::Result<Models> {
        let entries =
            models.into_iter().map(|source| Entry::new(source, disk.as_ref())).collect::<std::io::Result<Vec<Entry>>>()?;
        check_adapters(&entries)?;
        Ok(Models { entries: Arc::new(entries), most: config.loaded_models.max(1), disk, loading: Arc::default() })
    }

    /// Maximum number of running and waiting recordings of all models.
    pub(crate) fn recordings(&self) -> usize {
        let of = |entry: &Entry| if let ModelKind::Speech { recordings } = entry.kind { recordings } else { 0 };
        self.entries.iter().map(of).fold(0, usize::saturating_add)
    }

    /// Unloads models that were idle for `after`. Never returns.
    pub(crate) async fn unload_idle(self, after: Duration) {
        let step = (after / 4).clamp(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            sleep(step).await;
            for entry in self.entries.iter() {
                if let Some(since) = entry.idle_since().filter(|since| since.elapsed() >= after) {
                    entry.unload_if_unused(since);
                }
            }
        }
    }

    /// Entries of `/v1/models`.
    pub(crate) fn describe(&self) -> Json {
        self.entries.iter().flat_map(Entry::describe_all).collect()
    }

    /// Entry of one model.
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub(crate) fn describe_one(&self, name: &str) -> Result<Json> {
        if let Some(entry) = self.entries.iter().find(|entry| entry.is_called(name)) {
            return Ok(entry.describe());
        }
        let adapter = self.entries.iter().find_map(|entry| Some(entry.describe_adapter(entry.adapter(name)?)));
        adapter.ok_or_else(|| ApiError::no_model(name))
    }

    /// Unloads an idle on-demand model.
    ///
    /// # Errors
    /// Fails if the name is unknown, or the model is pinned or in use.
    pub(crate) fn unload(&self, name: &str) -> Result<()> {
        let entry = self.entries.iter().find(|entry| entry.is_called(name)).ok_or_else(|| ApiError::no_model(name))?;
        if entry.load.is_none() {
            let message =
                format!("the model {name:?} stays loaded; --models-max and --sleep-idle-seconds let the server unload models");
            return Err(ApiError::invalid(message));
        }
        if let Some(since) = entry.idle_since() {
            entry.unload_if_unused(since);
        }
        match entry.state().running {
            None => Ok(()),
            Some(_) => Err(ApiError::busy(format!("the model {name:?} is in use"))),
        }
    }

    /// Metrics of each model.
    pub(crate) fn metrics(&self) -> Vec<(&str, &Metrics)> {
        self.entries.iter().map(|entry| (entry.name.as_str(), &*entry.metrics)).collect()
    }

    /// The loaded language models.
    pub(crate) fn loaded(&self) -> Vec<Handle> {
        let of = |entry: &Entry| match &entry.state().running {
            Some(Running::Language(model)) => Some(Handle::base(Arc::clone(model))),
            _ => None,
        };
        self.entries.iter().filter_map(of).collect()
    }

    /// Name of the first language model.
    pub(crate) fn first(&self) -> Option<&str> {
        self.entries.iter().find(|entry| entry.kind == ModelKind::Language).map(|entry| entry.name.as_str())
    }

    /// The language model with this model or adapter name, or the only model if `name` is absent.
    /// Loads it if necessary.
    ///
    /// # Errors
    /// Fails if no model or several models match, or if the model has another kind or cannot be
    /// loaded.
    pub(crate) async fn find(&self, name: Option<&str>) -> Result<Handle> {
        match self.get(name, |kind| kind == ModelKind::Language).await? {
            Running::Language(model) => Ok(Handle::base(model).with_adapter(name.and_then(|name| self.adapter(name)))),
            _ => Err(changed()),
        }
    }

    /// Index and name of an adapter, unless a model has that name.
    fn adapter(&self, name: &str) -> Option<(usize, String)> {
        let at = self.entries.iter().find_map(|entry| entry.adapter(name))?;
        self.entries.iter().all(|entry| !entry.is_called(name)).then(|| (at, name.to_owned()))
    }

    /// Like [`find`](Self::find), for a text encoder.
    ///
    /// # Errors
    /// Fails as [`find`](Self::find) does.
    pub(crate) async fn find_encoder(&self, name: Option<&str>) -> Result<Arc<ServedEncoder>> {
        match self.get(name, |kind| kind == ModelKind::Encoder).await? {
            Running::Encoder(model) => Ok(model),
            _ => Err(changed()),
        }
    }

    /// Like [`find`](Self::find), for a classifier.
    ///
    /// # Errors
    /// Fails as [`find`](Self::find) does.
    pub(crate) async fn find_classifier(&self, name: Option<&str>) -> Result<Arc<ServedEncoder>> {
        match self.get(name, |kind| kind == ModelKind::Classifier).await? {
            Running::Encoder(model) => Ok(model),
            _ => Err(changed()),
        }
    }

    /// Like [`find`](Self::find), for a speech model.
    ///
    /// # Errors
    /// Fails as [`find`](Self::find) does.
    pub(crate) async fn find_speech(&self, name: Option<&str>) -> Result<Arc<ServedSpeech>> {
        match self.get(name, |kind| matches!(kind, ModelKind::Speech { .. })).await? {
            Running::Speech(model) => Ok(model),
            _ => Err(changed()),
        }
    }

    async fn get(&self, name: Option<&str>, is_wanted: fn(ModelKind) -> bool) -> Result<Running> {
        let at = self.index_of(name, is_wanted)?;
        if let Some(running) = self.entries[at].running() {
            return Ok(running);
        }
        let turn = Arc::clone(&self.loading).lock_owned().await;
        let models = self.clone();
        let work = move || {
            // The turn is held until the load ends, even if the client disconnects.
            let _turn = turn;
            models.load(at)
        };
        spawn_blocking(work).await.unwrap_or_else(|_| Err(ApiError::internal("an internal error ended the loading of the model")))
    }

    /// Index of the requested entry.
    fn index_of(&self, name: Option<&str>, is_wanted: fn(ModelKind) -> bool) -> Result<usize> {
        let Some(name) = name else {
            let mut places = self.entries.iter().enumerate().filter(|(_, entry)| is_wanted(entry.kind)).map(|(at, _)| at);
            return match (places.next(), places.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(ApiError::value("model", "`model` must name one of the models; GET /v1/models lists them")),
            };
        };
        let of_adapter = || self.entries.iter().position(|entry| entry.adapter(name).is_some());
        let at = self.entries.iter().position(|entry| entry.is_called(name)).or_else(of_adapter);
        let at = at.ok_or_else(|| ApiError::no_model(name))?;
        let kind = self.entries[at].kind;
        if is_wanted(kind) { Ok(at) } else { Err(ApiError::value("model", format!("the model {name:?} {}", kind.advice()))) }
    }

    /// Loads a model, unloading another one first if the limit is reached.
    fn load(&self, at: usize) -> Result<Running> {
        let entry = &self.entries[at];
        if let Some(running) = entry.running() {
            return Ok(running);
        }
        self.make_room()?;
        tracing::info!("{} is loaded", entry.name);
        let failed = |error: &dyn fmt::Display| {
            tracing::error!("{} cannot be loaded: {error}", entry.name);
            ApiError::unavailable("model_not_loaded", format!("the model {:?} cannot be loaded now", entry.name))
        };
        let load = entry.load.as_ref().ok_or_else(changed)?;
        let model = load().map_err(|error| failed(&error))?;
        let running = Running::start(model, &entry.metrics, self.disk.as_ref()).map_err(|error| failed(&error))?;
        let mut state = entry.state();
        (state.facts, state.used) = (running.facts(), Instant::now());
        state.running = Some(running.clone());
        Ok(running)
    }

    /// Unloads the least recently used models until one more fits.
    fn make_room(&self) -> Result<()> {
        let coming_and_going = || self.entries.iter().filter(|entry| entry.load.is_some());
        while coming_and_going().filter(|entry| entry.state().running.is_some()).count() >= self.most {
            let idle = coming_and_going().filter_map(|entry| Some((entry.idle_since()?, entry)));
            let Some((since, oldest)) = idle.min_by_key(|(since, _)| *since) else {
                return Err(ApiError::busy(format!("{} other models are in use, and no more are loaded at a time", self.most)));
            };
            oldest.unload_if_unused(since);
        }
        Ok(())
    }
}

/// Checks that adapter names are unique among all models and adapters.
fn check_adapters(entries: &[Entry]) -> std::io::Result<()> {
    for (i, entry) in entries.iter().enumerate() {
        for AdapterFacts { name, .. } in &entry.adapters {
            let is_of_other = |(k, other): (usize, &Entry)| other.is_called(name) || k != i && other.adapter(name).is_some();
            if entries.iter().enumerate().any(is_of_other) {
                let text = format!("the adapter {name:?} of {:?} has the name of another model or adapter", entry.name);
                return Err(std::io::Error::other(text));
            }
        }
    }
    Ok(())
}

/// The model changed kind since lookup.
fn changed() -> ApiError {
    ApiError::internal("the model is another one than it was")
}
