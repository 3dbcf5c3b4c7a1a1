//! Tools of a conversation: calls are run by a command, and their results are sent back.

use ruvllm::{CancelToken, Completion, Message, ToolCall};
use serde_json::json;

use crate::output;
use crate::tools::{Executor, Tools};

/// Most answers in a row that end with calls.
pub(super) const ROUNDS: usize = 8;
/// Characters of a result that are shown.
const SHOWN_CHARS: usize = 200;

/// Tools, and the command that runs them.
pub(super) struct ToolUse {
    pub(super) tools: Tools,
    /// Without it calls are shown, and the conversation goes on with the next message.
    pub(super) executor: Option<Executor>,
}

impl ToolUse {
    /// Runs the calls of a completion; the messages of their results. `None` if nothing runs them,
    /// or the answer was cancelled.
    pub(super) fn run(&mut self, completion: &Completion, cancel: &CancelToken) -> Option<Vec<Message>> {
        for call in completion.tool_calls.iter().filter(|_| !self.asks()) {
            output::note(&format!("[{} {}]", call.name, call.arguments));
        }
        let executor = self.executor.as_mut()?;
        let mut messages = Vec::with_capacity(completion.tool_calls.len());
        for call in &completion.tool_calls {
            let result = executor.run(call, cancel);
            if cancel.is_cancelled() {
                return None;
            }
            messages.push(message(call, result));
        }
        Some(messages)
    }

    /// True if each call is shown with a question.
    fn asks(&self) -> bool {
        self.executor
            .as_ref()
            .is_some_and(|executor| executor.confirmation == crate::tools::Confirmation::Ask)
    }
}

/// Message of a result, noted on standard error.
fn message(call: &ToolCall, result: Result<String, String>) -> Message {
    let text = result.unwrap_or_else(|reason| {
        output::note(&format!("[{}: {reason}]", call.name));
        json!({"error": reason}).to_string()
    });
    if crate::console::is_verbose() {
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        output::note(&format!("[{} -> {shown}]", call.name));
    }
    Message::tool(&call.id, &call.name, text)
}
