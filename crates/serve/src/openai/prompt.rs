//! Renders prompts of conversations, with a fallback for rejected system messages.

use flambeau::text::{ChatInput, ChatTemplate, Error};
use serde_json::{Value as Json, json};

/// Sentinel at the end of a message; no template writes it.
const END: &str = "\u{e000}end\u{e001}";

/// Renders the prompt of a conversation.
///
/// System messages that the template rejects or omits move into user messages: the later ones
/// first, else all.
///
/// # Errors
/// Fails if the template rejects the conversation.
pub(super) fn render(template: &ChatTemplate, input: &ChatInput) -> Result<String, Error> {
    let rendered = template.render(input);
    if has_system_texts(&rendered, &input.messages) {
        return rendered;
    }
    let moved = [1, 0].map(|first| ChatInput { messages: without_system(&input.messages, first), ..input.clone() });
    let mut others = moved.iter().map(|input| template.render(input));
    others.find(|other| has_system_texts(other, &input.messages)).unwrap_or(rendered)
}

/// The prompt that ends inside the last message.
///
/// # Errors
/// Fails if the template rejects the conversation or alters the message.
pub(super) fn render_unfinished(template: &ChatTemplate, input: &ChatInput) -> Result<String, String> {
    let mut input = ChatInput { add_generation_prompt: false, ..input.clone() };
    if let Some(last) = input.messages.last_mut() {
        last["content"] = format!("{}{END}", last["content"].as_str().unwrap_or_default()).into();
    }
    let mut prompt = render(template, &input).map_err(|error| error.to_string())?;
    let end = prompt.rfind(END).ok_or("the chat template does not show the last message, which cannot be continued")?;
    prompt.truncate(end);
    Ok(prompt)
}

/// Whether a prompt contains all system messages.
fn has_system_texts(prompt: &Result<String, Error>, messages: &[Json]) -> bool {
    let system = messages.iter().filter(|message| message["role"] == "system");
    let mut texts = system.filter_map(|message| message["content"].as_str()).peekable();
    match prompt {
        Ok(prompt) => texts.all(|text| prompt.contains(text.trim())),
        // Without system messages, there is no other way to write the conversation.
        Err(_) => texts.peek().is_none(),
    }
}

/// Moves system messages from index `first` on into user messages.
fn without_system(messages: &[Json], first: usize) -> Vec<Json> {
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    let mut carried: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message["role"] == "system" && index >= first {
            carried.extend(message["content"].as_str());
            continue;
        }
        if message["role"] == "user" {
            carried.extend(message["content"].as_str());
            let mut turn = message.clone();
            turn["content"] = carried.join("\n\n").into();
            out.push(turn);
        } else {
            add_text(&mut out, &carried);
            out.push(message.clone());
        }
        carried.clear();
    }
    add_text(&mut out, &carried);
    out
}

/// Appends texts to the last user message, or adds one.
fn add_text(messages: &mut Vec<Json>, texts: &[&str]) {
    if texts.is_empty() {
        return;
    }
    let text = texts.join("\n\n");
    match messages.last_mut().filter(|last| last["role"] == "user") {
        Some(last) => last["content"] = format!("{}\n\n{text}", last["content"].as_str().unwrap_or_default()).into(),
        None => messages.push(json!({ "role": "user", "content": text })),
    }
}

#[cfg(test)]
mod tests {
    use flambeau::text::{SpecialTokens, message};

    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, &SpecialTokens::default()).unwrap()
    }

    fn input(messages: &[(&str, &str)]) -> ChatInput {
        let messages = messages.iter().map(|(role, content)| message(role, content)).collect();
        ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() }
    }

    const ALL: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    const FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    const NONE: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('system') }}{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    const SILENT: &str = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";

    #[test]
    fn system_messages_reach_every_template() {
        let talk = input(&[("system", "S"), ("user", "a"), ("assistant", "b"), ("system", " T "), ("user", "c")]);
        for (source, expected) in [
            (ALL, "<system>S</><user>a</><assistant>b</><system>T</><user>c</><assistant>"),
            (FIRST, "<system>S</><user>a</><assistant>b</><user> T \n\nc</>"),
            (NONE, "<user>S\n\na</><assistant>b</><user> T \n\nc</>"),
            (SILENT, "<user>S\n\na</><assistant>b</><user> T \n\nc</>"),
        ] {
            assert_eq!(render(&template(source), &talk).unwrap(), expected);
        }
        let late = input(&[("user", "a"), ("system", "T")]);
        assert_eq!(render(&template(FIRST), &late).unwrap(), "<user>a\n\nT</>");
        let early = input(&[("system", "T"), ("assistant", "a")]);
        assert_eq!(render(&template(NONE), &early).unwrap(), "<user>T</><assistant>a</>");
        let refused = template("{{ raise_exception('never') }}");
        assert!(render(&refused, &talk).unwrap_err().to_string().contains("never"));
    }

    #[test]
    fn unfinished_messages_end_the_prompt() {
        let talk = input(&[("user", "a"), ("assistant", "So it ")]);
        assert_eq!(render_unfinished(&template(ALL), &talk).unwrap(), "<user>a</><assistant>So it ");
        let silent = template("{{ messages[0].content }}");
        assert!(render_unfinished(&silent, &talk).unwrap_err().contains("cannot be continued"));
    }
}
