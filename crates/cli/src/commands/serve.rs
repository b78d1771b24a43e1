//! `flambeau serve`: models of every kind over HTTP.

mod batches;
pub(crate) mod keys;
pub(crate) mod loading;
mod log;
mod requests;
mod sampling;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use flambeau::engine::Engine;
use flambeau_serve::{Config, Keys, ModelOnDemand, ModelSource, Server, stop_signal};

use self::{
    batches::BatchArgs,
    keys::KeyArgs,
    loading::{Loading, LoadingArgs},
    log::LogFormat,
    requests::RequestArgs,
};
use crate::{
    count::positive,
    failure::{hint, usage},
    model::ModelArgs,
};

/// Serve language models, text encoders and speech models over HTTP
///
/// Clients of OpenAI's API work unchanged with the base URL http://127.0.0.1:8080/v1, and clients of
/// Anthropic or Ollama with http://127.0.0.1:8080. Paths: /v1/chat/completions, /v1/completions,
/// /v1/responses, /v1/messages, /v1/embeddings, /v1/audio/transcriptions, /v1/audio/translations,
/// /v1/files, /v1/batches, /v1/rerank, /v1/score, /v1/classify, /v1/models, /infill, /tokenize,
/// /detokenize, /apply-template, /props, /slots, /lora-adapters, Ollama's under /api, /health,
/// /livez, /ready, /version, with --metrics /metrics, and a page to chat on at /. /openapi.json
/// describes them.
///
/// Requests run side by side: each step of the model gives every running answer one token, and one
/// waiting prompt a chunk. The server reuses the computed beginning of a prompt that an earlier
/// request shares. SIGTERM or Ctrl-C lets running requests end.
///
/// The server listens on this machine only. Another --host needs an API key, or --insecure.
/// Prompts and answers are never logged.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau serve HuggingFaceTB/SmolLM2-135M-Instruct\n  flambeau serve chat=model-Q4_1.gguf draft.pte --parallel 8 --port 9000\n  \
    flambeau serve model.pte --host 0.0.0.0 --api-key-file keys.txt\n  \
    flambeau serve whisper-1=openai/whisper-small embed=sentence-transformers/all-MiniLM-L6-v2\n\n  \
    curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n    \
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"stream\": true}'"
)]
pub(crate) struct Args {
    /// Programs (.pte), model folders, GGUF files, or ORG/NAME on the Hugging Face hub, with :QUANT
    /// for one of its GGUF files; NAME=MODEL sets the name that clients use
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,

    /// Alias of the model in requests; only with a single model
    #[arg(short, long, value_name = "NAME", alias = "model-id")]
    alias: Vec<String>,

    /// Address to listen on
    #[arg(help_heading = "Server", long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_parser = host)]
    host: IpAddr,

    /// Port to listen on; 0 selects a free port
    #[arg(help_heading = "Server", long, value_name = "N", default_value_t = 8080)]
    port: u16,

    /// Load models on request, and unload the least recently used one above this number
    #[arg(help_heading = "Server", long, value_name = "N", value_parser = positive)]
    models_max: Option<usize>,

    /// Load models on request, and unload them after this idle time
    #[arg(help_heading = "Server", long, value_name = "SECONDS", value_parser = positive)]
    sleep_idle_seconds: Option<usize>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Additional host name of this server, for example behind a reverse proxy; repeatable
    #[arg(help_heading = "Server", long, value_name = "NAME")]
    allowed_host: Vec<String>,

    /// Allowed origin of web pages, such as https://app.example; repeatable, `*` allows all
    #[arg(help_heading = "Server", long, value_name = "ORIGIN", alias = "allowed-origins")]
    allowed_origin: Vec<String>,

    #[command(flatten)]
    requests: RequestArgs,

    #[command(flatten)]
    batches: BatchArgs,

    /// Serve /metrics in Prometheus's format
    #[arg(help_heading = "Server", long)]
    metrics: bool,

    /// Serve /metrics without a key, for gateways and autoscalers that have none
    #[arg(help_heading = "Server", long, requires = "metrics")]
    public_metrics: bool,

    /// Export traces to an OpenTelemetry collector at this URL, such as http://127.0.0.1:4318
    #[arg(help_heading = "Server", long, value_name = "URL", alias = "otlp-traces-endpoint")]
    otlp_endpoint: Option<String>,

    /// Do not serve the chat page at /
    #[arg(help_heading = "Server", long)]
    no_ui: bool,

    /// Timeout for a request in seconds, including its wait in the queue
    #[arg(help_heading = "Server", long, value_name = "SECONDS", default_value_t = Config::default().request_time.as_secs() as usize, value_parser = positive)]
    timeout: usize,

    /// Grace period for running requests after SIGTERM, in seconds
    #[arg(help_heading = "Server", long, value_name = "SECONDS", default_value_t = Config::default().grace.as_secs())]
    grace: u64,

    /// Maximum number of connections
    #[arg(help_heading = "Server", long, value_name = "N", default_value_t = Config::default().connections, value_parser = positive)]
    max_connections: usize,

    /// Maximum request body size in MiB
    #[arg(help_heading = "Server", long, value_name = "N", default_value_t = Config::default().body_bytes / MIB, value_parser = positive)]
    max_body: usize,

    /// Maximum recording size in MiB
    #[arg(help_heading = "Server", long, value_name = "N", default_value_t = Config::default().upload_bytes / MIB, value_parser = positive)]
    max_upload: usize,

    /// Log level on stderr: error, warn, info (one line per request) or debug
    #[arg(help_heading = "Server", long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing_subscriber::filter::LevelFilter,

    /// Log format: lines of text, or one JSON object per line
    #[arg(help_heading = "Server", long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// Maximum number of waiting requests per model; further requests get status 429
    #[arg(help_heading = "Scheduling", long, value_name = "N", default_value_t = 64)]
    queue: usize,

    /// Folder for a prompt cache on disk, which survives restarts. Its files contain prompts and
    /// answers; only their owner can read them
    #[arg(help_heading = "Scheduling", long, value_name = "DIR")]
    prompt_cache_dir: Option<PathBuf>,

    /// Maximum total size of the files in --prompt-cache-dir in MiB; the least recently used file
    /// is evicted first
    #[arg(help_heading = "Scheduling", long, value_name = "N", default_value_t = 8192, value_parser = positive, requires = "prompt_cache_dir")]
    cache_disk: usize,

    #[command(flatten)]
    loading: LoadingArgs,
}

const MIB: usize = 1 << 20;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let keys = args.keys.read()?;
    if keys.is_empty() && !args.host.is_loopback() && !args.keys.insecure {
        let who = format!("on {}, everybody who reaches this machine could use the server", args.host);
        return Err(usage(format!("{who}: give --api-key-file FILE, or --insecure if that is wanted")));
    }
    let names = names(&args.models, &args.alias, &args.loading)?;
    args.log_format.start(args.log_level);
    let address = SocketAddr::new(args.host, args.port);
    let again = args.keys.clone();
    let keys = Keys::reloadable(keys, move || again.read().map_err(|error| format!("{error:#}")));
    let server = Server::bind(address, config(args, keys)).with_context(|| format!("cannot listen on {address}"));
    let mut server = server.map_err(|error| hint(error, "--port takes another port, and 0 any that is free"))?;
    if let Some(folder) = &args.prompt_cache_dir {
        let cached = server.with_prompt_cache(folder, args.cache_disk.saturating_mul(MIB) as u64);
        server = cached.with_context(|| format!("cannot keep texts in {}", folder.display()))?;
    }
    server = args.batches.attach(server, args.loading.parallel)?;
    if let Some(url) = &args.otlp_endpoint {
        server = server.with_traces(url).with_context(|| format!("cannot send traces to {url}"))?;
    }
    let engine = args.loading.load.engine.engine(false)?;
    let loading = Loading {
        args: args.loading.clone(),
        aliases: args.alias.clone(),
        queue: args.queue,
        models: args.models.len().min(args.models_max.unwrap_or(usize::MAX)),
    };
    let mut models = Vec::new();
    for (name, model) in names {
        models.push(source(args, &loading, &name, &loading.model(model), &engine).with_context(|| name.clone())?);
    }
    eprintln!("listening on http://{}", server.address());
    server.run(models, stop_signal())?;
    Ok(ExitCode::SUCCESS)
}

/// Parses an address, or `localhost`.
fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| "expected an IP address, such as 127.0.0.1 or 0.0.0.0".to_owned()),
    }
}

/// The public name and the source of each model.
pub(crate) fn names<'a>(models: &'a [String], aliases: &[String], loading: &LoadingArgs) -> Result<Vec<(String, &'a str)>> {
    if models.len() > 1 && !aliases.is_empty() {
        return Err(usage("--alias is for a single model; NAME=MODEL names one of several"));
    }
    if models.len() > 1 && loading.load.tokenizer_is_given() {
        return Err(usage("--tokenizer is for a single model"));
    }
    if models.len() > 1 && loading.template.is_given() {
        return Err(usage("--chat-template and --chat-template-file are for a single model"));
    }
    let mut names: Vec<(String, &str)> = Vec::new();
    for text in models {
        let (name, model) = match text.split_once('=') {
            Some((name, model)) if !Path::new(text).exists() => (name.to_owned(), model),
            _ => (default_name(text), text.as_str()),
        };
        if name.is_empty() {
            return Err(usage(format!("{text}: there is no name before `=`")));
        }
        if names.iter().any(|(known, _)| *known == name) {
            return Err(usage(format!("several models are called {name:?}: give each its own name, as NAME=MODEL")));
        }
        names.push((name, model));
    }
    Ok(names)
}

/// Base name of a file or folder without its extension; names on the hub are unchanged.
fn default_name(model: &str) -> String {
    let path = Path::new(model);
    let is_local = path.exists() || path.extension().is_some_and(|end| end == "pte" || end == "gguf");
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    match name.filter(|_| is_local) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => model.to_owned(),
    }
}

fn config(args: &Args, keys: Keys) -> Config {
    Config {
        keys,
        hosts: args.allowed_host.clone(),
        origins: args.allowed_origin.clone(),
        metrics: args.metrics,
        public_metrics: args.public_metrics,
        page: !args.no_ui,
        drop_hosted_tools: args.requests.drop_hosted_tools,
        requests_per_minute: args.requests.requests_per_minute.map(|count| count as u64),
        tokens_per_minute: args.requests.tokens_per_minute.map(|count| count as u64),
        response_bytes: args.requests.response_memory.saturating_mul(MIB),
        body_bytes: args.max_body.saturating_mul(MIB),
        upload_bytes: args.max_upload.saturating_mul(MIB),
        connections: args.max_connections,
        request_time: Duration::from_secs(args.timeout as u64),
        grace: Duration::from_secs(args.grace),
        loaded_models: args.models_max.unwrap_or(usize::MAX),
        idle_time: args.sleep_idle_seconds.map(|seconds| Duration::from_secs(seconds as u64)),
        ..Config::default()
    }
}

/// Source of a model: preloaded, or inspected now and loaded on demand.
fn source(args: &Args, loading: &Loading, name: &str, model: &ModelArgs, engine: &Arc<dyn Engine>) -> Result<ModelSource> {
    if args.models_max.is_none() && args.sleep_idle_seconds.is_none() {
        return Ok(loading.load(name, model, engine)?.into());
    }
    let (kind, adapters) = loading.describe(model)?;
    eprintln!("{name}: loaded on demand");
    let (loading, model, engine) = (loading.clone(), model.clone(), Arc::clone(engine));
    let (name, aliases, again) = (name.to_owned(), args.alias.clone(), name.to_owned());
    let load = Box::new(move || loading.load(&again, &model, &engine).map_err(|error| format!("{error:#}")));
    Ok(ModelOnDemand { name, aliases, kind, adapters, load }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_by_their_files_unless_they_are_named() {
        assert_eq!(default_name("some/where/model-4bit.pte"), "model-4bit");
        assert_eq!(default_name("HuggingFaceTB/SmolLM2-135M-Instruct"), "HuggingFaceTB/SmolLM2-135M-Instruct");
    }

    #[test]
    fn hosts_are_addresses() {
        assert_eq!(host("localhost").unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(host("::1").unwrap().is_loopback() && !host("0.0.0.0").unwrap().is_loopback());
        assert!(host("example").is_err());
    }
}
