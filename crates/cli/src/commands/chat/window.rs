//! The messages that fit the context.

use serde_json::Value as Json;

/// Omits the oldest messages from prompts, except the system message. The first kept message is a
/// user message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// Index of the first message after the system message.
    first: usize,
}

impl Window {
    /// The messages of a prompt.
    pub(super) fn of(&mut self, messages: &[Json]) -> Vec<Json> {
        // The conversation was cut before that place.
        if self.first > 0 && !is(messages.get(self.first), "user") {
            self.first = 0;
        }
        let shown = |at: usize, message: &Json| at >= self.first || is(Some(message), "system");
        messages.iter().enumerate().filter(|(at, message)| shown(*at, message)).map(|(_, message)| message.clone()).collect()
    }

    /// Omits the oldest exchange; `None` if only the last message remains, otherwise the total
    /// number of omitted messages.
    pub(super) fn shift(&mut self, messages: &[Json]) -> Option<usize> {
        let begin = self.first.max(usize::from(is(messages.first(), "system")));
        let next = (begin + 1..messages.len()).find(|&at| is(messages.get(at), "user"))?;
        self.first = next;
        Some(next - usize::from(is(messages.first(), "system")))
    }
}

fn is(message: Option<&Json>, role: &str) -> bool {
    message.is_some_and(|message| message["role"] == role)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn talk(texts: &[(&str, &str)]) -> Vec<Json> {
        texts.iter().map(|(role, text)| json!({ "role": role, "content": text })).collect()
    }

    fn shown(window: &mut Window, messages: &[Json]) -> Vec<String> {
        window.of(messages).iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_oldest_exchanges_go_and_the_system_message_stays() {
        let messages =
            talk(&[("system", "s"), ("user", "1"), ("assistant", "a"), ("user", "2"), ("assistant", "b"), ("user", "3")]);
        let mut window = Window::default();
        assert_eq!(shown(&mut window, &messages), ["s", "1", "a", "2", "b", "3"]);
        assert_eq!(window.shift(&messages), Some(2));
        assert_eq!(shown(&mut window, &messages), ["s", "2", "b", "3"]);
        assert_eq!(window.shift(&messages), Some(4));
        assert_eq!(shown(&mut window, &messages), ["s", "3"]);
        assert_eq!(window.shift(&messages), None);
        // The conversation grows, and then begins anew.
        let longer = [messages.clone(), talk(&[("assistant", "c"), ("user", "4")])].concat();
        assert_eq!(shown(&mut window, &longer), ["s", "3", "c", "4"]);
        assert_eq!(shown(&mut window, &messages[..2]), ["s", "1"]);
        assert_eq!(shown(&mut window, &messages), ["s", "1", "a", "2", "b", "3"]);
    }

    #[test]
    fn a_conversation_without_a_system_message_shifts_too() {
        let messages = talk(&[("user", "1"), ("assistant", "a"), ("user", "2")]);
        let mut window = Window::default();
        assert_eq!(window.shift(&messages), Some(2));
        assert_eq!(shown(&mut window, &messages), ["2"]);
    }
}
