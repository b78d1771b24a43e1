//! The command line of Flambeau: results on stdout, everything else on stderr, exit codes 0, 1 and
//! 2 (usage).

#![forbid(unsafe_code)]

mod arguments;
mod calibration;
mod checkpoint;
mod commands;
mod constraint;
mod count;
mod disk;
mod draft;
mod engine;
mod environment;
mod exporter;
mod failure;
mod file_kind;
mod files;
mod hub;
mod inputs;
mod interrupt;
mod kv_cache;
mod language_model;
pub mod library;
mod lora;
mod memory;
mod microphone;
mod mlx;
mod model;
mod npy;
pub mod op_test_runner;
mod outputs;
#[cfg(test)]
mod page_commands;
mod profile;
mod progress;
mod prompt;
mod pytorch;
mod quantize;
mod read_ahead;
mod recipe;
mod reference;
mod reranker;
mod sampling;
mod shelf;
mod shift;
mod source_map;
pub mod tensors;
mod tokenizer;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    batch, bench, cache, chat, classify, compile, completions, conformance, doctor, embed, eval, export, generate, inspect, list,
    man, ps, pull, rerank, rm, run, serve, show, template, tokenize, transcribe, verify,
};

/// A first use of each kind, below the list of commands.
const EXAMPLES: &str = "\
Examples:
  flambeau chat qwen3:0.6b                         download a model and chat with it
  flambeau serve qwen3:0.6b                        serve it to clients of OpenAI's API, with a page to chat on
  flambeau transcribe -m whisper:tiny talk.mp3     write down a recording
  flambeau embed all-minilm 'A text'               compute an embedding
  flambeau export ./model -o model.pte             convert a checkpoint
  flambeau compile net.pt2 -o net.pte              compile a PyTorch program
  flambeau run net.pte --input x.npy -o y.npy      run it
  flambeau COMMAND --help                          show all options of a command";

/// Run language and speech models, and compile PyTorch programs into ExecuTorch .pte files.
///
/// MODEL is a program (.pte), a model folder, a GGUF file, or a name on the Hugging Face hub, such
/// as ORG/NAME. Named models are downloaded at their first use.
///
/// Results go to stdout, everything else to stderr; `-` is stdin or stdout. Exit codes: 0 success,
/// 1 failure, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "flambeau", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compile(compile::Args),
    Export(export::Args),
    Run(run::Args),
    Inspect(inspect::Args),
    Verify(verify::Args),
    Chat(chat::Args),
    Generate(generate::Args),
    Serve(Box<serve::Args>),
    Ps(ps::Args),
    Batch(Box<batch::Args>),
    Template(template::Args),
    Tokenize(tokenize::Args),
    Transcribe(transcribe::Args),
    Embed(embed::Args),
    Rerank(rerank::Args),
    Classify(classify::Args),
    Eval(eval::Args),
    Bench(bench::Args),
    Conformance(conformance::Args),
    #[command(alias = "download")]
    Pull(pull::Args),
    #[command(visible_alias = "ls")]
    List(list::Args),
    Show(show::Args),
    #[command(aliases = ["remove", "delete"])]
    Rm(rm::Args),
    Cache(cache::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Runs the command line; the first argument is the program's name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments::normal(args)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help that cannot be printed has no reader.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { failure::USAGE } else { 0 });
        }
    };
    let result = match &cli.command {
        Command::Compile(args) => compile::run(args),
        Command::Export(args) => export::run(args),
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Batch(args) => batch::run(args),
        Command::Template(args) => template::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Transcribe(args) => transcribe::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Rerank(args) => rerank::run(args),
        Command::Classify(args) => classify::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Conformance(args) => conformance::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man(args) => man::run(args, Cli::command()),
    };
    result.unwrap_or_else(|error| failure::report(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_by_example() {
        let main = Cli::command().get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in main.lines().filter(|line| line.starts_with("  flambeau ") && !line.contains("COMMAND")) {
            let words = line.split("  ").find(|part| part.starts_with("flambeau")).unwrap_or_default().replace('\'', "");
            let args = words.split(' ').map(OsString::from);
            assert!(Cli::try_parse_from(arguments::normal(args)).is_ok(), "{words}");
        }
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("flambeau {}", command.get_name())), "{} has no example", command.get_name());
        }
    }
}
