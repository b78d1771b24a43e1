//! Chat templates: conversations to prompts.

mod guard;
mod json;
mod list;
mod meter;
mod names;
mod scan;

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::clock::Clock;
use crate::config::{SpecialTokens, TokenizerFiles, parse_object};
use crate::error::{Error, Result, TemplateFault, TemplateLimit};
use guard::Budget;
use names::OtherNames;

/// Largest template source, in bytes.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Maximum number of template engine steps per rendering.
const MAX_STEPS: u64 = 1 << 22;

/// A model's chat template, ready to render. Its source is the Jinja dialect that Hugging Face's
/// `transformers` runs.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    unk: Option<String>,
    pad: Option<String>,
    other_names: OtherNames,
    /// Whether it changes lists that it makes.
    owns_lists: bool,
}

/// A conversation to render, and the template's further variables.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// Messages, each an object with `role` and `content`; see [`message`]. Further keys
    /// (`tool_calls`, `reasoning_content`, …) reach the template as they are.
    pub messages: Vec<Json>,
    /// Tool descriptions as JSON schemas.
    pub tools: Option<Vec<Json>>,
    /// Documents for retrieval.
    pub documents: Option<Vec<Json>>,
    /// Whether the prompt ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub extra: Map<String, Json>,
    /// Time for `strftime_now`; without it, templates lack this function.
    pub now: Option<Clock>,
}

/// A message that consists of text only.
pub fn message(role: &str, content: &str) -> Json {
    serde_json::json!({"role": role, "content": content})
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// It is too long, or its syntax is wrong.
    pub fn new(source: &str, special: &SpecialTokens) -> Result<Self> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Error::TemplateLimit { limit: TemplateLimit::Source(MAX_SOURCE_BYTES), fault: None });
        }
        let source = plain_generation_blocks(source);
        let mut template = Self {
            other_names: OtherNames::default(),
            owns_lists: list::changes(&source),
            source,
            bos: special.bos.clone(),
            eos: special.eos.clone(),
            unk: special.unk.clone(),
            pad: special.pad.clone(),
        };
        let syntax = syntax().map_err(|e| Error::TemplateSyntax(describe(&e)))?;
        scan::check(&template.source, syntax)?;
        template.compile().map_err(|e| Error::TemplateSyntax(describe(&e)))?;
        template.other_names = OtherNames::of(&template.source);
        Ok(template)
    }

    /// The template of a model folder, or `None` if it has none. `chat_template.jinja` takes
    /// precedence over `tokenizer_config.json`. Where the latter has several, `name` picks one;
    /// without a name it is `default`.
    ///
    /// # Errors
    /// The file is malformed, the name does not exist, or the template does not compile.
    pub fn from_files(files: &TokenizerFiles<'_>, special: &SpecialTokens, name: Option<&str>) -> Result<Option<Self>> {
        if let Some(source) = files.chat_template.filter(|_| name.is_none_or(|name| name == "default")) {
            return Self::new(source, special).map(Some);
        }
        let Some(bytes) = files.tokenizer_config else { return Ok(None) };
        let named = named_templates(&parse_object("tokenizer_config.json", bytes)?);
        let wanted = name.unwrap_or("default");
        match (named.get(wanted), named.is_empty() && name.is_none()) {
            (Some(source), _) => Self::new(source, special).map(Some),
            (None, true) => Ok(None),
            (None, false) => Err(Error::NoSuchTemplate { wanted: wanted.to_owned(), found: named.keys().cloned().collect() }),
        }
    }

    /// Source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// The template raises an exception, does something that is no operation on its values, or
    /// exceeds a limit.
    pub fn render(&self, chat: &ChatInput) -> Result<String> {
        let context = self.context(chat);
        let budget = Arc::new(Budget::new(json::size(&chat.messages) + json::size(chat.tools.as_deref().unwrap_or_default())));
        let mut template = self.compile().map_err(|e| Error::TemplateSyntax(describe(&e)))?;
        guard::install(&mut template.instructions, &mut template.blocks, self.owns_lists);
        let mut env = Environment::new();
        env.set_fuel(Some(MAX_STEPS));
        guard::environment(&mut env, &budget, chat.now);
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let done = eval(&env, &template.instructions, context, &template.blocks, &mut output, AutoEscape::None).map(|_| ());
        match done {
            Ok(()) => Ok(text),
            Err(e) if budget.exceeded() => Err(Error::TemplateLimit { limit: budget.limit(), fault: Some(describe(&e)) }),
            Err(e) if e.kind() == ErrorKind::OutOfFuel => {
                Err(Error::TemplateLimit { limit: TemplateLimit::Steps(MAX_STEPS), fault: Some(describe(&e)) })
            }
            Err(e) => Err(Error::TemplateRender(self.described(&e))),
        }
    }

    /// The error. For an undefined value, also the template's line, because it names the value.
    fn described(&self, error: &minijinja::Error) -> TemplateFault {
        const LONGEST: usize = 160;
        let fault = describe(error);
        let line = fault.line.and_then(|line| self.source.lines().nth(line.saturating_sub(1)));
        match line.map(str::trim).filter(|_| error.kind() == ErrorKind::UndefinedError) {
            Some(line) => {
                let line: String = line.chars().take(LONGEST).collect();
                TemplateFault { message: format!("{} in `{line}`", fault.message), ..fault }
            }
            None => fault,
        }
    }

    fn compile(&self) -> std::result::Result<CompiledTemplate<'_>, minijinja::Error> {
        let config = TemplateConfig { syntax_config: syntax()?, default_auto_escape: Arc::new(|_| AutoEscape::None) };
        CompiledTemplate::new("chat template", &self.source, &config)
    }

    /// The variables that the template sees. Extra ones may replace `tools` and the like, but not
    /// the messages.
    fn context(&self, chat: &ChatInput) -> Value {
        let list = |items: &Option<Vec<Json>>| items.as_ref().map_or(Value::from(()), |items| json::list(items));
        let mut variables: BTreeMap<String, Value> = BTreeMap::new();
        for (key, text) in [("bos_token", &self.bos), ("eos_token", &self.eos), ("unk_token", &self.unk), ("pad_token", &self.pad)]
        {
            if let Some(text) = text {
                variables.insert(key.to_owned(), Value::from(text.as_str()));
            }
        }
        variables.insert("tools".to_owned(), list(&chat.tools));
        variables.extend(self.other_names.variables(chat));
        variables.insert("documents".to_owned(), list(&chat.documents));
        variables.insert("add_generation_prompt".to_owned(), Value::from(chat.add_generation_prompt));
        for (key, value) in &chat.extra {
            variables.insert(key.clone(), json::to_value(value));
        }
        variables.insert("messages".to_owned(), json::list(&chat.messages));
        Value::from_pairs(variables)
    }
}

/// Whitespace around block tags is dropped the way `transformers` sets it.
fn syntax() -> std::result::Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// The error with its cause and line.
fn describe(error: &minijinja::Error) -> TemplateFault {
    use std::error::Error as _;
    let mut message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let mut cause = error.source();
    while let Some(inner) = cause {
        message = format!("{message}: {inner}");
        cause = inner.source();
    }
    TemplateFault { message, line: error.line() }
}

/// Templates by name; a single one is called `default`.
fn named_templates(config: &Map<String, Json>) -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    match config.get("chat_template") {
        Some(Json::String(source)) => {
            named.insert("default".to_owned(), source.clone());
        }
        Some(Json::Array(list)) => {
            for entry in list {
                if let (Some(name), Some(source)) = (entry["name"].as_str(), entry["template"].as_str()) {
                    named.insert(name.to_owned(), source.to_owned());
                }
            }
        }
        Some(Json::Object(map)) => {
            named.extend(map.iter().filter_map(|(name, source)| Some((name.clone(), source.as_str()?.to_owned()))));
        }
        _ => {}
    }
    named
}

/// `transformers` has a block tag that marks the assistant's own words for training; for rendering
/// it is transparent.
fn plain_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inner, after)) = tag.split_once("%}") else { break };
        let replacement = match inner.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace()) {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        };
        out.extend([before, "{%", replacement.as_str(), "%}"]);
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
