//! `pull` against a hub on this machine.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use crate::{
    Finished, command, finished, flambeau,
    hub::{COMMIT, Hub, Reply, sha256},
};

pub(crate) fn on(hub: &Hub, folder: &Path, args: &[&str]) -> Finished {
    with(hub, folder, args, &[])
}

pub(crate) fn with(hub: &Hub, folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = command(folder, args);
    command.env("HF_ENDPOINT", &hub.address).env("NO_PROXY", "127.0.0.1").envs(variables.iter().copied());
    finished(command.output().unwrap())
}

/// The folder of `org/m` in the cache.
pub(crate) fn repository(folder: &Path) -> PathBuf {
    folder.join("no-hub/hub/models--org--m")
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn published() -> Hub {
    let hub = Hub::new();
    hub.publish("org/m", &[("config.json", b"{}"), ("README.md", b"read me"), ("model.safetensors", b"hello")]);
    hub
}

#[test]
fn files_are_fetched_continued_and_kept() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    fs::create_dir(dir.path().join("m")).unwrap();
    fs::write(dir.path().join(format!("m/.model.safetensors.{COMMIT}.partial")), "hel").unwrap();
    for _ in 0..2 {
        let done = on(&hub, dir.path(), &["pull", "org/m", "-o", "m"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(done.stdout.lines().collect::<Vec<_>>(), ["m/README.md", "m/config.json", "m/model.safetensors"]);
        assert_eq!(fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello");
        assert_eq!(names(&dir.path().join("m")).len(), 3);
    }
    let weights: Vec<usize> = hub.requests().iter().filter(|r| r.path.ends_with("safetensors")).map(|r| r.from).collect();
    assert_eq!(weights, [3]);
}

#[test]
fn the_cache_has_hugging_faces_form() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    let (repository, digest) = (repository(dir.path()), sha256(b"hello"));
    let blobs = repository.join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{digest}.0a1b2c3d.incomplete")), "hel").unwrap();
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    let snapshot = repository.join("snapshots").join(COMMIT);
    assert_eq!(names(&snapshot), ["README.md", "config.json", "model.safetensors"]);
    assert_eq!(fs::read_link(snapshot.join("model.safetensors")).unwrap(), Path::new("../../blobs").join(&digest));
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), b"hello");
    assert_eq!(names(&blobs).len(), 3);
    assert!(names(&dir.path().join("no-hub/hub/.locks/models--org--m")).contains(&format!("{digest}.lock")));
    assert!(hub.requests().iter().any(|request| request.from == 3));
    // Nothing is fetched again, not even into a folder.
    let before = hub.requests().len();
    let done = on(&hub, dir.path(), &["pull", "org/m", "--output", "m"]);
    assert_eq!(fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello", "{}", done.stderr);
    assert!(hub.requests()[before..].iter().all(|request| !request.path.ends_with("safetensors")));
}

#[test]
fn revisions_and_patterns_choose_files() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    let listing =
        format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "config.json", "size": 2}}, {{"rfilename": "README.md"}}]}}"#);
    hub.set("/api/models/org/m/revision/refs%2Fpr%2F1?blobs=true", Reply::of(listing.as_bytes()));
    let done = on(&hub, dir.path(), &["pull", "org/m", "--revision", "refs/pr/1", "--include", "*.md"]);
    assert_eq!((done.code, names(&repository(dir.path()).join("snapshots").join(COMMIT)).len()), (0, 1), "{}", done.stderr);
    assert!(done.stdout.trim_end().ends_with("README.md"));
    assert!(repository(dir.path()).join("refs/refs/pr/1").is_file() && !repository(dir.path()).join("refs/main").exists());
    for args in [&["--include", "*.bin"][..], &["--file", "no.json"]] {
        let done = on(&hub, dir.path(), &[&["pull", "org/m@refs/pr/1"], args].concat());
        assert!(done.code == 1 && done.stderr.contains("has no file"), "{}", done.stderr);
    }
    assert_eq!(on(&hub, dir.path(), &["pull", "org/m@a", "--revision", "b"]).code, 2);
}

#[test]
fn patterns_leave_files_out() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    let pull = |args: &[&str]| on(&hub, dir.path(), &[&["pull", "org/m"], args].concat());
    let files = |args: &[&str]| {
        let done = pull(args);
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout.lines().map(|line| Path::new(line).file_name().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(files(&["--exclude", "*.md"]), ["config.json", "model.safetensors"]);
    assert_eq!(files(&["--include", "*e*", "--exclude", "*.md", "--exclude", "config.*"]), ["model.safetensors"]);
    let none = pull(&["--exclude", "*"]);
    assert!(none.code == 1 && none.stderr.contains("--exclude leaves no file of org/m"), "{}", none.stderr);
}

#[test]
fn the_size_of_a_download_is_told_where_no_bar_is_shown() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, "downloading 14 B of org/m in 3 files\n"));
    assert_eq!(on(&hub, dir.path(), &["pull", "org/m"]).stderr, "");
}

#[test]
fn addresses_of_pages_and_files_are_names() {
    let (dir, (hub, _)) = (tempfile::tempdir().unwrap(), gguf());
    let pull = |name: &str| on(&hub, dir.path(), &["pull", name]);
    for name in ["https://huggingface.co/org/m/blob/main/m-F16.gguf", "org/m:m-F16.gguf"] {
        let done = pull(name);
        assert!(done.code == 0 && done.stdout.ends_with("m-F16.gguf\n"), "{}{}", done.stdout, done.stderr);
    }
    assert!(pull("https://huggingface.co/org/m/tree/main").stdout.ends_with("m-Q4_K_M.gguf\n"));
}

#[test]
fn a_busy_hub_is_asked_again_for_its_list() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    hub.set_busy("/api/models/org/m/revision/main?blobs=true", 1);
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[test]
fn broken_and_busy_answers_are_tried_again() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    hub.edit("org/m", "model.safetensors", |reply| (reply.breaks, reply.busy) = (2, 1));
    let done = on(&hub, dir.path(), &["pull", "org/m", "-o", "m"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello");
    let mut places: Vec<usize> = hub.requests().iter().filter(|r| r.path.ends_with("safetensors")).map(|r| r.from).collect();
    places.dedup();
    assert_eq!(places, [0, 2, 3]);
}

#[test]
fn silent_connections_are_given_up_and_continued() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    hub.edit("org/m", "model.safetensors", |reply| reply.stalls = 1);
    let done = with(&hub, dir.path(), &["pull", "org/m", "-o", "m"], &[("HF_HUB_DOWNLOAD_TIMEOUT", "1")]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello");
    let places: Vec<usize> = hub.requests().iter().filter(|r| r.path.ends_with("safetensors")).map(|r| r.from).collect();
    assert_eq!(places, [0, 2]);
}

#[test]
fn large_files_come_by_several_connections() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), Hub::new());
    let body: Vec<u8> = (0..65u32 << 20).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    hub.publish("org/m", &[("config.json", b"{}"), ("m.gguf", &body)]);
    hub.edit("org/m", "m.gguf", |reply| (reply.breaks, reply.busy) = (2, 1));
    let pull = |folder: &str| on(&hub, dir.path(), &["pull", "org/m", "--file", "m.gguf", "-o", folder]);
    let done = pull("parts");
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(fs::read(dir.path().join("parts/m.gguf")).unwrap() == body);
    let ends: Vec<Option<usize>> = hub.requests().iter().filter(|r| r.path.ends_with("gguf")).map(|r| r.end).collect();
    assert!(ends.len() >= 6 && ends.iter().all(Option::is_some), "{ends:?}");
    // A mirror without ranges gives the file in one piece.
    hub.edit("org/m", "m.gguf", |reply| reply.is_whole = true);
    let done = pull("whole");
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(fs::read(dir.path().join("whole/m.gguf")).unwrap() == body);
}

#[test]
fn wrong_bytes_are_not_kept() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    hub.edit("org/m", "model.safetensors", |reply| reply.body = b"jello".to_vec());
    let done = on(&hub, dir.path(), &["pull", "org/m", "-o", "m"]);
    assert!(done.code == 1 && done.stderr.contains("checksum"), "{}", done.stderr);
    assert!(!dir.path().join("m/model.safetensors").exists());
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert!(done.code == 1 && done.stderr.contains("checksum"), "{}", done.stderr);
    assert!(!repository(dir.path()).join("refs/main").exists());
    // A beginning that an interrupted machine damaged is thrown away.
    hub.edit("org/m", "model.safetensors", |reply| reply.body = b"hello".to_vec());
    fs::write(dir.path().join(format!("m/.model.safetensors.{COMMIT}.partial")), "jel").unwrap();
    let done = on(&hub, dir.path(), &["pull", "org/m", "-o", "m"]);
    assert_eq!(fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello", "{}", done.stderr);
}

#[test]
fn files_cannot_leave_the_folder() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), Hub::new());
    let listing = r#"{"sha": "abc", "siblings": [{"rfilename": "..\\config.json"}, {"rfilename": "../config.json"}]}"#;
    hub.set("/api/models/org/m/revision/main?blobs=true", Reply::of(listing.as_bytes()));
    for place in [&["-o", "m"][..], &[]] {
        let done = on(&hub, dir.path(), &[&["pull", "org/m", "--file", "../config.json"], place].concat());
        assert!(done.code == 1 && done.stderr.contains("leads out"), "{}", done.stderr);
    }
}

#[test]
fn an_unreachable_hub_is_an_error_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut gone = published();
    assert_eq!(on(&gone, dir.path(), &["pull", "org/m"]).code, 0);
    gone.address = format!("http://{free}");
    let done = on(&gone, dir.path(), &["pull", "org/other", "-o", "m"]);
    assert!(done.code == 1 && done.stderr.starts_with("error: cannot reach") && done.stderr.contains("hint: "), "{}", done.stderr);
    let done = on(&gone, dir.path(), &["pull", "org/m", "-o", "m"]);
    assert!(done.code == 0 && done.stderr.contains("cannot reach"), "{}", done.stderr);
    assert_eq!(fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello");
    let done = with(&gone, dir.path(), &["pull", "org/other"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(done.code == 1 && done.stderr.contains("HF_HUB_OFFLINE"), "{}", done.stderr);
    assert_eq!(with(&gone, dir.path(), &["pull", "org/m"], &[("HF_HUB_OFFLINE", "1")]).stderr, "");
    let help = flambeau(dir.path(), &["pull", "--help"]);
    assert!(help.code == 0 && help.stdout.contains("HF_ENDPOINT"));
}

#[test]
fn refusals_are_explained() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    let token = dir.path().join("token.txt");
    fs::write(&token, "secret\n").unwrap();
    let path = [("HF_TOKEN_PATH", token.to_str().unwrap())];
    hub.edit("org/m", "model.safetensors", |reply| *reply = Reply::refusal(401, "GatedRepo"));
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert!(done.code == 1 && done.stderr.contains("accept the licence on") && done.stderr.contains("HF_TOKEN"), "{}", done.stderr);
    let done = with(&hub, dir.path(), &["pull", "org/m"], &path);
    assert!(done.stderr.contains("your token has no access"), "{}", done.stderr);
    assert_eq!(hub.requests().last().unwrap().authorization.as_deref(), Some("Bearer secret"));
    let listing = "/api/models/org/m/revision/main?blobs=true";
    for (status, code, expected) in
        [(401, "RepoNotFound", "does not exist"), (404, "RevisionNotFound", "no revision main"), (403, "DisabledRepo", "disabled")]
    {
        hub.set(listing, Reply::refusal(status, code));
        let done = on(&hub, dir.path(), &["pull", "org/m"]);
        assert!(done.code == 1 && done.stderr.contains(expected), "{}", done.stderr);
    }
}

#[test]
fn tokens_stay_with_the_hub() {
    let (dir, hub, storage) = (tempfile::tempdir().unwrap(), published(), Hub::new());
    storage.set("/blob", Reply::of(b"hello"));
    let elsewhere = storage.address.replace("127.0.0.1", "localhost");
    hub.edit("org/m", "model.safetensors", |reply| {
        *reply = Reply { status: 302, headers: vec![("Location", format!("{elsewhere}/blob"))], ..Reply::default() };
    });
    let repository = repository(dir.path());
    fs::create_dir_all(repository.join("blobs")).unwrap();
    fs::write(repository.join("blobs").join(format!("{}.00000000.incomplete", sha256(b"hello"))), "he").unwrap();
    let done = with(&hub, dir.path(), &["pull", "org/m"], &[("HF_TOKEN", "secret"), ("NO_PROXY", "127.0.0.1,localhost")]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(hub.requests().iter().all(|request| request.authorization.as_deref() == Some("Bearer secret")));
    let asked = &storage.requests()[0];
    assert_eq!((asked.authorization.as_deref(), asked.from), (None, 2));
}

#[test]
fn downloads_without_room_are_refused() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), Hub::new());
    let listing = format!(
        r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "model.safetensors", "lfs": {{"size": {}, "sha256": "00"}}}}]}}"#,
        1_u64 << 62
    );
    hub.set("/api/models/org/m/revision/main?blobs=true", Reply::of(listing.as_bytes()));
    for place in [&["-o", "m"][..], &[]] {
        let done = on(&hub, dir.path(), &[&["pull", "org/m"], place].concat());
        assert!(done.code == 1 && done.stderr.contains("the disk of") && done.stderr.contains("HF_HUB_CACHE"), "{}", done.stderr);
    }
    assert_eq!(hub.requests().len(), 2);
}

#[test]
fn two_commands_fetch_a_file_once() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..3).map(|_| scope.spawn(|| on(&hub, dir.path(), &["pull", "org/m"]))).collect();
        for done in pulls.into_iter().map(|pull| pull.join().unwrap()) {
            assert_eq!(done.code, 0, "{}", done.stderr);
        }
    });
    assert_eq!(hub.requests().iter().filter(|request| request.path.ends_with("safetensors")).count(), 1);
    assert_eq!(names(&repository(dir.path()).join("blobs")).len(), 3);
}

#[test]
fn snapshots_hold_files_where_links_are_unwanted() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    let done = with(&hub, dir.path(), &["pull", "org/m"], &[("HF_HUB_DISABLE_SYMLINKS", "1")]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let file = repository(dir.path()).join("snapshots").join(COMMIT).join("model.safetensors");
    assert!(!file.is_symlink() && fs::read(file).unwrap() == b"hello");
    let before = hub.requests().len();
    assert_eq!(on(&hub, dir.path(), &["pull", "org/m"]).code, 0);
    assert_eq!(hub.requests().len(), before + 1);
}

/// A model of GGUF files; F16 can be run.
fn gguf() -> (Hub, Vec<u8>) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints/gguf-llama-biases/checkpoint.gguf");
    let (hub, bytes) = (Hub::new(), fs::read(file).unwrap());
    let files = [
        ("README.md", &b"read me"[..]),
        ("m-F16.gguf", &bytes),
        ("m-Q4_K_M.gguf", b"GGUF"),
        ("mmproj-m-F16.gguf", b"GGUF"),
        ("Q2_K/m-Q2_K-00001-of-00002.gguf", b"GGUF"),
        ("Q2_K/m-Q2_K-00002-of-00002.gguf", b"GGUF 2"),
    ];
    hub.publish("org/m", &files);
    (hub, bytes)
}

#[test]
fn tags_name_gguf_files() {
    let (dir, (hub, _)) = (tempfile::tempdir().unwrap(), gguf());
    for (name, expected) in [
        ("org/m", &["m-Q4_K_M.gguf"][..]),
        ("org/m:f16", &["m-F16.gguf"]),
        ("hf.co/org/m:q2_k", &["m-Q2_K-00001-of-00002.gguf", "m-Q2_K-00002-of-00002.gguf"]),
    ] {
        let done = on(&hub, dir.path(), &["pull", name]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let files: Vec<_> = done.stdout.lines().map(|line| Path::new(line).file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(files, expected);
    }
    let done = on(&hub, dir.path(), &["pull", "org/m:Q9_0"]);
    assert!(
        done.code == 1 && done.stderr.contains("org/m: no GGUF file is `Q9_0`; there are Q2_K, F16, Q4_K_M"),
        "{}",
        done.stderr
    );
}

#[test]
fn models_of_gguf_files_run_by_name_and_without_the_network() {
    let (dir, (hub, _)) = (tempfile::tempdir().unwrap(), gguf());
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");
    let args = ["generate", "org/m:f16", "--tokenizer", tokenizer, "-p", "the cat", "-n", "4", "--raw", "--ignore-eos", "-q"];
    let first = on(&hub, dir.path(), &args);
    assert_eq!(first.code, 0, "{}", first.stderr);
    assert!(first.stderr.contains("fetching org/m:f16 once"), "{}", first.stderr);
    let programs = names(&dir.path().join("cache/flambeau/models"));
    assert!(programs.len() == 1 && programs[0].starts_with("org--m+F16-"), "{programs:?}");
    let again = with(&hub, dir.path(), &args, &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!((again.code, &again.stdout), (0, &first.stdout), "{}", again.stderr);
    let exported =
        with(&hub, dir.path(), &["export", "org/m:F16", "-o", "m.pte", "--tokenizer", tokenizer], &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
}

#[test]
fn shards_that_the_index_names_are_fetched() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), Hub::new());
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    hub.publish(
        "org/m",
        &[
            ("config.json", b"{}"),
            ("model.safetensors.index.json", index.as_bytes()),
            ("model-1.safetensors", b"one"),
            ("model-2.safetensors", b"two"),
        ],
    );
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    fs::remove_file(repository(dir.path()).join("snapshots").join(COMMIT).join("model-2.safetensors")).unwrap();
    fs::remove_file(repository(dir.path()).join("blobs").join(sha256(b"two"))).unwrap();
    let done = with(&hub, dir.path(), &["export", "org/m", "-o", "m.pte"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(done.code == 1 && done.stderr.contains("flambeau pull org/m"), "{}", done.stderr);
    // Whatever the folder holds, the missing shard is fetched before it is opened.
    let done = on(&hub, dir.path(), &["generate", "org/m", "-p", "x"]);
    assert!(done.stderr.contains("fetching org/m once"), "{}", done.stderr);
    assert!(repository(dir.path()).join("blobs").join(sha256(b"two")).is_file());
}

#[test]
fn a_tokenizer_that_python_left_out_is_fetched() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), Hub::new());
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flambeau/examples/data/tiny-llama");
    let files = ["config.json", "model.safetensors", "tokenizer.json"].map(|name| (name, fs::read(tiny.join(name)).unwrap()));
    hub.publish("org/m", &files.each_ref().map(|(name, bytes)| (*name, &bytes[..])));
    let done = on(&hub, dir.path(), &["pull", "org/m", "--file", "config.json", "--file", "model.safetensors"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let args = ["generate", "org/m", "the cat", "-n", "2", "--raw", "-q"];
    let done = with(&hub, dir.path(), &args, &[("HF_HUB_OFFLINE", "1")]);
    assert!(done.code == 1 && done.stderr.contains("no tokenizer.json"), "{}", done.stderr);
    let done = on(&hub, dir.path(), &args);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let before = hub.requests().len();
    assert_eq!(on(&hub, dir.path(), &args).code, 0);
    assert_eq!(hub.requests().len(), before);
}

#[test]
#[ignore = "needs Python with huggingface_hub, as FLAMBEAU_PYTHON or python3"]
fn pythons_cache_and_ours_are_one() {
    let (dir, hub) = (tempfile::tempdir().unwrap(), published());
    hub.publish("org/other", &[("config.json", b"{}"), ("model.safetensors", b"other")]);
    let done = on(&hub, dir.path(), &["pull", "org/m"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let script = "
import huggingface_hub as h
print(open(h.hf_hub_download('org/m', 'model.safetensors', local_files_only=True)).read())
print(len(h.scan_cache_dir().repos), len(h.scan_cache_dir().warnings), h.scan_cache_dir().size_on_disk)
for name in ['config.json', 'model.safetensors']:
    h.hf_hub_download('org/other', name)
";
    let python = std::env::var("FLAMBEAU_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut command = std::process::Command::new(python);
    command.args(["-c", script]).env("HF_HOME", dir.path().join("no-hub")).env("HF_ENDPOINT", &hub.address);
    let done = finished(command.env("HF_HUB_DISABLE_XET", "1").env("NO_PROXY", "127.0.0.1").output().unwrap());
    assert_eq!((done.code, done.stdout.as_str()), (0, "hello\n1 0 14\n"), "{}", done.stderr);
    let done = with(&hub, dir.path(), &["pull", "org/other", "-o", "other"], &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(fs::read(dir.path().join("other/model.safetensors")).unwrap(), b"other");
}
