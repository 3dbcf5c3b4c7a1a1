//! HTTP/1.1 client over one connection: requests in one write, bodies read line by line.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Result, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest wait for bytes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A connection that is kept open between requests, and opened again where the server has closed
/// it.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    host: String,
    key: String,
}

/// Length of a body.
#[derive(Clone, Copy)]
enum Length {
    Known(usize),
    Chunked,
}

/// Status and body of a reply, with the time of its first byte.
pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) first_byte: Instant,
    connection: &'a mut Connection,
    length: Length,
    /// Bytes that are left of the body, or of its current chunk.
    left: usize,
    ended: bool,
}

impl Connection {
    /// Connects to `http://HOST:PORT`.
    pub(crate) fn open(url: &str, key: &str) -> Result<Self> {
        let host = url.trim_end_matches('/').strip_prefix("http://");
        let host = host.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "URL without http://"))?;
        Ok(Self { reader: connect(host)?, host: host.to_owned(), key: key.to_owned() })
    }

    /// Sends a request; the time of the write is the second value.
    pub(crate) fn send(&mut self, path: &str, body: Option<&str>) -> Result<(Reply<'_>, Instant)> {
        let (method, body) = body.map_or(("GET", ""), |body| ("POST", body));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            self.key,
            body.len()
        );
        let mut sent = Instant::now();
        if !self.try_write(&request) {
            self.reader = connect(&self.host)?;
            sent = Instant::now();
            self.reader.get_mut().write_all(request.as_bytes())?;
            self.reader.fill_buf()?;
        }
        let first_byte = Instant::now();
        Ok((self.head(first_byte)?, sent))
    }

    /// Writes a request and waits for the first byte; false if the server has closed the
    /// connection.
    fn try_write(&mut self, request: &str) -> bool {
        self.reader.get_mut().write_all(request.as_bytes()).is_ok()
            && self.reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    fn head(&mut self, first_byte: Instant) -> Result<Reply<'_>> {
        let line = self.line()?;
        let status =
            line.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(|| invalid(&line))?;
        let mut length = Length::Known(0);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(':') {
                None if line.is_empty() => break,
                Some(("content-length", value)) => {
                    length = Length::Known(value.trim().parse().map_err(|_| invalid(&line))?);
                }
                Some(("transfer-encoding", value)) if value.trim() == "chunked" => length = Length::Chunked,
                _ => (),
            }
        }
        let left = if let Length::Known(bytes) = length { bytes } else { 0 };
        let ended = matches!(length, Length::Known(0));
        Ok(Reply { status, first_byte, connection: self, length, left, ended })
    }

    /// A line without its end.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl Reply<'_> {
    /// Bytes of the body that have arrived; `None` at its end.
    fn piece(&mut self) -> Result<Option<Vec<u8>>> {
        if self.left == 0 && !self.ended {
            self.next_chunk()?;
        }
        if self.ended {
            return Ok(None);
        }
        let reader = &mut self.connection.reader;
        let arrived = reader.fill_buf()?;
        if arrived.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let bytes = arrived[..arrived.len().min(self.left)].to_vec();
        reader.consume(bytes.len());
        self.left -= bytes.len();
        if self.left == 0 {
            match self.length {
                Length::Known(_) => self.ended = true,
                Length::Chunked => reader.read_exact(&mut [0; 2])?,
            }
        }
        Ok(Some(bytes))
    }

    fn next_chunk(&mut self) -> Result<()> {
        let line = self.connection.line()?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        self.left = usize::from_str_radix(digits, 16).map_err(|_| invalid(&line))?;
        if self.left == 0 {
            self.ended = true;
            self.connection.line()?;
        }
        Ok(())
    }

    /// Passes each line of the body to `on_line` as it arrives.
    pub(crate) fn lines(&mut self, mut on_line: impl FnMut(&str)) -> Result<()> {
        let mut rest = Vec::new();
        while let Some(piece) = self.piece()? {
            rest.extend_from_slice(&piece);
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                on_line(String::from_utf8_lossy(&line).trim_end());
            }
        }
        if !rest.is_empty() {
            on_line(String::from_utf8_lossy(&rest).trim_end());
        }
        Ok(())
    }

    /// The whole body.
    pub(crate) fn text(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece()? {
            bytes.extend_from_slice(&piece);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn connect(host: &str) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(host)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

fn invalid(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("reply is no HTTP: {line:?}"))
}
