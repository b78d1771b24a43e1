//! `pull` against a hub of one model on this machine.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
};

use crate::{Finished, command, finished, flambeau};

const COMMIT: &str = "0123abc";

/// Answers requests for as long as the test runs; returns its address.
fn serve(files: HashMap<String, Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that hangs up early is no concern of the server.
            let _ = answer(stream, &files);
        }
    });
    address
}

fn answer(mut stream: TcpStream, files: &HashMap<String, Vec<u8>>) -> std::io::Result<()> {
    let (mut first, mut from) = (String::new(), 0);
    let mut reader = BufReader::new(stream.try_clone()?);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
            from = range.trim().trim_end_matches('-').parse().unwrap_or(0);
        }
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match files.get(path) {
        Some(body) if from > 0 => ("206 Partial Content", &body[from..]),
        Some(body) => ("200 OK", &body[..]),
        None => ("404 Not Found", &b""[..]),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)
}

fn hub(listing: &str) -> String {
    let listing = format!(r#"{{"sha": "{COMMIT}", "siblings": {listing}}}"#);
    let file = |name: &str| format!("/org/m/resolve/{COMMIT}/{name}");
    serve(HashMap::from([
        ("/api/models/org/m/revision/main?blobs=true".to_owned(), listing.into_bytes()),
        (file("config.json"), b"{}".to_vec()),
        (file("model.safetensors"), b"hello".to_vec()),
    ]))
}

fn pull(folder: &Path, endpoint: &str) -> Finished {
    let mut command = command(folder, &["pull", "org/m", "-o", "m"]);
    finished(command.env("HF_ENDPOINT", endpoint).env("NO_PROXY", "127.0.0.1").output().unwrap())
}

/// SHA-256 of `hello`.
const DIGEST: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn listing(digest: &str) -> String {
    format!(
        r#"[{{"rfilename": "config.json", "size": 2}}, {{"rfilename": "README.md", "size": 9}},
            {{"rfilename": "model.safetensors", "lfs": {{"size": 5, "sha256": "{digest}"}}}}]"#
    )
}

#[test]
fn files_are_fetched_continued_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = hub(&listing(DIGEST));
    std::fs::create_dir(dir.path().join("m")).unwrap();
    std::fs::write(dir.path().join(format!("m/.model.safetensors.{COMMIT}.partial")), "hel").unwrap();
    for _ in 0..2 {
        let done = pull(dir.path(), &endpoint);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(done.stdout.lines().collect::<Vec<_>>(), ["m/config.json", "m/model.safetensors"]);
        assert_eq!(std::fs::read(dir.path().join("m/model.safetensors")).unwrap(), b"hello");
        assert_eq!(std::fs::read_dir(dir.path().join("m")).unwrap().count(), 2);
    }
}

#[test]
fn wrong_bytes_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let done = pull(dir.path(), &hub(&listing(&"0".repeat(64))));
    assert!(done.code == 1 && done.stderr.contains("checksum"), "{}", done.stderr);
    assert!(!dir.path().join("m/model.safetensors").exists());
}

#[test]
fn files_cannot_leave_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = hub(r#"[{"rfilename": "..\\config.json"}, {"rfilename": "/config.json"}, {"rfilename": "../config.json"}]"#);
    let mut command = command(dir.path(), &["pull", "org/m", "-o", "m", "--file", "../config.json"]);
    let done = finished(command.env("HF_ENDPOINT", endpoint).env("NO_PROXY", "127.0.0.1").output().unwrap());
    assert!(done.code == 1 && done.stderr.contains("leads out"), "{}", done.stderr);
}

#[test]
fn an_unreachable_hub_is_an_error_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let done = pull(dir.path(), &format!("http://{free}"));
    assert!(done.code == 1 && done.stderr.starts_with("error: cannot reach") && done.stderr.contains("hint: "), "{}", done.stderr);
    let help = flambeau(dir.path(), &["pull", "--help"]);
    assert!(help.code == 0 && help.stdout.contains("HF_ENDPOINT"));
}
