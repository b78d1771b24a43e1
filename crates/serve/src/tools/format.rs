//! Call formats as data.

/// Call format of a model family. A run of whitespace in a marker matches any run of whitespace,
/// including none.
#[derive(Debug)]
pub(crate) struct Format {
    /// Public name of the format, and the models that use it.
    pub(crate) name: &'static str,
    /// Markers before the first call and after the last one.
    pub(super) section: (&'static str, &'static str),
    /// Whether models omit the section's markers.
    pub(super) omits_section: bool,
    /// Markers before a call's name or object; the first one is canonical.
    pub(super) open: &'static [&'static str],
    pub(super) head: Head,
    /// Marker after a call's arguments.
    pub(super) close: &'static str,
    /// Text between two calls.
    pub(super) between: &'static str,
    /// Whether an answer with calls contains nothing else, from its first character on.
    pub(super) is_whole: bool,
    pub(super) ids: Ids,
    /// Markers that end thoughts, because models call tools without closing their thoughts.
    pub(crate) ends_thoughts: &'static [&'static str],
    /// Texts of prompts that describe tools, for templates that omit calls from the history.
    pub(super) taught_by: &'static [&'static str],
    /// Marker at the end of prompts, which belongs to the answer's first call or text.
    pub(super) leads: &'static str,
    /// Marker before text, which a blank follows.
    pub(super) text_marker: &'static str,
    /// Markers around the name of a message's reader, which comes before calls and text.
    pub(super) address: (&'static str, &'static str),
    /// Markers before raw code for a tool that runs code. The tool's name replaces `{tool}`.
    pub(super) code: &'static [&'static str],
    /// Other ways in which the same models write calls. They are read, and never asked for.
    pub(super) also: &'static [Format],
}

/// Defaults for the other rows.
pub(super) const BASE: Format = Format {
    name: "",
    section: ("", ""),
    omits_section: false,
    open: &[""],
    head: OBJECT,
    close: "",
    between: "",
    is_whole: false,
    ids: Ids::Free,
    ends_thoughts: &[],
    taught_by: &[],
    leads: "",
    text_marker: "",
    address: ("", ""),
    code: &[],
    also: &[],
};

impl Format {
    /// All texts that may contain a control token.
    pub(crate) fn texts(&self) -> Vec<&'static str> {
        let mut texts = vec![self.section.0, self.section.1, self.close, self.between, self.address.0, self.address.1];
        texts.extend(self.open);
        texts.extend(self.code);
        texts.extend(self.also.iter().flat_map(Format::texts));
        if let Head::Name(middles, arguments) = &self.head {
            texts.extend(*middles);
            match arguments {
                Arguments::Pairs(pairs) => {
                    texts.push(pairs.open);
                    texts.extend(pairs.middles.iter().flat_map(|middle| [middle.text, middle.close]));
                }
                Arguments::Quoted(quote) => texts.push(quote),
                Arguments::Json | Arguments::Python => {}
            }
        }
        texts
    }
}

/// The object of most formats.
pub(super) const OBJECT: Head = Head::Object(&[Field::Name("name"), Field::Arguments("arguments")]);

/// Position of the function's name in a call.
#[derive(Debug)]
pub(super) enum Head {
    /// A JSON object with these fields, in this order.
    Object(&'static [Field]),
    /// The bare name, then the first matching marker, then the arguments.
    Name(&'static [&'static str], Arguments),
}

/// A field of a call's object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name(&'static str),
    Arguments(&'static str),
    /// The call's ID.
    Id(&'static str),
}

/// Format of the arguments after a bare name.
#[derive(Debug)]
pub(super) enum Arguments {
    /// A JSON object.
    Json,
    Pairs(Pairs),
    /// `key=value` with Python or JSON literals, separated by commas.
    Python,
    /// `key:value` with strings between two of these quotes, separated by commas.
    Quoted(&'static str),
}

/// Arguments as one pair of tags each.
#[derive(Debug)]
pub(super) struct Pairs {
    /// Marker before the key.
    pub(super) open: &'static str,
    /// Formats of values after their keys; the first one is canonical.
    pub(super) middles: &'static [Middle],
    /// Whether a value is on its own lines.
    pub(super) on_lines: bool,
    /// Prefix of the tags inside a value, if objects and lists are written as tags.
    pub(super) inner: Option<&'static str>,
}

/// Format of a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Middle {
    /// Marker between key and value.
    pub(super) text: &'static str,
    pub(super) value: Value,
    /// Text after the value; the key replaces `{key}`.
    pub(super) close: &'static str,
}

/// Type of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The type that the tool's schema states.
    Schema,
    Text,
    Json,
}

/// Call IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Any text; the server generates it.
    Free,
    /// The model writes it.
    Written,
    /// Nine letters or digits.
    Nine,
    /// `functions.NAME:N`; N counts all calls of the conversation from 0.
    Counted,
}
