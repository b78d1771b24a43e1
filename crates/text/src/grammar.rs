//! Constrained generation: the tokens allowed next, so that the text becomes JSON of a schema or a
//! sentence of a grammar.

mod gbnf;
mod limits;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value as Json, json};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

pub use gbnf::lark_rule;
pub use limits::check_schema;

/// Maximum number of lexer states of one constraint, of 1 to 2 kB each.
const MAX_LEXER_STATES: usize = 50_000;

/// Turns schemas and grammars into [`Constraint`]s on a tokenizer's tokens.
pub struct GrammarCompiler {
    factory: ParserFactory,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// Runs third-party code on a client's grammar; a panic is an error.
fn guarded<T, E: std::fmt::Display>(work: impl FnOnce() -> std::result::Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| Error::Grammar(first_line(&error.to_string()))),
        Err(_) => Err(Error::Grammar("its library failed".into())),
    }
}

/// Errors carry the state of the parser behind their message.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

impl GrammarCompiler {
    /// A compiler for a tokenizer; `eos` are the ids that end a text.
    ///
    /// # Errors
    /// The bytes of the tokenizer's tokens are not known, or nothing ends a text.
    pub fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Result<GrammarCompiler> {
        let no_end = || Error::Grammar("no token ends a text".into());
        let first = *eos.first().ok_or_else(no_end)?;
        let size = tokenizer.vocab_size();
        let mut words = Vec::with_capacity(size);
        for id in 0..size as u32 {
            let bytes =
                tokenizer.token_bytes(id).ok_or_else(|| Error::Grammar("the bytes of the model's tokens are not known".into()))?;
            // Special tokens are not text; the library expects this marker for them.
            let is_special = tokenizer.is_special(id) || eos.contains(&id);
            words.push(if is_special { [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat() } else { bytes });
        }
        let factory = guarded(|| {
            let trie = TokTrie::from(&TokRxInfo::new(size as u32, first), &words).with_eos_tokens(eos);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new_simple(&env)
        });
        factory.map(|mut factory| {
            factory.quiet();
            factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
            factory.limits_mut().verbose_errors = false;
            GrammarCompiler { factory }
        })
    }

    /// Texts that are JSON of a schema, written with a blank after commas and colons, and
    /// properties in the schema's order.
    ///
    /// # Errors
    /// The schema is invalid, uses unsupported features, or is too large.
    pub fn json_schema(&self, schema: Json) -> Result<Constraint> {
        limits::check_schema(&schema)?;
        self.compile(|| TopLevelGrammar::from_json_schema(spaced(schema)))
    }

    /// Texts of a grammar in the Lark notation of llguidance.
    ///
    /// # Errors
    /// Fails if the grammar is invalid or too large.
    pub fn lark(&self, grammar: String) -> Result<Constraint> {
        limits::check_grammar(&grammar)?;
        self.compile(|| TopLevelGrammar::from_lark(grammar))
    }

    fn compile(&self, grammar: impl FnOnce() -> TopLevelGrammar) -> Result<Constraint> {
        let mut matcher = guarded(|| self.factory.create_parser(grammar()).map(|parser| Matcher::new(Ok(parser))))?;
        if let Some(error) = matcher.get_error() {
            return Err(Error::Grammar(first_line(&error)));
        }
        if guarded(|| matcher.compute_mask_or_eos())?.num_set() == 0 {
            return Err(Error::Grammar("no text has this form".into()));
        }
        Ok(Constraint { matcher })
    }
}

/// A schema with fixed spacing: models that may add blanks do not always stop.
pub fn spaced(mut schema: Json) -> Json {
    if let Some(map) = schema.as_object_mut() {
        let how = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
        map.entry("x-guidance").or_insert(how);
    }
    schema
}

/// Which tokens may follow, in the middle of a text.
pub struct Constraint {
    matcher: Matcher,
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        Constraint { matcher: self.matcher.deep_clone() }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("is_over", &self.matcher.is_stopped()).finish_non_exhaustive()
    }
}

impl Constraint {
    /// Sets the logits `[V]` of tokens that must not follow to −∞. Where nothing can follow, tokens
    /// that end the text remain.
    ///
    /// # Errors
    /// The grammar takes too much work at this place.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let allowed = guarded(|| self.matcher.compute_mask_or_eos())?;
        for (id, z) in logits.iter_mut().enumerate() {
            if id >= allowed.len() || !allowed.get(id) {
                *z = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Advances by the chosen token. It must not be a token that ends the text.
    ///
    /// # Errors
    /// It must not follow.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        guarded(|| self.matcher.consume_token(id))
    }
}

#[cfg(test)]
mod tests {
    use super::{gbnf::lark_of_gbnf, *};

    /// A tokenizer of bytes, and of some words.
    fn tokenizer() -> Tokenizer {
        let mut words: Vec<String> = (0x20u8..0x7f).map(|c| char::from(c).to_string()).collect();
        words.extend(["{\"", "\": ", "name", "true", "</s>"].map(str::to_owned));
        let vocab: serde_json::Map<String, Json> = words.iter().enumerate().map(|(id, word)| (word.clone(), id.into())).collect();
        let end = json!({
            "id": words.len() - 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        });
        let json = json!({
            "version": "1.0",
            "added_tokens": [end],
            "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": " " },
        });
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    /// The text if the longest allowed token is always chosen, up to 200 tokens.
    fn text(constraint: &mut Constraint, tokenizer: &Tokenizer, prefers: &str) -> String {
        let mut ids = Vec::new();
        while ids.len() < 200 {
            let mut logits: Vec<f32> = (0..tokenizer.vocab_size() as u32)
                .map(|id| {
                    let word = tokenizer.id_to_token(id).unwrap();
                    if tokenizer.is_eos(id) { -1.0 } else { prefers.find(&word).map_or(0.0, |_| word.len() as f32) }
                })
                .collect();
            constraint.mask(&mut logits).unwrap();
            let (id, _) = crate::argmax(&logits).expect("something may follow");
            if tokenizer.is_eos(id) {
                break;
            }
            constraint.accept(id).unwrap();
            ids.push(id);
        }
        tokenizer.decode(&ids, true).unwrap()
    }

    #[test]
    fn texts_become_json_of_the_schema() {
        let tokenizer = tokenizer();
        let compiler = GrammarCompiler::new(&tokenizer, tokenizer.eos_ids()).unwrap();
        let schema = json!({
            "type": "object",
            "properties": { "name": { "enum": ["ab", "c"] }, "ok": { "type": "boolean" }, "n": { "type": "integer", "minimum": 3, "maximum": 7 } },
            "required": ["name", "ok", "n"],
            "additionalProperties": false,
        });
        let constraint = compiler.json_schema(schema).unwrap();
        for prefers in ["", "true", "zebra", "name\": 5}"] {
            let found = text(&mut constraint.clone(), &tokenizer, prefers);
            let json: Json = serde_json::from_str(&found).unwrap_or_else(|e| panic!("{e}: {found}"));
            assert!(["ab", "c"].contains(&json["name"].as_str().unwrap()) && json["ok"].is_boolean(), "{found}");
            assert!((3..=7).contains(&json["n"].as_i64().unwrap()), "{found}");
            assert!(found.starts_with("{\"name\": "), "{found}");
        }
    }

    #[test]
    fn what_must_not_follow_is_refused() {
        let tokenizer = tokenizer();
        let compiler = GrammarCompiler::new(&tokenizer, tokenizer.eos_ids()).unwrap();
        let mut constraint = compiler.lark("start: \"yes\" | \"no\"".into()).unwrap();
        assert!(constraint.clone().accept(tokenizer.token_to_id("a").unwrap()).is_err());
        assert_eq!(text(&mut constraint, &tokenizer, ""), "no");
    }

    /// Whether a text follows a constraint to its end.
    fn follows(constraint: &Constraint, tokenizer: &Tokenizer, text: &str) -> bool {
        let mut constraint = constraint.clone();
        let is_begun = text.chars().all(|c| constraint.accept(tokenizer.token_to_id(&c.to_string()).unwrap()).is_ok());
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        is_begun && (constraint.mask(&mut logits).is_err() || logits[tokenizer.eos_ids()[0] as usize] == 0.0)
    }

    #[test]
    fn grammars_in_gbnf_take_the_same_texts() {
        let tokenizer = tokenizer();
        let compiler = GrammarCompiler::new(&tokenizer, tokenizer.eos_ids()).unwrap();
        for (grammar, taken, refused) in [
            // Words that begin alike.
            (
                "root ::= \"ab\" \"e\" | \"abe\" \"c\" | \"abe\" [x-z]{2}",
                &["abe", "abec", "abexz"][..],
                &["ab", "abex", "abecc"][..],
            ),
            ("root ::= \"(\" root? \")\"", &["()", "((()))"], &["", "(()", "())"]),
            ("root ::= item (\", \" item)*\nitem ::= [^, ]+ | \"\" # an item", &["a", "a, b, c", ", a", ""], &["a,b", "a ,b"]),
            ("root ::= number \"\\x2e\" number\nnumber ::= [0-9]{1,2}", &["1.5", "12.34"], &["1", "123.4", "1x5"]),
            ("root ::= . . \"-\" [a\\-c]", &["xy--", "xy-a"], &["xy-b", "x-a"]),
        ] {
            let constraint = compiler.lark(lark_of_gbnf(grammar).unwrap()).unwrap();
            let is_taken = |text: &&&str| follows(&constraint, &tokenizer, text);
            assert_eq!(taken.iter().filter(|text| !is_taken(text)).count(), 0, "{grammar}");
            assert_eq!(refused.iter().filter(is_taken).count(), 0, "{grammar}");
        }
    }

    #[test]
    fn schemas_that_are_none_are_refused_with_a_reason() {
        let tokenizer = tokenizer();
        let compiler = GrammarCompiler::new(&tokenizer, tokenizer.eos_ids()).unwrap();
        let cycle = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/a" } } });
        for schema in [
            json!({ "type": "nothing" }),
            json!({ "$ref": "#/missing" }),
            json!([1]),
            cycle,
            json!({ "pattern": "(", "type": "string" }),
        ] {
            let error = compiler.json_schema(schema.clone()).map(drop).expect_err(&schema.to_string());
            assert!(matches!(error, Error::Grammar(_)) && error.to_string().len() < 500, "{schema}: {error}");
        }
        assert!(compiler.lark("start: [".into()).is_err());
        // A constraint that takes too much work is an error or is compiled in a cheaper way.
        let many: Vec<String> = (0..5_000).map(|i| format!("word number {i}")).collect();
        let mut deep = json!({ "type": "integer" });
        for _ in 0..60 {
            deep = json!({ "anyOf": [deep.clone(), { "type": "array", "items": deep }] });
            if deep.to_string().len() > 100_000 {
                break;
            }
        }
        let nested = json!({ "type": "string", "pattern": "^(([a-z]+)+)+[A-Z]{2000}$" });
        for schema in
            [json!({ "enum": many }), deep, nested, json!({ "type": "string", "pattern": "^(a|aa|b{1,90000}){1,90000}$" })]
        {
            let _ = compiler.json_schema(schema);
        }
        assert!(GrammarCompiler::new(&tokenizer, &[]).is_err());
    }
}
