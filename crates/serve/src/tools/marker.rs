//! Markers around calls. Models vary the whitespace.

/// Result of matching a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    Yes(T),
    /// The text is too short to decide.
    More,
    No,
}

impl<T> Found<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Found::Yes(found) => Found::Yes(change(found)),
            Found::More => Found::More,
            Found::No => Found::No,
        }
    }

    pub(super) fn and_then<U>(self, next: impl FnOnce(T) -> Found<U>) -> Found<U> {
        match self {
            Found::Yes(found) => next(found),
            Found::More => Found::More,
            Found::No => Found::No,
        }
    }
}

/// Placeholder of a call's ID in a marker.
pub(super) const ID: &str = "{id}";

/// A matched marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Met<'a> {
    /// Length of the match in bytes.
    pub(super) length: usize,
    /// The ID at the placeholder [`ID`].
    pub(super) id: Option<&'a str>,
}

/// An element of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element<'a> {
    /// A run of whitespace; matches any run, including none.
    Blank(&'a str),
    Id,
    Word(&'a str),
}

/// The elements of a marker in order.
pub(super) fn elements(marker: &str) -> impl Iterator<Item = Element<'_>> {
    let mut rest = marker;
    std::iter::from_fn(move || {
        let blank = rest.len() - rest.trim_start().len();
        let (element, length) = if rest.is_empty() {
            return None;
        } else if blank > 0 {
            (Element::Blank(&rest[..blank]), blank)
        } else if rest.starts_with(ID) {
            (Element::Id, ID.len())
        } else {
            let blank = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let end = rest.find(ID).map_or(blank, |id| id.min(blank));
            (Element::Word(&rest[..end]), end)
        };
        rest = &rest[length..];
        Some(element)
    })
}

/// Matches a marker at the start of a text.
pub(super) fn meet<'a>(marker: &str, text: &'a str) -> Found<Met<'a>> {
    let (mut rest, mut id) = (text, None);
    for element in elements(marker) {
        match element {
            Element::Blank(_) => rest = rest.trim_start(),
            Element::Word(word) => match rest.strip_prefix(word) {
                Some(after) => rest = after,
                None if word.starts_with(rest) => return Found::More,
                None => return Found::No,
            },
            Element::Id => {
                let is_id = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                let Some(end) = rest.find(|c| !is_id(c)) else { return Found::More };
                if end == 0 {
                    return Found::No;
                }
                (id, rest) = (Some(&rest[..end]), &rest[end..]);
            }
        }
    }
    Found::Yes(Met { length: text.len() - rest.len(), id })
}

/// Length of the longest suffix of a text that may start a word.
pub(super) fn begun(text: &str, word: &str) -> usize {
    let begins = |&n: &usize| word.is_char_boundary(n) && text.ends_with(&word[..n]);
    (1..word.len()).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_take_any_run_of_blanks_for_their_own() {
        let met = |length| Found::Yes(Met { length, id: None });
        assert_eq!(meet("<a>\n<b>", "<a><b>x"), met(6));
        assert_eq!(meet("<a>\n<b>", "<a> \n\n<b>"), met(9));
        assert_eq!(meet("<a><b>", "<a> <b>"), Found::No);
        assert_eq!(meet("<a>\n", "<a>\n \nx"), met(6));
        for begun in ["", "<", "<a>", "<a> \n", "<a> <"] {
            assert_eq!(meet("<a>\n<b>", begun), Found::More, "{begun:?}");
        }
    }

    #[test]
    fn ids_end_at_what_follows_them() {
        assert_eq!(meet("[I]{id}[A]", "[I]a1-_[A]{"), Found::Yes(Met { length: 10, id: Some("a1-_") }));
        assert_eq!(meet("[I]{id}[A]", "[I]a1"), Found::More);
        assert_eq!(meet("[I]{id}[A]", "[I][A]"), Found::No);
        assert_eq!(
            elements(":{id} <x>").collect::<Vec<_>>(),
            [Element::Word(":"), Element::Id, Element::Blank(" "), Element::Word("<x>"),]
        );
    }
}
