//! Runs batches from input to output files.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Seek, Write},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinSet, block_in_place, spawn_blocking},
    time::sleep,
};

use super::{
    call::BatchClient,
    line::{Line, Outcome, Written},
    validate::{Lines, validate},
};
use crate::{
    app::App,
    keys::Caller,
    model::now,
    storage::{
        Store,
        record::{BatchError, BatchRecord, Status, Sums},
    },
};

/// Reason why a batch stops.
enum End {
    Completed,
    Cancelled,
    Expired,
    /// The server stops. The batch resumes at the next start.
    Stopped,
    Failed(Vec<BatchError>),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        tracing::error!("a batch ends: {error}");
        End::failed("server_error", "the server cannot use its folder of files")
    }
}

impl End {
    fn failed(code: &str, message: &str) -> End {
        End::Failed(vec![BatchError { code: code.to_owned(), message: message.to_owned(), param: None, line: None }])
    }
}

/// Runs batches as they arrive. Concurrent batches take turns by request.
pub(crate) async fn run(app: Arc<App>, routes: Router, store: Arc<Store>) {
    let places = Arc::new(Semaphore::new(store.config.at_once.clamp(1, Semaphore::MAX_PERMITS)));
    let mut changes = store.changes();
    let mut known = BTreeSet::new();
    loop {
        let active = store.active();
        known.retain(|id: &String| active.iter().any(|batch| batch.id == *id));
        for batch in active {
            if known.insert(batch.id.clone()) {
                let caller = Caller::of(batch.owner).in_background();
                let run = Run {
                    app: Arc::clone(&app),
                    routes: routes.clone(),
                    store: Arc::clone(&store),
                    places: Arc::clone(&places),
                    caller,
                };
                tokio::spawn(run.whole(batch));
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// A running batch.
struct Run {
    app: Arc<App>,
    routes: Router,
    store: Arc<Store>,
    places: Arc<Semaphore>,
    caller: Caller,
}

/// Output files of a batch.
struct Outputs {
    answers: File,
    failures: File,
    /// IDs of finished requests.
    done: BTreeSet<String>,
}

impl Run {
    async fn whole(self, batch: BatchRecord) {
        let id = batch.id.clone();
        let end = match self.lines(batch).await {
            Ok(()) => End::Completed,
            Err(end) => end,
        };
        let store = Arc::clone(&self.store);
        let finished = spawn_blocking(move || finish(&store, &id, end)).await;
        if let Ok(Err(error)) = finished {
            tracing::error!("a batch cannot be finished: {error}");
        }
    }

    /// Runs all unfinished requests.
    async fn lines(&self, batch: BatchRecord) -> Result<(), End> {
        let owner = Caller::of(batch.owner);
        let missing = || End::failed("file_not_found", "the input file is gone");
        let (input, again) = (self.store.open_file(owner, &batch.input_file_id), self.store.open_file(owner, &batch.input_file_id));
        let (input, again) = (input.map_err(|_| missing())?, again.map_err(|_| missing())?);
        let (store, most) = (Arc::clone(&self.store), self.app.config.body_bytes);
        let prepare = move || {
            let names = validate(again, Some(&batch.endpoint), most)?.map_err(End::Failed)?;
            let (outputs, mut sums) = reopen(&store, &batch)?;
            sums.total = names.len();
            let batch = store.change(&batch.id, |batch| {
                batch.sums = sums;
                if batch.status == Status::Validating {
                    batch.enter(Status::InProgress, now());
                }
            })?;
            Ok((batch, outputs))
        };
        let prepared = spawn_blocking(prepare).await;
        let (batch, mut outputs) =
            prepared.unwrap_or_else(|_| Err(End::failed("server_error", "an internal error ended the batch")))?;
        let mut lines = Lines::new(input, most);
        let mut running: JoinSet<Option<(String, Outcome)>> = JoinSet::new();
        let mut changes = self.store.changes();
        let mut stop = self.app.stop.clone();
        let late = sleep(Duration::from_secs(batch.expires_at.saturating_sub(now())));
        tokio::pin!(late);
        let mut next = None;
        let mut is_read = false;
        loop {
            if self.store.is_cancelled(&batch.id) {
                return Err(End::Cancelled);
            }
            while next.is_none() && !is_read {
                match block_in_place(|| lines.next())? {
                    Some((_, text)) => next = Line::parse(&text).ok().filter(|line| !outputs.done.contains(&line.custom_id)),
                    None => is_read = true,
                }
            }
            if next.is_none() && running.is_empty() {
                return Ok(());
            }
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
                () = &mut late => return Err(self.expire(&batch, &mut outputs)),
                _ = changes.changed() => {}
                Some(done) = running.join_next() => match done {
                    Ok(Some((name, outcome))) => self.write(&batch, &mut outputs, &name, &outcome)?,
                    Ok(None) => return Err(End::Stopped),
                    Err(_) => return Err(End::failed("server_error", "an internal error ended a request")),
                },
                Ok(place) = Arc::clone(&self.places).acquire_owned(), if next.is_some() => {
                    if let Some(line) = next.take() {
                        running.spawn(self.ask(line, place));
                    }
                }
            }
        }
    }

    fn ask(&self, line: Line, place: OwnedSemaphorePermit) -> impl Future<Output = Option<(String, Outcome)>> + Send + use<> {
        let client = BatchClient { app: Arc::clone(&self.app), routes: self.routes.clone(), caller: self.caller };
        async move {
            let outcome = client.ask(&line).await?;
            drop(place);
            Some((line.custom_id, outcome))
        }
    }

    fn write(&self, batch: &BatchRecord, outputs: &mut Outputs, name: &str, outcome: &Outcome) -> Result<(), End> {
        let record = outcome.to_json(name);
        let text = format!("{record}\n");
        if !self.store.reserve(text.len() as u64) {
            return Err(End::failed("storage_full", "the server has no room for more answers"));
        }
        let file = if outcome.is_success() { &mut outputs.answers } else { &mut outputs.failures };
        block_in_place(|| file.write_all(text.as_bytes()))?;
        outputs.done.insert(name.to_owned());
        self.store.note(&batch.id, |batch| batch.sums.add(&record["response"]));
        Ok(())
    }

    /// Records every unanswered request as expired, including running ones.
    fn expire(&self, batch: &BatchRecord, outputs: &mut Outputs) -> End {
        let outcome = Outcome::Dropped { code: "batch_expired", message: "the batch's time was over before the request's end" };
        let mut write_all = || {
            let input = self.store.open_file(Caller::of(batch.owner), &batch.input_file_id);
            let mut lines = Lines::new(input.map_err(io::Error::other)?, self.app.config.body_bytes);
            while let Some((_, text)) = block_in_place(|| lines.next())? {
                if let Some(line) = Line::parse(&text).ok().filter(|line| !outputs.done.contains(&line.custom_id)) {
                    self.write(batch, outputs, &line.custom_id, &outcome)?;
                }
            }
            Ok(())
        };
        write_all().map_or_else(|end: End| end, |()| End::Expired)
    }
}

/// Opens a batch's output files and counts the results of earlier server runs.
fn reopen(store: &Store, batch: &BatchRecord) -> io::Result<(Outputs, Sums)> {
    let mut outputs = Outputs {
        answers: store.open_output(&batch.output_id)?,
        failures: store.open_output(&batch.error_id)?,
        done: BTreeSet::new(),
    };
    let mut sums = Sums::default();
    for file in [&mut outputs.answers, &mut outputs.failures] {
        read_written(file, |line, _| {
            sums.add(&line.response);
            outputs.done.insert(line.custom_id);
        })?;
    }
    Ok((outputs, sums))
}

/// Reads the lines of an output file and truncates an incomplete last line.
///
/// # Errors
/// Fails if the file is unreadable or invalid.
pub(crate) fn read_written(file: &mut File, mut take: impl FnMut(Written, &[u8])) -> io::Result<()> {
    file.rewind()?;
    let mut reader = BufReader::new(&*file);
    let (mut whole, mut line) = (0, Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        match Written::parse(&line) {
            Some(written) => take(written, &line),
            None if Written::could_begin(&line) => break,
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "the file holds no answers of a batch")),
        }
        whole += line.len() as u64;
        line.clear();
    }
    file.set_len(whole)
}

/// Publishes the output files and ends the batch.
fn finish(store: &Store, id: &str, end: End) -> io::Result<()> {
    let (status, errors) = match end {
        End::Stopped => return Ok(()),
        End::Completed => (Status::Completed, Vec::new()),
        End::Cancelled => (Status::Cancelled, Vec::new()),
        End::Expired => (Status::Expired, Vec::new()),
        End::Failed(errors) => (Status::Failed, errors),
    };
    let batch = store.change(id, |batch| {
        if batch.status == Status::InProgress {
            batch.enter(Status::Finalizing, now());
        }
    })?;
    let has_output = store.finish_output(&batch, &batch.output_id, format!("{id}_output.jsonl"))?;
    let has_failures = store.finish_output(&batch, &batch.error_id, format!("{id}_error.jsonl"))?;
    store.change(id, |batch| {
        (batch.has_output, batch.has_failures) = (has_output, has_failures);
        batch.errors = errors;
        batch.enter(status, now());
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        batch::call::Answer,
        storage::{BATCH_PREFIX, BatchConfig},
    };

    #[test]
    fn restarts_count_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let config = BatchConfig { folder: folder.path().to_owned(), bytes: 1 << 20, file_bytes: 1 << 20, at_once: 1 };
        let store = Store::open(config).unwrap();
        let batch = BatchRecord::new(BATCH_PREFIX, Caller::of(1), "/v1/embeddings".to_owned(), "file-1".to_owned());
        let answer = |status| Outcome::Answered(Answer { status, request_id: "req_1".into(), body: json!({}) });
        let late = Outcome::Dropped { code: "batch_expired", message: "late" };
        let lines = [(&batch.output_id, "a", answer(200)), (&batch.error_id, "b", answer(400)), (&batch.error_id, "c", late)];
        for (id, name, outcome) in &lines {
            writeln!(store.open_output(id).unwrap(), "{}", outcome.to_json(name)).unwrap();
        }
        let (outputs, sums) = reopen(&store, &batch).unwrap();
        assert_eq!((outputs.done.len(), sums.completed, sums.failed, sums.expired), (3, 1, 2, 1));
    }
}
