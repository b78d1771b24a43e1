//! State of an answer while it is generated.

use flambeau::runners::llm::{FinishReason, Generation, GenerationStep, Logprobs, Stats};

use crate::{
    tools::{AnswerReader, Delta},
    worker::Update,
};

/// Log probabilities of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprobs {
    pub(crate) token: u32,
    pub(crate) logprobs: Logprobs,
}

/// State of one answer while it is generated.
#[derive(Debug)]
pub(crate) struct Choice {
    reader: AnswerReader,
    pub(crate) cached: usize,
    pub(crate) tokens: usize,
    pub(crate) thinking_tokens: usize,
    /// Log probabilities of tokens not yet sent.
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) finish: Option<Finish>,
    /// The stop text that ended the answer, if any.
    pub(crate) stop: Option<usize>,
    /// Duration of the finished answer.
    pub(crate) stats: Option<Stats>,
}

/// Reason for the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    Calls,
}

impl Finish {
    /// OpenAI's name of the reason.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Calls => "tool_calls",
        }
    }
}

impl Choice {
    pub(crate) fn new(reader: AnswerReader) -> Choice {
        Choice { reader, cached: 0, tokens: 0, thinking_tokens: 0, logprobs: Vec::new(), finish: None, stop: None, stats: None }
    }

    /// Applies an update from the worker.
    ///
    /// # Errors
    /// The generation failed.
    pub(crate) fn take(&mut self, update: Update, out: &mut Vec<Delta>) -> crate::error::Result<()> {
        match update {
            Update::Started { cached } => self.cached = cached,
            Update::Stepped(step) => self.step(step, out),
            Update::Finished(generation) => self.end(&generation, out),
            Update::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn step(&mut self, step: GenerationStep, out: &mut Vec<Delta>) {
        self.reader.push(&step.text, out);
        self.tokens += usize::from(step.token.is_some());
        if step.token.is_some() && self.reader.is_thinking() {
            self.thinking_tokens += 1;
        }
        if let (Some(token), Some(logprobs)) = (step.token, step.logprobs) {
            self.logprobs.push(TokenLogprobs { token, logprobs });
        }
    }

    fn end(&mut self, generation: &Generation, out: &mut Vec<Delta>) {
        let cut_call = self.reader.is_in_call();
        let is_cut = matches!(generation.finish, FinishReason::Length | FinishReason::Context | FinishReason::Cancelled);
        self.reader.finish(is_cut, out);
        self.stats = Some(generation.stats);
        self.stop = generation.stop;
        self.finish = Some(match generation.finish {
            // The arguments of a cut call are invalid JSON, so clients must not execute it.
            FinishReason::Length | FinishReason::Context if cut_call => Finish::Length,
            _ if self.reader.calls() > 0 => Finish::Calls,
            FinishReason::Stop | FinishReason::Cancelled => Finish::Stop,
            FinishReason::Length | FinishReason::Context => Finish::Length,
        });
    }
}
