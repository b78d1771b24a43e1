//! `flambeau doctor`: checks the engines on this machine.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use flambeau::mlx::Install;
use serde_json::{Value, json};

use crate::{
    engine::cores,
    failure, files,
    mlx::{MlxArgs, MlxSelection},
};

/// Check the engines on this machine: location, version and devices of MLX
///
/// The first check of an installed MLX compiles its C interface, which takes some seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau doctor --mlx-path .venv")]
pub(crate) struct Args {
    #[command(flatten)]
    selection: MlxSelection,

    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Result of the search for MLX.
struct Found {
    install: Option<Install>,
    /// Searched places, with the reasons why they were rejected.
    passed_over: Vec<(PathBuf, String)>,
    /// Version and devices of the loaded library, or the loading error.
    loaded: Result<(String, Vec<(String, String)>), String>,
}

fn examine(mlx: &MlxArgs) -> Found {
    let mut found = Found { install: None, passed_over: Vec::new(), loaded: Err(String::new()) };
    for (path, result) in mlx.search().survey() {
        match result {
            Ok(install) if found.install.is_none() => found.install = Some(install),
            Ok(_) => found.passed_over.push((path, "another one came first".into())),
            Err(error) => found.passed_over.push((path, error.to_string())),
        }
    }
    found.loaded = match mlx.load() {
        Ok(engine) => {
            let devices = engine.devices().into_iter().map(|(device, facts)| (device.to_string(), facts));
            Ok((engine.version(), devices.collect()))
        }
        Err(error) => Err(failure::text(&error)),
    };
    found
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let found = examine(&MlxArgs { selection: args.selection.clone(), ..MlxArgs::default() });
    if args.json {
        files::print_json(&as_json(&found))?;
    } else {
        as_lines(&found).iter().try_for_each(files::print_line)?;
    }
    // A missing MLX is a failure only if the user names its path.
    let failed = args.selection.mlx_path.is_some() && found.loaded.is_err();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn as_json(found: &Found) -> Value {
    let install = found
        .install
        .as_ref()
        .map(|i| json!({ "found_by": i.found_by, "include": i.include, "library": i.library, "version": i.version }));
    let passed_over: Vec<Value> = found.passed_over.iter().map(|(path, why)| json!({ "path": path, "why": why })).collect();
    let (devices, error) = match &found.loaded {
        Ok((_, devices)) => (
            devices.iter().map(|(name, facts)| json!({ "name": name, "facts": facts.lines().collect::<Vec<_>>() })).collect(),
            None,
        ),
        Err(error) => (Vec::new(), Some(error)),
    };
    json!({
        "cpu": { "works": true, "threads": cores() },
        "mlx": { "works": found.loaded.is_ok(), "install": install, "devices": devices, "error": error, "passed_over": passed_over },
    })
}

fn as_lines(found: &Found) -> Vec<String> {
    let mut lines = vec![format!("cpu      works, {} threads", cores())];
    if let Some(install) = &found.install {
        lines.push(format!("mlx      {} (by {})", install.version, install.found_by));
        lines.push(format!("         library  {}", install.library.display()));
        lines.push(format!("         headers  {}", install.include.display()));
    }
    match &found.loaded {
        Ok((version, devices)) => {
            lines.push(format!("         works, libmlx {version}"));
            for (name, facts) in devices {
                lines.push(format!("         device   {name}  {}", facts.lines().collect::<Vec<_>>().join(", ")));
            }
        }
        Err(error) => {
            lines.push(format!("mlx      does not work: {error}"));
        }
    }
    for (path, why) in &found.passed_over {
        let path = path.display().to_string();
        let why = if why.contains(&path) { why.clone() } else { format!("{path}: {why}") };
        lines.push(format!("         passed over: {why}"));
    }
    lines
}
