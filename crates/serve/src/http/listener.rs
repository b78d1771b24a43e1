//! Connections: number, timeouts and shutdown.

use std::{convert::Infallible, future::Future, io, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{sleep, timeout},
};
use tower::ServiceExt;

use super::{
    framing::{Framing, Verdicts},
    guard::TwoLengths,
    timed::Timed,
};
use crate::config::Config;

/// Maximum size in bytes of a request's head, and of unsent output.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of headers of a request.
pub(super) const MAX_HEADERS: usize = 100;
/// Delay before the next connection is accepted if none could be, such as without a free file
/// descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time for streams to send their final event at shutdown.
const FINAL_EVENTS: Duration = Duration::from_secs(5);

/// Serves connections until `shutdown`, then waits out the grace period and sets `stop` to end the
/// remaining requests.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    config: &Config,
    stop: watch::Sender<bool>,
    shutdown: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS)));
    let (closer, guard) = Shutdown::new();
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
                Ok((stream, _)) => connect(stream, slot, routes.clone(), config, guard.clone()),
                Err(error) => accept_failed(&error).await,
            },
        }
    }
    drop((listener, guard));
    tracing::info!("stopping: requests may go on for {} s", config.grace.as_secs());
    let ended = closer.close();
    tokio::pin!(ended);
    if timeout(config.grace, &mut ended).await.is_err() {
        // The receiver may be gone.
        let _ = stop.send(true);
        let _ = timeout(FINAL_EVENTS, ended).await;
    }
}

/// Asks connections to close after their current request, and waits for them.
struct Shutdown {
    is_closing: watch::Sender<bool>,
    left: mpsc::Receiver<Infallible>,
}

/// Held by a connection until it ends. Sessions that outlive their HTTP connection hold a clone.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionGuard {
    is_closing: watch::Receiver<bool>,
    _left: mpsc::Sender<Infallible>,
}

impl Shutdown {
    fn new() -> (Shutdown, ConnectionGuard) {
        let (is_closing, closing) = watch::channel(false);
        let (sender, left) = mpsc::channel(1);
        (Shutdown { is_closing, left }, ConnectionGuard { is_closing: closing, _left: sender })
    }

    /// Completes when all connections have ended.
    async fn close(mut self) {
        self.is_closing.send_replace(true);
        self.left.recv().await;
    }
}

impl ConnectionGuard {
    /// Returns when the connection or session should end.
    pub(crate) async fn is_closing(&mut self) {
        // An error means that the server is gone, so the connection should end, too.
        let _ = self.is_closing.wait_for(|is_closing| *is_closing).await;
    }
}

/// Handles a failure to accept a connection: delays the next attempt, unless the client aborted.
async fn accept_failed(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if ![ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind()) {
        tracing::warn!("cannot accept a connection: {error}");
        sleep(ACCEPT_RETRY).await;
    }
}

fn connect(stream: TcpStream, slot: OwnedSemaphorePermit, routes: Router, config: &Config, mut guard: ConnectionGuard) {
    // Events are small, and clients wait for each of them.
    let _ = stream.set_nodelay(true);
    let verdicts = Verdicts::default();
    let io = TokioIo::new(Timed::new(stream, config.write_time, Framing::new(verdicts.clone())));
    let session = guard.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let routes = routes.clone();
        request.extensions_mut().insert(session.clone());
        if verdicts.next() {
            request.extensions_mut().insert(TwoLengths);
        }
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
        .serve_connection(io, service)
        // WebSockets take over their connection.
        .with_upgrades();
    tokio::spawn(async move {
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = guard.is_closing() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a connection ended: {error}");
        }
        drop((slot, guard));
    });
}
