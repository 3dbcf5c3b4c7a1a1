//! Loop of generations and tool calls, until the model answers in text.
//!
//! ```text
//! generate ─▶ run calls ─▶ tool messages ─▶ generate ...
//! ```

mod run;
mod tool;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ruvllm_text::chat::Message;
use ruvllm_text::tool_call::ToolCall;
use serde_json::Value;

use self::run::{Abandoned, CallResult, Running};
pub use self::tool::Tool;
use crate::backend::conversation::BackendConversation;
use crate::cancel::CancelToken;
use crate::conversation::Conversation;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{Completion, FinishReason, GenerateRequest, Prompt};
use crate::setters::setters;
use crate::tools::{ToolChoice, ToolError, definitions};

/// A source of completions that a [`ToolLoop`] runs on.
pub trait Generator {
    /// Generates text for one request: see [`Engine::generate_with`].
    ///
    /// # Errors
    /// As [`Engine::generate_with`].
    fn generate_with(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion>;
}

impl Generator for &Engine {
    fn generate_with(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Engine::generate_with(self, request, cancel, on_text)
    }
}

impl Generator for Conversation<'_> {
    fn generate_with(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Conversation::generate_with(self, request, cancel, on_text)
    }
}

impl Generator for BackendConversation<'_> {
    fn generate_with(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        self.generate(request, cancel, on_text)
    }
}

/// Limits of a [`ToolLoop`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolLoopOptions {
    /// Largest number of generations; the calls of the last one are not run. Default: 8.
    pub max_rounds: usize,
    /// Largest number of generated tokens in all rounds together. Default: none.
    pub max_tokens: Option<usize>,
    /// Largest duration of the whole loop. Generation ends at the next piece of text, a call at
    /// once. Default: none.
    pub timeout: Option<Duration>,
    /// Largest duration of one call. Its thread then runs on, its result is dropped, and the model
    /// is told. With 16 such threads further calls are refused. Default: 30 s.
    pub call_timeout: Duration,
    /// Allows several calls in one answer, and runs them at the same time; otherwise one after the
    /// other. Default: true.
    pub parallel: bool,
    /// Largest size of a result in bytes; longer ones are cut. Default: 16 KiB.
    pub max_result_bytes: usize,
}

impl Default for ToolLoopOptions {
    fn default() -> Self {
        Self {
            max_rounds: 8,
            max_tokens: None,
            timeout: None,
            call_timeout: Duration::from_secs(30),
            parallel: true,
            max_result_bytes: 16 << 10,
        }
    }
}

setters! {
    ToolLoopOptions {
        set with_max_rounds(max_rounds: usize);
        some with_max_tokens(max_tokens: usize);
        some with_timeout(timeout: Duration);
        set with_call_timeout(call_timeout: Duration);
        set with_parallel(parallel: bool);
        set with_max_result_bytes(max_result_bytes: usize);
    }
}

/// Progress of a [`ToolLoop`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum ToolLoopEvent<'l> {
    /// Generated text, calls included, as the callback of [`Engine::generate_with`] gets it.
    Text(&'l str),
    /// A call is about to run.
    Call(&'l ToolCall),
    /// A call has ended: a text for the model, or the reason of its failure.
    Result(&'l ToolCall, Result<&'l str, &'l str>),
}

/// Reason that a [`ToolLoop`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolLoopEnd {
    /// The model answered without a call.
    Answer,
    /// The last allowed round ended with calls, which were not run.
    Rounds,
    /// The token limit of the loop or of the request, or the context length.
    Tokens,
    /// The time limit.
    Timeout,
    /// The cancel token, or the callback.
    Cancelled,
}

/// Result of a [`ToolLoop`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolLoopResult {
    /// All messages: those of the request, then calls, results and the last answer.
    pub messages: Vec<Message>,
    /// The last completion.
    pub completion: Completion,
    /// Reason of the end.
    pub end: ToolLoopEnd,
    /// Number of generations.
    pub rounds: usize,
    /// Number of calls that were run.
    pub calls: usize,
    /// Generated tokens in all rounds.
    pub tokens: usize,
}

/// Runs the calls of a model with Rust closures, and feeds results back until it answers in text.
///
/// A call that fails (an error, a panic, a time-out, an unknown name) is told to the model as
/// `{"error": "..."}`, and the loop goes on. Each call has a thread of its own; a closure that does
/// not return in time is abandoned: its thread runs on, and its result is dropped.
///
/// # Examples
/// ```no_run
/// use ruvllm::serde_json::{Value, json};
/// use ruvllm::{Engine, GenerateRequest, Message, Prompt, Tool, ToolLoop, ToolLoopOptions};
///
/// let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
/// let weather = Tool::new("get_weather", "Get the weather in a city", schema, |arguments: Value| {
///     let city = arguments["city"].as_str().ok_or("no city")?;
///     Ok::<_, &str>(json!({"city": city, "celsius": 21}))
/// });
/// let tools = ToolLoop::new([weather], ToolLoopOptions::default().with_max_rounds(4))?;
/// let engine = Engine::open("model.gguf")?;
/// let request = GenerateRequest::new(Prompt::chat([Message::user("How warm is it in Rome?")]));
/// let result = tools.run(&mut engine.conversation(), &request)?;
/// println!("{} ({} calls)", result.completion.content(), result.calls);
/// # Ok::<(), ruvllm::Error>(())
/// ```
#[derive(Debug)]
pub struct ToolLoop {
    tools: Vec<Tool>,
    definitions: Value,
    options: ToolLoopOptions,
    abandoned: Abandoned,
}

impl ToolLoop {
    /// A loop over these tools.
    ///
    /// # Errors
    /// [`Error::Tools`] for names that are not valid or not unique, and for parameters that are no
    /// schema of an object.
    pub fn new(tools: impl IntoIterator<Item = Tool>, options: ToolLoopOptions) -> Result<Self> {
        let tools: Vec<Tool> = tools.into_iter().collect();
        let list = Value::Array(tools.iter().map(Tool::definition).collect());
        definitions(&list).map_err(Error::Tools)?;
        Ok(Self { tools, definitions: list, options, abandoned: Abandoned::default() })
    }

    /// Runs a conversation until the model answers without a call, or a limit is met. The request's
    /// prompt is a conversation, whose tools are replaced by those of the loop; a choice of tools
    /// holds for the first round, `Auto` for the others.
    ///
    /// # Errors
    /// Errors of the generation; [`Error::Tools`] if the prompt is no conversation.
    pub fn run(&self, generator: &mut impl Generator, request: &GenerateRequest) -> Result<ToolLoopResult> {
        self.run_with(generator, request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
    }

    /// As [`run`](Self::run), with cancellation and a callback, which ends the loop with `Break`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with(
        &self,
        generator: &mut impl Generator,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_event: &mut dyn FnMut(ToolLoopEvent<'_>) -> ControlFlow<()>,
    ) -> Result<ToolLoopResult> {
        let Prompt::Chat { messages, .. } = &request.prompt else {
            return Err(Error::Tools(ToolError::NoTools));
        };
        let deadline = self.options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut run = Run {
            tools: self,
            deadline,
            cancel,
            on_event,
            messages: messages.clone(),
            stopped: None,
            calls: 0,
            tokens: 0,
        };
        let mut round = 0;
        loop {
            round += 1;
            let completion = run.generate(generator, request, round)?;
            let end = run.end(&completion, round);
            if end.is_none() {
                run.call(&completion);
            }
            if let Some(end) = end.or(run.stopped) {
                let Run { messages, calls, tokens, .. } = run;
                return Ok(ToolLoopResult { messages, completion, end, rounds: round, calls, tokens });
            }
        }
    }
}

/// State of one run.
struct Run<'r> {
    tools: &'r ToolLoop,
    deadline: Option<Instant>,
    cancel: &'r CancelToken,
    on_event: &'r mut dyn FnMut(ToolLoopEvent<'_>) -> ControlFlow<()>,
    messages: Vec<Message>,
    /// Reason that the run ended within a generation or a call.
    stopped: Option<ToolLoopEnd>,
    calls: usize,
    tokens: usize,
}

impl Run<'_> {
    /// Generates the answer of one round and adds its message.
    fn generate(
        &mut self,
        generator: &mut impl Generator,
        request: &GenerateRequest,
        round: usize,
    ) -> Result<Completion> {
        let options = &self.tools.options;
        let left = options.max_tokens.map(|limit| limit.saturating_sub(self.tokens));
        let mut request = request.clone();
        request.max_tokens = [request.max_tokens, left].into_iter().flatten().min();
        request.prompt = Prompt::chat_with_tools(self.messages.clone(), self.tools.definitions.clone());
        request.parallel_tool_calls &= options.parallel;
        if round > 1 && request.tool_choice != ToolChoice::None {
            request.tool_choice = ToolChoice::Auto;
        }
        let (deadline, on_event, stopped) = (self.deadline, &mut self.on_event, &mut self.stopped);
        let completion = generator.generate_with(&request, self.cancel, &mut |text| {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                *stopped = Some(ToolLoopEnd::Timeout);
                return ControlFlow::Break(());
            }
            on_event(ToolLoopEvent::Text(text))
        })?;
        self.tokens += completion.tokens.len();
        self.messages.push(completion.message());
        Ok(completion)
    }

    /// The end of the run, if this completion is the last one.
    fn end(&self, completion: &Completion, round: usize) -> Option<ToolLoopEnd> {
        let options = &self.tools.options;
        if self.stopped.is_some() {
            return self.stopped;
        }
        match completion.finish_reason {
            FinishReason::Stop => return Some(ToolLoopEnd::Answer),
            FinishReason::Length => return Some(ToolLoopEnd::Tokens),
            FinishReason::Cancelled => return Some(ToolLoopEnd::Cancelled),
            FinishReason::ToolCalls => {}
        }
        if round >= options.max_rounds {
            return Some(ToolLoopEnd::Rounds);
        }
        options.max_tokens.is_some_and(|limit| self.tokens >= limit).then_some(ToolLoopEnd::Tokens)
    }

    /// Runs the calls of a completion and adds their results, in the order of the calls.
    fn call(&mut self, completion: &Completion) {
        let calls = &completion.tool_calls;
        if self.tools.options.parallel {
            let mut running = Vec::with_capacity(calls.len());
            for call in calls {
                running.push(self.start(call));
            }
            for (call, running) in calls.iter().zip(running) {
                self.finish(call, running);
            }
        } else {
            for call in calls {
                let running = self.start(call);
                self.finish(call, running);
            }
        }
    }

    /// Starts a call, unless the run has ended.
    fn start(&mut self, call: &ToolCall) -> Result<Running, String> {
        if self.stopped.is_none() && (self.on_event)(ToolLoopEvent::Call(call)).is_break() {
            self.stopped = Some(ToolLoopEnd::Cancelled);
        }
        if self.stopped.is_some() {
            return Err("the call was not run".to_owned());
        }
        self.calls += 1;
        Running::start(&self.tools.tools, call, &self.tools.abandoned)
    }

    /// Waits for a call and adds the message of its result.
    fn finish(&mut self, call: &ToolCall, running: Result<Running, String>) {
        let options = &self.tools.options;
        let result: CallResult =
            running.and_then(|running| running.wait(options.call_timeout, self.deadline, self.cancel));
        self.messages.push(Message::tool(
            &call.id,
            &call.name,
            run::content(&result, options.max_result_bytes),
        ));
        if self.stopped.is_some() {
            return;
        }
        let event = ToolLoopEvent::Result(call, result.as_deref().map_err(String::as_str));
        if (self.on_event)(event).is_break() || self.cancel.is_cancelled() {
            self.stopped = Some(ToolLoopEnd::Cancelled);
        } else if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.stopped = Some(ToolLoopEnd::Timeout);
        }
    }
}
