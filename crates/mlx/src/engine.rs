//! The engine: loads libmlx, binds constants and buffers, runs the init chain.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use flambeau_ir::{
    Checked, Graph, Slot as GraphSlot,
    engine::{
        Clock, Constants, Engine, EngineError, LoadOptions, Outcome, Profile, Run, Session, check_supported, constants_of,
        shared_name,
    },
};

use crate::{
    Device, Error, Interface, Shim,
    batch::Batches,
    cx::Support,
    eval,
    ffi::{Api, Memory},
    locate::is_supported,
    owner::Owner,
    probe,
    session::{self, MlxSession},
    state::State,
    uploads::{Uploads, new_bytes, upload},
};

/// Options of the MLX engine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Device; `None` selects the first GPU, or the CPU without a GPU.
    pub device: Option<Device>,
    /// Whether to compile runs of a repeated signature; `None` means on GPUs. On MLX's CPU backend,
    /// compiled runs are only cached, not fused; this holds for the whole process.
    pub compile: Option<bool>,
    /// Whether unknown Metal kernels may run their source text.
    pub allow_custom_kernels: bool,
    /// Bytes of freed memory that MLX may keep for reuse; `None` leaves MLX's own limit.
    pub cache_limit: Option<u64>,
    /// Bytes that stay resident on Metal; `None` leaves MLX's own limit.
    pub wired_limit: Option<u64>,
    /// Bytes that arrays may take together; `None` leaves MLX's own limit. A run that needs more
    /// ends with an error. Scratch memory of MLX's CPU kernels does not count.
    pub memory_limit: Option<u64>,
}

/// Bytes of memory that MLX holds for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// In arrays.
    pub active: u64,
    /// Peak size of all arrays.
    pub peak: u64,
    /// Freed, and kept for reuse.
    pub cached: u64,
    /// Limit on the size of all arrays.
    pub limit: u64,
}

/// Runs graphs on MLX. All sessions of an engine take turns on its device's thread and share the
/// constants of a program.
#[derive(Debug)]
pub struct MlxEngine {
    api: Api,
    device: Device,
    support: Support,
    compiles: bool,
    compiled_runs: Arc<AtomicU64>,
    batches: Arc<Batches>,
    owner: Arc<Owner>,
    uploaded: Uploads,
    profile: Option<Clock>,
}

impl MlxEngine {
    /// Loads the shim that was [compiled ahead](Shim::compiled_ahead), or compiles one if there is
    /// none or it does not load.
    ///
    /// # Errors
    /// As [`Shim::build`] and [`load`](Self::load).
    pub fn open(shim: &Shim, options: &Options) -> Result<MlxEngine, Error> {
        match shim.compiled_ahead().map(|interface| MlxEngine::load(&interface, options)) {
            None | Some(Err(Error::Load { .. } | Error::Version { .. })) => MlxEngine::load(&shim.build()?.into(), options),
            Some(loaded) => loaded,
        }
    }

    /// Loads a compiled shim (see [`Shim`](crate::Shim)) with the libmlx that it links to.
    ///
    /// # Errors
    /// [`Error::Load`] if the library does not load, [`Error::Version`] if libmlx differs from the
    /// headers the shim was compiled with. [`Error::Device`] if the device does not exist,
    /// [`Error::Probe`] if a first computation fails.
    pub fn load(interface: &Interface, options: &Options) -> Result<MlxEngine, Error> {
        let api = Api::load(interface)?;
        let version = api.version(false);
        if !is_supported(&version)
            || api.version(true) != version.split(['+', 'd']).next().unwrap_or_default().trim_end_matches('.')
        {
            return Err(Error::Version { path: interface.path.clone(), version });
        }
        let fail = |what: String| Error::Probe { version: version.clone(), what };
        let limits = [
            (Memory::SetLimit, options.memory_limit),
            (Memory::SetCacheLimit, options.cache_limit),
            (Memory::SetWiredLimit, options.wired_limit),
        ];
        for (what, limit) in limits {
            if let Some(limit) = limit {
                api.memory(what, limit).map_err(|e| fail(e.to_string()))?;
            }
        }
        let first_gpu = || api.device_count(true).ok().filter(|&n| n > 0).map(|_| Device::Gpu(0));
        let device = options.device.or_else(first_gpu).unwrap_or_default();
        let owner = Owner::start(api, device)?;
        let lost = || "the first computation panicked".to_owned();
        owner.queue.call(move || probe::computes(api)).unwrap_or_else(|_| Err(lost())).map_err(fail)?;
        let multiplies_float_codes = owner.queue.call(move || probe::multiplies_float_codes(api)).map_err(|_| fail(lost()))?;
        let has_metal = cfg!(target_os = "macos") && device != Device::Cpu;
        let (allows_custom, fills_device) = (options.allow_custom_kernels, owner.is_first());
        let support = Support { has_metal, multiplies_float_codes, allows_custom, fills_device };
        // On a CPU, MLX compiles C++ for every function, which takes longer than it saves.
        let compiles = options.compile.unwrap_or(device != Device::Cpu);
        if device == Device::Cpu && compiles {
            api.fuse_nothing().map_err(|e| fail(e.to_string()))?;
        }
        let (compiled_runs, batches) = (Arc::new(AtomicU64::new(0)), Arc::new(Batches::default()));
        let (owner, uploaded) = (Arc::new(owner), Uploads::default());
        Ok(MlxEngine { api, device, support, compiles, compiled_runs, batches, owner, uploaded, profile: None })
    }

    /// With a clock, sessions loaded from here on measure the time of each step: a node, or a
    /// kernel for several nodes. They wait for every step, compile no run and do not pipeline
    /// steps, so a whole run takes longer.
    #[must_use]
    pub fn with_profile(mut self, profile: Option<Clock>) -> MlxEngine {
        self.profile = profile;
        self
    }

    /// Version of the loaded libmlx.
    pub fn version(&self) -> String {
        self.api.version(false)
    }

    /// Device of the engine.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The devices of the loaded libmlx, each with MLX's description: one `key=value` per line.
    pub fn devices(&self) -> Vec<(Device, String)> {
        let gpus = self.api.device_count(true).unwrap_or(0);
        let all = std::iter::once(Device::Cpu).chain((0..gpus as u32).map(Device::Gpu));
        all.map(|device| (device, self.api.device_info(device).unwrap_or_default())).collect()
    }

    /// Number of live array handles in the process; 0 once every session is dropped and its work is
    /// done.
    pub fn live_arrays(&self) -> i64 {
        // Waits for the queued jobs first.
        let _ = self.owner.queue.call(|| ());
        self.api.live_arrays()
    }

    /// MLX's current memory use, and its peak since the last [`MlxEngine::reset_peak`].
    pub fn memory(&self) -> MemoryUse {
        let _ = self.owner.queue.call(|| ());
        let read = |what| self.api.memory(what, 0).unwrap_or(0);
        MemoryUse {
            active: read(Memory::Active),
            peak: read(Memory::Peak),
            cached: read(Memory::Cache),
            limit: read(Memory::Limit),
        }
    }

    /// Begins a new measurement of [`MemoryUse::peak`].
    pub fn reset_peak(&self) {
        let _ = self.owner.queue.call(|| ());
        let _ = self.api.memory(Memory::ResetPeak, 0);
    }

    /// Number of runs of the engine's sessions that reused a compiled run of their signature
    /// instead of building a graph.
    pub fn compiled_runs(&self) -> u64 {
        self.compiled_runs.load(Ordering::Relaxed)
    }

    /// Runs that were one for several of the engine's sessions.
    pub fn joined_runs(&self) -> u64 {
        self.batches.joined_runs.load(Ordering::Relaxed)
    }

    /// Returns memory that MLX keeps for reuse to the system.
    pub fn clear_cache(&self) {
        let api = self.api;
        self.owner.queue.post(move || drop(api.memory(Memory::ClearCache, 0)));
    }
}

impl Engine for MlxEngine {
    fn name(&self) -> &'static str {
        "mlx"
    }

    fn load(&self, graph: Arc<Checked>, constants: &dyn Constants, options: &LoadOptions) -> Result<Box<dyn Session>, EngineError> {
        check_supported("mlx", &graph, |node| eval::is_supported(node, &self.support))?;
        let tensors = constants_of(&graph, constants)?;
        let (api, device, support, uploaded) = (self.api, self.device, self.support, Arc::clone(&self.uploaded));
        let profile = self.profile.clone();
        let compiles = (self.compiles && profile.is_none()).then(|| Arc::clone(&self.compiled_runs));
        let (options, queue) = (options.clone(), self.owner.queue.clone());
        let load = move || {
            // Metal reads constants in place.
            let weights = if support.has_metal { 0 } else { new_bytes(&uploaded, &tensors) };
            require_room(api, weights.saturating_add(state_bytes(&graph, &options)))?;
            let uploads = upload(api, &uploaded, tensors)?;
            let mut state = State::new(graph, (api, device, support, compiles), options.kv_cache.as_ref(), uploads)
                .map_err(EngineError::from)?;
            options.shared.map_or(Ok(()), |shared| state.share(shared, queue))?;
            state.machine.profile = profile.map(Profile::new);
            Ok(state)
        };
        let lost = |_| Err(EngineError::Arguments("loading panicked".into()));
        let state = self.owner.queue.call(load).unwrap_or_else(lost)?;
        Ok(Box::new(MlxSession::new(Arc::clone(&self.owner), Arc::clone(&self.batches), state)))
    }

    fn run_last_of_each(&self, runs: &mut [Run<'_>]) -> Vec<Outcome> {
        session::run_last_of_each(&self.owner, &self.batches, runs)
    }
}

/// Bytes of the buffers and of the cache that no other session of the same state has already.
fn state_bytes(graph: &Graph, options: &LoadOptions) -> u64 {
    let is_there = |name: &str| options.shared.as_ref().is_some_and(|state| state.engine.contains(name));
    let buffers = graph.buffers.iter().filter_map(|&tid| {
        let name = graph.name_of(GraphSlot::Tensor(tid)).map(shared_name);
        let meta = graph.meta.get(tid.0 as usize).filter(|_| !name.is_some_and(is_there))?;
        Some(meta.static_shape()?.iter().fold(meta.dtype.size() as u64, |n, &d| n.saturating_mul(d as u64)))
    });
    let cache = options.kv_cache.as_ref().filter(|_| !is_there("/cache")).map_or(0, |config| {
        let position = config.layers.iter().map(|layer| layer.n_kv_heads as u64 * layer.head_dim as u64);
        position.fold(0, u64::saturating_add).saturating_mul(2 * (config.dtype.size() * config.capacity) as u64)
    });
    buffers.fold(cache, u64::saturating_add)
}

/// Refuses a program that needs more than MLX may still allocate, before it takes any of it.
fn require_room(api: Api, needed: u64) -> Result<(), EngineError> {
    let read = |what, otherwise| api.memory(what, 0).unwrap_or(otherwise);
    let (active, limit) = (read(Memory::Active, 0), read(Memory::Limit, u64::MAX));
    if needed <= limit.saturating_sub(active) {
        return Ok(());
    }
    let [needed, active, limit] = [needed, active, limit].map(|bytes| bytes.div_ceil(1 << 20));
    Err(EngineError::Memory(format!(
        "the program needs {needed} MiB for weights, buffers and caches, but arrays take {active} MiB of the {limit} MiB that MLX may \
         allocate"
    )))
}
