//! A conversation as a list of messages, edited turn by turn. It is independent of models,
//! templates and terminals.

use flambeau_text::message;
use serde_json::{Value as Json, json};

/// Error of messages read from outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The JSON is neither a list of messages nor an object with such a list.
    #[error("expected a list of messages, or an object with the list `messages`")]
    NoList,
    /// A message is invalid or has content other than text.
    #[error("message {at}: {what}")]
    Message { at: usize, what: &'static str },
}

/// The model's answer in a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Text of the answer.
    pub content: String,
    /// Reasoning before the answer, without its markers.
    pub thinking: String,
    /// Whether the generation was interrupted.
    pub interrupted: bool,
}

/// Messages in OpenAI's form: objects with `role` and `content`. A system message is always the
/// first.
///
/// Reasoning is stored as `reasoning_content`, where templates expect it; the template decides
/// whether a later prompt repeats it. An interrupted answer keeps its partial text and has
/// `interrupted: true`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    messages: Vec<Json>,
}

impl Conversation {
    /// Creates a conversation with at most a system message.
    pub fn new(system: Option<&str>) -> Conversation {
        Conversation { messages: system.iter().map(|text| message("system", text)).collect() }
    }

    /// All messages, oldest first.
    pub fn messages(&self) -> &[Json] {
        &self.messages
    }

    /// Replaces the system message and keeps the others; `None` removes it.
    pub fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| role(message) != "system");
        self.messages.splice(0..0, text.map(|text| message("system", text)));
    }

    /// Removes all messages except the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| role(message) == "system");
    }

    /// Whether the last message is an unanswered message of the user.
    pub fn awaits_answer(&self) -> bool {
        self.messages.last().is_some_and(|message| role(message) == "user")
    }

    /// Appends a message of the user.
    pub fn say(&mut self, text: &str) {
        self.messages.push(message("user", text));
    }

    /// Appends the model's answer.
    pub fn answer(&mut self, answer: &Answer) {
        let mut added = message("assistant", &answer.content);
        if !answer.thinking.is_empty() {
            added["reasoning_content"] = answer.thinking.as_str().into();
        }
        if answer.interrupted {
            added["interrupted"] = true.into();
        }
        self.messages.push(added);
    }

    /// Removes the user's last message and everything after it; false if there is none.
    pub fn undo(&mut self) -> bool {
        self.truncate_to_last_user(0)
    }

    /// Removes everything after the user's last message, so that it awaits an answer; false if
    /// there is none.
    pub fn retry(&mut self) -> bool {
        self.truncate_to_last_user(1)
    }

    fn truncate_to_last_user(&mut self, kept: usize) -> bool {
        let last = self.messages.iter().rposition(|message| role(message) == "user");
        if let Some(last) = last {
            self.messages.truncate(last + kept);
        }
        last.is_some()
    }

    /// The conversation as `{"messages": [..]}`, the form of OpenAI's requests.
    pub fn to_json(&self) -> Json {
        json!({ "messages": self.messages })
    }

    /// Reads the output of [`to_json`](Self::to_json), or a bare list of messages. A message's
    /// content is a text or a list of parts of type `text`.
    ///
    /// # Errors
    /// Returns a [`ConversationError`] that names the invalid message.
    pub fn from_json(json: Json) -> Result<Conversation, ConversationError> {
        let list = match json {
            Json::Array(list) => list,
            Json::Object(mut object) => match object.remove("messages") {
                Some(Json::Array(list)) => list,
                _ => return Err(ConversationError::NoList),
            },
            _ => return Err(ConversationError::NoList),
        };
        let checked = |(at, message)| checked(message).map_err(|what| ConversationError::Message { at, what });
        let messages: Vec<Json> = list.into_iter().enumerate().map(checked).collect::<Result<_, _>>()?;
        match messages.iter().skip(1).position(|message| role(message) == "system") {
            Some(at) => Err(ConversationError::Message { at: at + 1, what: "a system message stands at the beginning only" }),
            None => Ok(Conversation { messages }),
        }
    }
}

fn role(message: &Json) -> &str {
    message["role"].as_str().unwrap_or_default()
}

/// Checks a message and joins its content into one text.
fn checked(mut message: Json) -> Result<Json, &'static str> {
    if !["system", "user", "assistant"].contains(&role(&message)) {
        return Err("expected an object whose `role` is system, user or assistant");
    }
    let text = match &message["content"] {
        Json::String(_) => return Ok(message),
        Json::Array(parts) => parts.iter().map(|part| (part["type"] == "text").then(|| part["text"].as_str()).flatten()).collect(),
        _ => None,
    };
    let text: String = text.ok_or("its `content` is no text")?;
    message["content"] = text.into();
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(content: &str) -> Answer {
        Answer { content: content.into(), ..Answer::default() }
    }

    fn talk() -> Conversation {
        let mut talk = Conversation::new(Some("be brief"));
        for (question, reply) in [("one?", "1"), ("two?", "2")] {
            talk.say(question);
            talk.answer(&answer(reply));
        }
        talk
    }

    fn texts(talk: &Conversation) -> Vec<&str> {
        talk.messages().iter().map(|m| m["content"].as_str().unwrap()).collect()
    }

    #[test]
    fn exchanges_are_taken_back_one_by_one() {
        let mut talk = talk();
        assert!(talk.undo());
        assert_eq!(texts(&talk), ["be brief", "one?", "1"]);
        assert!(talk.undo() && !talk.undo());
        assert_eq!(texts(&talk), ["be brief"]);
    }

    #[test]
    fn a_question_without_answer_is_an_exchange() {
        let mut talk = talk();
        talk.say("three?");
        assert!(talk.awaits_answer() && talk.undo() && !talk.awaits_answer());
        assert_eq!(texts(&talk), ["be brief", "one?", "1", "two?", "2"]);
    }

    #[test]
    fn retrying_drops_the_answer_alone() {
        let mut talk = talk();
        assert!(talk.retry() && talk.awaits_answer());
        assert_eq!(texts(&talk), ["be brief", "one?", "1", "two?"]);
        assert!(!Conversation::new(Some("system")).retry());
    }

    #[test]
    fn the_system_message_survives_a_reset_and_can_change() {
        let mut talk = talk();
        talk.set_system(Some("be long"));
        assert_eq!(texts(&talk), ["be long", "one?", "1", "two?", "2"]);
        talk.reset();
        assert_eq!(texts(&talk), ["be long"]);
        talk.set_system(None);
        assert_eq!(talk.messages().len(), 0);
    }

    #[test]
    fn thoughts_and_interruptions_are_kept_apart_from_the_content() {
        let mut talk = Conversation::new(None);
        talk.say("why?");
        talk.answer(&Answer { content: "Bec".into(), thinking: "hm".into(), interrupted: true });
        let expected = json!({"role": "assistant", "content": "Bec", "reasoning_content": "hm", "interrupted": true});
        assert_eq!(talk.messages()[1], expected);
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let talk = talk();
        assert_eq!(Conversation::from_json(talk.to_json()).unwrap(), talk);
        let list = talk.to_json()["messages"].clone();
        assert_eq!(Conversation::from_json(list).unwrap(), talk);
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert_eq!(texts(&Conversation::from_json(parts).unwrap()), ["ab"]);
    }

    #[test]
    fn other_json_is_refused_with_its_place() {
        let error = |json| Conversation::from_json(json).unwrap_err().to_string();
        assert!(error(json!("x")).contains("list of messages") && error(json!({"m": []})).contains("list of messages"));
        let first = json!({"role": "user", "content": "a"});
        assert!(error(json!([first, {"role": "tool", "content": "a"}])).starts_with("message 1: expected an object whose `role`"));
        let image = json!({"role": "user", "content": [{"type": "image_url"}]});
        assert!(error(json!([image])).starts_with("message 0: its `content`"));
        assert!(error(json!([first, {"role": "system", "content": "a"}])).starts_with("message 1: a system message"));
    }
}
