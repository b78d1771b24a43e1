//! Formats of calls, as data.

/// How a family of models writes calls. A run of blanks in a marker matches any run of blanks, also
/// none.
#[derive(Debug)]
pub(crate) struct Format {
    /// Public name, and name of the models that write it.
    pub(crate) name: &'static str,
    /// Markers before the first call and after the last.
    pub(super) section: (&'static str, &'static str),
    /// Whether models leave out the section's markers.
    pub(super) omits_section: bool,
    /// Markers before a call's name or object; the first is the usual one.
    pub(super) open: &'static [&'static str],
    pub(super) head: Head,
    /// Marker after a call's arguments.
    pub(super) close: &'static str,
    /// Text between two calls.
    pub(super) between: &'static str,
    /// Whether calls are the whole answer, from its first character on.
    pub(super) is_whole: bool,
    pub(super) ids: Ids,
    /// Texts that end thoughts: models call without closing them.
    pub(crate) ends_thoughts: &'static [&'static str],
    /// Texts in prompts that describe tools, if templates of the family leave calls out of the
    /// history.
    pub(super) taught_by: &'static [&'static str],
    /// Other ways in which the same models write calls. They are read, and never asked for.
    pub(super) also: &'static [Format],
}

/// A row without markers, which other rows are written by.
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
    also: &[],
};

impl Format {
    /// All texts in which a control token may stand.
    pub(crate) fn texts(&self) -> Vec<&'static str> {
        let mut texts = vec![self.section.0, self.section.1, self.close, self.between];
        texts.extend(self.open);
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

/// How a call says which function it is for.
#[derive(Debug)]
pub(super) enum Head {
    /// A JSON object with these fields, in this order.
    Object(&'static [Field]),
    /// The bare name, the first of these markers that follows it, and the arguments.
    Name(&'static [&'static str], Arguments),
}

/// A field of a call's object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name(&'static str),
    Arguments(&'static str),
    /// The call's id.
    Id(&'static str),
}

/// How arguments are written behind a bare name.
#[derive(Debug)]
pub(super) enum Arguments {
    /// A JSON object.
    Json,
    Pairs(Pairs),
    /// `key=value` with literals of Python or JSON, separated by commas.
    Python,
    /// `key:value` with texts between two of these quotes, separated by commas.
    Quoted(&'static str),
}

/// Arguments as one pair of tags each.
#[derive(Debug)]
pub(super) struct Pairs {
    /// Marker before the key.
    pub(super) open: &'static str,
    /// How values follow their keys; the first way is the usual one.
    pub(super) middles: &'static [Middle],
    /// Whether a value has lines of its own.
    pub(super) on_lines: bool,
    /// The prefix of the tags inside a value, where objects and lists are written as tags.
    pub(super) inner: Option<&'static str>,
}

/// One way to write a value.
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

/// Ids of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Any text, which the server makes.
    Free,
    /// The text that the model writes.
    Written,
    /// Nine letters or digits.
    Nine,
    /// `functions.NAME:N`, where N counts all calls of the conversation from 0.
    Counted,
}
