//! Separation of a model's reasoning from its answer.

/// Reasoning markers by model family.
const MARKERS: [(&str, &str); 3] = [("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]")];

/// Kind of a part of streamed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reasoning.
    Thinking,
    /// Answer.
    Answer,
}

/// Splits streamed text into reasoning and answer; drops the markers and the blank space around
/// them.
#[derive(Clone, Debug)]
pub struct ThinkingSplitter {
    markers: (&'static str, &'static str),
    part: Part,
    /// Text withheld because it may continue to a marker.
    held: String,
    /// Whether to drop leading blank space.
    trims: bool,
}

impl ThinkingSplitter {
    /// Creates a splitter for the text after a prompt. If the prompt ends with an opening marker,
    /// the text begins with reasoning.
    pub fn new(prompt: &str) -> ThinkingSplitter {
        let begun = MARKERS.into_iter().find(|markers| prompt.trim_end().ends_with(markers.0));
        let part = if begun.is_some() { Part::Thinking } else { Part::Answer };
        ThinkingSplitter { markers: begun.unwrap_or(MARKERS[0]), part, held: String::new(), trims: begun.is_some() }
    }

    /// Kind of the text at this position.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Adds a piece of text and passes on the decided part.
    pub fn push(&mut self, text: &str, on_text: &mut dyn FnMut(Part, &str)) {
        self.held.push_str(text);
        while let Some((at, length, markers)) = self.next_marker() {
            let rest = self.held.split_off(at + length);
            self.held.truncate(at);
            self.flush(on_text);
            self.held = rest;
            self.markers = markers;
            self.part = if self.part == Part::Thinking { Part::Answer } else { Part::Thinking };
            self.trims = true;
        }
        let rest = self.held.split_off(self.held.len() - self.undecided());
        self.flush(on_text);
        self.held = rest;
    }

    /// Passes on the withheld text.
    pub fn finish(&mut self, on_text: &mut dyn FnMut(Part, &str)) {
        self.flush(on_text);
    }

    /// The marker that ends this part: its offset, its length, and its pair.
    fn next_marker(&self) -> Option<(usize, usize, (&'static str, &'static str))> {
        match self.part {
            Part::Thinking => self.held.find(self.markers.1).map(|at| (at, self.markers.1.len(), self.markers)),
            Part::Answer => {
                let found = MARKERS.into_iter().filter_map(|m| Some((self.held.find(m.0)?, m.0.len(), m)));
                found.min_by_key(|found| found.0)
            }
        }
    }

    /// Number of bytes at the end that may begin a marker.
    fn undecided(&self) -> usize {
        let begins = |marker: &str| (1..marker.len()).rev().find(|&n| self.held.ends_with(&marker[..n])).unwrap_or(0);
        match self.part {
            Part::Thinking => begins(self.markers.1),
            Part::Answer => MARKERS.iter().map(|markers| begins(markers.0)).max().unwrap_or(0),
        }
    }

    fn flush(&mut self, on_text: &mut dyn FnMut(Part, &str)) {
        let text = std::mem::take(&mut self.held);
        let shown = if self.trims { text.trim_start() } else { &text };
        if !shown.is_empty() {
            self.trims = false;
            on_text(self.part, shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasoning and answer of a text that arrives in pieces of each size.
    fn check(prompt: &str, text: &str, thinking: &str, answer: &str) {
        for size in 1..=text.len() {
            let (mut splitter, mut found) = (ThinkingSplitter::new(prompt), [String::new(), String::new()]);
            let mut take = |part: Part, text: &str| found[usize::from(part == Part::Answer)].push_str(text);
            for piece in text.as_bytes().chunks(size) {
                splitter.push(std::str::from_utf8(piece).unwrap(), &mut take);
            }
            splitter.finish(&mut take);
            assert_eq!(found, [thinking, answer], "pieces of {size}");
        }
    }

    #[test]
    fn thoughts_are_told_from_the_answer() {
        check("", "<think>\n so\n</think>\n\nyes", "so\n", "yes");
        check("", "[THINK]so[/THINK]yes", "so", "yes");
        check("", "yes", "", "yes");
    }

    #[test]
    fn prompts_may_begin_the_thoughts_or_end_them() {
        check("assistant\n<think>\n", "so</think>yes", "so", "yes");
        check("assistant\n<think>\n\n</think>\n\n", "yes", "", "yes");
    }

    #[test]
    fn thoughts_without_an_end_are_thoughts() {
        check("", "<think>so </thin", "so </thin", "");
    }

    #[test]
    fn what_only_looks_like_a_marker_is_text() {
        check("", "a < b <thin", "", "a < b <thin");
        check("", "a <thinks> b", "", "a <thinks> b");
    }

    #[test]
    fn an_answer_keeps_its_leading_space_if_nothing_was_thought() {
        check("", " yes", "", " yes");
    }
}
