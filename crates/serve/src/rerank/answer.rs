//! Ranked documents in the format of Jina and others.

use serde::Serialize;

/// Ranked documents in the format of `/v1/rerank`, serialized as JSON.
#[derive(Debug, Serialize)]
pub struct RerankList<'a> {
    object: &'static str,
    model: &'a str,
    usage: Usage,
    results: Vec<Entry<'a>>,
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document<'a>>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    text: &'a str,
}

impl<'a> RerankList<'a> {
    /// The `most` documents with the highest `relevance`, with their `texts` if given, the model's
    /// name and the total number of tokens. Ties keep the order of the request.
    pub fn new(model: &'a str, relevance: &[f32], texts: Option<&[&'a str]>, most: Option<usize>, tokens: usize) -> RerankList<'a> {
        let mut order: Vec<usize> = (0..relevance.len()).collect();
        order.sort_by(|&a, &b| relevance[b].total_cmp(&relevance[a]));
        order.truncate(most.unwrap_or(usize::MAX));
        let entry = |index: usize| Entry {
            index,
            relevance_score: relevance[index],
            document: texts.and_then(|texts| texts.get(index)).map(|text| Document { text }),
        };
        let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
        RerankList { object: "list", model, usage, results: order.into_iter().map(entry).collect() }
    }

    /// Indices and relevance of the documents, most relevant first.
    pub fn order(&self) -> impl Iterator<Item = (usize, f32)> {
        self.results.iter().map(|entry| (entry.index, entry.relevance_score))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_come_by_falling_relevance() {
        let list = RerankList::new("m", &[0.25, 0.5, 0.25, 1.0], Some(&["a", "b", "c", "d"]), Some(3), 9);
        let expected = r#"{"object":"list","model":"m","usage":{"prompt_tokens":9,"total_tokens":9},"results":[{"index":3,"relevance_score":1.0,"document":{"text":"d"}},{"index":1,"relevance_score":0.5,"document":{"text":"b"}},{"index":0,"relevance_score":0.25,"document":{"text":"a"}}]}"#;
        assert_eq!(serde_json::to_string(&list).unwrap(), expected);
        let bare = RerankList::new("m", &[0.25], None, None, 1);
        assert!(!serde_json::to_string(&bare).unwrap().contains("document"));
    }
}
