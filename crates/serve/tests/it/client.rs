//! A client that shows the raw bytes of the connection.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value as Json;

/// A response as it came.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The data of a stream's events; the last one is `[DONE]`, which is left out.
    pub(crate) fn events(&self) -> Vec<Json> {
        let mut data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "the stream ends: {}", self.body);
        data.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // The server may close the connection before it reads everything; its answer is read
        // afterwards.
        let _ = self.stream.get_mut().write_all(bytes);
    }

    pub(crate) fn send_request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        let has = |name: &str| headers.iter().any(|(key, _)| *key == name);
        for (name, value) in [("host", "localhost"), ("content-type", "application/json")] {
            if !has(name) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        self.send(format!("{head}\r\n{body}").as_bytes());
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
        }
    }

    /// The status and headers that come next; `None` if the server hung up.
    pub(crate) fn head(&mut self) -> Option<Reply> {
        let status = self.line()?.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").expect("a header");
            headers.push((name.to_owned(), value.to_owned()));
        }
        Some(Reply { status, headers, body: String::new() })
    }

    /// The next piece of a body in chunks; empty at its end.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let length = usize::from_str_radix(&self.line()?, 16).ok()?;
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).ok()?;
        bytes.truncate(length);
        String::from_utf8(bytes).ok()
    }

    /// The response that comes next; `None` if the server hung up.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let mut reply = self.head()?;
        match reply.header("content-length").map(|length| length.parse::<usize>().unwrap()) {
            Some(length) => {
                let mut bytes = vec![0; length];
                self.stream.read_exact(&mut bytes).ok()?;
                reply.body = String::from_utf8(bytes).unwrap();
            }
            None if reply.header("transfer-encoding") == Some("chunked") => {
                while let Some(chunk) = self.chunk().filter(|chunk| !chunk.is_empty()) {
                    reply.body.push_str(&chunk);
                }
            }
            None => {}
        }
        Some(reply)
    }

    /// The kind and contents of a WebSocket's next frame.
    pub(crate) fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).ok()?;
        let mut length = usize::from(head[1]);
        if length == 126 {
            let mut long = [0; 2];
            self.stream.read_exact(&mut long).ok()?;
            length = usize::from(u16::from_be_bytes(long));
        }
        let mut contents = vec![0; length];
        self.stream.read_exact(&mut contents).ok()?;
        Some((head[0] & 15, contents))
    }

    /// Sends a text as a WebSocket's frame, masked by zeros.
    pub(crate) fn send_text(&mut self, text: &str) {
        let mut frame = vec![0x81];
        match u16::try_from(text.len()) {
            Ok(length) if length < 126 => frame.push(0x80 | length as u8),
            Ok(length) => {
                frame.push(0x80 | 126);
                frame.extend(length.to_be_bytes());
            }
            Err(_) => {
                frame.push(0x80 | 127);
                frame.extend((text.len() as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(text.bytes());
        self.send(&frame);
    }

    /// Whether the server hangs up, rather than saying more or nothing.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(read) => read == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// Whether the server has neither said anything nor hung up so far.
    pub(crate) fn is_waited_for(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let read = self.stream.read(&mut [0; 1]);
        self.stream.get_ref().set_nonblocking(false).unwrap();
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    let mut client = Client::new(address);
    client.send_request("GET", path, &[], "");
    client.reply().expect("a response")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Json) -> Reply {
    post_text(address, path, &body.to_string())
}

pub(crate) fn post_text(address: SocketAddr, path: &str, body: &str) -> Reply {
    let mut client = Client::new(address);
    client.send_request("POST", path, &[], body);
    client.reply().expect("a response")
}
