//! Strict framing of requests, checked before the HTTP parser sees them.
//!
//! Request smuggling needs two readers of one byte stream that disagree about where a request ends.
//! The parser is lenient where RFC 9112 lets it be (bare line feeds, equal lengths twice, a length
//! beside chunks). Here each of these is refused, so that whatever a proxy in front takes it for,
//! nothing follows it on the connection.

/// Longest name that matters, and most bytes that are kept of its value.
const KEPT: usize = 32;

/// Follows the bytes of a connection from request to request.
#[derive(Debug)]
pub(super) struct Framing {
    state: State,
}

#[derive(Debug)]
enum State {
    Head(Head),
    /// Bytes that the body still has.
    Body(u64),
    /// Chunks: the connection is closed after their request, so that no head follows.
    Chunks,
    Refused,
}

/// Parts of a head so far.
#[derive(Debug, Default)]
struct Head {
    has_begun: bool,
    /// The request line has ended.
    in_headers: bool,
    /// Bytes of the line.
    length: usize,
    after_cr: bool,
    name: Kept,
    value: Kept,
    in_value: bool,
    content_length: Option<u64>,
    is_chunked: bool,
    has_host: bool,
}

/// The beginning of a name or value.
#[derive(Debug, Default, Clone, Copy)]
struct Kept {
    bytes: [u8; KEPT],
    /// Length of the whole, of which `bytes` may lack the end.
    length: usize,
}

impl Kept {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length += 1;
    }

    /// The whole, without spaces around it; `None` if it is too long.
    fn text(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length).map(<[u8]>::trim_ascii)
    }

    fn is(&self, text: &str) -> bool {
        self.text().is_some_and(|kept| kept.eq_ignore_ascii_case(text.as_bytes()))
    }
}

/// Position in a connection after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// Between requests.
    Between,
    /// Within a head.
    Head,
    /// Behind a head.
    Request,
}

impl Framing {
    pub(super) fn new() -> Self {
        Self { state: State::Head(Head::default()) }
    }

    /// Follows `bytes`; the number of those before the first one that is refused.
    ///
    /// # Errors
    /// That number, if there is such a byte. All further bytes are refused.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.state {
                State::Chunks => return Ok(()),
                State::Refused => return Err(at),
                State::Body(left) => {
                    let take = (*left).min((bytes.len() - at) as u64);
                    *left -= take;
                    at += take as usize;
                    if *left == 0 {
                        self.state = State::Head(Head::default());
                    }
                }
                State::Head(head) => {
                    match head.byte(bytes[at]) {
                        Step::On => {}
                        Step::End => self.state = head.body(),
                        Step::Refused => {
                            self.state = State::Refused;
                            return Err(at);
                        }
                    }
                    at += 1;
                }
            }
        }
        Ok(())
    }

    pub(super) fn position(&self) -> Position {
        match &self.state {
            State::Head(head) if head.has_begun => Position::Head,
            State::Head(_) => Position::Between,
            State::Body(_) | State::Chunks | State::Refused => Position::Request,
        }
    }
}

enum Step {
    On,
    End,
    Refused,
}

impl Head {
    fn byte(&mut self, byte: u8) -> Step {
        match (self.after_cr, byte) {
            (true, b'\n') => {
                self.after_cr = false;
                self.line()
            }
            (true, _) | (false, b'\n' | 0) => Step::Refused,
            (false, b'\r') => {
                self.after_cr = true;
                Step::On
            }
            (false, byte) => self.within_line(byte),
        }
    }

    fn within_line(&mut self, byte: u8) -> Step {
        self.has_begun = true;
        // A header line that begins with a space continues the one before it (obs-fold).
        if self.in_headers && self.length == 0 && matches!(byte, b' ' | b'\t') {
            return Step::Refused;
        }
        self.length += 1;
        if self.in_headers {
            match (self.in_value, byte) {
                (false, b':') => self.in_value = true,
                (false, _) => self.name.push(byte),
                (true, b' ' | b'\t') if self.value.length == 0 => {}
                (true, _) => self.value.push(byte),
            }
        }
        Step::On
    }

    /// The end of a line.
    fn line(&mut self) -> Step {
        let is_empty = self.length == 0;
        if !self.in_headers {
            // Empty lines before a request are allowed (RFC 9112, 2.2).
            self.in_headers = !is_empty;
        } else if is_empty {
            return Step::End;
        } else if !self.header() {
            return Step::Refused;
        }
        (self.length, self.in_value) = (0, false);
        (self.name, self.value) = (Kept::default(), Kept::default());
        Step::On
    }

    /// Notes a header; false if it is refused.
    fn header(&mut self) -> bool {
        if self.name.is("content-length") {
            let length = self.value.text().and_then(number);
            let is_single = self.content_length.is_none() && !self.is_chunked;
            self.content_length = length;
            return length.is_some() && is_single;
        }
        if self.name.is("transfer-encoding") {
            let is_single = self.content_length.is_none() && !self.is_chunked;
            self.is_chunked = true;
            return is_single && self.value.is("chunked");
        }
        if self.name.is("host") {
            return !std::mem::replace(&mut self.has_host, true);
        }
        true
    }

    fn body(&self) -> State {
        match (self.is_chunked, self.content_length) {
            (true, _) => State::Chunks,
            (false, Some(length)) if length > 0 => State::Body(length),
            (false, _) => State::Head(Self::default()),
        }
    }
}

/// A length in digits alone.
fn number(text: &[u8]) -> Option<u64> {
    let digits = (1..=19).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that pass, of the whole text and byte by byte.
    fn passing(text: &str) -> usize {
        let mut whole = Framing::new();
        let passed = whole.follow(text.as_bytes()).map_or_else(|at| at, |()| text.len());
        let mut single = Framing::new();
        let one_by_one = text.bytes().take_while(|byte| single.follow(&[*byte]).is_ok()).count();
        assert_eq!(passed, one_by_one, "{text:?}");
        passed
    }

    #[test]
    fn valid_requests_pass_one_after_another() {
        let requests = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nPOST /x HTTP/1.1\r\nHost: a\r\n\
            content-length:  5\t\r\n\r\n\nab\r\nGET / HTTP/1.0\r\nX-Long-Name-Without-Any-Meaning-At-All: 1\r\n\r\n\
            POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\n\n\n\n\n\n\r\n0\r\n\r\n\n";
        assert_eq!(passing(requests), requests.len());
    }

    #[test]
    fn ambiguous_requests_are_refused_before_their_end() {
        for (text, before) in [
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "\n\r\n"),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "\n\r\n"),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", "\nHost: a\r\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: a\n\n", "\n\n"),
            ("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", "b\r\n\r\n"),
            ("GET / HTTP/1.1\r\nA: a\r\n b\r\n\r\n", " b\r\n\r\n"),
            ("GET / HTTP/1.1\r\n\tA: a\r\n\r\n", "\tA: a\r\n\r\n"),
            ("GET / HTTP/1.1\r\nA: \0\r\n\r\n", "\0\r\n\r\n"),
            ("\nGET / HTTP/1.1\r\n\r\n", "\nGET / HTTP/1.1\r\n\r\n"),
        ] {
            assert_eq!(passing(text), text.len() - before.len(), "{text:?}");
        }
    }

    #[test]
    fn a_refused_connection_stays_refused() {
        let mut framing = Framing::new();
        assert_eq!(framing.follow(b"\n"), Err(0));
        assert_eq!(framing.follow(b"GET / HTTP/1.1\r\n\r\n"), Err(0));
    }

    #[test]
    fn positions_follow_requests() {
        let mut framing = Framing::new();
        for (text, position) in [
            ("", Position::Between),
            ("\r\n", Position::Between),
            ("P", Position::Head),
            ("OST / HTTP/1.1\r\ncontent-length: 2\r\n\r", Position::Head),
            ("\n", Position::Request),
            ("a", Position::Request),
            ("b", Position::Between),
        ] {
            framing.follow(text.as_bytes()).unwrap();
            assert_eq!(framing.position(), position, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            text in "(GET / HTTP/1\\.1|[AHhc:\r\n \t5]|\r\n|Content-Length: ?[0-9]|Host:){0,12}",
            cut in 0_usize..64,
        ) {
            let bytes = text.as_bytes();
            let mut whole = Framing::new();
            let expected = whole.follow(bytes);
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            let mut parts = Framing::new();
            let found = parts.follow(head).and_then(|()| parts.follow(tail).map_err(|at| at + head.len()));
            prop_assert_eq!(found, expected);
        }
    }
}
