//! A hub on this machine, of one repository, that misbehaves on demand.
//!
//! Small files come from the hub itself, after a redirect to another of its paths; large ones from
//! a storage server at another port, to which the hub redirects.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ruvllm_testkit::Random;
use sha2::{Digest, Sha256};

/// The repository that the hub has.
pub(crate) const REPO: &str = "org/repo";

/// Files longer than this are large.
const LARGE: usize = 10_000;

/// Path under which small files are served.
const CACHE: &str = "/api/resolve-cache/";

/// Injected faults. The default has none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// The next answers with large files end after so many bytes.
    pub(crate) cuts: VecDeque<usize>,
    /// Every answer with a large file ends after so many bytes.
    pub(crate) cut_always: Option<usize>,
    /// The next requests for large files are answered with these statuses and values of
    /// Retry-After.
    pub(crate) statuses: VecDeque<(u16, Option<&'static str>)>,
    /// Requests for ranges are answered with whole files.
    pub(crate) ignores_ranges: bool,
    /// Time between two pieces of so many bytes of a large file.
    pub(crate) trickle: Option<(Duration, usize)>,
    /// The first byte of large files is another than the checksum says.
    pub(crate) wrong_bytes: bool,
    /// Another version is served than a HEAD request describes.
    pub(crate) replaced_after_head: bool,
    /// The list of files, instead of the true one.
    pub(crate) listing: Option<String>,
    /// The token without which nothing is given.
    pub(crate) token: Option<&'static str>,
    /// Nobody may read the files.
    pub(crate) is_gated: bool,
    /// URL to which requests for large files are redirected, instead of to the storage.
    pub(crate) redirect: Option<String>,
    /// Nothing names a version: no checksums, no ETags.
    pub(crate) has_no_validators: bool,
    /// The only validator of large files is this ETag, and the list has no checksums.
    pub(crate) etag: Option<&'static str>,
    /// Only the answer to a HEAD request has the ETag of [`Self::etag`].
    pub(crate) etag_is_lost: bool,
    /// Each connection to the storage sends the file of another version, by a number added to all
    /// bytes.
    pub(crate) versions: bool,
    /// The length that is stated of large files, instead of the true one.
    pub(crate) stated_bytes: Option<u64>,
}

/// A request that was made.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// True if the request went to the storage, not to the hub.
    pub(crate) to_storage: bool,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: HashMap<String, String>,
}

impl Request {
    /// The range that it asks for.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        let (start, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(start.parse().ok()?..last.parse::<u64>().ok()? + 1)
    }
}

struct State {
    files: Vec<(String, Vec<u8>)>,
    commit: String,
    faults: Faults,
    requests: Vec<Request>,
    /// Bytes of large files that were sent.
    sent: u64,
    storage: String,
    /// Answers of the storage with files.
    served: u8,
}

/// The hub. It runs until the test ends.
pub(crate) struct FakeHub {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    /// Starts a hub whose repository has these files.
    pub(crate) fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, storage) = (listen(), listen());
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let endpoint = url(&hub);
        let state = Arc::new(Mutex::new(State {
            files: files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.clone())).collect(),
            commit: "c0ffee".to_owned(),
            faults: Faults::default(),
            requests: Vec::new(),
            sent: 0,
            storage: url(&storage),
            served: 0,
        }));
        for (listener, to_storage) in [(hub, false), (storage, true)] {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    // A client that goes away in the middle of an answer is none of the server's
                    // business.
                    thread::spawn(move || serve(&state, stream, to_storage));
                }
            });
        }
        Self { endpoint, state }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Changes what goes wrong.
    pub(crate) fn set(&self, faults: Faults) {
        self.state.lock().unwrap().faults = faults;
    }

    /// Replaces the files, at another commit if one is given.
    pub(crate) fn replace(&self, files: &[(&str, Vec<u8>)], commit: Option<&str>) {
        let mut state = self.state.lock().unwrap();
        state.files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.clone())).collect();
        state.commit = commit.unwrap_or(&state.commit).to_owned();
    }

    /// The requests until now; they are forgotten.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Bytes of large files that were sent until now; they are forgotten.
    pub(crate) fn take_sent(&self) -> u64 {
        std::mem::take(&mut self.state.lock().unwrap().sent)
    }
}

/// Bytes that look random, other ones for each seed.
pub(crate) fn noise(n_bytes: usize, seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(n_bytes)
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads one request and answers it.
fn serve(state: &Mutex<State>, stream: TcpStream, to_storage: bool) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let request = Request { to_storage, method, target, headers };
    state.lock().unwrap().requests.push(request.clone());
    let mut reply = Reply { stream, is_head: request.method == "HEAD" };
    if to_storage { from_storage(state, &request, &mut reply) } else { from_hub(state, &request, &mut reply) }
}

/// Answers of the hub: the list of files, small files, redirects to large ones.
fn from_hub(state: &Mutex<State>, request: &Request, reply: &mut Reply) -> Option<()> {
    let (files, commit, faults, storage) = {
        let state = state.lock().unwrap();
        (state.files.clone(), state.commit.clone(), state.faults.clone(), state.storage.clone())
    };
    let wanted = faults.token.map(|token| format!("Bearer {token}"));
    if wanted.is_some() && request.headers.get("authorization") != wanted.as_ref() {
        return reply.send(401, &[("X-Error-Message", "Invalid username or password.".to_owned())], b"");
    }
    if request.target.starts_with(&format!("/api/models/{REPO}/revision/")) {
        let text = faults.listing.clone().unwrap_or_else(|| listing(&files, &commit, &faults));
        return reply.send(200, &[], text.as_bytes());
    }
    let in_cache = request.target.strip_prefix(CACHE);
    let path = in_cache.or_else(|| request.target.strip_prefix(&format!("/{REPO}/resolve/{commit}/")));
    let path = path.map(|path| path.replace("%20", " "));
    let Some((path, bytes)) = path.and_then(|path| files.into_iter().find(|(name, _)| *name == path)) else {
        return reply.send(404, &[("X-Error-Message", "Entry not found".to_owned())], b"Entry not found");
    };
    if faults.is_gated {
        return reply.send(
            403,
            &[("X-Error-Message", "Access to this model is restricted.".to_owned())],
            b"",
        );
    }
    let mut headers = vec![("X-Repo-Commit", commit)];
    if bytes.len() <= LARGE {
        if !faults.has_no_validators {
            headers.push(("ETag", format!("\"{:x}\"", bytes.len())));
        }
        if in_cache.is_some() {
            return reply.send(200, &headers, &bytes);
        }
        headers.push(("Location", format!("{CACHE}{}", path.replace(' ', "%20"))));
        return reply.send(307, &headers, b"Temporary redirect");
    }
    let is_other = faults.replaced_after_head && !reply.is_head;
    let etag = if is_other { "0".repeat(64) } else { sha256(&bytes) };
    let stated = faults.etag.map_or_else(|| format!("\"{etag}\""), str::to_owned);
    if !(faults.has_no_validators || faults.etag_is_lost && !reply.is_head) {
        headers.push(("X-Linked-Etag", stated));
    }
    headers.push(("X-Linked-Size", faults.stated_bytes.unwrap_or(bytes.len() as u64).to_string()));
    let location = faults
        .redirect
        .unwrap_or_else(|| format!("{storage}/{}?X-Signature=secret", path.replace(' ', "%20")));
    headers.push(("Location", location));
    reply.send(302, &headers, b"Found")
}

/// The list of files in the form of the hub.
fn listing(files: &[(String, Vec<u8>)], commit: &str, faults: &Faults) -> String {
    let sibling = |(path, bytes): &(String, Vec<u8>)| {
        let size = bytes.len() as u64;
        if bytes.len() <= LARGE || faults.has_no_validators || faults.etag.is_some() {
            return format!(r#"{{"rfilename": "{path}", "size": {size}, "blobId": "00"}}"#);
        }
        let (size, sha256) = (faults.stated_bytes.unwrap_or(size), sha256(bytes));
        format!(
            r#"{{"rfilename": "{path}", "size": {size}, "lfs": {{"sha256": "{sha256}", "size": {size}, "pointerSize": 134}}}}"#
        )
    };
    let siblings: Vec<String> = files.iter().map(sibling).collect();
    format!(
        r#"{{"id": "{REPO}", "sha": "{commit}", "private": false, "siblings": [{}]}}"#,
        siblings.join(", ")
    )
}

/// Answers of the storage: ranges of large files.
fn from_storage(state: &Mutex<State>, request: &Request, reply: &mut Reply) -> Option<()> {
    let (mut bytes, faults, status, cut) = {
        let mut state = state.lock().unwrap();
        let path = request.target.split('?').next()?.trim_start_matches('/').replace("%20", " ");
        let bytes = state.files.iter().find(|(name, _)| *name == path).map(|(_, bytes)| bytes.clone())?;
        if reply.is_head {
            return reply.send(200, &[], &bytes);
        }
        let status = state.faults.statuses.pop_front();
        let cut = if status.is_none() { state.faults.cuts.pop_front() } else { None };
        (bytes, state.faults.clone(), status, cut.or(state.faults.cut_always))
    };
    if let Some((status, retry_after)) = status {
        let headers: Vec<(&str, String)> =
            retry_after.map(|wait| ("Retry-After", wait.to_owned())).into_iter().collect();
        return reply.send(status, &headers, b"later");
    }
    if faults.wrong_bytes {
        bytes[0] ^= 1;
    }
    if faults.versions {
        let mut state = state.lock().unwrap();
        state.served += 1;
        bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(state.served));
    }
    let total = bytes.len();
    let asked = request.range().filter(|_| !faults.ignores_ranges);
    let (status, range) = match asked {
        Some(range) if range.end <= total as u64 => (206, range.start as usize..range.end as usize),
        Some(_) => return reply.send(416, &[], b""),
        None => (200, 0..total),
    };
    let mut headers = vec![("ETag", "\"of-the-storage\"".to_owned())];
    if faults.has_no_validators {
        headers.clear();
    }
    if status == 206 {
        headers.push(("Content-Range", format!("bytes {}-{}/{total}", range.start, range.end - 1)));
    }
    let body = &bytes[range];
    reply.head(status, &headers, body.len())?;
    let body = &body[..cut.unwrap_or(body.len()).min(body.len())];
    let (pause, step) = faults.trickle.unwrap_or((Duration::ZERO, 64 << 10));
    for chunk in body.chunks(step) {
        reply.stream.write_all(chunk).ok()?;
        state.lock().unwrap().sent += chunk.len() as u64;
        thread::sleep(pause);
    }
    reply.stream.shutdown(Shutdown::Both).ok()
}

/// The way back to a client.
struct Reply {
    stream: TcpStream,
    is_head: bool,
}

impl Reply {
    fn send(&mut self, status: u16, headers: &[(&str, String)], body: &[u8]) -> Option<()> {
        self.head(status, headers, body.len())?;
        if !self.is_head {
            self.stream.write_all(body).ok()?;
        }
        self.stream.shutdown(Shutdown::Both).ok()
    }

    fn head(&mut self, status: u16, headers: &[(&str, String)], length: usize) -> Option<()> {
        let mut text =
            format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\nConnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        self.stream.write_all(text.as_bytes()).ok()
    }
}
