//! One turn after the other: from messages to a prompt, and from the model's text to the next
//! message.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use anyhow::{Context, Result};
use flambeau::{
    runners::{
        Error,
        llm::{Conversation, FinishReason, Generation, Request, Session, ThinkingSplitter},
    },
    text::{ChatInput, ChatTemplate, Clock, SamplingParams, Tokenizer},
};

use super::{Args, screen::Screen};
use crate::{commands::generate, constraint::Form, failure::hint, language_model::Loaded};

/// Advice for a full context.
const MORE_ROOM: &str = "/undo takes back the last exchange, /reset begins anew, and a larger -c N gives a checkpoint more room";

/// A conversation with a loaded model.
pub(super) struct Talk<'a> {
    args: &'a Args,
    pub(super) conversation: Conversation,
    session: Session,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_ids: Vec<u32>,
    /// Control tokens that mark thoughts.
    kept_ids: Vec<u32>,
    /// The form that all answers have.
    form: Option<Form>,
    sampling: SamplingParams,
    /// When the conversation began: a prompt that told another time would not begin as the last one
    /// did.
    began: Clock,
}

impl<'a> Talk<'a> {
    pub(super) fn new(args: &'a Args, loaded: Loaded, sampling: SamplingParams) -> Result<Talk<'a>> {
        let template = loaded.text.template.context("the chat template")?.context("the tokenizer has no chat template");
        let template = template.map_err(|e| hint(e, "`flambeau generate --raw` continues text with a model without one"))?;
        let stop_ids = loaded.model.metadata().eos.clone();
        Ok(Talk {
            args,
            conversation: Conversation::new(args.system.as_deref()),
            form: args.constraint.form(&loaded.text.tokenizer, &stop_ids)?,
            kept_ids: kept_ids(&loaded.text.tokenizer, &stop_ids),
            stop_ids,
            session: Session::new(loaded.model.sequence()?),
            tokenizer: loaded.text.tokenizer,
            template,
            sampling,
            began: generate::now(),
        })
    }

    pub(super) fn describe_context(&self) -> String {
        let context = self.session.sequence().model().context();
        context.map_or_else(|| "context of unknown length".into(), |tokens| format!("a context of {tokens} tokens"))
    }

    /// Answers a message. One that cannot be answered is taken back.
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
        let prompt = self.prompt()?;
        let mut screen = Screen::new();
        let generation = self.generate(&prompt, &mut screen, cancelled)?;
        if generation.ids.is_empty() && generation.finish == FinishReason::Cancelled {
            eprintln!("(stopped before the answer began; your message is taken back)");
            return Ok(());
        }
        let mut answer = screen.end()?;
        answer.interrupted = generation.finish == FinishReason::Cancelled;
        self.conversation.answer(&answer);
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        match generation.finish {
            FinishReason::Cancelled => eprintln!("(stopped; the answer is kept as far as it got)"),
            FinishReason::Context => eprintln!("(the context is full: {MORE_ROOM})"),
            FinishReason::Stop | FinishReason::Length => {}
        }
        if self.args.stats {
            generate::print_stats(&generation.stats);
        }
        Ok(())
    }

    /// The conversation as the model's template writes it.
    fn prompt(&self) -> Result<String> {
        let mut chat = ChatInput {
            messages: self.conversation.messages().to_vec(),
            add_generation_prompt: true,
            now: Some(self.began),
            ..ChatInput::default()
        };
        chat.extra.insert("enable_thinking".into(), self.args.think.into());
        Ok(self.template.render(&chat)?)
    }

    fn generate(&mut self, prompt: &str, screen: &mut Screen, cancelled: &AtomicBool) -> Result<Generation> {
        let request = Request {
            prompt: self.tokenizer.encode(prompt, false)?,
            max_new_tokens: self.args.max_new_tokens.unwrap_or(usize::MAX),
            sampling: self.sampling.clone(),
            stop: self.args.stop.clone(),
            stop_ids: self.stop_ids.clone(),
            kept_ids: self.kept_ids.clone(),
            constraint: self.form.as_ref().map(|form| form.constraint(prompt)).transpose()?,
            prompt_lookup: self.args.draft.looks_up(),
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
fn kept_ids(tokenizer: &Tokenizer, stop_ids: &[u32]) -> Vec<u32> {
    let is_marker = |text: &str| ThinkingSplitter::marker_texts().any(|marker| marker.contains(text));
    let ends = |id: &u32| stop_ids.contains(id) || tokenizer.is_eos(*id);
    let markers = tokenizer.control_tokens().filter(|(_, text)| is_marker(text));
    markers.map(|(id, _)| id).filter(|id| !ends(id)).collect()
}
