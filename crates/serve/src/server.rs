//! From a configuration to a running server.

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

/// A server that is bound to an address.
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
    /// Binds an address; port 0 means any that is free.
    ///
    /// # Errors
    /// The address is taken, or none of this machine's.
    pub fn bind(address: SocketAddr, config: Config) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Server { listener, address, config, disk: None, batches: None, traces: None })
    }

    /// The same server with a prompt cache on disk, of at most `bytes` bytes, which survives
    /// restarts.
    ///
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub fn with_prompt_cache(self, folder: &Path, bytes: u64) -> io::Result<Server> {
        let disk = DiskCache::open(folder, bytes, |problem| tracing::warn!("{problem}"))?;
        Ok(Server { disk: Some(disk), ..self })
    }

    /// The same server with files and batches, which survive restarts.
    ///
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub fn with_batches(self, config: BatchConfig) -> io::Result<Server> {
        Ok(Server { batches: Some(Store::open(config)?), ..self })
    }

    /// The same server with files and batches in a folder that no flag names. Where it cannot be
    /// used, the server keeps none, and its log says why.
    #[must_use]
    pub fn with_default_batches(self, config: BatchConfig) -> Server {
        let folder = config.folder.clone();
        let opened = Store::open(config);
        let why =
            |error: &io::Error| tracing::warn!("no files and batches are kept, since {} cannot be used: {error}", folder.display());
        Server { batches: opened.inspect_err(why).ok(), ..self }
    }

    /// The same server that sends traces of its requests to a collector of OpenTelemetry (OTLP over
    /// HTTP) at a URL, such as `http://127.0.0.1:4318`.
    ///
    /// # Errors
    /// The URL is none, or the system has no thread left.
    pub fn with_traces(self, endpoint: &str) -> io::Result<Server> {
        let traces = Traces::new(endpoint, self.address).map_err(io::Error::other)?;
        Ok(Server { traces: Some(Arc::new(traces)), ..self })
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the models until `shutdown`, and then until requests that are under way have ended or
    /// their time is
    /// over. Returns when what is kept in a folder is written.
    ///
    /// # Errors
    /// A model cannot be loaded, or the system has no thread left.
    pub fn run(self, models: Vec<ModelSource>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let (disk, writer) = self.disk.unzip();
        let models = Models::start(models, &self.config, disk)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("serve http").enable_all().build()?;
        runtime.block_on(async {
            let (stop, stopped) = watch::channel(false);
            let guard = Guard::new(&self.config, self.address);
            if let Some(after) = self.config.idle_time {
                tokio::spawn(models.clone().rest(after));
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

/// Waits for the signals that ask a server to stop: SIGTERM, or Ctrl-C. A second one ends the
/// process at once.
pub async fn stop_signal() {
    wait_for_signal().await;
    tokio::spawn(async {
        wait_for_signal().await;
        std::process::exit(130);
    });
}

/// Reads the keys again whenever the process gets SIGHUP.
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
