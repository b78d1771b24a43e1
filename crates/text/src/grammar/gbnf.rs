//! Grammars in GBNF, the notation of llama.cpp, as grammars in Lark's.
//!
//! Each character becomes a lexeme of its own. The parser of characters then accepts exactly the
//! texts of the grammar, whatever words begin alike.

use std::{
    collections::HashMap,
    fmt::{self, Write},
};

use crate::error::{Error, Result};

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;

/// The rule that texts follow.
const ROOT: &str = "root";

/// The body of a rule in Lark's notation that embeds a whole grammar in this notation or in GBNF.
///
/// # Errors
/// A grammar in GBNF is malformed. The message names the line or the rule.
pub fn lark_rule(grammar: &str) -> Result<String> {
    let lark = if is_gbnf(grammar) { lark_of_gbnf(grammar)? } else { grammar.to_owned() };
    Ok(format!("%lark {{\n{lark}\n}}"))
}

/// Whether a grammar is in GBNF: it defines a rule by `::=`.
fn is_gbnf(grammar: &str) -> bool {
    grammar.lines().any(|line| {
        let defined = line.split_once("::=").map(|(name, _)| name.trim());
        defined.is_some_and(|name| !name.is_empty() && name.chars().all(is_name))
    })
}

/// The Lark grammar with the texts of a GBNF grammar.
///
/// # Errors
/// The grammar is malformed, or lacks a rule that it uses. The message names the line or the rule.
pub(super) fn lark_of_gbnf(grammar: &str) -> Result<String> {
    let mut reader = Reader { rest: grammar, whole: grammar, rules: Rules::default() };
    reader.skip_blanks();
    let mut lark = String::new();
    while !reader.rest.is_empty() {
        let name = reader.rule_name()?;
        let rule = reader.rules.define(name)?;
        let body = reader.alternatives(0)?;
        let _ = writeln!(lark, "{rule}: {body}");
    }
    let root = reader.rules.root()?;
    Ok(format!("start: {root}\n{lark}"))
}

fn error(text: impl fmt::Display) -> Error {
    Error::Grammar(format!("GBNF: {text}"))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// Rules by name, in the order of their first occurrence.
#[derive(Default)]
struct Rules<'a> {
    numbers: HashMap<&'a str, usize>,
    names: Vec<&'a str>,
    is_defined: Vec<bool>,
}

impl<'a> Rules<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name);
            self.is_defined.push(false);
        }
        number
    }

    /// The name of a rule in Lark, which takes lower-case letters only.
    fn reference(&mut self, name: &'a str) -> String {
        format!("rule_{}", self.number(name))
    }

    fn define(&mut self, name: &'a str) -> Result<String> {
        let number = self.number(name);
        if std::mem::replace(&mut self.is_defined[number], true) {
            return Err(error(format_args!("the rule `{name}` is defined twice")));
        }
        Ok(format!("rule_{number}"))
    }

    fn root(&mut self) -> Result<String> {
        let root = self.reference(ROOT);
        match self.is_defined.iter().position(|defined| !defined) {
            Some(at) => Err(error(format_args!("there is no rule `{}`", self.names[at]))),
            None => Ok(root),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    whole: &'a str,
    rules: Rules<'a>,
}

impl<'a> Reader<'a> {
    /// Skips blanks, line ends and comments.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
        }
    }

    fn wrong(&self, expected: &str) -> Error {
        let line = 1 + self.whole[..self.whole.len() - self.rest.len()].matches('\n').count();
        let found = self.rest.chars().next().map_or_else(|| "the end".to_owned(), |c| format!("{c:?}"));
        error(format_args!("line {line}: expected {expected}, found {found}"))
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn name(&mut self) -> &'a str {
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }

    /// Reads `NAME ::=`.
    fn rule_name(&mut self) -> Result<&'a str> {
        let name = self.name();
        self.skip_blanks();
        if name.is_empty() || !self.take("::=") {
            return Err(self.wrong("a rule, as NAME ::= ..."));
        }
        self.skip_blanks();
        Ok(name)
    }

    /// Whether the next rule begins here.
    fn is_at_rule(&self) -> bool {
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        end > 0 && self.rest[end..].trim_start().starts_with("::=")
    }

    fn alternatives(&mut self, depth: usize) -> Result<String> {
        if depth > MAX_DEPTH {
            return Err(error(format_args!("groups are nested in more than {MAX_DEPTH} levels")));
        }
        let mut lark = self.sequence(depth)?;
        while self.take("|") {
            self.skip_blanks();
            lark = format!("{lark} | {}", self.sequence(depth)?);
        }
        Ok(lark)
    }

    fn sequence(&mut self, depth: usize) -> Result<String> {
        let mut parts = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) && !self.is_at_rule() {
            let part = self.element(depth)?;
            self.skip_blanks();
            parts.push(self.repeated(part)?);
        }
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    fn element(&mut self, depth: usize) -> Result<String> {
        match self.rest.chars().next() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('.') => {
                self.take(".");
                Ok("/(?s:.)/".to_owned())
            }
            Some('(') => {
                self.take("(");
                self.skip_blanks();
                let inner = self.alternatives(depth + 1)?;
                if self.take(")") { Ok(format!("({inner})")) } else { Err(self.wrong("`)`")) }
            }
            Some('<') => self.token(),
            Some(c) if is_name(c) => {
                let name = self.name();
                Ok(self.rules.reference(name))
            }
            _ => Err(self.wrong("a text, a class, a group or the name of a rule")),
        }
    }

    /// A token by its text or id: `<think>` or `<[7]>`. Lark has the same form.
    fn token(&mut self) -> Result<String> {
        let end = self.rest.find('>').ok_or_else(|| self.wrong("a token, as <TEXT> or <[ID]>"))?;
        let (token, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        Ok(token.to_owned())
    }

    fn repeated(&mut self, part: String) -> Result<String> {
        let mut part = part;
        loop {
            if let Some(sign) = ["*", "+", "?"].into_iter().find(|sign| self.take(sign)) {
                part = format!("({part}){sign}");
            } else if self.take("{") {
                let end = self.rest.find('}').ok_or_else(|| self.wrong("`}`"))?;
                let counts: String = self.rest[..end].split_whitespace().collect();
                let (low, high) = counts.split_once(',').unwrap_or((&counts, &counts));
                let is_number = |text: &str| text.parse::<u16>().is_ok();
                if !is_number(low) || !(high.is_empty() || is_number(high)) {
                    return Err(self.wrong("a number of times, as {2}, {2,} or {2,5}"));
                }
                self.rest = &self.rest[end + 1..];
                part = format!("({part}){{{low},{high}}}");
            } else {
                return Ok(part);
            }
            self.skip_blanks();
        }
    }

    /// A text in quotes, as one lexeme for each character.
    fn literal(&mut self) -> Result<String> {
        self.take("\"");
        let mut characters = Vec::new();
        while !self.take("\"") {
            characters.push(format!("/{}/", escaped(self.character("a text that ends in `\"`")?)));
        }
        Ok(if characters.is_empty() { "\"\"".to_owned() } else { format!("({})", characters.join(" ")) })
    }

    fn class(&mut self) -> Result<String> {
        self.take("[");
        let mut class = String::from(if self.take("^") { "/[^" } else { "/[" });
        let empty = class.len();
        while !self.take("]") {
            class += &escaped(self.character("a class that ends in `]`")?);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.take("-");
                class += "-";
                class += &escaped(self.character("the end of a range")?);
            }
        }
        match class.len() > empty {
            true => Ok(class + "]/"),
            false => Err(self.wrong("a class of at least one character")),
        }
    }

    /// A character of a text or a class, which may be an escape.
    fn character(&mut self, expected: &str) -> Result<char> {
        let c = self.next().ok_or_else(|| self.wrong(expected))?;
        if c != '\\' {
            return Ok(c);
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.wrong("an escape: \\n, \\r, \\t, \\\", \\\\, \\[, \\], \\xHH or \\uHHHH")),
        };
        let code = self.rest.get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let c = code.ok_or_else(|| self.wrong("the digits of a character"))?;
        self.rest = &self.rest[digits..];
        Ok(c)
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let c = characters.next();
        self.rest = characters.as_str();
        c
    }
}

/// A character in a regular expression.
fn escaped(c: char) -> String {
    format!("\\x{{{:x}}}", u32::from(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rules() {
        let lark = lark_of_gbnf("# a comment\nroot ::= \"a\" b-c | [^x-z\\n]+\nb-c ::= (\"1\" |\n  root) {2,}\n").unwrap();
        assert_eq!(
            lark,
            "start: rule_0\nrule_0: (/\\x{61}/) rule_1 | (/[^\\x{78}-\\x{7a}\\x{a}]/)+\nrule_1: (((/\\x{31}/) | rule_0)){2,}\n"
        );
    }

    #[test]
    fn notations_are_told_apart() {
        assert!(is_gbnf("root ::= \"a\"") && is_gbnf("# x\nroot   ::=\n \"a\""));
        assert!(!is_gbnf("start: \"::=\" x\nx: \"a\"") && !is_gbnf(""));
    }

    #[test]
    fn faults_are_named() {
        for (grammar, part) in [
            ("root ::= a", "there is no rule `a`"),
            ("a ::= \"x\"", "there is no rule `root`"),
            ("root ::= \"x\"\nroot ::= \"y\"", "`root` is defined twice"),
            ("root ::= \"x\n", "a text that ends"),
            ("root ::= [a", "a class that ends"),
            ("root ::= []", "at least one character"),
            ("root ::= (\"x\"", "line 1: expected `)`, found the end"),
            ("root ::= \"x\"\n  )", "line 2: expected a rule"),
            ("root ::= \"\\q\"", "an escape"),
            ("root ::= \"\\uD800\"", "the digits of a character"),
            ("root ::= \"x\"{a}", "a number of times"),
            ("root ::= !x", "found '!'"),
        ] {
            let found = lark_of_gbnf(grammar).unwrap_err().to_string();
            assert!(found.contains(part), "{grammar}: {found}");
        }
        let deep = format!("root ::= {}\"x\"{}", "(".repeat(99), ")".repeat(99));
        assert!(lark_of_gbnf(&deep).unwrap_err().to_string().contains("64 levels"));
    }
}
