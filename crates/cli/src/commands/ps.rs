//! `flambeau ps`: lists the models of a running server.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value as Json;
use ureq::Agent;

use super::serve::keys;
use crate::{environment, failure::hint, files, memory::human, shelf::table};

/// Timeout for the server's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// List the models of a running server with state, size, context, requests and idle time
///
/// Connects to a server started by `flambeau serve`. The idle time starts at the last request.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau ps\n  flambeau ps --url http://127.0.0.1:9000 --json")]
pub(crate) struct Args {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// File with the server's API key; by default FLAMBEAU_API_KEY is used
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let models = models(args)?;
    if args.json {
        files::print_json(&models.into())?;
    } else {
        table(&["NAME", "STATUS", "SIZE", "CONTEXT", "REQUESTS", "IDLE"], models.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The server's list of models.
fn models(args: &Args) -> Result<Vec<Json>> {
    let key = match &args.api_key_file {
        Some(path) => keys::of_file(path)?.into_iter().next(),
        None => environment::text(keys::VARIABLE),
    };
    let agent: Agent = Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build().into();
    let mut request = agent.get(format!("{}/v1/models", args.url.trim_end_matches('/')));
    if let Some(key) = key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let mut response = request.call().map_err(|error| {
        hint(
            anyhow!("there is no server at {}: {error}", args.url),
            "`flambeau serve MODEL` starts one, and --url names another address",
        )
    })?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => {
            return Err(hint(
                anyhow!("the server at {} asks for a key", args.url),
                "give it by --api-key-file or FLAMBEAU_API_KEY",
            ));
        }
        status => bail!("the server at {} answered {status}", args.url),
    }
    let text = response.body_mut().read_to_string().context("the server's answer broke off")?;
    let json: Json = serde_json::from_str(&text).with_context(|| format!("{} is no server of models", args.url))?;
    json["data"].as_array().cloned().with_context(|| format!("{} lists no models", args.url))
}

fn row(model: &Json) -> Vec<String> {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let number = |key: &str| model[key].as_u64();
    vec![
        or_unknown(model["id"].as_str().map(str::to_owned)),
        or_unknown(model["status"]["value"].as_str().map(str::to_owned)),
        or_unknown(number("size").map(human)),
        or_unknown(number("context_length").map(|tokens| tokens.to_string())),
        or_unknown(number("requests").map(|count| count.to_string())),
        or_unknown(number("idle_seconds").map(idle)),
    ]
}

/// Formats seconds as hours, minutes and seconds.
fn idle(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_times_are_short() {
        assert_eq!([5, 61, 7_322].map(idle), ["5 s", "1 min 1 s", "2 h 2 min"]);
    }
}
