//! Finds requests of a connection that state their length twice.
//!
//! A proxy may divide a connection into other requests than the server if a request has both
//! `Transfer-Encoding` and `Content-Length` (RFC 9112 §6.3). The HTTP library drops the second
//! header before a handler sees it. So this module parses the bytes of the connection as well.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use httparse::{EMPTY_HEADER, Header, Request, Status, parse_chunk_size};

use super::listener::{BUFFER_BYTES, MAX_HEADERS};

/// Maximum length in bytes of the line before a chunk.
const MAX_LINE: usize = 4096;

/// Whether each request of a connection states two lengths, in the order of the requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts(Arc<Mutex<VecDeque<bool>>>);

impl Verdicts {
    /// Whether the next request states two lengths.
    pub(super) fn next(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(false)
    }

    fn add(&self, has_both: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(has_both);
    }
}

/// Parses the bytes that a client sends, up to the place of the next byte.
#[derive(Debug, Default)]
pub(super) struct Framing {
    verdicts: Verdicts,
    place: Place,
    /// The bytes of an incomplete head or line.
    held: Vec<u8>,
}

/// The part of a request that the next byte belongs to.
#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Head,
    /// A body or chunk with `left` bytes left.
    Body { left: u64, is_chunk: bool },
    /// The line before a chunk.
    ChunkLine,
    /// The lines after the last chunk.
    Trailer,
    /// Unknown, because the bytes before are not a valid request.
    Unknown,
}

impl Framing {
    pub(super) fn new(verdicts: Verdicts) -> Framing {
        Framing { verdicts, ..Framing::default() }
    }

    /// Parses the next bytes.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match &mut self.place {
                Place::Unknown => return,
                Place::Head => self.head(bytes),
                Place::Body { left, is_chunk } => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.place = if *is_chunk { Place::ChunkLine } else { Place::Head };
                    }
                    &bytes[taken..]
                }
                Place::ChunkLine | Place::Trailer => self.line(bytes),
            };
        }
    }

    /// Parses bytes of a head. Returns the bytes after it.
    fn head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let known = self.held.len();
        self.held.extend_from_slice(bytes);
        if !bytes.contains(&b'\n') && self.held.len() <= BUFFER_BYTES {
            return &[];
        }
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut request = Request::new(&mut headers);
        match request.parse(&self.held) {
            Ok(Status::Complete(length)) => {
                let (has_both, place) = body_of(request.headers);
                self.verdicts.add(has_both);
                self.place = place;
                self.held.clear();
                &bytes[length.saturating_sub(known).min(bytes.len())..]
            }
            Ok(Status::Partial) if self.held.len() <= BUFFER_BYTES => &[],
            Ok(Status::Partial) | Err(_) => self.give_up(),
        }
    }

    /// Parses bytes of a line in a chunked body. Returns the bytes after the line.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        self.held.extend_from_slice(&bytes[..end.map_or(bytes.len(), |end| end + 1)]);
        if self.held.len() > MAX_LINE {
            return self.give_up();
        }
        let Some(end) = end else { return &[] };
        let is_empty = self.held.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        let next = match (&self.place, parse_chunk_size(&self.held)) {
            (Place::Trailer, _) => Some(if is_empty { Place::Head } else { Place::Trailer }),
            (_, Ok(Status::Complete((_, 0)))) => Some(Place::Trailer),
            // A line break of two bytes follows the chunk.
            (_, Ok(Status::Complete((_, size)))) => size.checked_add(2).map(|left| Place::Body { left, is_chunk: true }),
            _ => None,
        };
        self.held.clear();
        match next {
            Some(place) => {
                self.place = place;
                &bytes[end + 1..]
            }
            None => self.give_up(),
        }
    }

    /// Ends the search: all following bytes are ignored.
    fn give_up(&mut self) -> &'static [u8] {
        self.place = Place::Unknown;
        self.held = Vec::new();
        &[]
    }
}

/// Whether headers state two lengths, and the place of the byte after them.
fn body_of(headers: &[Header<'_>]) -> (bool, Place) {
    let find = |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    let (is_chunked, length) = (find("transfer-encoding").is_some(), find("content-length"));
    let stated = length.map(|header| std::str::from_utf8(header.value).ok().and_then(|value| value.trim().parse().ok()));
    let place = match stated {
        _ if is_chunked => Place::ChunkLine,
        None | Some(Some(0)) => Place::Head,
        Some(Some(left)) => Place::Body { left, is_chunk: false },
        Some(None) => Place::Unknown,
    };
    (is_chunked && length.is_some(), place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts on bytes, which are the same in pieces of any size.
    fn verdicts(bytes: &str) -> Vec<bool> {
        let read = |size: usize| {
            let verdicts = Verdicts::default();
            let mut framing = Framing::new(verdicts.clone());
            bytes.as_bytes().chunks(size).for_each(|piece| framing.follow(piece));
            let found: Vec<bool> = verdicts.0.lock().unwrap().drain(..).collect();
            found
        };
        let whole = read(bytes.len());
        (1..40).for_each(|size| assert_eq!(read(size), whole, "pieces of {size}"));
        whole
    }

    #[test]
    fn each_request_of_a_connection_is_judged() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let sized = "POST / HTTP/1.1\r\nContent-Length: 36\r\n\r\nGET / HTTP/1.1\r\ncontent-length: 5\r\n\r\n";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nGET /\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n";
        let both = "POST / HTTP/1.1\r\ncontent-length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let other = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n";
        assert_eq!(verdicts(&[get, sized, chunked, get].concat()), [false; 4]);
        assert_eq!(verdicts(&[get, both, sized, other].concat()), [false, true, false, true]);
        assert!(verdicts(&["\u{1}\u{2}", get].concat()).is_empty());
    }
}
