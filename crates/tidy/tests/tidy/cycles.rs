//! Import cycles: files of a crate that import each other by `crate::` paths, directly or through
//! other files.

use std::collections::{BTreeMap, BTreeSet};

use flambeau_tidy::{Token, rust_sources};

/// Sizes of the largest cycle of each crate that has one: files, and top-level modules with all
/// files below them. A bound may only shrink.
///
/// `cpu`: work on an `If` or `Scan` node is the run of other chains. So operations, plans and
/// sessions call each other.
const BOUNDS: [(&str, [usize; 2]); 1] = [("cpu", [0, 5])];

/// A module's path in its crate.
type Module = Vec<String>;

/// The crate and module of a library or program file.
fn module(path: &str) -> Option<(&str, Module)> {
    let (name, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut parts: Module = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") || matches!(&parts[..], [only] if only == "lib" || only == "main") {
        parts.pop();
    }
    Some((name, parts))
}

/// Reads one path of an import from the tokens at `at` on, or several in braces, and adds them.
/// Returns the index after them.
fn read_paths(tokens: &[Token], mut at: usize, prefix: &[String], paths: &mut BTreeSet<Module>) -> usize {
    let mut path = prefix.to_vec();
    let text = |at: usize| tokens.get(at).map_or("", |token| &*token.text);
    loop {
        if text(at) == "{" {
            at += 1;
            while !matches!(text(at), "}" | "") {
                at = if text(at) == "," { at + 1 } else { read_paths(tokens, at, &path, paths) };
            }
            return at + 1;
        }
        if text(at).starts_with(|first: char| first.is_alphabetic() || first == '_') {
            path.push(text(at).to_owned());
            at += 1;
        } else {
            // A star, or the end of a path.
            paths.insert(path);
            return at + 1;
        }
        if text(at) == ":" && text(at + 1) == ":" {
            at += 2;
        } else {
            paths.insert(path);
            return if text(at) == "as" { at + 2 } else { at };
        }
    }
}

/// The paths behind `crate::` in code outside of tests.
fn paths(tokens: &[Token]) -> BTreeSet<Module> {
    let tokens: Vec<Token> = tokens.iter().filter(|token| !token.is_test).cloned().collect();
    let mut paths = BTreeSet::new();
    for at in 0..tokens.len() {
        if tokens[at..].len() > 3 && tokens[at].text == "crate" && tokens[at + 1].text == ":" && tokens[at + 2].text == ":" {
            read_paths(&tokens, at + 3, &[], &mut paths);
        }
    }
    paths
}

/// The modules that each module of a crate imports, outside of tests.
fn imports(name: &str) -> BTreeMap<Module, BTreeSet<Module>> {
    let files = rust_sources().iter().filter_map(|file| Some((module(&file.path)?, file)));
    let is_test = |module: &Module| module.iter().any(|part| part == "tests");
    let files = files.filter(|((of, module), _)| *of == name && !is_test(module));
    let files: Vec<(Module, &[Token])> = files.map(|((_, module), file)| (module, &file.tokens[..])).collect();
    let known: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    let mut imports = BTreeMap::new();
    for (module, tokens) in &files {
        let found = paths(tokens).into_iter().filter_map(|path| {
            let file = (1..=path.len()).rev().map(|length| path[..length].to_vec()).find(|path| known.contains(path));
            file.filter(|file| file != module)
        });
        imports.insert(module.clone(), found.collect());
    }
    imports
}

/// The imports between top-level modules.
fn between_rooms(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut rooms: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (from, all) in imports.iter().filter(|(from, _)| !from.is_empty()) {
        let own = from[..1].to_vec();
        let others = all.iter().map(|to| to[..1].to_vec()).filter(|to| *to != own);
        rooms.entry(own.clone()).or_default().extend(others.collect::<Vec<_>>());
    }
    rooms
}

/// Modules that a module imports, directly or through others.
fn reached<'a>(imports: &'a BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<&'a Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for module in imports.get(next).into_iter().flatten() {
            if reached.insert(module) {
                open.push(imports.get_key_value(module).map_or(module, |(key, _)| key));
            }
        }
    }
    reached
}

/// The largest set of modules that all import each other, directly or through others.
fn largest_cycle(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    let all: BTreeMap<&Module, BTreeSet<&Module>> = imports.keys().map(|module| (module, reached(imports, module))).collect();
    let cycle = |module: &Module| -> Vec<String> {
        let both = all[module].iter().filter(|other| all.get(**other).is_some_and(|back| back.contains(module)));
        both.map(|module| module.join("::")).collect()
    };
    imports.keys().map(cycle).max_by_key(Vec::len).unwrap_or_default()
}

#[test]
fn import_cycles_only_shrink() {
    let names: BTreeSet<&str> = rust_sources().iter().filter_map(|file| module(&file.path)).map(|(name, _)| name).collect();
    assert!(BOUNDS.iter().all(|(name, _)| names.contains(name)), "a bound names no crate");
    for name in names {
        let bounds = BOUNDS.iter().find(|(crate_name, _)| *crate_name == name).map_or([0; 2], |(_, bounds)| *bounds);
        let files = imports(name);
        for ((what, imports), bound) in [("files", &files), ("top-level modules", &between_rooms(&files))].into_iter().zip(bounds) {
            let cycle = largest_cycle(imports);
            assert!(cycle.len() <= bound, "{name}: {} {what} in a cycle, at most {bound} are allowed: {cycle:?}", cycle.len());
            assert!(
                cycle.len() == bound,
                "{name}: the largest cycle has only {} {what}; lower its bound from {bound}",
                cycle.len()
            );
        }
    }
}

#[test]
fn cycles_are_found_through_other_files() {
    let module = |name: &str| vec![name.to_owned()];
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("e", "f"), ("f", "e")];
    let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (from, to) in edges {
        imports.entry(module(from)).or_default().insert(module(to));
    }
    assert_eq!(largest_cycle(&imports), ["a", "b", "c"]);
    let of = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    let imports = BTreeMap::from([(of("a::x"), BTreeSet::from([of("b")])), (of("b"), BTreeSet::from([of("a::y")]))]);
    assert!(largest_cycle(&imports).is_empty());
    assert_eq!(largest_cycle(&between_rooms(&imports)), ["a", "b"]);
}
