//! Checks for text that no file may contain.

use flambeau_tidy::{root, sources};

/// Hosts that files may name, with reasons.
const HOSTS: [(&str, &str); 15] = [
    ("127.0.0.1", "servers that tests start"),
    ("app.example", "a name that nobody has, for examples"),
    ("evil.example", "a name that nobody has, for tests"),
    ("doc.rust-lang.org", "documentation"),
    ("docs.rs", "documentation"),
    ("github.com", "this repository, and where crates.io keeps its index"),
    ("huggingface.co", "the hub that `flambeau pull` asks"),
    ("json.schemastore.org", "schemas of configuration files"),
    ("keepachangelog.com", "the form of the changelog"),
    ("mathiasbynens.be", "the author of a package of the page, in its license"),
    ("opencollective.com", "funding of the page's packages, in npm's lock file"),
    ("prometheus-operated.monitoring", "the usual name of Prometheus in a cluster"),
    ("www.apache.org", "the license"),
    ("www.apple.com", "the document type of property lists"),
    ("www.w3.org", "XML namespaces of images"),
];

/// Prefixes of paths on a single machine.
const ABSOLUTE: [&str; 5] = ["/home/", "/root/", "/Users/", "/work/", "C:\\Users"];

#[test]
fn no_file_names_a_place_on_one_machine() {
    for file in sources().iter().filter(|file| file.path != "crates/tidy/tests/tidy/text.rs") {
        for (i, line) in file.text.lines().enumerate() {
            let found = ABSOLUTE.iter().find(|part| names(line, part));
            assert!(found.is_none(), "{}:{}: an absolute path: {line}", file.path, i + 1);
        }
    }
}

/// Whether a line contains a path that begins with `part`, instead of a longer path around it.
fn names(line: &str, part: &str) -> bool {
    line.match_indices(part).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-$}~*".contains(c)))
}

#[test]
fn every_host_is_known() {
    for file in sources() {
        for (i, line) in file.text.lines().enumerate() {
            for address in line.split("://").skip(1) {
                let host: String = address.chars().take_while(|c| c.is_ascii_alphanumeric() || ".-".contains(*c)).collect();
                let is_host = host.contains('.') && line.contains("http");
                let known = HOSTS.iter().any(|(name, _)| *name == host);
                assert!(!is_host || known, "{}:{}: `{host}` is no host that files may name", file.path, i + 1);
            }
        }
    }
}

#[test]
fn every_package_comes_from_crates_io() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock reads");
    for line in lock.lines().filter(|line| line.starts_with("source = ")) {
        assert_eq!(line, "source = \"registry+https://github.com/rust-lang/crates.io-index\"");
    }
}
