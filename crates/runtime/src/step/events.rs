//! Events of a request for a callback or a channel, without a thread per request.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use parking_lot::Mutex;

use super::handle::{Chunk, RequestHandle};
use crate::error::Result;
use crate::request::Completion;

/// Event of a request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RequestEvent {
    /// The next piece of text.
    Chunk(Chunk),
    /// The result; nothing follows.
    End(Box<Completion>),
}

impl RequestHandle {
    /// Gives each event to a callback as it arrives: pieces of text, then the result or an error.
    /// `Break` ends the request, and nothing follows.
    ///
    /// The callback runs in a thread of the engine, which computes no further step meanwhile, or
    /// in this one if something has arrived already. It must be quick, and must not call the
    /// engine.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// use ruvllm::RequestEvent;
    ///
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// # fn send(_: &str) -> bool { true }
    /// engine.submit("Once upon a time")?.on_events(|event| match event {
    ///     Ok(RequestEvent::Chunk(chunk)) if send(&chunk.text) => ControlFlow::Continue(()),
    ///     _ => ControlFlow::Break(()),
    /// });
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn on_events(self, callback: impl FnMut(Result<RequestEvent>) -> ControlFlow<()> + Send + 'static) {
        let inbox = Arc::clone(&self.inbox);
        // The mailbox owns the callback, and the callback the mailbox, until the request has ended.
        let running = Mutex::new(Some((self, callback)));
        inbox.set_notify(Arc::new(move || {
            let mut running = running.lock();
            if running.as_mut().is_some_and(|(handle, callback)| give(handle, callback).is_break()) {
                *running = None;
            }
        }));
    }

    /// The events of the request as a channel, in which they wait until they are read. Dropping
    /// the receiver cancels the request with its next event.
    ///
    /// ```no_run
    /// use ruvllm::RequestEvent;
    ///
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// for event in engine.submit("Once upon a time")?.into_channel() {
    ///     match event? {
    ///         RequestEvent::Chunk(chunk) => print!("{chunk}"),
    ///         RequestEvent::End(completion) => println!(" [{}]", completion.finish_reason),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn into_channel(self) -> Receiver<Result<RequestEvent>> {
        let (sender, receiver) = mpsc::channel();
        self.on_events(move |event| match sender.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        });
        receiver
    }
}

/// Gives a callback the events that are there; `Break` if nothing follows.
fn give(
    handle: &mut RequestHandle,
    callback: &mut impl FnMut(Result<RequestEvent>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    while let Some(chunk) = handle.try_next() {
        callback(chunk.map(RequestEvent::Chunk))?;
    }
    if !handle.has_ended() {
        return ControlFlow::Continue(());
    }
    // There is none after an error.
    if let Some(completion) = handle.take_completion() {
        callback(Ok(RequestEvent::End(Box::new(completion))))?;
    }
    ControlFlow::Break(())
}
