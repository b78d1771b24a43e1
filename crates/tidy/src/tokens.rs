//! Tokens of Rust code, without comments, literals and lifetimes.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// An identifier or a punctuation mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// Line number, from 1.
    pub line: usize,
    /// Whether the token belongs to an item under `#[cfg(test)]`.
    pub is_test: bool,
}

/// The tokens of a file, with groups and their delimiters flattened.
///
/// # Errors
/// Fails if the text is not valid Rust.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let stream: TokenStream = text.parse().map_err(|e| format!("{e}"))?;
    let mut out = Vec::new();
    flatten(stream, false, &mut out);
    Ok(out)
}

fn flatten(stream: TokenStream, in_test: bool, out: &mut Vec<Token>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    // Set by `#[cfg(test)]` until the following item ends.
    let mut is_test = in_test;
    let mut is_lifetime = false;
    for (i, tree) in trees.iter().enumerate() {
        let line = tree.span().start().line;
        let mut push = |text: &str, is_test| out.push(Token { text: text.to_owned(), line, is_test });
        match tree {
            TokenTree::Ident(_) if is_lifetime => {}
            TokenTree::Ident(ident) => push(&ident.to_string(), is_test),
            TokenTree::Punct(mark) if mark.as_char() == '\'' => {}
            TokenTree::Punct(mark) => {
                push(&mark.as_char().to_string(), is_test);
                if mark.as_char() == ';' {
                    is_test = in_test;
                }
            }
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                let (open, close) = delimiters(group.delimiter());
                let is_attribute = group.delimiter() == Delimiter::Bracket && i > 0 && is_mark(&trees[i - 1], '#');
                if is_attribute && is_cfg_test(&group.stream()) {
                    is_test = true;
                }
                push(open, is_test);
                flatten(group.stream(), is_test, out);
                let end = Token { text: close.to_owned(), line: group.span_close().start().line, is_test };
                out.push(end);
                if group.delimiter() == Delimiter::Brace {
                    is_test = in_test;
                }
            }
        }
        is_lifetime = is_mark(tree, '\'');
    }
}

fn delimiters(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

fn is_mark(tree: &TokenTree, mark: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// Whether an attribute is `cfg(test)`, or `cfg(all(test, …))`.
fn is_cfg_test(attribute: &TokenStream) -> bool {
    let text: String = attribute.to_string().split_whitespace().collect();
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_from_comments_literals_lifetimes_and_tests() {
        let text = "
            /// unsafe static
            fn f<'static>(s: &'static str) { g(\"unsafe\", 'u'); } // unsafe
            #[cfg(test)]
            mod tests { static A: u8 = 1; }
            static B: u8 = 2;
            #[cfg(test)]
            use std::env;
            macro_rules! m { () => { unsafe { } } }
        ";
        let found: Vec<(String, usize, bool)> = tokens(text)
            .unwrap()
            .into_iter()
            .filter(|t| ["static", "unsafe", "env"].contains(&t.text.as_str()))
            .map(|t| (t.text, t.line, t.is_test))
            .collect();
        let expected = [("static", 5, true), ("static", 6, false), ("env", 8, true), ("unsafe", 9, false)];
        assert_eq!(found, expected.map(|(text, line, test)| (text.to_owned(), line, test)));
    }
}
