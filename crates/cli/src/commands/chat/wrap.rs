//! Word wrap of streamed text at the terminal's width.

use std::fmt::Write as _;

use console::measure_text_width;

/// Fence of a code block. Its lines are not wrapped, so that they can be copied.
const FENCE: &str = "```";
const TAB: usize = 8;

/// Cursor position of a text on the terminal.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    column: usize,
    /// The incomplete word at the end of the line.
    word: String,
    /// Indentation of the current line.
    start: String,
    is_code: bool,
    /// Whether the last line break replaced a space.
    broke: bool,
}

impl Wrap {
    /// The characters to write for the next piece of text on a terminal with this number of
    /// columns.
    pub(super) fn put(&mut self, text: &str, width: usize) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\n' => self.end_line(&mut out),
                ' ' | '\t' => self.space(c, width, &mut out),
                // Other control characters are no text.
                c if c.is_control() => {}
                c => self.letter(c, width, &mut out),
            }
            if c != '\n' && self.start.len() < FENCE.len() {
                self.start.push(c);
            }
        }
        out
    }

    fn end_line(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.broke) {
            out.push('\n');
        }
        self.is_code ^= self.start == FENCE;
        self.start.clear();
        self.word.clear();
        self.column = 0;
    }

    fn space(&mut self, c: char, width: usize, out: &mut String) {
        self.word.clear();
        let after = if c == '\t' { self.column / TAB * TAB + TAB } else { self.column + 1 };
        if after <= width || self.is_code {
            out.push(c);
            self.column = after;
        } else if !self.broke {
            out.push('\n');
            (self.column, self.broke) = (0, true);
        }
    }

    fn letter(&mut self, c: char, width: usize, out: &mut String) {
        self.broke = false;
        let own = measure_text_width(c.encode_utf8(&mut [0; 4]));
        // Scripts of wide characters break anywhere.
        if own > 1 {
            self.word.clear();
        }
        if self.column + own > width && !self.is_code {
            self.move_word(width, own, out);
        }
        out.push(c);
        self.column += own;
        if own > 1 {
            self.word.clear();
        } else {
            self.word.push(c);
        }
    }

    /// Moves the current word to the next line, unless it fills a line.
    fn move_word(&mut self, width: usize, more: usize, out: &mut String) {
        let moved = measure_text_width(&self.word);
        if moved >= self.column || moved + more > width {
            self.word.clear();
            self.column = 0;
        } else if moved > 0 {
            // Columns count from the left: past the last one, a terminal's cursor stays on it.
            // Writing to a string cannot fail.
            let _ = write!(out, "\r\x1b[{}C\x1b[K\n{}", self.column - moved, self.word);
            self.column = moved;
            return;
        } else {
            self.column = 0;
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that a terminal shows.
    fn shown(written: &str) -> Vec<String> {
        let mut lines = vec![String::new()];
        let mut rest = written;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            if c == '\r' {
                let (columns, after) = rest.strip_prefix("\x1b[").unwrap().split_once('C').unwrap();
                lines.last_mut().unwrap().truncate(columns.parse().unwrap());
                rest = after.strip_prefix("\x1b[K").unwrap();
            } else if c == '\n' {
                lines.push(String::new());
            } else {
                lines.last_mut().unwrap().push(c);
            }
        }
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
    }

    /// The same text in pieces of so many bytes.
    fn wrapped(text: &str, width: usize, piece: usize) -> Vec<String> {
        let mut wrap = Wrap::default();
        let pieces: Vec<String> = text.chars().collect::<Vec<_>>().chunks(piece).map(|chars| chars.iter().collect()).collect();
        shown(&pieces.iter().map(|piece| wrap.put(piece, width)).collect::<String>())
    }

    #[test]
    fn lines_break_between_words_however_the_text_comes() {
        let cases: [(&str, &[&str]); 7] = [
            ("the quick brown fox", &["the quick", "brown fox"]),
            ("ten chars! and more", &["ten chars!", "and more"]),
            ("ten chars!\nnext", &["ten chars!", "next"]),
            ("ten chars! \nnext", &["ten chars!", "next"]),
            ("a incomprehensibilities b", &["a", "incomprehe", "nsibilitie", "s b"]),
            ("\n\nafter lines", &["", "", "after", "lines"]),
            ("\u{1b}[31mred\u{7} word", &["[31mred", "word"]),
        ];
        for (text, expected) in cases {
            for piece in 1..8 {
                assert_eq!(wrapped(text, 10, piece), expected, "{text:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn code_is_left_as_it_is() {
        let text = "see\n```rust\nlet a = very_long(line);\n```\nthe quick brown";
        assert_eq!(wrapped(text, 10, 3), ["see", "```rust", "let a = very_long(line);", "```", "the quick", "brown"]);
    }

    #[test]
    fn wide_characters_break_anywhere_and_take_two_columns() {
        assert_eq!(wrapped("日本語の文章です", 10, 1), ["日本語の文", "章です"]);
    }
}
