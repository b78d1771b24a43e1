//! A hub of a few files on this machine.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use sha2::{Digest, Sha256};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request that the hub got.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// First byte that is asked for.
    pub(crate) from: usize,
    /// The byte after the last one that is asked for.
    pub(crate) end: Option<usize>,
    pub(crate) authorization: Option<String>,
}

/// An answer to requests for a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Answers that stop after half of the body.
    pub(crate) breaks: usize,
    /// Answers that fall silent after half of the body, and stay open.
    pub(crate) stalls: usize,
    /// Whether requests for a part get the whole file.
    pub(crate) is_whole: bool,
    /// Answers with status 503 before the others.
    pub(crate) busy: usize,
}

impl Reply {
    pub(crate) fn of(body: &[u8]) -> Reply {
        Reply { status: 200, body: body.to_vec(), ..Reply::default() }
    }

    /// A refusal with the hub's code.
    pub(crate) fn refusal(status: u16, code: &str) -> Reply {
        Reply { status, headers: vec![("X-Error-Code", code.to_owned())], ..Reply::default() }
    }
}

type Shared<T> = Arc<Mutex<T>>;

/// A server that runs for as long as the test.
#[derive(Clone)]
pub(crate) struct Hub {
    pub(crate) address: String,
    replies: Shared<HashMap<String, Reply>>,
    requests: Shared<Vec<Request>>,
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Hub {
    pub(crate) fn new() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let hub = Hub { address, replies: Shared::default(), requests: Shared::default() };
        let own = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = own.clone();
                // A client that hangs up early is no concern of the server.
                std::thread::spawn(move || hub.answer(stream));
            }
        });
        hub
    }

    pub(crate) fn set(&self, path: &str, reply: Reply) {
        self.replies.lock().unwrap().insert(path.to_owned(), reply);
    }

    /// Changes the answer for a file of [`publish`](Self::publish).
    pub(crate) fn edit(&self, repository: &str, file: &str, edit: impl Fn(&mut Reply)) {
        edit(self.replies.lock().unwrap().get_mut(&format!("/{repository}/resolve/{COMMIT}/{file}")).unwrap());
    }

    /// Answers the next requests for a path with status 503.
    pub(crate) fn set_busy(&self, path: &str, times: usize) {
        self.replies.lock().unwrap().get_mut(path).unwrap().busy = times;
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Puts a repository on the hub. Files other than .json and .md are large, with a checksum.
    pub(crate) fn publish(&self, repository: &str, files: &[(&str, &[u8])]) {
        let entries: Vec<String> = files.iter().map(|(name, body)| entry(name, body)).collect();
        let listing = format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, entries.join(","));
        self.set(&format!("/api/models/{repository}/revision/main?blobs=true"), Reply::of(listing.as_bytes()));
        for (name, body) in files {
            let headers = vec![("ETag", format!("\"{}\"", etag(name, body))), ("X-Repo-Commit", COMMIT.to_owned())];
            let reply = Reply { headers, ..Reply::of(body) };
            self.set(&format!("/{repository}/resolve/{COMMIT}/{name}"), reply.clone());
            self.set(&format!("/{repository}/resolve/main/{name}"), reply);
        }
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let request = read(&stream)?;
        self.requests.lock().unwrap().push(request.clone());
        let Some(reply) = self.reply(&request.path) else {
            return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        };
        let (status, body) = match reply.status {
            200 if (request.from > 0 || request.end.is_some()) && !reply.is_whole => {
                let end = request.end.unwrap_or(reply.body.len()).min(reply.body.len());
                (206, reply.body.get(request.from..end).unwrap_or_default())
            }
            status => (status, &reply.body[..]),
        };
        write!(stream, "HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\nConnection: close\r\n", body.len())?;
        for (name, value) in &reply.headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        stream.write_all(b"\r\n")?;
        match request.method.as_str() {
            "HEAD" => Ok(()),
            _ if reply.breaks > 0 => stream.write_all(&body[..body.len() / 2]),
            _ if reply.stalls > 0 => {
                stream.write_all(&body[..body.len() / 2])?;
                // Until the client hangs up.
                stream.read(&mut [0]).map(|_| ())
            }
            _ => stream.write_all(body),
        }
    }

    /// The answer of now; those that fail on purpose get fewer.
    fn reply(&self, path: &str) -> Option<Reply> {
        let mut replies = self.replies.lock().unwrap();
        let reply = replies.get_mut(path)?;
        let now = reply.clone();
        if reply.busy > 0 {
            reply.busy -= 1;
            return Some(Reply { status: 503, body: Vec::new(), ..now });
        }
        reply.breaks = reply.breaks.saturating_sub(1);
        reply.stalls = reply.stalls.saturating_sub(1);
        Some(now)
    }
}

fn is_large(name: &str) -> bool {
    !name.ends_with(".json") && !name.ends_with(".md")
}

fn etag(name: &str, body: &[u8]) -> String {
    let digest = sha256(body);
    if is_large(name) { digest } else { digest[..40].to_owned() }
}

fn entry(name: &str, body: &[u8]) -> String {
    let (size, tag) = (body.len(), etag(name, body));
    if is_large(name) {
        format!(r#"{{"rfilename": "{name}", "size": {size}, "lfs": {{"size": {size}, "sha256": "{tag}"}}}}"#)
    } else {
        format!(r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{tag}"}}"#)
    }
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut from, mut end, mut authorization) = (String::new(), 0, None, None);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        let (name, value) = line.trim().split_once(": ").unwrap_or_default();
        match name.to_lowercase().as_str() {
            "range" => {
                let (start, last) = value.trim_start_matches("bytes=").split_once('-').unwrap_or_default();
                (from, end) = (start.parse().unwrap_or(0), last.parse::<usize>().ok().map(|last| last + 1));
            }
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Ok(Request { method, path, from, end, authorization })
}
