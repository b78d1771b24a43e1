//! Parser for constructor calls, infix operators by precedence, names, numbers and quoted strings.

use super::{
    Comparison, ExpressionFault,
    eval::{Arg, Infix, SymValue, call, infix, name, negate, not},
};
use crate::limits::{MAX_EXPR_DEPTH, MAX_EXPR_NODES};

/// A parse error with its byte offset.
pub(super) struct Fault {
    pub(super) offset: usize,
    pub(super) fault: ExpressionFault,
}

pub(super) struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    nodes: usize,
}

/// Binary operators with their precedence, longer spellings first. `**` is right-associative.
const INFIX: [(&str, u8, Infix); 15] = [
    ("**", 9, Infix::Pow),
    ("//", 7, Infix::FloorDiv),
    ("==", 4, Infix::Compare(Comparison::Eq)),
    ("!=", 4, Infix::Compare(Comparison::Ne)),
    ("<=", 4, Infix::Compare(Comparison::Le)),
    (">=", 4, Infix::Compare(Comparison::Ge)),
    ("<", 4, Infix::Compare(Comparison::Lt)),
    (">", 4, Infix::Compare(Comparison::Gt)),
    ("+", 6, Infix::Add),
    ("-", 6, Infix::Sub),
    ("*", 7, Infix::Mul),
    ("/", 7, Infix::TrueDiv),
    ("%", 7, Infix::Mod),
    ("&", 3, Infix::And),
    ("|", 2, Infix::Or),
];
const UNARY_STRENGTH: u8 = 8;

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Parser<'a> {
        Parser { text, at: 0, depth: 0, nodes: 0 }
    }

    pub(super) fn parse(mut self) -> Result<SymValue, Fault> {
        let value = self.expression(0)?;
        self.skip_space();
        match self.rest() {
            "" => Ok(value),
            _ => Err(self.fault(ExpressionFault::TrailingText)),
        }
    }

    fn fault(&self, fault: ExpressionFault) -> Fault {
        Fault { offset: self.at, fault }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn accept(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expect(&mut self, token: &'static str) -> Result<(), Fault> {
        if self.accept(token) { Ok(()) } else { Err(self.fault(ExpressionFault::Token(token))) }
    }

    fn word(&mut self) -> Option<&'a str> {
        self.skip_space();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
        let word = rest.get(..end).filter(|w| w.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))?;
        self.at += end;
        Some(word)
    }

    /// Parses digits with an optional fraction and exponent.
    fn number(&mut self) -> Option<&'a str> {
        self.skip_space();
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let digit_at = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
        if !(digit_at(0) || (bytes.first() == Some(&b'.') && digit_at(1))) {
            return None;
        }
        let mut end = 0;
        while let Some(&b) = bytes.get(end) {
            let sign_of_exponent = (b == b'+' || b == b'-') && matches!(bytes[..end].last(), Some(b'e' | b'E'));
            let exponent = (b == b'e' || b == b'E') && (digit_at(end + 1) || matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if !(b.is_ascii_digit() || b == b'.' || exponent || sign_of_exponent) {
                break;
            }
            end += 1;
        }
        self.at += end;
        rest.get(..end)
    }

    fn quoted(&mut self) -> Result<Option<&'a str>, Fault> {
        self.skip_space();
        let Some(quote) = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"')) else { return Ok(None) };
        let inner = self.rest().get(1..).unwrap_or("");
        let end = inner.find(quote).ok_or_else(|| self.fault(ExpressionFault::UnterminatedQuote))?;
        self.at += end + 2;
        Ok(inner.get(..end))
    }

    fn expression(&mut self, strength: u8) -> Result<SymValue, Fault> {
        self.depth += 1;
        if self.depth > MAX_EXPR_DEPTH {
            return Err(self.fault(ExpressionFault::Depth));
        }
        self.skip_space();
        let start = self.at;
        let mut left = self.prefix()?;
        loop {
            self.skip_space();
            let Some(&(token, binds, op)) = INFIX.iter().find(|row| self.rest().starts_with(row.0)) else { break };
            if binds < strength {
                break;
            }
            self.at += token.len();
            let right = self.expression(if op == Infix::Pow { binds } else { binds + 1 })?;
            self.count()?;
            left = infix(op, left, right, self.text.get(start..self.at).unwrap_or(""));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn count(&mut self) -> Result<(), Fault> {
        self.nodes += 1;
        if self.nodes > MAX_EXPR_NODES { Err(self.fault(ExpressionFault::Operands)) } else { Ok(()) }
    }

    fn prefix(&mut self) -> Result<SymValue, Fault> {
        self.count()?;
        let start = self.at;
        if self.accept("-") {
            let inner = self.expression(UNARY_STRENGTH)?;
            return Ok(negate(inner, self.text.get(start..self.at).unwrap_or("")));
        }
        if self.accept("~") {
            let inner = self.expression(UNARY_STRENGTH)?;
            return Ok(not(inner, self.text.get(start + 1..self.at).unwrap_or("")));
        }
        if self.accept("(") {
            let inner = self.expression(0)?;
            self.expect(")")?;
            return Ok(inner);
        }
        if let Some(number) = self.number() {
            return SymValue::number(number).ok_or_else(|| self.fault(ExpressionFault::Number));
        }
        let Some(head) = self.word() else { return Err(self.fault(ExpressionFault::Expected("an expression"))) };
        if !self.accept("(") {
            return Ok(name(head));
        }
        let args = self.arguments()?;
        let text = self.text.get(start..self.at).unwrap_or("");
        call(head, args, text.trim_start()).map_err(|fault| Fault { offset: start, fault })
    }

    fn arguments(&mut self) -> Result<Vec<Arg<'a>>, Fault> {
        let mut args = Vec::new();
        while !self.accept(")") {
            if !args.is_empty() {
                self.expect(",")?;
                if self.accept(")") {
                    break;
                }
            }
            args.push(self.argument()?);
        }
        Ok(args)
    }

    fn argument(&mut self) -> Result<Arg<'a>, Fault> {
        if let Some(text) = self.quoted()? {
            self.count()?;
            return Ok(Arg::Text(text));
        }
        let start = self.at;
        if let Some(key) = self.word() {
            if self.accept("=") && !self.rest().starts_with('=') {
                self.word().or_else(|| self.number()).ok_or_else(|| self.fault(ExpressionFault::Expected("a value")))?;
                self.count()?;
                return Ok(Arg::Keyword(key));
            }
            self.at = start;
        }
        self.expression(0).map(Arg::Value)
    }
}
