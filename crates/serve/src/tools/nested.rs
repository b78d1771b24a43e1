//! Objects and lists written as tags inside an argument, all with the same prefix.

use serde_json::{Map, Value as Json};

/// Maximum nesting depth of values.
const MAX_DEPTH: usize = 64;

/// Tag of list elements.
const ITEM: &str = "item";

/// Offset of a key's closing tag, skipping nested tags with the same name.
pub(super) fn end(text: &str, prefix: &str, key: &str, close: &str) -> Option<usize> {
    let open = format!("{prefix}{key}>");
    let (mut at, mut depth) = (0, 0);
    loop {
        let closed = at + text[at..].find(close)?;
        depth += text[at..closed].matches(&open).count();
        if depth == 0 {
            return Some(closed);
        }
        depth -= 1;
        at = closed + close.len();
    }
}

/// Parses the object or list that a text writes as tags; `None` if it is something else.
pub(super) fn value(text: &str, prefix: &str) -> Option<Json> {
    if text.trim_start().starts_with(prefix) { tags(text, prefix, 0) } else { None }
}

fn tags(text: &str, prefix: &str, depth: usize) -> Option<Json> {
    let (mut map, mut list) = (Map::new(), Vec::new());
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, inside) = rest.strip_prefix(prefix)?.split_once('>')?;
        let close = format!("{prefix}/{key}>");
        let at = end(inside, prefix, key, &close)?;
        let value = leaf(&inside[..at], prefix, depth)?;
        if key == ITEM {
            list.push(value);
        } else {
            map.insert(key.to_owned(), value);
        }
        rest = inside[at + close.len()..].trim_start();
    }
    match (map.is_empty(), list.is_empty()) {
        (true, _) => Some(list.into()),
        (false, true) => Some(map.into()),
        (false, false) => None,
    }
}

/// Parses a value: tags, JSON or a string.
fn leaf(text: &str, prefix: &str, depth: usize) -> Option<Json> {
    if text.trim_start().starts_with(prefix) {
        return if depth < MAX_DEPTH { tags(text, prefix, depth + 1) } else { None };
    }
    Some(serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_inside_values_are_objects_and_lists() {
        let read = |text: &str| value(text, "<");
        let text = "<a>1</a>\n<b><item>x y</item><item><c>true</c></item></b><a2></a2>";
        assert_eq!(read(text), Some(json!({ "a": 1, "b": ["x y", { "c": true }], "a2": "" })));
        for other in ["plain", "", "<a>1", "<a>1</a> and", "<item>1</item><b>2</b>"] {
            assert_eq!(read(other), None, "{other}");
        }
        let deep = format!("{}1{}", "<a>".repeat(100), "</a>".repeat(100));
        assert_eq!(read(&deep), None);
    }

    #[test]
    fn a_value_may_have_tags_of_its_own_name() {
        let text = "<k><k>1</k></k></k> rest";
        assert_eq!(end(text, "<", "k", "</k>"), text.find("</k> rest"));
        assert_eq!(end("<k>1</k>", "<", "k", "</k>"), None);
    }
}
