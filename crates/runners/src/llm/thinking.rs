//! Separation of a model's reasoning from its answer.

/// Markers of thoughts, by model family. Kimi, Qwen, DeepSeek, GLM and many others write the first.
const MARKERS: [(&str, &str); 12] = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    // gpt-oss.
    ("<|channel|>analysis<|message|>", "<|end|>"),
    // Gemma 4.
    ("<|channel>thought\n", "<channel|>"),
    // Command R7B and A.
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    // Apertus.
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    // MiniMax M3.
    ("<mm:think>", "</mm:think>"),
    // Hunyuan 3.
    ("<think:opensource>", "</think:opensource>"),
    // Solar Open.
    ("<|think|>", "<|end|>"),
    // Kimi K3.
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    // Muse Glimmer: a message to the model itself.
    (" to=self<|message|>", "<|eom|>"),
];

/// Markers that only a prompt can open. Apriel's are plain words.
const OPENED_BY_PROMPTS: [(&str, &str); 1] = [("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")];

/// Markers that only the first words of an answer can open. Granite 3.2's are plain words.
const OPENED_AT_START: [(&str, &str); 2] =
    [("Here is my thought process:", "Here is my response:"), ("Here's my thought process:", "Here's my response:")];

/// Tags around an answer that follows thoughts, in Hunyuan A13B and Ernie 4.5.
const WRAPS: [(&str, &str); 2] = [("<answer>", "</answer>"), ("<response>", "</response>")];

/// Markers around answers, which are part of neither.
const FRAMES: [&str; 13] = [
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<|begin|>assistant<|content|>",
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    " to=user<|message|>",
    "<|eom|>",
];

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
    /// Whether nothing was written yet. Models without thoughts may begin by closing them, and
    /// others open thoughts that the prompt opened already.
    is_fresh: bool,
    /// Texts of answers that end thoughts without a marker.
    ends: Vec<&'static str>,
    /// Whether thoughts ended and nothing follows yet.
    is_after: bool,
    /// The closing tag around the answer.
    wrap: Option<&'static str>,
}

/// A marker in the held text.
struct Marker {
    at: usize,
    length: usize,
    /// The part that follows.
    part: Part,
    markers: (&'static str, &'static str),
}

impl ThinkingSplitter {
    /// Creates a splitter for the text after a prompt. If the prompt ends with an opening marker,
    /// the text begins with reasoning.
    pub fn new(prompt: &str) -> ThinkingSplitter {
        let prompt = prompt.trim_end();
        let begun = MARKERS.into_iter().chain(OPENED_BY_PROMPTS).find(|markers| prompt.ends_with(markers.0.trim_end()));
        let part = if begun.is_some() { Part::Thinking } else { Part::Answer };
        let markers = begun.unwrap_or(MARKERS[0]);
        ThinkingSplitter {
            markers,
            part,
            held: String::new(),
            trims: begun.is_some(),
            is_fresh: true,
            ends: Vec::new(),
            is_after: false,
            wrap: None,
        }
    }

    /// Ends thoughts at these texts too, which belong to the answer: some models call tools in the
    /// middle of thoughts.
    #[must_use]
    pub fn ending_at(mut self, texts: &[&'static str]) -> ThinkingSplitter {
        self.ends = texts.to_vec();
        self
    }

    /// The texts of all markers.
    pub fn marker_texts() -> impl Iterator<Item = &'static str> {
        MARKERS.into_iter().flat_map(|markers| [markers.0, markers.1]).chain(FRAMES)
    }

    /// The marker that ends the thoughts at this position; `None` in an answer.
    pub fn close(&self) -> Option<&'static str> {
        (self.part == Part::Thinking).then_some(self.markers.1)
    }

    /// Kind of the text at this position.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Adds a piece of text and passes on the decided part.
    pub fn push(&mut self, text: &str, on_text: &mut dyn FnMut(Part, &str)) {
        self.held.push_str(text);
        while let Some(marker) = self.next_marker() {
            let rest = self.held.split_off(marker.at + marker.length);
            self.held.truncate(marker.at);
            self.flush(on_text);
            self.held = rest;
            self.markers = marker.markers;
            self.trims |= self.part != marker.part || self.is_fresh;
            self.is_fresh = false;
            self.is_after |= self.part == Part::Thinking && marker.part == Part::Answer;
            if let Some((_, close)) = WRAPS.into_iter().find(|wrap| self.is_after && *wrap == marker.markers) {
                (self.wrap, self.is_after) = (Some(close), false);
            }
            self.part = marker.part;
        }
        let rest = self.held.split_off(self.held.len() - self.undecided());
        self.flush(on_text);
        self.held = rest;
    }

    /// Passes on the withheld text.
    pub fn finish(&mut self, on_text: &mut dyn FnMut(Part, &str)) {
        self.flush(on_text);
    }

    /// The first marker that counts in this part.
    fn next_marker(&self) -> Option<Marker> {
        let markers = self.markers;
        let found: Vec<Marker> = match self.part {
            Part::Thinking => {
                let end = self.held.find(markers.1).map(|at| (at, markers.1.len()));
                let others = self.ends.iter().filter_map(|end| Some((self.held.find(end)?, 0)));
                let ends = end.into_iter().chain(others);
                let ends = ends.map(|(at, length)| Marker { at, length, part: Part::Answer, markers });
                ends.chain(self.needless(markers, markers.0)).collect()
            }
            Part::Answer => {
                let opened = MARKERS.into_iter().map(|markers| (markers.0, Part::Thinking, markers));
                let framed = FRAMES.into_iter().map(|frame| (frame, Part::Answer, markers));
                let all = opened.chain(framed).filter_map(|(text, part, markers)| {
                    Some(Marker { at: self.held.find(text)?, length: text.len(), part, markers })
                });
                let all = all.chain(MARKERS.into_iter().filter_map(|markers| self.needless(markers, markers.1)));
                all.chain(self.begun()).chain(self.unwrapped()).collect()
            }
        };
        found.into_iter().min_by_key(|marker| marker.at)
    }

    /// A marker that counts only at the answer's start, and the blank space before it.
    fn begun(&self) -> Option<Marker> {
        let text = self.held.trim_start();
        let blank = self.held.len() - text.len();
        let found = |list: [(&'static str, &'static str); 2], part| {
            let markers = list.into_iter().find(|markers| text.starts_with(markers.0))?;
            Some(Marker { at: 0, length: blank + markers.0.len(), part, markers })
        };
        match () {
            () if self.is_fresh => found(OPENED_AT_START, Part::Thinking),
            () if self.is_after => found(WRAPS, Part::Answer),
            () => None,
        }
    }

    /// The closing tag around the answer.
    fn unwrapped(&self) -> Option<Marker> {
        let close = self.wrap?;
        Some(Marker { at: self.held.find(close)?, length: close.len(), part: Part::Answer, markers: self.markers })
    }

    /// A marker without effect with which the text begins, and the blank space before it.
    fn needless(&self, markers: (&'static str, &'static str), text: &str) -> Option<Marker> {
        let found = self.is_fresh && self.held.trim_start().starts_with(text);
        let length = self.held.len() - self.held.trim_start().len() + text.len();
        found.then_some(Marker { at: 0, length, part: self.part, markers })
    }

    /// Number of bytes at the end that may begin a marker.
    fn undecided(&self) -> usize {
        let begins = |marker: &str| {
            (1..marker.len()).rev().find(|&n| marker.is_char_boundary(n) && self.held.ends_with(&marker[..n])).unwrap_or(0)
        };
        match self.part {
            _ if self.may_begin() => self.held.len(),
            Part::Thinking => self.ends.iter().copied().chain([self.markers.1]).map(begins).max().unwrap_or(0),
            Part::Answer => {
                let all = MARKERS.iter().map(|markers| markers.0).chain(FRAMES).chain(self.wrap);
                all.map(begins).max().unwrap_or(0)
            }
        }
    }

    /// Whether the held text may become a marker that counts only at the start of its part.
    fn may_begin(&self) -> bool {
        let text = self.held.trim_start();
        let begins = |marker: &str| marker.starts_with(text);
        match self.part {
            Part::Thinking => self.is_fresh && begins(self.markers.0),
            Part::Answer => {
                let mut at_start = MARKERS.iter().map(|markers| markers.1).chain(OPENED_AT_START.map(|markers| markers.0));
                self.is_fresh && at_start.any(begins) || self.is_after && WRAPS.iter().any(|wrap| begins(wrap.0))
            }
        }
    }

    fn flush(&mut self, on_text: &mut dyn FnMut(Part, &str)) {
        let text = std::mem::take(&mut self.held);
        let shown = if self.trims { text.trim_start() } else { &text };
        if !shown.is_empty() {
            (self.trims, self.is_fresh, self.is_after) = (false, false, false);
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
    fn families_have_markers_of_their_own() {
        check("", "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>yes", "so", "yes");
        check("", "<|channel>thought\nso\n<channel|>yes", "so\n", "yes");
        check("", "<|START_THINKING|>so<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>", "so", "yes");
        check("<|START_THINKING|>", "so<|END_THINKING|> yes", "so", "yes");
        assert_eq!(ThinkingSplitter::new("<|START_THINKING|>").close(), Some("<|END_THINKING|>"));
        assert_eq!(ThinkingSplitter::new("").close(), None);
        check("Here are my reasoning steps:\n", "so\n[BEGIN FINAL RESPONSE]\nyes", "so\n", "yes");
        check("", "Here are my reasoning steps:\nso", "", "Here are my reasoning steps:\nso");
    }

    #[test]
    fn calls_may_end_thoughts() {
        let mut splitter = ThinkingSplitter::new("<think>").ending_at(&["<call>"]);
        let mut found = Vec::new();
        for c in "so <call>x".chars() {
            splitter.push(&c.to_string(), &mut |part, text| found.push((part, text.to_owned())));
        }
        splitter.finish(&mut |part, text| found.push((part, text.to_owned())));
        let joined = |wanted| found.iter().filter(|(part, _)| *part == wanted).map(|(_, text)| text.as_str()).collect::<String>();
        assert_eq!((joined(Part::Thinking), joined(Part::Answer)), ("so ".to_owned(), "<call>x".to_owned()));
    }

    #[test]
    fn prompts_may_begin_the_thoughts_or_end_them() {
        check("assistant\n<think>\n", "so</think>yes", "so", "yes");
        check("assistant\n<think>\n\n</think>\n\n", "yes", "", "yes");
    }

    #[test]
    fn an_answer_may_begin_by_closing_thoughts() {
        check("", "</mm:think>yes", "", "yes");
        check("assistant\n", "\n</think>\n\nyes", "", "yes");
        check("", "yes</think>", "", "yes</think>");
        check("", " </thin", "", " </thin");
        // Or open thoughts that the prompt opened.
        check("<think>\n", "<think>\nso</think>yes", "so", "yes");
        check("<think>", "so <think></think>yes", "so <think>", "yes");
    }

    #[test]
    fn answers_may_be_wrapped_and_thoughts_be_words() {
        check("", "<think>\nso\n</think>\n<answer>\nyes\n</answer>", "so\n", "yes\n");
        check("<think>", "so</think>\n\n<response>\nyes</response>\n", "so", "yes\n");
        check("", "<think>so</think>an <answer>", "so", "an <answer>");
        check("", "<answer>yes</answer>", "", "<answer>yes</answer>");
        check("", "Here is my thought process: so. Here is my response: yes", "so. ", "yes");
        check("", "Here's my thought process:\nso\nHere's my response:\nyes", "so\n", "yes");
        check("", "Here is my plan. Here is my thought process: so", "", "Here is my plan. Here is my thought process: so");
    }

    #[test]
    fn messages_name_their_reader() {
        let text = " to=self<|message|>so<|eom|><|start|>assistant to=user<|message|>yes";
        check("<|start|>assistant", text, "so", "yes");
        check("<|start|>assistant", " to=user<|message|>yes", "", "yes");
        let text = "so<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|>";
        check("<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>", text, "so", "yes");
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
