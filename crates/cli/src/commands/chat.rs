//! `flambeau chat`: a conversation with a language model.

mod entry;
mod input;
mod screen;
mod settings;
mod talk;
#[cfg(unix)]
mod terminal;
mod window;
mod wrap;

use std::{
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use flambeau::runners::llm::Conversation;

use self::{
    entry::{Command, Entry},
    input::{Input, Line},
    talk::Talk,
};
use crate::{
    constraint::ConstraintArgs,
    count::or_all,
    draft::DraftArgs,
    failure::{self, INTERRUPTED},
    files,
    language_model::LanguageModelArgs,
    prompt::{TemplateArgs, unescape},
    sampling::SamplingArgs,
    shift::ShiftArgs,
};

/// Chat with a language model
///
/// A line is a message. A backslash at its end continues the message on the next line. Text between
/// """ and """ may have any number of lines. `/help` lists commands. Ctrl-C stops an answer, which
/// is kept as far as it got; at the prompt it clears the line, and a
/// second time it leaves, as Ctrl-D does. Text typed during an answer waits for the next prompt,
/// and Tab completes commands. Without a terminal, messages come from stdin and answers go to
/// stdout.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau chat HuggingFaceTB/SmolLM2-135M-Instruct\n  flambeau chat model-Q4_1.gguf --system 'Be brief.'\n  \
    printf 'Hello\\nAnd again\\n' | flambeau chat model.pte"
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageModelArgs,

    /// System message of the conversation
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    system: Option<String>,

    /// Enable the model's thinking mode, if its template has one
    #[arg(long)]
    think: bool,

    #[command(flatten)]
    template: TemplateArgs,

    /// Maximum number of tokens per answer; by default as many as the context holds
    #[arg(short = 'n', long, value_name = "N", aliases = ["max-tokens", "n-predict", "predict"], allow_negative_numbers = true, value_parser = or_all)]
    max_new_tokens: Option<usize>,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Stop string: text that ends an answer; repeat it for more. `\n`, `\t`, `\\` and `\xHH` stand
    /// for characters
    #[arg(long, value_name = "TEXT", value_parser = unescape)]
    stop: Vec<String>,

    #[command(flatten)]
    constraint: ConstraintArgs,

    #[command(flatten)]
    draft: DraftArgs,

    /// Print tokens per second after each answer
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    shift: ShiftArgs,
}

const HELP: &str = "\
/reset, /clear  begin anew, with the same system message
/undo           take back your last message and its answer
/retry          answer your last message again
/system TEXT    set the system message; without TEXT remove it
/set NAME VALUE change a setting, such as temperature, top-k, seed, max-new-tokens or think
/show [PART]    show the settings, or the system message, the template or the context
/lora [NAMES]   apply these adapters, each as NAME or NAME:SCALE; `none` is the base model
/save FILE      write the conversation as JSON, in OpenAI's form
/load FILE      continue a conversation that was written so
/help, /exit";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.sampling.params(None)?;
    // Before the model is loaded, so that text typed meanwhile is the first message.
    let mut input = Input::new()?;
    let interrupts = input.interrupts()?;
    let cancelled = &interrupts.flag;
    let mut loaded = args.model.load(args.draft.logits(), None)?;
    let sampling = args.sampling.params(loaded.text.defaults.as_ref())?;
    loaded.model =
        args.draft.attach(loaded.model, &loaded.text.tokenizer, &loaded.engine, args.model.threads(), args.model.lock())?;
    args.template.apply(&mut loaded.text)?;
    args.sampling.check_tokens(&loaded.text.tokenizer)?;
    let mut talk = Talk::new(args, loaded, sampling)?;
    if input.is_terminal() {
        eprintln!("{}: {}. /help lists commands, Ctrl-D leaves.", args.model.name(), talk.describe_context());
    }
    let (mut failed, mut leaving) = (false, false);
    loop {
        let line = input.read()?;
        if !input.is_terminal() && cancelled.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let text = match line {
            Line::End => break,
            Line::Interrupted if leaving => break,
            Line::Interrupted => {
                leaving = true;
                eprintln!("(Ctrl-C once more or Ctrl-D leaves)");
                continue;
            }
            Line::Text(text) => text,
        };
        leaving = false;
        match respond(&mut talk, &text, cancelled) {
            Ok(Next::Leave) => break,
            Ok(Next::Listen) => {}
            Err(error) if failure::is_closed_pipe(&error) => return Err(error),
            Err(error) => {
                failure::report(&error);
                failed = true;
            }
        }
        if !input.is_terminal() && cancelled.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(INTERRUPTED));
        }
        interrupts.clear();
    }
    Ok(ExitCode::from(u8::from(failed && !input.is_terminal())))
}

/// The next action after an entry.
enum Next {
    Listen,
    Leave,
}

fn respond(talk: &mut Talk<'_>, text: &str, cancelled: &AtomicBool) -> Result<Next> {
    match entry::parse(text)? {
        Entry::Nothing => {}
        Entry::Message(text) => talk.say(&text, cancelled)?,
        Entry::Command(Command::Exit) => return Ok(Next::Leave),
        Entry::Command(Command::Help) => eprintln!("{HELP}"),
        Entry::Command(Command::Reset) => talk.reset(),
        Entry::Command(Command::Set(name, value)) => talk.settings.set(&name, &value)?,
        Entry::Command(Command::Show(part)) => talk.show(&part)?.iter().for_each(|line| eprintln!("{line}")),
        Entry::Command(Command::Undo) => {
            if !talk.conversation.undo() {
                anyhow::bail!("there is no message to take back");
            }
        }
        Entry::Command(Command::Retry) => {
            if !talk.conversation.retry() {
                anyhow::bail!("there is no message to answer");
            }
            talk.answer(cancelled)?;
        }
        Entry::Command(Command::System(text)) => talk.conversation.set_system(text.as_deref()),
        Entry::Command(Command::Lora(names)) => talk.apply_adapters(&names)?,
        Entry::Command(Command::Save(path)) => {
            let json = talk.conversation.to_json();
            files::write(&path, |out| Ok(writeln!(out, "{json:#}")?))?;
            eprintln!("(saved {} messages to {})", talk.conversation.messages().len(), path.display());
        }
        Entry::Command(Command::Load(path)) => {
            talk.load(load(&path)?);
            let unanswered = if talk.conversation.awaits_answer() { "; /retry answers the last one" } else { "" };
            eprintln!("(loaded {} messages from {}{unanswered})", talk.conversation.messages().len(), path.display());
        }
    }
    Ok(Next::Listen)
}

fn load(path: &Path) -> Result<Conversation> {
    let place = || path.display().to_string();
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Conversation::from_json(serde_json::from_slice(&text).with_context(place)?).with_context(place)
}
