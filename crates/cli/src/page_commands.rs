//! Commands on the pages of the documentation, which the command line has to accept.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use clap::{CommandFactory, Parser, error::ErrorKind};

use crate::{Cli, arguments};

/// README.md and the pages in `docs`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).expect("docs reads").map(|entry| entry.expect("docs reads").path());
    let pages = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages.chain([root.join("README.md")]).collect()
}

/// The command lines in the code blocks of a page that run `flambeau`.
fn commands(page: &str) -> Vec<Vec<String>> {
    let page = page.replace("\\\n", " ");
    let (mut commands, mut is_code) = (Vec::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let line = line.trim_start().trim_start_matches("$ ");
        if is_code {
            commands.extend(split(line).into_iter().filter(|words| words.first().is_some_and(|word| word == "flambeau")));
        }
    }
    commands
}

/// The words of each command in a line of a shell, without comments and redirections.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            ('|' | '&' | ';', None) => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    commands.push(words);
    for words in &mut commands {
        let end = words.iter().position(|word| word.starts_with(['<', '>']) || word == "2>").unwrap_or(words.len());
        words.truncate(end);
    }
    commands
}

#[test]
fn commands_on_pages_are_accepted() {
    let mut count = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).expect("a page reads");
        for words in commands(&page) {
            count += 1;
            let args = arguments::normal(words.iter().map(OsString::from));
            let Err(error) = Cli::try_parse_from(args) else { continue };
            let is_help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
            assert!(is_help, "{}: {}\n{error}", path.display(), words.join(" "));
        }
    }
    assert!(count > 100, "{count} commands");
}

#[test]
fn tables_name_commands_that_exist() {
    let command = Cli::command();
    for path in pages() {
        let page = fs::read_to_string(&path).expect("a page reads");
        for span in page.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let Some(name) = span.strip_prefix("flambeau ").and_then(|rest| rest.split(' ').next()) else { continue };
            let is_placeholder = name.chars().any(|c| !c.is_ascii_lowercase());
            assert!(is_placeholder || command.find_subcommand(name).is_some(), "{}: {span}", path.display());
        }
    }
}

#[test]
fn lines_are_split_as_by_a_shell() {
    let words = split("a 'b c' --x=\"d e\" < in | flambeau f '' # a comment");
    assert_eq!(words, [vec!["a", "b c", "--x=d e"], vec!["flambeau", "f", ""]]);
}
