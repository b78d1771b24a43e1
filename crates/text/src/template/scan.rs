//! A look at a template's tokens before it is compiled.
//!
//! The compiler evaluates constant expressions and recurses along chains of operators without any
//! limit, so both are bounded here.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use crate::error::{Error, Result, TemplateLimit};

/// Maximum number of operators, calls and look-ups in one tag.
const MAX_CHAIN: usize = 400;
/// Maximum number of `elif` branches in a template.
const MAX_ELIF: usize = 200;
/// Maximum factor of a constant text.
const MAX_REPEAT: u64 = 1000;
/// Maximum number of items of a repeated constant list.
const MAX_ITEMS: u64 = 100_000;

/// Refuses templates that would exhaust stack or memory while they are compiled. Other mistakes are
/// left to the compiler.
pub(super) fn check(source: &str, syntax: SyntaxConfig) -> Result<()> {
    let tokens: Vec<Token<'_>> = tokenize(source, false, syntax).map_while(|t| t.ok()).map(|(token, _)| token).collect();
    let refuse = |limit| Err(Error::TemplateLimit { limit, fault: None });
    let (mut chain, mut elifs) = (0, 0);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::VariableStart | Token::BlockStart => chain = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Ident("and" | "or" | "is" | "not" | "in" | "if") => chain += 1,
            other if chains(other) => chain += 1,
            _ => {}
        }
        if chain > MAX_CHAIN {
            return refuse(TemplateLimit::Operators(MAX_CHAIN));
        }
        if elifs > MAX_ELIF {
            return refuse(TemplateLimit::Branches(MAX_ELIF));
        }
        if matches!(token, Token::Mul | Token::Pow) && multiplies_constants(&tokens, at) {
            return refuse(TemplateLimit::Repetitions(MAX_REPEAT));
        }
    }
    Ok(())
}

fn chains(token: &Token<'_>) -> bool {
    use Token::*;
    matches!(token, Plus | Minus | Mul | Div | FloorDiv | Pow | Mod | Dot | Tilde | Pipe | Eq | Ne | Gt | Gte | Lt | Lte)
        || matches!(token, BracketOpen | ParenOpen)
}

fn opens(token: &Token<'_>) -> bool {
    matches!(token, Token::BracketOpen | Token::ParenOpen | Token::BraceOpen)
}

fn closes(token: &Token<'_>) -> bool {
    matches!(token, Token::BracketClose | Token::ParenClose | Token::BraceClose)
}

fn is_variable(token: &Token<'_>) -> bool {
    matches!(token, Token::Ident(name) if !matches!(*name, "true" | "false" | "none" | "True" | "False" | "None"))
}

/// True if both operands of the operator at `at` are constants, other than numbers or a small
/// number times text.
fn multiplies_constants(tokens: &[Token<'_>], at: usize) -> bool {
    let (before, after) = (tokens.get(..at).unwrap_or_default(), tokens.get(at + 1..).unwrap_or_default());
    let left_varies = varies(&mut before.iter().rev(), closes, opens);
    let right_varies = varies(&mut after.iter(), opens, closes);
    if left_varies || right_varies {
        return false;
    }
    let number = |token: Option<&Token<'_>>| matches!(token, Some(Token::Int(_) | Token::Float(_)));
    let (left, mut right) = (before.last(), after.first());
    if matches!(right, Some(Token::Minus)) && number(after.get(1)) {
        right = after.get(1);
    }
    if number(left) && number(right) {
        return false;
    }
    let again = |token: Option<&Token<'_>>| matches!(token, Some(Token::Mul | Token::Pow));
    let alone = !again(before.iter().rev().nth(1)) && !again(after.get(1));
    let small = |token: Option<&Token<'_>>| matches!(token, Some(Token::Int(n)) if *n <= MAX_REPEAT);
    let text = |token: Option<&Token<'_>>| matches!(token, Some(Token::Str(_) | Token::String(_)));
    // A list literal has at most as many items as the template has tokens.
    let few = |token: Option<&Token<'_>>| matches!(token, Some(Token::Int(n)) if n.saturating_mul(tokens.len() as _) <= MAX_ITEMS);
    let list =
        (matches!(left, Some(Token::BracketClose)) && few(right)) || (few(left) && matches!(right, Some(Token::BracketOpen)));
    !(alone && (list || (small(left) && text(right)) || (text(left) && small(right))))
}

/// Whether the operand from here on, walking away from the operator, contains a variable. `enter`
/// and `leave` recognise the brackets in the direction of the walk.
fn varies<'t, 's: 't>(
    walk: &mut dyn Iterator<Item = &'t Token<'s>>,
    enter: fn(&Token<'_>) -> bool,
    leave: fn(&Token<'_>) -> bool,
) -> bool {
    let mut depth = 0usize;
    for token in walk {
        if is_variable(token) {
            return true;
        }
        if enter(token) {
            depth += 1;
        } else if leave(token) {
            // The tokens beyond a closed group may be the value it indexes.
            match depth {
                0 => return false,
                _ => depth -= 1,
            }
        } else if depth == 0 {
            return false;
        }
    }
    false
}
