//! Turns of a conversation: renders messages to a prompt, and parses the model's text into the next
//! message.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    runners::{
        Error,
        llm::{Adapters, Conversation, FinishReason, Generation, Request, Session, ThinkingSplitter},
    },
    text::{ChatInput, ChatTemplate, Clock, SamplingParams, Tokenizer},
};

use super::{Args, screen::Screen, settings::Settings, window::Window};
use crate::{commands::generate, constraint::AnswerForm, failure::hint, language_model::Loaded, lora};

/// Advice for a full context.
const MORE_ROOM: &str = "/undo takes back the last exchange, /reset begins anew, --context-shift leaves out the oldest, and a larger -c N gives a checkpoint more room";

/// Minimum share of the context reserved for the answer. A longer prompt is cut to half of the
/// context, so that cuts are rare.
const ANSWER_SHARE: usize = 8;

/// A conversation with a loaded model.
pub(super) struct Talk<'a> {
    args: &'a Args,
    pub(super) conversation: Conversation,
    session: Session,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_ids: Vec<u32>,
    /// Control tokens that mark thoughts.
    shown_ids: Vec<u32>,
    /// Constraint on all answers.
    form: Option<AnswerForm>,
    pub(super) settings: Settings,
    /// The messages in the prompt.
    window: Window,
    adapters: Adapters,
    /// Start time of the conversation. Templates render it in each prompt; a constant time keeps
    /// the prompt's prefix cached.
    began: Clock,
}

impl<'a> Talk<'a> {
    pub(super) fn new(args: &'a Args, loaded: Loaded, sampling: SamplingParams) -> Result<Talk<'a>> {
        let template = loaded.text.template.context("the chat template")?.context("the tokenizer has no chat template");
        let template = template.map_err(|e| hint(e, "`--chat-template chatml` or a template of your own starts a conversation, and `flambeau generate --raw` continues a text"))?;
        let stop_ids = loaded.model.metadata().eos.clone();
        Ok(Talk {
            args,
            conversation: Conversation::new(args.system.as_deref()),
            form: args.constraint.form(&loaded.text.tokenizer, &stop_ids)?,
            shown_ids: shown_ids(&loaded.text.tokenizer, &stop_ids),
            stop_ids,
            adapters: loaded.model.default_adapters(),
            session: Session::new(loaded.model.sequence()?),
            tokenizer: loaded.text.tokenizer,
            template,
            settings: Settings {
                sampling,
                max_new_tokens: args.max_new_tokens,
                think: args.think,
                stats: args.stats,
                stop: args.stop.clone(),
            },
            window: Window::default(),
            began: Clock::now(),
        })
    }

    /// Starts a new conversation.
    pub(super) fn reset(&mut self) {
        self.conversation.reset();
        self.window = Window::default();
    }

    /// Switches to another conversation.
    pub(super) fn load(&mut self, conversation: Conversation) {
        self.conversation = conversation;
        self.window = Window::default();
    }

    /// Prints the settings or another part.
    ///
    /// # Errors
    /// Fails if the part is unknown.
    pub(super) fn show(&mut self, part: &str) -> Result<Vec<String>> {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Ok(match part {
            "" | "parameters" | "settings" => self.settings.lines(),
            "system" => {
                let system = self.conversation.messages().first().filter(|message| message["role"] == "system");
                lines(system.and_then(|message| message["content"].as_str()).unwrap_or("(no system message)"))
            }
            "template" => lines(self.template.source()),
            "context" | "info" => {
                let used = self.prompt()?.1.len();
                vec![format!("{}: {}, {used} in the prompt", self.args.model.name(), self.describe_context())]
            }
            _ => bail!("/show takes settings, system, template or context, not {part}"),
        })
    }

    fn context(&self) -> Option<usize> {
        self.session.sequence().model().context()
    }

    pub(super) fn describe_context(&self) -> String {
        self.context().map_or_else(|| "context of unknown length".into(), |tokens| format!("a context of {tokens} tokens"))
    }

    /// Applies adapters by `names` from the next answer on, and prints their names. Without names,
    /// it prints the current ones.
    pub(super) fn apply_adapters(&mut self, names: &str) -> Result<()> {
        let model = self.session.sequence().model();
        let known = &model.metadata().adapters;
        if known.is_empty() {
            bail!("the model has no adapters; --lora NAME=PATH gives a checkpoint some");
        }
        if !names.is_empty() {
            self.adapters = lora::choose(model, &lora::scales(names))?;
        }
        let scales = self.adapters.scales().iter().copied().chain(std::iter::repeat(0.0));
        let list: Vec<String> = known.iter().zip(scales).map(|(adapter, scale)| format!("{}:{scale}", adapter.name)).collect();
        eprintln!("({})", list.join(" "));
        Ok(())
    }

    /// Answers a message. If that fails, the message is removed.
    pub(super) fn say(&mut self, text: &str, cancelled: &AtomicBool) -> Result<()> {
        self.conversation.say(text);
        let done = self.answer(cancelled);
        if self.conversation.awaits_answer() {
            self.conversation.undo();
        }
        done
    }

    /// Answers the last message.
    pub(super) fn answer(&mut self, cancelled: &AtomicBool) -> Result<()> {
        let (prompt, ids) = self.fitting_prompt()?;
        let mut screen = Screen::new();
        let generation = self.generate(&prompt, ids, &mut screen, cancelled)?;
        if generation.ids.is_empty() && generation.finish == FinishReason::Cancelled {
            eprintln!("(stopped before the answer began; your message is taken back)");
            return Ok(());
        }
        let mut answer = screen.end()?;
        answer.interrupted = generation.finish == FinishReason::Cancelled;
        self.conversation.answer(&answer);
        self.settings.sampling.seed = self.settings.sampling.seed.wrapping_add(1);
        match generation.finish {
            FinishReason::Cancelled => eprintln!("(stopped; the answer is kept as far as it got)"),
            FinishReason::Context => eprintln!("(the context is full: {MORE_ROOM})"),
            FinishReason::Stop | FinishReason::Length => {}
        }
        if self.settings.stats {
            generate::print_stats(&generation.stats);
        }
        Ok(())
    }

    /// Renders a prompt that leaves room for the answer, omitting the oldest messages if necessary.
    fn fitting_prompt(&mut self) -> Result<(String, Vec<u32>)> {
        let (mut prompt, mut ids) = self.prompt()?;
        let Some(context) = self.context().filter(|_| self.args.shift.context_shift) else { return Ok((prompt, ids)) };
        let room = self.settings.max_new_tokens.unwrap_or(usize::MAX).min(context / ANSWER_SHARE);
        if ids.len() + room <= context {
            return Ok((prompt, ids));
        }
        let mut left_out = None;
        while ids.len() > context / 2 {
            let Some(count) = self.window.shift(self.conversation.messages()) else { break };
            left_out = Some(count);
            (prompt, ids) = self.prompt()?;
        }
        if let Some(count) = left_out {
            eprintln!("(the context is full: the oldest {count} messages are left out of the prompt)");
        }
        Ok((prompt, ids))
    }

    /// The conversation rendered with the model's template, and its tokens.
    fn prompt(&mut self) -> Result<(String, Vec<u32>)> {
        let mut chat = ChatInput {
            messages: self.window.of(self.conversation.messages()),
            add_generation_prompt: true,
            now: Some(self.began),
            ..ChatInput::default()
        };
        chat.extra.insert("enable_thinking".into(), self.settings.think.into());
        let prompt = self.template.render(&chat)?;
        let ids = self.tokenizer.encode(&prompt, false)?;
        Ok((prompt, ids))
    }

    fn generate(&mut self, prompt: &str, ids: Vec<u32>, screen: &mut Screen, cancelled: &AtomicBool) -> Result<Generation> {
        let request = Request {
            prompt: ids,
            adapters: self.adapters.clone(),
            max_new_tokens: self.settings.max_new_tokens.unwrap_or(usize::MAX),
            sampling: self.settings.sampling.clone(),
            stop: self.settings.stop.clone(),
            stop_ids: self.stop_ids.clone(),
            shown_ids: self.shown_ids.clone(),
            constraint: self.form.as_ref().map(|form| form.constraint(prompt)).transpose()?,
            prompt_lookup: self.args.draft.looks_up(),
            shift: self.args.shift.shift(),
            ..Request::default()
        };
        let start = Instant::now();
        let mut splitter = ThinkingSplitter::new(prompt);
        let mut show = |part, text: &str| {
            if !screen.show(part, text) {
                cancelled.store(true, Ordering::Relaxed);
            }
        };
        let done = self.session.generate(&self.tokenizer, request, &|| start.elapsed(), cancelled, &mut |piece| {
            splitter.push(piece, &mut show);
        });
        splitter.finish(&mut show);
        done.map_err(|error| match error {
            Error::PromptTooLong { .. } => hint(error, MORE_ROOM),
            other => other.into(),
        })
    }
}

/// Control tokens that mark thoughts. Tokens that end an answer stay out of its text.
fn shown_ids(tokenizer: &Tokenizer, stop_ids: &[u32]) -> Vec<u32> {
    let is_marker = |text: &str| ThinkingSplitter::marker_texts().any(|marker| marker.contains(text));
    let ends = |id: &u32| stop_ids.contains(id) || tokenizer.is_eos(*id);
    let markers = tokenizer.control_tokens().filter(|(_, text)| is_marker(text));
    markers.map(|(id, _)| id).filter(|id| !ends(id)).collect()
}
