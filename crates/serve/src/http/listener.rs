//! Connections: how many, how slow, and how they end.

use std::{convert::Infallible, future::Future, io, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{sleep, timeout},
};
use tower::ServiceExt;

use super::timed::Timed;
use crate::config::Config;

/// Room for a request's head, and for what waits to be written.
const BUFFER_BYTES: usize = 64 << 10;
/// Most headers of a request.
const MAX_HEADERS: usize = 100;
/// How long to wait before the next connection is taken when there is no file for it.
const BREATH: Duration = Duration::from_millis(100);
/// How long streams have to tell their clients that the server stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves connections until `shutdown`; then waits for those that are open, for as long as they may
/// go on, and sets `stop` to end the rest.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    config: &Config,
    stop: watch::Sender<bool>,
    shutdown: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let next = async {
            // Without a slot, connections wait in the system's queue.
            let slot = Arc::clone(&slots).acquire_owned().await.expect("nobody closes the semaphore");
            (slot, listener.accept().await)
        };
        tokio::select! {
            () = &mut shutdown => break,
            (slot, accepted) = next => match accepted {
                Ok((stream, _)) => connect(stream, slot, routes.clone(), config, &graceful),
                Err(error) => pause(&error).await,
            },
        }
    }
    drop(listener);
    tracing::info!("stopping: requests may go on for {} s", config.grace.as_secs());
    let ended = graceful.shutdown();
    tokio::pin!(ended);
    if timeout(config.grace, &mut ended).await.is_err() {
        // The receiver may be gone.
        let _ = stop.send(true);
        let _ = timeout(FAREWELL, ended).await;
    }
}

/// A connection aborted by its client is ignored. Without free file descriptors, the next try
/// waits.
async fn pause(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if ![ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind()) {
        tracing::warn!("cannot accept a connection: {error}");
        sleep(BREATH).await;
    }
}

fn connect(stream: TcpStream, slot: OwnedSemaphorePermit, routes: Router, config: &Config, graceful: &GracefulShutdown) {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Timed::new(stream, config.write_time));
    let service = service_fn(move |request: Request<Incoming>| {
        let routes = routes.clone();
        async move {
            let response = routes.oneshot(request.map(Body::new)).await;
            Ok::<_, Infallible>(response.unwrap_or_else(|never| match never {}))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_time)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service);
    let watched = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = watched.await {
            tracing::debug!("a connection ended: {error}");
        }
        drop(slot);
    });
}
