//! Splits a model's text into thoughts, content and tool calls.

use flambeau::runners::llm::{Part, ThinkingSplitter};

use super::{Parser, Piece};
use crate::ids::unique_id;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    Thinking(String),
    Content(String),
    Call { number: usize, id: String, name: String },
    Arguments { number: usize, text: String },
}

/// Splits the text of an answer into parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerReader {
    splitter: Option<ThinkingSplitter>,
    parser: Option<Parser>,
    part: Option<Part>,
    /// Thoughts so far, where calls may follow.
    thoughts: String,
}

impl AnswerReader {
    /// Creates a reader of plain text.
    pub(crate) fn plain() -> AnswerReader {
        AnswerReader::default()
    }

    /// Creates a reader for an answer to a conversation. The answer may begin with thoughts.
    pub(crate) fn of_chat(prompt: &str, parser: Option<Parser>) -> AnswerReader {
        let parser = parser.map(|parser| parser.after(prompt));
        let ends = parser.as_ref().map_or(&[][..], |parser| parser.format().ends_thoughts);
        let splitter = Some(ThinkingSplitter::new(prompt).ending_at(ends));
        AnswerReader { splitter, parser, ..AnswerReader::default() }
    }

    /// A reader for a constrained answer, where markers of thoughts are plain text.
    pub(crate) fn of_form(prompt: &str, parser: Option<Parser>) -> AnswerReader {
        AnswerReader { parser: parser.map(|parser| parser.after(prompt)), ..AnswerReader::default() }
    }

    /// Appends text and emits the deltas that are final.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        let Some(splitter) = &mut self.splitter else {
            return content(text, &mut self.parser, out);
        };
        let (parser, part, thoughts) = (&mut self.parser, &mut self.part, &mut self.thoughts);
        splitter.push(text, &mut |found, text| divide(found, text, part, parser, thoughts, out));
    }

    /// Ends the text and emits the deltas held back. `is_cut`: a limit ended the text, not the
    /// model.
    pub(crate) fn finish(&mut self, is_cut: bool, out: &mut Vec<Delta>) {
        if let Some(splitter) = &mut self.splitter {
            let (parser, part, thoughts) = (&mut self.parser, &mut self.part, &mut self.thoughts);
            splitter.finish(&mut |found, text| divide(found, text, part, parser, thoughts, out));
        }
        if self.is_thinking() {
            self.find_calls_in_thoughts(is_cut, out);
        }
        if let Some(parser) = &mut self.parser {
            let mut pieces = Vec::new();
            parser.finish(&mut pieces);
            out.extend(pieces.into_iter().map(delta));
        }
    }

    /// Some models call without closing their thoughts. Calls in such an answer count, and in an
    /// answer that was cut if only calls follow. Other text stays with the thoughts.
    fn find_calls_in_thoughts(&mut self, is_cut: bool, out: &mut Vec<Delta>) {
        let Some(parser) = &self.parser else { return };
        let (mut found, mut pieces) = (parser.clone(), Vec::new());
        found.push(&self.thoughts, &mut pieces);
        if found.calls() == 0 || found.is_in_call() {
            return;
        }
        found.finish(&mut pieces);
        let begin = pieces.iter().position(|piece| matches!(piece, Piece::Call { .. })).unwrap_or(pieces.len());
        let is_text = |piece: &Piece| matches!(piece, Piece::Text(text) if !text.trim().is_empty());
        let mut calls = pieces.split_off(begin);
        if is_cut && calls.iter().any(is_text) {
            return;
        }
        calls.retain(|piece| !matches!(piece, Piece::Text(_)));
        out.extend(calls.into_iter().map(delta));
        self.parser = Some(found);
    }

    /// Whether the latest text belongs to the thoughts.
    pub(crate) fn is_thinking(&self) -> bool {
        self.part == Some(Part::Thinking)
    }

    /// Whether the text so far ends inside a call.
    pub(crate) fn is_in_call(&self) -> bool {
        self.parser.as_ref().is_some_and(Parser::is_in_call)
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.parser.as_ref().map_or(0, Parser::calls)
    }
}

fn divide(
    found: Part,
    text: &str,
    part: &mut Option<Part>,
    parser: &mut Option<Parser>,
    thoughts: &mut String,
    out: &mut Vec<Delta>,
) {
    *part = Some(found);
    match found {
        Part::Thinking => {
            if parser.is_some() {
                thoughts.push_str(text);
            }
            out.push(Delta::Thinking(text.to_owned()));
        }
        Part::Answer => content(text, parser, out),
    }
}

fn content(text: &str, parser: &mut Option<Parser>, out: &mut Vec<Delta>) {
    match parser {
        None if text.is_empty() => {}
        None => out.push(Delta::Content(text.to_owned())),
        Some(parser) => {
            let mut pieces = Vec::new();
            parser.push(text, &mut pieces);
            out.extend(pieces.into_iter().map(delta));
        }
    }
}

fn delta(piece: Piece) -> Delta {
    match piece {
        Piece::Text(text) => Delta::Content(text),
        Piece::Call { number, id: own, name } => Delta::Call { number, id: own.unwrap_or_else(|| unique_id("call_")), name },
        Piece::Arguments { number, text } => Delta::Arguments { number, text },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools::{ToolFormat, Tools};

    /// Thoughts, content and the number of calls of an answer that arrives in pieces of each size.
    fn read(text: &str, is_cut: bool) -> (String, String, usize) {
        let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n\
            {{ c.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}";
        let template = flambeau::text::ChatTemplate::new(source, &flambeau::text::SpecialTokens::default()).unwrap();
        let tool = json!({ "type": "function", "function": { "name": "now", "parameters": {} } });
        let (format, tools) = (ToolFormat::of(&template).unwrap().format, Tools::read(&[tool]).unwrap());
        let mut first = None;
        for size in 1..=text.len() {
            let parser = Parser::new(format, tools.clone(), 0, false);
            let (mut reader, mut out) = (AnswerReader::of_chat("<think>", Some(parser)), Vec::new());
            text.as_bytes().chunks(size).for_each(|piece| reader.push(std::str::from_utf8(piece).unwrap(), &mut out));
            reader.finish(is_cut, &mut out);
            let mut found = (String::new(), String::new(), 0);
            for delta in out {
                match delta {
                    Delta::Thinking(text) => found.0.push_str(&text),
                    Delta::Content(text) => found.1.push_str(&text),
                    Delta::Call { .. } => found.2 += 1,
                    Delta::Arguments { text, .. } => assert_eq!(text.trim_matches(['{', '}']), ""),
                }
            }
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "pieces of {size}");
        }
        first.unwrap()
    }

    #[test]
    fn calls_count_in_thoughts_that_are_never_closed() {
        let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
        let thoughts = |text: &str, calls: usize| (text.to_owned(), String::new(), calls);
        let (last, middle) = (format!("so {call}{call}\n"), format!("so {call}\nI will wait."));
        assert_eq!((read(&last, false), read(&last, true)), (thoughts(&last, 2), thoughts(&last, 2)));
        assert_eq!((read(&middle, false), read(&middle, true)), (thoughts(&middle, 1), thoughts(&middle, 0)));
        let closed = format!("so {call}</think>yes");
        assert_eq!(read(&closed, false), (format!("so {call}"), "yes".to_owned(), 0));
        assert_eq!(read(&last[..last.len() - 20], false).2, 1);
    }
}
