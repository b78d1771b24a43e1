//! Flags that constrain answers: a JSON schema or a grammar.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use flambeau::{
    runners::llm::ThinkingSplitter,
    text::{Constraint, GrammarCompiler, Tokenizer, check_schema, lark_rule, spaced},
};
use serde_json::Value as Json;

use crate::failure::usage;

#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct ConstraintArgs {
    /// Constrain the answer to JSON of this schema: the schema itself, or a file that contains it
    #[arg(help_heading = "Form of the answer", short = 'j', long, value_name = "SCHEMA|FILE", alias = "json-schema-file")]
    json_schema: Option<String>,

    /// Constrain the answer to this grammar, in llguidance's Lark notation (`start: "yes" | "no"`)
    /// or in llama.cpp's GBNF (`root ::= "yes" | "no"`)
    #[arg(help_heading = "Form of the answer", long, value_name = "GRAMMAR")]
    grammar: Option<String>,

    /// File with a grammar
    #[arg(help_heading = "Form of the answer", long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
}

impl ConstraintArgs {
    /// The constraint set by the flags; `None` without one.
    ///
    /// # Errors
    /// Fails if a file is unreadable, the schema is invalid, or the model's vocabulary does not
    /// support constraints.
    pub(crate) fn form(&self, tokenizer: &Tokenizer, stop_ids: &[u32]) -> Result<Option<AnswerForm>> {
        let (body, flag) = match (&self.json_schema, &self.grammar, &self.grammar_file) {
            (Some(given), ..) => (schema(given)?, "--json-schema"),
            (None, Some(grammar), _) => (lark_rule(grammar).context("--grammar")?, "--grammar"),
            (None, None, Some(path)) => {
                let grammar = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                (lark_rule(&grammar).context("--grammar-file")?, "--grammar-file")
            }
            (None, None, None) => return Ok(None),
        };
        let mut ends = stop_ids.to_vec();
        ends.extend(tokenizer.eos_ids().iter().filter(|id| !stop_ids.contains(id)));
        let compiler = GrammarCompiler::new(tokenizer, &ends).context(flag)?;
        let tokens = tokenizer.control_tokens().map(|(id, text)| (text, id)).collect();
        let form = AnswerForm { compiler, body, flag, tokens };
        // Refuses a wrong grammar before anything is computed.
        form.constraint("")?;
        Ok(Some(form))
    }
}

/// Grammar rule for JSON of a schema.
fn schema(given: &str) -> Result<String> {
    let text = if given.trim_start().starts_with('{') {
        given.to_owned()
    } else {
        fs::read_to_string(given).with_context(|| format!("--json-schema: cannot read {given}"))?
    };
    let json: Json = serde_json::from_str(&text).map_err(|error| usage(format!("--json-schema is no JSON: {error}")))?;
    check_schema(&json).context("--json-schema")?;
    Ok(format!("%json {}", spaced(json)))
}

/// Constraint on answers.
#[derive(Debug)]
pub(crate) struct AnswerForm {
    compiler: GrammarCompiler,
    /// Rule of the answer in Lark's notation.
    body: String,
    flag: &'static str,
    tokens: Vec<(String, u32)>,
}

impl AnswerForm {
    /// The constraint on an answer to a prompt. Thoughts already open in the prompt come first and
    /// are unconstrained.
    ///
    /// # Errors
    /// Fails if the grammar is invalid.
    pub(crate) fn constraint(&self, prompt: &str) -> Result<Constraint> {
        let body = &self.body;
        let grammar = match ThinkingSplitter::new(prompt).close() {
            None => format!("start: answer\nanswer: {body}\n"),
            Some(close) => {
                let token = self.tokens.iter().find(|(text, _)| text == close);
                let thoughts = match token {
                    Some((_, id)) => format!("thought <[{id}]>\nthought: /(?s:.*)/"),
                    None => format!("thought\nthought[suffix={}]: /(?s:.*)/", Json::from(close)),
                };
                format!("start: thoughts BLANK answer\nanswer: {body}\nthoughts: {thoughts}\nBLANK: /[ \\n]{{0,4}}/\n")
            }
        };
        self.compiler.lark(grammar).context(self.flag)
    }
}
