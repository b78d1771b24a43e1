//! Stored responses that later requests continue, kept in memory up to a size limit.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value as Json, json};

use crate::{ids::unique_id, keys::Caller};

/// Responses of all callers. Callers see only their own.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    most_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// Item IDs with the latest response that contains each.
    items: BTreeMap<String, String>,
    /// IDs, least recently used first.
    used: BTreeMap<u64, String>,
    clock: u64,
    bytes: usize,
}

/// A response with its request's items.
#[derive(Debug)]
struct Entry {
    owner: Caller,
    previous: Option<String>,
    input: Arc<Vec<Json>>,
    response: Arc<Json>,
    bytes: usize,
    used: u64,
}

impl Entry {
    fn item_ids(&self) -> impl Iterator<Item = &str> {
        self.items().filter_map(|item| item["id"].as_str())
    }

    fn items(&self) -> impl Iterator<Item = &Json> {
        self.input.iter().chain(self.response["output"].as_array().into_iter().flatten())
    }
}

impl State {
    fn entry(&self, owner: Caller, id: &str) -> Option<&Entry> {
        self.entries.get(id).filter(|entry| entry.owner.number() == owner.number())
    }

    fn touch(&mut self, id: &str) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(id) {
            self.used.remove(&entry.used);
            entry.used = self.clock;
            self.used.insert(self.clock, id.to_owned());
        }
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.used.remove(&entry.used);
            self.bytes -= entry.bytes;
            for item in entry.item_ids() {
                if self.items.get(item).is_some_and(|holder| holder == id) {
                    self.items.remove(item);
                }
            }
        }
    }

    /// IDs of a response and its predecessors, latest first; `None` if one was dropped.
    fn chain(&self, owner: Caller, id: &str) -> Option<Vec<String>> {
        let mut ids = vec![id.to_owned()];
        let mut entry = self.entry(owner, id)?;
        while let Some(previous) = &entry.previous {
            entry = self.entry(owner, previous)?;
            ids.push(previous.clone());
        }
        Some(ids)
    }
}

impl ResponseStore {
    /// Creates a store of at most `most_bytes` bytes of JSON; 0 stores nothing.
    pub(crate) fn new(most_bytes: usize) -> ResponseStore {
        ResponseStore { most_bytes, state: Mutex::default() }
    }

    pub(crate) fn keeps(&self) -> bool {
        self.most_bytes > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response that continues `previous`, and drops the least recently used ones.
    pub(crate) fn put(&self, owner: Caller, previous: Option<String>, input: Vec<Json>, response: Json) {
        let Some(id) = response["id"].as_str().map(str::to_owned) else { return };
        let bytes = response.to_string().len() + input.iter().map(|item| item.to_string().len()).sum::<usize>();
        if bytes > self.most_bytes {
            return;
        }
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        let entry = Entry { owner, previous, input: Arc::new(input), response: Arc::new(response), bytes, used };
        state.items.extend(entry.item_ids().map(|item| (item.to_owned(), id.clone())));
        state.bytes += bytes;
        state.used.insert(used, id.clone());
        state.entries.insert(id, entry);
        while state.bytes > self.most_bytes {
            let Some((_, oldest)) = state.used.first_key_value() else { return };
            let oldest = oldest.clone();
            state.remove(&oldest);
        }
    }

    /// The response.
    pub(crate) fn get(&self, owner: Caller, id: &str) -> Option<Arc<Json>> {
        let mut state = self.state();
        let response = Arc::clone(&state.entry(owner, id)?.response);
        state.touch(id);
        Some(response)
    }

    /// Deletes a response; false if it does not exist.
    pub(crate) fn delete(&self, owner: Caller, id: &str) -> bool {
        let mut state = self.state();
        let is_there = state.entry(owner, id).is_some();
        if is_there {
            state.remove(id);
        }
        is_there
    }

    /// Items of the conversation up to and including the response; `None` if a part was dropped.
    pub(crate) fn conversation(&self, owner: Caller, id: &str) -> Option<Vec<Json>> {
        let mut state = self.state();
        let chain = state.chain(owner, id)?;
        // The latest is touched last.
        chain.iter().rev().for_each(|id| state.touch(id));
        let entries = chain.iter().rev().filter_map(|id| state.entries.get(id));
        Some(entries.flat_map(Entry::items).cloned().collect())
    }

    /// Items of the conversation before the response.
    pub(crate) fn input(&self, owner: Caller, id: &str) -> Option<Vec<Json>> {
        let (previous, own) = {
            let state = self.state();
            let entry = state.entry(owner, id)?;
            (entry.previous.clone(), Arc::clone(&entry.input))
        };
        let mut items = previous.map_or_else(|| Some(Vec::new()), |previous| self.conversation(owner, &previous))?;
        items.extend(own.iter().cloned());
        Some(items)
    }

    /// The item with this ID, from the latest response that contains it.
    pub(crate) fn item(&self, owner: Caller, id: &str) -> Option<Json> {
        let state = self.state();
        let entry = state.entry(owner, state.items.get(id)?)?;
        entry.items().find(|item| item["id"] == id).cloned()
    }
}

/// The stored form of a request item: with an ID and with content as a list.
pub(crate) fn stored_item(mut item: Json) -> Json {
    if let Json::Object(item) = &mut item {
        item.entry("type").or_insert_with(|| "message".into());
        if item.get("id").is_none_or(Json::is_null) {
            item.insert("id".into(), unique_id(if item["type"] == "message" { "msg_" } else { "item_" }).into());
        }
        if let Some(Json::String(text)) = item.get("content") {
            let kind = if item.get("role").is_some_and(|role| role == "assistant") { "output_text" } else { "input_text" };
            let part = json!([{ "type": kind, "text": text }]);
            item.insert("content".into(), part);
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(text: &str) -> Json {
        stored_item(json!({ "role": "user", "content": text }))
    }

    fn put(store: &ResponseStore, owner: Caller, id: &str, previous: Option<&str>, text: &str) {
        let output = json!([{ "type": "message", "id": format!("msg_{id}"), "role": "assistant", "content": [] }]);
        store.put(owner, previous.map(str::to_owned), vec![item(text)], json!({ "id": id, "output": output }));
    }

    #[test]
    fn conversations_are_found_by_their_owner() {
        let store = ResponseStore::new(1 << 20);
        let [one, other] = [Caller::new("a"), Caller::new("b")];
        put(&store, one, "1", None, "x");
        put(&store, one, "2", Some("1"), "y");
        let items = store.conversation(one, "2").unwrap();
        let texts: Vec<&str> = items.iter().filter_map(|item| item["content"][0]["text"].as_str()).collect();
        assert_eq!((items.len(), texts), (4, vec!["x", "y"]));
        assert_eq!(store.input(one, "2").unwrap().len(), 3);
        assert!(store.item(one, "msg_1").is_some() && store.item(other, "msg_1").is_none());
        assert!(store.get(other, "2").is_none() && store.conversation(other, "2").is_none() && !store.delete(other, "2"));
        assert!(store.delete(one, "1") && store.get(one, "1").is_none());
        assert!(store.item(one, "msg_1").is_none() && store.item(one, "msg_2").is_some());
        assert!(store.conversation(one, "2").is_none(), "a conversation with a hole is none");
    }

    #[test]
    fn the_response_that_was_not_used_for_longest_goes() {
        let store = ResponseStore::new(700);
        let owner = Caller::default();
        put(&store, owner, "1", None, &"x".repeat(100));
        put(&store, owner, "2", None, &"x".repeat(100));
        assert!(store.get(owner, "1").is_some());
        put(&store, owner, "3", None, &"x".repeat(100));
        assert!(store.get(owner, "1").is_some() && store.get(owner, "2").is_none() && store.get(owner, "3").is_some());
        put(&store, owner, "4", None, &"x".repeat(1000));
        assert!(store.get(owner, "4").is_none() && store.get(owner, "3").is_some());
        assert!(store.state().bytes <= 700);
    }
}
