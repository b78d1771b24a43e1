//! Compares the table of crates in ARCHITECTURE.md with Cargo's metadata.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use flambeau_tidy::{packages, root, sources};

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Short name of a crate, as in the table: `flambeau-ir` is `ir`.
fn short(package: &str) -> &str {
    package.strip_prefix("flambeau-").unwrap_or(package)
}

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md reads")
}

fn table() -> Arrows {
    let page = page();
    let rows = page.lines().skip_while(|line| *line != "## Crates").skip(1).take_while(|line| !line.starts_with("## "));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = rows.filter(|line| line.starts_with('|')).skip(2).map(cells);
    rows.map(|row| {
        let [name, _, may_use] = &row[..] else { panic!("three columns, found {row:?}") };
        let used = may_use.split(',').map(|name| name.trim().to_owned()).filter(|name| name != "–").collect();
        (name.clone(), used)
    })
    .collect()
}

fn manifests() -> Arrows {
    let used = |package: &serde_json::Value| {
        let list = package["dependencies"].as_array().expect("a package lists dependencies");
        let own = list.iter().filter(|d| d["kind"].is_null() && d["path"].is_string());
        own.map(|d| short(d["name"].as_str().expect("a dependency has a name")).to_owned()).collect()
    };
    packages().iter().map(|p| (short(p["name"].as_str().expect("a package has a name")).to_owned(), used(p))).collect()
}

#[test]
fn the_table_of_crates_is_what_cargo_sees() {
    let (table, manifests) = (table(), manifests());
    let names = |arrows: &Arrows| arrows.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&table), names(&manifests), "crates in the table, and in the workspace");
    for (name, used) in &manifests {
        let said = &table[name];
        let missing: Vec<_> = used.difference(said).collect();
        let extra: Vec<_> = said.difference(used).collect();
        assert!(
            missing.is_empty() && extra.is_empty(),
            "{name}: the table lacks {missing:?}, and has {extra:?} which nothing uses"
        );
    }
}

/// Whether a path is that of ARCHITECTURE.md or of a crate's README.
fn is_map(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    path == "ARCHITECTURE.md" || matches!(parts[..], ["crates", _, "README.md"])
}

#[test]
fn every_file_that_a_map_names_is_there() {
    let files = sources();
    let is_name = |text: &str| {
        let is_file = [".rs", ".cpp", ".cuh", ".sh", ".py", ".md"].iter().any(|end| text.ends_with(end));
        is_file && !text.contains([' ', '<', '*'])
    };
    for map in files.iter().filter(|file| is_map(&file.path)) {
        // Outside of fences, every second piece is between backticks.
        let names: Vec<&str> = map.text.split('`').filter(|text| is_name(text)).collect();
        assert!(names.len() > 20 || map.path != "ARCHITECTURE.md", "the page names files: {names:?}");
        for name in names {
            let is_there = files.iter().any(|file| file.path == name || file.path.ends_with(&format!("/{name}")));
            assert!(is_there, "{}: there is no file {name}", map.path);
        }
    }
}
