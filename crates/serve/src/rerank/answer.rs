//! Ranked documents in the format of Jina and others, and labels in vLLM's.

use flambeau::{runners::embed::Entity, text::argmax};
use serde::Serialize;
use serde_json::{Value as Json, json};

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

/// An entry of `/v1/classify` for a text: the label with the highest of `shares`, the first one on
/// a tie, and all probabilities.
pub fn label_entry(index: usize, labels: &[String], shares: &[f32]) -> Json {
    let best = argmax(shares).map_or(0, |(best, _)| best as usize);
    json!({ "index": index, "label": labels.get(best), "probs": shares, "num_classes": labels.len() })
}

/// An entry of `/v1/classify` for the entities of a text.
pub fn entities_entry(index: usize, entities: &[Entity]) -> Json {
    let entry = |entity: &Entity| {
        let Entity { entity_group, score, word, start, end } = entity;
        json!({ "entity_group": entity_group, "score": score, "word": word, "start": start, "end": end })
    };
    json!({ "index": index, "entities": entities.iter().map(entry).collect::<Json>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_labels_counts() {
        let entry = label_entry(2, &["a", "b", "c"].map(str::to_owned), &[0.25, 0.375, 0.375]);
        assert_eq!(entry, json!({ "index": 2, "label": "b", "probs": [0.25, 0.375, 0.375], "num_classes": 3 }));
    }

    #[test]
    fn entities_are_listed_with_their_places() {
        let entity = Entity { entity_group: "LOC".to_owned(), score: 0.5, word: "Ulm".to_owned(), start: 3, end: 6 };
        let expected = json!({ "entity_group": "LOC", "score": 0.5, "word": "Ulm", "start": 3, "end": 6 });
        assert_eq!(entities_entry(1, &[entity]), json!({ "index": 1, "entities": [expected] }));
    }

    #[test]
    fn documents_come_by_falling_relevance() {
        let list = RerankList::new("m", &[0.25, 0.5, 0.25, 1.0], Some(&["a", "b", "c", "d"]), Some(3), 9);
        let expected = r#"{"object":"list","model":"m","usage":{"prompt_tokens":9,"total_tokens":9},"results":[{"index":3,"relevance_score":1.0,"document":{"text":"d"}},{"index":1,"relevance_score":0.5,"document":{"text":"b"}},{"index":0,"relevance_score":0.25,"document":{"text":"a"}}]}"#;
        assert_eq!(serde_json::to_string(&list).unwrap(), expected);
        let bare = RerankList::new("m", &[0.25], None, None, 1);
        assert!(!serde_json::to_string(&bare).unwrap().contains("document"));
    }
}
