//! Batches without a server: requests from one file, results to another.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Builder,
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::{
    app::App,
    batch::{
        call::BatchClient,
        line::{Line, Outcome},
        read_written,
        validate::{Lines, validate},
    },
    config::Config,
    http::guard::Guard,
    keys::Caller,
    models::{ModelSource, Models},
    routes,
};

/// Polling interval of the stop flag.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Reason why a batch file cannot run.
#[derive(Debug, thiserror::Error)]
pub enum BatchFileError {
    /// A file cannot be opened, read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Invalid input lines, with one message per line.
    #[error("{} is no file of requests: {}", path.display(), problems.join("; "))]
    Input { path: PathBuf, problems: Vec<String> },
    /// The output contains results for requests that are not in the input.
    #[error("{} holds the answer to {custom_id:?}, which {} does not ask", output.display(), input.display())]
    Foreign { output: PathBuf, input: PathBuf, custom_id: String },
    /// Another process is writing the output.
    #[error("another process writes {}", path.display())]
    Busy { path: PathBuf },
    /// The models cannot start.
    #[error("the models cannot be started")]
    Models(#[source] io::Error),
}

/// Progress of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of requests in the input.
    pub total: usize,
    /// Number of successful results in the output.
    pub answered: usize,
    /// Number of failed results in the output.
    pub failed: usize,
}

impl Progress {
    /// Number of results in the output.
    pub fn done(&self) -> usize {
        self.answered + self.failed
    }

    fn count(&mut self, is_success: bool) {
        if is_success {
            self.answered += 1;
        } else {
            self.failed += 1;
        }
    }
}

/// A batch of an input file and an output file. Requests with a result in the output are done.
#[derive(Debug)]
pub struct BatchFile {
    input: (PathBuf, File),
    output: (PathBuf, File),
    done: BTreeSet<String>,
    progress: Progress,
    longest_line: usize,
}

impl BatchFile {
    /// Validates all requests and finds the ones finished by an earlier run. An incomplete last
    /// output line is truncated. With `retries`, failed requests run again.
    ///
    /// # Errors
    /// Fails if a file is unusable, the input has invalid lines, or the output belongs to another
    /// input.
    pub fn open(input: &Path, output: &Path, retries: bool, config: &Config) -> Result<BatchFile, BatchFileError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| BatchFileError::File { path, source }
        };
        let longest_line = config.body_bytes;
        let file = File::open(input).map_err(at(input))?;
        let again = File::open(input).map_err(at(input))?;
        let names = validate(again, None, longest_line).map_err(at(input))?.map_err(|errors| BatchFileError::Input {
            path: input.to_owned(),
            problems: errors
                .iter()
                .map(|error| match error.line {
                    Some(line) => format!("line {line}: {}", error.message),
                    None => error.message.clone(),
                })
                .collect(),
        })?;
        let mut written = open_output(output)?;
        if retries {
            drop_failures(&mut written, output).map_err(at(output))?;
            drop(written);
            written = open_output(output)?;
        }
        let mut progress = Progress { total: names.len(), ..Progress::default() };
        let (mut done, mut foreign) = (BTreeSet::new(), None);
        read_written(&mut written, |line, _| {
            if !names.contains(&line.custom_id) {
                foreign.get_or_insert(line.custom_id);
            } else if done.insert(line.custom_id) {
                progress.count(line.is_success);
            }
        })
        .map_err(at(output))?;
        if let Some(custom_id) = foreign {
            return Err(BatchFileError::Foreign { output: output.to_owned(), input: input.to_owned(), custom_id });
        }
        Ok(BatchFile { input: (input.to_owned(), file), output: (output.to_owned(), written), done, progress, longest_line })
    }

    /// Current progress.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Runs the remaining requests, `at_once` concurrently, and appends each result when it is
    /// ready. Returns early if `stop` becomes true. `report` receives progress.
    ///
    /// # Errors
    /// Fails if the models cannot start, or on an I/O error.
    pub fn run(
        mut self,
        models: Vec<ModelSource>,
        config: Config,
        at_once: usize,
        stop: &AtomicBool,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Progress, BatchFileError> {
        let models = Models::start(models, &config, None).map_err(BatchFileError::Models)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("batch")
            .enable_all()
            .build()
            .map_err(BatchFileError::Models)?;
        let guard = Guard::new(&config, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let (_running, stopped) = watch::channel(false);
        let app = Arc::new(App::new(config, guard, models, stopped, None, None));
        let client = BatchClient { routes: routes::plain(Arc::clone(&app)), app, caller: Caller::default() };
        runtime.block_on(self.run_all(&client, at_once, stop, report))?;
        Ok(self.progress)
    }

    async fn run_all(
        &mut self,
        client: &BatchClient,
        at_once: usize,
        stop: &AtomicBool,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), BatchFileError> {
        let at = |path: &PathBuf| {
            let path = path.clone();
            move |source| BatchFileError::File { path, source }
        };
        let mut lines = Lines::new(&self.input.1, self.longest_line);
        let mut running = JoinSet::new();
        let mut stop_polls = interval(STOP_POLL);
        stop_polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_read = false;
        while !stop.load(Ordering::Relaxed) {
            while !is_read && running.len() < at_once.max(1) {
                match lines.next().map_err(at(&self.input.0))? {
                    None => is_read = true,
                    Some((_, text)) => {
                        let Some(line) = Line::parse(&text).ok().filter(|line| !self.done.contains(&line.custom_id)) else {
                            continue;
                        };
                        let client = client.clone();
                        running.spawn(async move { (client.ask(&line).await, line.custom_id) });
                    }
                }
            }
            tokio::select! {
                _ = stop_polls.tick() => {}
                done = running.join_next() => {
                    let (outcome, name) = match done {
                        None => return Ok(()),
                        Some(Ok((Some(outcome), name))) => (outcome, name),
                        // The next run repeats the request.
                        Some(_) => continue,
                    };
                    write(&mut self.output.1, &name, &outcome).map_err(at(&self.output.0))?;
                    self.progress.count(outcome.is_success());
                    report(self.progress);
                }
            }
        }
        Ok(())
    }
}

/// Opens an output file with an exclusive lock.
fn open_output(path: &Path) -> Result<File, BatchFileError> {
    let opened = OpenOptions::new().create(true).read(true).append(true).open(path);
    let file = opened.map_err(|source| BatchFileError::File { path: path.to_owned(), source })?;
    file.try_lock().map_err(|_| BatchFileError::Busy { path: path.to_owned() })?;
    Ok(file)
}

/// Rewrites an output file with only its successful results.
fn drop_failures(file: &mut File, path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut kept = tempfile::NamedTempFile::new_in(folder)?;
    let mut result = Ok(());
    read_written(file, |line, text| {
        if line.is_success && result.is_ok() {
            result = kept.write_all(text);
        }
    })?;
    result?;
    kept.as_file().set_permissions(file.metadata()?.permissions())?;
    kept.persist(path)?;
    Ok(())
}

/// Appends a line. An interrupted write leaves an incomplete last line.
fn write(file: &mut File, name: &str, outcome: &Outcome) -> io::Result<()> {
    file.write_all(format!("{}\n", outcome.to_json(name)).as_bytes())
}
