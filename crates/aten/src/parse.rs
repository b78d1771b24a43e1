//! Parser of the schema notation.

use crate::{Alias, Literal, Operator, Param, Return, Schema, Type};

/// Parses the schema of an operator; `None` if `text` is not in the notation.
pub(crate) fn parse(operator: Operator, text: &'static str) -> Option<Schema> {
    let open = text.find('(')?;
    let (namespace, qualified) = text[..open].split_once("::")?;
    let (name, overload) = qualified.split_once('.').unwrap_or((qualified, ""));
    let (params, returns) = text[open + 1..].rsplit_once(") -> ")?;
    Some(Schema { operator, namespace, name, overload, params: parse_params(params)?, returns: parse_returns(returns)?, text })
}

fn parse_params(text: &'static str) -> Option<Vec<Param>> {
    let (mut params, mut keyword_only) = (Vec::new(), false);
    for part in split(text) {
        if part == "*" {
            keyword_only = true;
            continue;
        }
        let (declaration, default) = match part.split_once('=') {
            Some((declaration, default)) => (declaration, Some(literal(default)?)),
            None => (part, None),
        };
        let (ty, name) = declaration.rsplit_once(' ')?;
        let (ty, alias) = typed(ty)?;
        params.push(Param { name, ty, alias, default, keyword_only });
    }
    Some(params)
}

fn parse_returns(text: &'static str) -> Option<Vec<Return>> {
    let list = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')).unwrap_or(text);
    split(list)
        .into_iter()
        .map(|part| {
            // Results may have names: `Tensor values`.
            let ty = if part.contains("->") { part } else { part.split(' ').next()? };
            typed(ty).map(|(ty, alias)| Return { ty, alias })
        })
        .collect()
}

/// Splits at the commas outside brackets and quotes; drops empty parts.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut parts, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0, false);
    for (i, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Parses a type with its alias: `Tensor(a!)?`, `Tensor(a -> *)[]`, `int[2]?`.
fn typed(text: &'static str) -> Option<(Type, Option<Alias>)> {
    let name = text.split(['(', '[', '?']).next()?;
    let mut rest = &text[name.len()..];
    let mut ty = match name {
        "Tensor" => Type::Tensor,
        "int" => Type::Int,
        "SymInt" => Type::SymInt,
        "float" => Type::Float,
        "bool" => Type::Bool,
        "Scalar" => Type::Scalar,
        "str" => Type::Str,
        "ScalarType" => Type::ScalarType,
        "Layout" => Type::Layout,
        "Device" => Type::Device,
        "MemoryFormat" => Type::MemoryFormat,
        "Generator" => Type::Generator,
        _ => return None,
    };
    let mut alias = None;
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix('?') {
            (ty, rest) = (Type::Optional(Box::new(ty)), tail);
        } else if let Some(tail) = rest.strip_prefix('[') {
            let (length, tail) = tail.split_once(']')?;
            let length = if length.is_empty() { None } else { Some(length.parse().ok()?) };
            (ty, rest) = (Type::List(Box::new(ty), length), tail);
        } else {
            let (sets, tail) = rest.strip_prefix('(')?.split_once(')')?;
            // `a -> *`: the elements of a list may be views of set `a`.
            let set = sets.split(' ').next()?;
            alias = Some(Alias { set: set.trim_end_matches('!'), write: set.ends_with('!') });
            rest = tail;
        }
    }
    Some((ty, alias))
}

fn literal(text: &'static str) -> Option<Literal> {
    if let Some(list) = text.strip_prefix('[') {
        let items = split(list.strip_suffix(']')?);
        return items.into_iter().map(|item| item.parse().ok()).collect::<Option<_>>().map(Literal::Ints);
    }
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted.strip_suffix('"').map(Literal::Str);
    }
    Some(match text {
        "None" => Literal::None,
        "True" => Literal::Bool(true),
        "False" => Literal::Bool(false),
        _ => match text.parse() {
            Ok(v) => Literal::Int(v),
            Err(_) => Literal::Float(text.parse().ok()?),
        },
    })
}
