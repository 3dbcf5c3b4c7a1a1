//! Waiting for answers of the store, each with an end, and the form of its errors.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::Error;

/// Maximum number of characters of a store's error.
const MOST_CHARACTERS: usize = 240;

/// Maximum number of requests at the same time, of all callers.
const MOST_REQUESTS: usize = 64;

/// Threads that make the requests. Callers wait outside of any runtime, or in one of their own.
#[derive(Debug)]
pub(crate) struct Answers {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
}

/// An answer that is awaited.
pub(crate) struct Answer<T> {
    receiver: Receiver<io::Result<T>>,
}

impl Answers {
    pub(crate) fn new() -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MOST_REQUESTS)
            .thread_name("prefix-objects")
            .enable_time()
            .build()
            .map_err(Error::Threads)?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Starts a request, which has an answer within `patience`.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        patience: Duration,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Answer<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                let answer = match tokio::time::timeout(patience, request).await {
                    Ok(answer) => answer.map_err(io_error),
                    Err(_) => Err(no_answer(patience)),
                };
                // Nobody waits any more if the caller has panicked.
                let _ = sender.send(answer);
            });
        }
        Answer { receiver }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // Without waiting for requests that hang; also from within another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl<T> Answer<T> {
    /// Waits for the answer.
    pub(crate) fn wait(self) -> io::Result<T> {
        let ended = |_| Err(io::Error::other("the request ended without an answer"));
        self.receiver.recv().unwrap_or_else(ended)
    }
}

fn no_answer(patience: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}"))
}

/// An error of the store in one line, with the kind that the system would give.
fn io_error(error: object_store::Error) -> io::Error {
    use object_store::Error as E;
    let kind = match &error {
        E::NotFound { .. } => io::ErrorKind::NotFound,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        _ if is_timeout(&error) => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, one_line(&error))
}

/// True if the HTTP client waited in vain.
fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    let timed_out = |error: &(dyn StdError + 'static)| {
        let kind = error
            .downcast_ref::<object_store::client::HttpError>()
            .map(object_store::client::HttpError::kind);
        kind == Some(object_store::client::HttpErrorKind::Timeout)
    };
    std::iter::successors(Some(error), |&error| error.source()).any(timed_out)
}

/// An error's text on one line, as much of it as fits there: without the marks of the pages that
/// servers answer with, and without the queries of addresses.
pub(crate) fn one_line(error: &dyn StdError) -> String {
    let mut text = String::new();
    let mut is_mark = false;
    for c in error.to_string().chars() {
        match c {
            '<' => is_mark = true,
            '>' if is_mark => {
                is_mark = false;
                text.push(' ');
            }
            _ if is_mark => {}
            c => text.push(if c.is_control() { ' ' } else { c }),
        }
    }
    let without_query = |word| match str::split_once(word, '?') {
        Some((address, _)) if address.contains("://") => address,
        _ => word,
    };
    let words: Vec<&str> = text.split_whitespace().map(without_query).collect();
    let line = words.join(" ");
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_answer_ends() {
        let answers = Answers::new().expect("threads");
        let answer =
            answers.start(Duration::from_millis(10), std::future::pending::<object_store::Result<()>>());
        let error = answer.wait().expect_err("no answer");
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::TimedOut, "no answer within 10ms")
        );
        let panics = answers.start::<()>(Duration::from_secs(10), async { panic!("a defect of the client") });
        panics.wait().expect_err("an error, and no end of the process");
    }

    #[test]
    fn errors_take_one_short_line() {
        let page = format!("GET http://host/a?list=2 403\r\n<html>\u{1b}[2J{}</html>", "denied ".repeat(100));
        let line = one_line(&io::Error::other(page));
        assert!(
            line.starts_with("GET http://host/a 403 [2Jdenied denied") && line.ends_with("..."),
            "{line}"
        );
        assert_eq!(line.chars().count(), MOST_CHARACTERS + 3);
    }
}
