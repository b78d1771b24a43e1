//! Checks for complete packages, and for features of the facade without unneeded dependencies.

use std::fs;

use flambeau_tidy::{cargo, packages, root};

#[test]
fn published_packages_are_complete() {
    for package in packages().iter().filter(|package| package["publish"].is_null()) {
        let name = package["name"].as_str().expect("a package has a name");
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[field].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            assert!(package[field].as_array().is_some_and(|list| !list.is_empty()), "{name} has no {field}");
        }
        let folder = root().join(package["manifest_path"].as_str().expect("a package has a manifest"));
        for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(folder.with_file_name(license).is_file(), "{name} has no {license}: link the root's");
        }
        for dependency in package["dependencies"].as_array().expect("a package lists dependencies") {
            let is_needed = dependency["kind"].is_null() && dependency["path"].is_string();
            assert!(!is_needed || dependency["req"] != "*", "{name} needs {} without a version", dependency["name"]);
        }
    }
}

#[test]
fn the_cpu_feature_alone_builds_without_the_others_dependencies() {
    let args = ["tree", "--package=flambeau", "--no-default-features", "--features=cpu", "--edges=normal", "--prefix=none"];
    let tree = cargo(&args);
    let found: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    for needed in ["flambeau-cpu", "flambeau-runtime", "flambeau-wire"] {
        assert!(found.contains(&needed), "{needed} is not in:\n{tree}");
    }
    for other in ["mlx", "compile", "pt2", "zoo", "text", "runners"].map(|name| format!("flambeau-{name}")) {
        assert!(!found.contains(&other.as_str()), "{other} is in:\n{tree}");
    }
    for other in ["libloading", "minijinja", "safetensors", "tempfile", "tokenizers", "zip"] {
        assert!(!found.contains(&other), "{other} is in:\n{tree}");
    }
}

#[test]
fn the_oldest_rust_is_stated_once_and_tested() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml reads");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = version.expect("the workspace states its oldest Rust");
    for (path, text) in
        [("README.md", format!("Rust {version}")), (".github/workflows/ci.yml", format!("toolchain: \"{version}\""))]
    {
        let page = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(page.contains(&text), "{path} does not say `{text}`");
    }
}
