//! Checks how easily comments read: width, length of sentences, and words that hide who does what.

use flambeau_tidy::sources;

/// Maximum width of a comment line in columns.
const WIDTH: usize = 100;
/// Maximum number of words of a sentence that is not long.
const LONG: usize = 25;

/// First words of sentences without a subject, as in "What is left of it".
const HEADLESS: [&str; 8] = ["What", "Whoever", "Whom", "Of", "Those", "Such", "As much", "Since when"];
/// Words for people, where a program acts.
const PERSONS: [&str; 6] = ["somebody", "nobody", "no one", "anybody", "someone", "anyone"];
/// Words that have plainer forms.
const ARCHAIC: [&str; 10] =
    ["of which", "by which", "to which", "that of", "those of", "for want of", "at hand", "hence", "thereof", "no more"];
/// Words that begin a relative clause. A sentence holds one at most.
const RELATIVE: [&str; 6] = ["that", "which", "who", "whose", "what", "whom"];

/// A kind of hard sentence: its name, its test, and how many of 1,000 sentences may be of it.
type Kind = (&'static str, fn(&str) -> bool, usize);

const KINDS: [Kind; 5] = [
    ("has no subject", |s| HEADLESS.iter().any(|word| s.strip_prefix(word).is_some_and(|rest| rest.starts_with(' '))), 3),
    ("speaks of a person", |s| PERSONS.iter().any(|word| count(s, word) > 0), 1),
    ("has an archaic word", |s| ARCHAIC.iter().any(|word| count(s, word) > 0), 4),
    ("has two relative clauses", |s| RELATIVE.iter().map(|word| count(s, word)).sum::<usize>() > 1, 25),
    ("is long", |s| s.split_whitespace().count() > LONG, 80),
];

/// How often a phrase occurs in a sentence as whole words, in any case.
fn count(sentence: &str, phrase: &str) -> usize {
    let text = sentence.to_lowercase();
    let is_edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let found = text.match_indices(phrase);
    found.filter(|(at, _)| is_edge(text[..*at].chars().next_back()) && is_edge(text[at + phrase.len()..].chars().next())).count()
}

/// The text of a comment line, without its marker.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim())
}

/// Sentences of the comments of a file, with the line of their paragraph. Code is left out.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut paragraph, mut first, mut is_code) = (Vec::new(), String::new(), 0, false);
    for (i, line) in text.lines().chain([""]).enumerate() {
        let text = comment(line);
        let is_fence = text.is_some_and(|text| text.starts_with("```"));
        is_code ^= is_fence;
        let prose = text.filter(|text| !is_code && !is_fence && !text.is_empty() && !text.starts_with(['#', '|']));
        let is_item = prose.is_some_and(|text| text.starts_with("- "));
        if (prose.is_none() || is_item) && !paragraph.is_empty() {
            found.extend(split(&paragraph).map(|sentence| (first, sentence)));
            paragraph.clear();
        }
        if let Some(text) = prose {
            if paragraph.is_empty() {
                first = i + 1;
            }
            paragraph.push_str(text.strip_prefix("- ").unwrap_or(text));
            paragraph.push(' ');
        }
    }
    found
}

/// The sentences of a paragraph, with code between backticks as `x`.
fn split(paragraph: &str) -> impl Iterator<Item = String> {
    let plain: String =
        paragraph.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "x" }).collect::<Vec<_>>().concat();
    let mut ends: Vec<usize> = plain.match_indices(['.', ';', '!', '?']).map(|(at, _)| at + 1).collect();
    ends.retain(|&end| plain[end..].starts_with(' ') && plain[end..].trim_start().starts_with(|c: char| c.is_ascii_uppercase()));
    ends.push(plain.len());
    let mut start = 0;
    let parts: Vec<String> = ends.into_iter().map(|end| plain[std::mem::replace(&mut start, end)..end].trim().to_owned()).collect();
    parts.into_iter().filter(|sentence| sentence.split_whitespace().count() > 2)
}

/// Source files with comments of ours, except this one, which holds the words.
fn files() -> impl Iterator<Item = flambeau_tidy::Source> {
    let is_code = |path: &str| [".rs", ".cuh", ".cpp", ".h", ".hpp"].iter().any(|end| path.ends_with(end));
    sources().into_iter().filter(move |file| is_code(&file.path) && file.path != "crates/tidy/tests/tidy/prose.rs")
}

#[test]
fn comments_read_easily() {
    let all: Vec<(String, usize, String)> = files()
        .flat_map(|f| sentences(&f.text).into_iter().map(move |(line, s)| (f.path.clone(), line, s)).collect::<Vec<_>>())
        .collect();
    assert!(all.len() > 5_000, "{} sentences", all.len());
    for (kind, is_hard, limit) in KINDS {
        let hard: Vec<String> =
            all.iter().filter(|(.., s)| is_hard(s)).map(|(path, line, s)| format!("{path}:{line}: {s}")).collect();
        let share = hard.len() * 1000 / all.len();
        assert!(share <= limit, "{share} of 1,000 sentences, more than {limit}: a sentence {kind}:\n{}", hard.join("\n"));
    }
}

#[test]
fn comments_are_at_most_100_columns_wide() {
    let mut wide = Vec::new();
    for file in files() {
        for (i, line) in file.text.lines().enumerate() {
            let is_table = comment(line).is_some_and(|text| text.starts_with('|'));
            if comment(line).is_some() && !is_table && !line.contains("://") && line.chars().count() > WIDTH {
                wide.push(format!("{}:{}", file.path, i + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{} comment lines are wider than {WIDTH} columns:\n{}", wide.len(), wide.join("\n"));
}

#[test]
fn hard_sentences_are_found() {
    let found = |text: &str| {
        let sentences = sentences(text);
        KINDS.iter().filter(|(_, is_hard, _)| sentences.iter().any(|(_, s)| is_hard(s))).map(|(kind, ..)| *kind).collect::<Vec<_>>()
    };
    assert_eq!(found("/// What a finished command left.\nstruct A;"), ["has no subject"]);
    assert_eq!(found("// The sizes, those of all\n// pages for anyone."), ["speaks of a person", "has an archaic word"]);
    assert_eq!(found("/// A value that is read by `what that which`.\n"), [""; 0]);
    assert_eq!(found("/// Sizes.\n/// ```\n/// what that which of which nobody\n/// ```\n"), [""; 0]);
    assert_eq!(found("/// The value that follows the one that was read.\n"), ["has two relative clauses"]);
}
