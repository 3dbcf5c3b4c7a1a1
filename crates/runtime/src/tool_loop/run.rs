//! Calls of tools on threads of their own, with panics caught and a limit on time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ruvllm_text::tool_call::ToolCall;
use serde_json::{Value, json};

use super::tool::Tool;
use crate::cancel::CancelToken;

/// Most closures that run on after their time-out; with more, calls are refused.
const MOST_ABANDONED: usize = 16;
/// Interval at which a waiting caller looks for cancellation.
const POLL: Duration = Duration::from_millis(20);

/// Result of a call: a text for the model, or the reason that there is none.
pub(super) type CallResult = Result<String, String>;

/// Number of closures that run on after their time-out.
pub(super) type Abandoned = Arc<AtomicUsize>;

/// A call that runs.
pub(super) struct Running {
    result: Receiver<CallResult>,
    started: Instant,
    abandoned: Abandoned,
    /// Set by the first of two: the thread at its end, and the caller that does not wait for it.
    is_over: Arc<AtomicBool>,
}

impl Running {
    /// Starts a call on a thread of its own.
    ///
    /// # Errors
    /// The reason for the model, if the call cannot start.
    pub(super) fn start(tools: &[Tool], call: &ToolCall, abandoned: &Abandoned) -> Result<Self, String> {
        let Some(tool) = tools.iter().find(|tool| tool.name() == call.name) else {
            let known: Vec<&str> = tools.iter().map(Tool::name).collect();
            return Err(format!("there is no tool {}; known: {}", call.name, known.join(", ")));
        };
        if abandoned.load(Ordering::Relaxed) >= MOST_ABANDONED {
            return Err(format!(
                "{MOST_ABANDONED} earlier calls have not returned; no further one is started"
            ));
        }
        let function = Arc::clone(&tool.function);
        let arguments = Value::Object(call.arguments_value());
        let (sender, result) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let (count, over) = (Arc::clone(abandoned), Arc::clone(&is_over));
        let work = move || {
            // State behind a panic stays with the closure: this loop shares none with it.
            let result = catch_unwind(AssertUnwindSafe(|| function(arguments)));
            let result =
                result.unwrap_or_else(|panic| Err(format!("the tool panicked: {}", message(&*panic))));
            // Nobody waits after a time-out.
            let _ = sender.send(result.map(text));
            if over.swap(true, Ordering::Relaxed) {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        };
        thread::Builder::new()
            .name(format!("ruvllm-tool-{}", tool.name()))
            .spawn(work)
            .map_err(|error| format!("the tool cannot be started: {error}"))?;
        Ok(Self { result, started: Instant::now(), abandoned: Arc::clone(abandoned), is_over })
    }

    /// Waits for the result until the limit, the deadline or the cancellation. The thread then runs
    /// on, and its result is dropped.
    pub(super) fn wait(self, limit: Duration, deadline: Option<Instant>, cancel: &CancelToken) -> CallResult {
        let own = self.started.checked_add(limit);
        let end = match (own, deadline) {
            (Some(own), Some(deadline)) => Some(own.min(deadline)),
            (own, deadline) => own.or(deadline),
        };
        loop {
            let left = end.map_or(POLL, |end| end.saturating_duration_since(Instant::now()));
            match self.result.recv_timeout(left.min(POLL)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err("the tool has not returned".to_owned()),
                Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    self.abandon();
                    return Err("the tool was cancelled".to_owned());
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    self.abandon();
                    let ms = self.started.elapsed().as_millis();
                    return Err(format!("the tool has not returned within {ms} ms"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Counts the thread until it ends.
    fn abandon(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        if self.is_over.swap(true, Ordering::Relaxed) {
            self.abandoned.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A result as text: strings as they are, other values as JSON.
fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

/// Message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Content of the tool message for a result, cut at `limit` bytes.
pub(super) fn content(result: &CallResult, limit: usize) -> String {
    let mut text = match result {
        Ok(text) => text.clone(),
        Err(reason) => json!({"error": reason}).to_string(),
    };
    if text.len() > limit {
        let bytes = text.len();
        text.truncate(text.floor_char_boundary(limit));
        text.push_str(&format!(" [cut: {bytes} bytes in all]"));
    }
    text
}
