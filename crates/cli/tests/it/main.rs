//! The binaries as people run them, on programs that the tests write.

mod batch;
mod caches;
mod chat;
mod classify;
mod embed;
mod errors;
mod eval;
mod generate;
mod hub;
mod live;
mod lora;
mod outputs;
mod program;
mod pull;
mod recipes;
mod rerank;
mod results;
mod serve;
mod sessions;
mod shelf;
mod template;
#[cfg(target_os = "linux")]
mod terminal;
mod transcribe;
mod verify;
mod whisper;
mod windows;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Output and exit code of a finished command.
struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

fn finished(output: Output) -> Finished {
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The `flambeau` command in a folder, with an environment that knows no hub.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flambeau"));
    command.args(args).current_dir(folder).stdin(Stdio::null()).env("HF_HOME", folder.join("no-hub")).env_remove("HF_HUB_CACHE");
    command.env("XDG_CACHE_HOME", folder.join("cache")).env("XDG_STATE_HOME", folder.join("state"));
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        command.env_remove(name);
    }
    command
}

fn flambeau(folder: &Path, args: &[&str]) -> Finished {
    finished(command(folder, args).output().expect("the binary runs"))
}

fn op_test_runner(folder: &Path, args: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_op_test_runner"));
    finished(command.args(args).current_dir(folder).output().expect("the binary runs"))
}
