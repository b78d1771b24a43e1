//! Creates and runs a server from a configuration.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

use flambeau::runners::llm::{DiskCache, DiskWriter};
use tokio::{runtime::Builder, sync::watch};

use crate::{
    app::App,
    batch,
    config::Config,
    http::{guard::Guard, listener},
    keys::Keys,
    models::{ModelSource, Models},
    routes,
    storage::{BatchConfig, Store},
    traces::Traces,
};

/// A server bound to an address.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    config: Config,
    disk: Option<(DiskCache, DiskWriter)>,
    batches: Option<Store>,
    traces: Option<Arc<Traces>>,
}

impl Server {
    /// Binds an address; port 0 selects a free port.
    ///
    /// # Errors
    /// Fails if the address is in use or not available.
    pub fn bind(address: SocketAddr, config: Config) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Server { listener, address, config, disk: None, batches: None, traces: None })
    }

    /// Enables a prompt cache on disk of at most `bytes` bytes. It survives restarts.
    ///
    /// # Errors
    /// Fails if the folder is unusable or locked by another process.
    pub fn with_prompt_cache(self, folder: &Path, bytes: u64) -> io::Result<Server> {
        let disk = DiskCache::open(folder, bytes, |problem| tracing::warn!("{problem}"))?;
        Ok(Server { disk: Some(disk), ..self })
    }

    /// Enables files and batches, which survive restarts.
    ///
    /// # Errors
    /// Fails if the folder is unusable or locked by another process.
    pub fn with_batches(self, config: BatchConfig) -> io::Result<Server> {
        Ok(Server { batches: Some(Store::open(config)?), ..self })
    }

    /// Enables files and batches in the default folder. If it is unusable, the server logs the
    /// reason and runs without them.
    #[must_use]
    pub fn with_default_batches(self, config: BatchConfig) -> Server {
        let folder = config.folder.clone();
        let opened = Store::open(config);
        let why =
            |error: &io::Error| tracing::warn!("no files and batches are kept, since {} cannot be used: {error}", folder.display());
        Server { batches: opened.inspect_err(why).ok(), ..self }
    }

    /// Exports traces to an OpenTelemetry collector (OTLP over HTTP) at a URL such as
    /// `http://127.0.0.1:4318`.
    ///
    /// # Errors
    /// Fails if the URL is invalid or a thread cannot start.
    pub fn with_traces(self, endpoint: &str) -> io::Result<Server> {
        let traces = Traces::new(endpoint, self.address).map_err(io::Error::other)?;
        Ok(Server { traces: Some(Arc::new(traces)), ..self })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the models until `shutdown`, then until running requests end or the grace period is
    /// over. Returns after persistent state is written.
    ///
    /// # Errors
    /// Fails if a model cannot be loaded or a thread cannot start.
    pub fn run(self, models: Vec<ModelSource>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let (disk, writer) = self.disk.unzip();
        let models = Models::start(models, &self.config, disk)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("serve http").enable_all().build()?;
        runtime.block_on(async {
            let (stop, stopped) = watch::channel(false);
            let guard = Guard::new(&self.config, self.address);
            if let Some(after) = self.config.idle_time {
                tokio::spawn(models.clone().unload_idle(after));
            }
            let batches = self.batches.map(Arc::new);
            let app = Arc::new(App::new(self.config.clone(), guard, models, stopped, batches.clone(), self.traces.clone()));
            let routes = routes::plain(Arc::clone(&app));
            if let Some(batches) = batches {
                tokio::spawn(batch::run(Arc::clone(&app), routes.clone(), batches));
            }
            tokio::spawn(reload_keys(self.config.keys.clone()));
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            listener::serve(listener, routes::guarded(routes, app), &self.config, stop, shutdown).await;
            io::Result::Ok(())
        })?;
        // Timed-out requests release their models, and idle models save their texts.
        drop(runtime);
        writer.into_iter().for_each(DiskWriter::join);
        if let Some(traces) = &self.traces {
            traces.close();
        }
        Ok(())
    }
}

/// Waits for SIGTERM or Ctrl-C. A second signal ends the process at once.
pub async fn stop_signal() {
    wait_for_signal().await;
    tokio::spawn(async {
        wait_for_signal().await;
        std::process::exit(130);
    });
}

/// Reloads the keys on each SIGHUP.
#[cfg(unix)]
async fn reload_keys(keys: Keys) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        let keys = keys.clone();
        // A panic there costs a line in the log.
        let _ = tokio::task::spawn_blocking(move || keys.reload()).await;
    }
}

#[cfg(not(unix))]
async fn reload_keys(_: Keys) {}

#[cfg(unix)]
async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(not(unix))]
async fn wait_for_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
