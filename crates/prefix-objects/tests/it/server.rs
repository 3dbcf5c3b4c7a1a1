//! A small HTTP server on loopback with the answers, and the faults, of an object store.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Behaviour of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Takes the request and never answers.
    Hang,
    /// An answer with this status and a page of text.
    Status(u16),
    /// Closes the connection in the middle of the answer.
    CutOff,
    /// Ignores the range, and answers with a long page.
    Flood,
    /// No HTTP.
    Garbage,
    /// Sends the answer to another server.
    Redirect,
}

/// Objects, and the fault of the answers; it ends with the process.
pub(crate) struct Server {
    pub endpoint: String,
    state: Arc<State>,
}

struct State {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    fault: Mutex<Fault>,
    requests: AtomicU64,
    is_open: AtomicBool,
}

struct Request {
    method: String,
    path: String,
    query: String,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(State {
            objects: Mutex::default(),
            fault: Mutex::new(Fault::None),
            requests: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || state.serve(stream));
            }
        });
        Self { endpoint, state }
    }

    pub(crate) fn fail(&self, fault: Fault) {
        *self.state.fault.lock() = fault;
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.requests.load(Relaxed)
    }

    /// Changes every object.
    pub(crate) fn alter(&self, change: impl Fn(&mut Vec<u8>)) {
        self.state.objects.lock().values_mut().for_each(change);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.is_open.store(false, Relaxed);
    }
}

impl State {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
        let mut stream = stream;
        while let Some(request) = read_request(&mut reader) {
            self.requests.fetch_add(1, Relaxed);
            let fault = *self.fault.lock();
            match fault {
                Fault::Hang => {
                    while self.is_open.load(Relaxed) && *self.fault.lock() == Fault::Hang {
                        thread::sleep(Duration::from_millis(10));
                    }
                    return;
                }
                Fault::Garbage => {
                    let _ = stream.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n");
                    return;
                }
                Fault::Redirect => {
                    let _ = write!(
                        stream,
                        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
                    );
                    continue;
                }
                Fault::Status(status) => {
                    let page = format!("<Error>\n<Code>Fault</Code>\n{}</Error>\n", "text ".repeat(1000));
                    let _ = write!(
                        stream,
                        "HTTP/1.1 {status} Fault\r\nContent-Length: {}\r\n\r\n{page}",
                        page.len()
                    );
                    continue;
                }
                Fault::Flood => {
                    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
                    while stream.write_all(&[0; 65536]).is_ok() {}
                    return;
                }
                Fault::None | Fault::CutOff => {}
            }
            let (status, headers, body) = self.answer(&request);
            let length = body.len();
            let head = format!("HTTP/1.1 {status} -\r\n{headers}Content-Length: {length}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            let sent = if request.method == "HEAD" { &[][..] } else { &body };
            if fault == Fault::CutOff {
                let _ = stream.write_all(&sent[..sent.len() / 2]);
                return;
            }
            let _ = stream.write_all(sent);
        }
    }

    fn answer(&self, request: &Request) -> (u16, String, Vec<u8>) {
        let mut objects = self.objects.lock();
        let dates = "Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\nETag: \"1\"\r\n";
        match request.method.as_str() {
            "PUT" => {
                objects.insert(request.path.clone(), request.body.clone());
                (200, "ETag: \"1\"\r\n".to_owned(), Vec::new())
            }
            "DELETE" => {
                objects.remove(&request.path);
                (204, String::new(), Vec::new())
            }
            "GET" if request.query.contains("list-type=2") => (200, String::new(), listing(&objects)),
            "GET" | "HEAD" => match (objects.get(&request.path), request.range) {
                (None, _) => (404, String::new(), Vec::new()),
                (Some(object), Some((first, _))) if first >= object.len() => (416, String::new(), Vec::new()),
                (Some(object), Some((first, last))) => {
                    let part = object[first..object.len().min(last + 1)].to_vec();
                    let (end, all) = (first + part.len() - 1, object.len());
                    (206, format!("{dates}Content-Range: bytes {first}-{end}/{all}\r\n"), part)
                }
                (Some(object), None) => (200, dates.to_owned(), object.clone()),
            },
            _ => (405, String::new(), Vec::new()),
        }
    }
}

fn listing(objects: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut text = String::from("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>");
    for (path, object) in objects {
        // Paths begin with the bucket.
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        text.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified>\
             <ETag>\"1\"</ETag><Size>{}</Size></Contents>",
            object.len()
        ));
    }
    text.push_str("</ListBucketResult>");
    text.into_bytes()
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (mut range, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "range" => {
                let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
                range = Some((first.parse().ok()?, last.parse().ok()?));
            }
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), range, body })
}
