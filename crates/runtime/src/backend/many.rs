//! Several requests to a backend at once, in the caller's thread.

use std::ops::ControlFlow;

use ruvllm_kernels::ThreadPool;

use super::InferenceBackend;
use super::queue::{Queue, Waiting, sampling_pool};
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::request::{Completion, GenerateRequest};
use crate::step::{Chunk, RequestHandle};

/// See [`InferenceBackend::generate_many`].
pub(super) fn generate<B: InferenceBackend + ?Sized>(
    backend: &B,
    requests: &[GenerateRequest],
    cancel: &CancelToken,
    on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
) -> Result<Vec<Result<Completion>>> {
    let pool = sampling_pool()?;
    Ok(run(backend, &pool, requests, cancel, &mut |index, chunk| on_text(index, &chunk.text)))
}

/// Runs requests to their ends; `on_chunk` gets the index of a request and a piece of its text. A
/// `Break` cancels that request.
pub(super) fn run<B: InferenceBackend + ?Sized>(
    backend: &B,
    pool: &ThreadPool,
    requests: &[GenerateRequest],
    cancel: &CancelToken,
    on_chunk: &mut dyn FnMut(usize, &Chunk) -> ControlFlow<()>,
) -> Vec<Result<Completion>> {
    let mut queue = Queue::new(backend, pool);
    let mut results: Vec<Option<Result<Completion>>> = requests.iter().map(|_| None).collect();
    let mut live: Vec<(usize, RequestHandle)> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        match Waiting::new(backend, request, cancel) {
            Ok((waiting, handle)) => {
                queue.push(waiting);
                live.push((index, handle));
            }
            Err(error) => results[index] = Some(Err(error)),
        }
    }
    while !live.is_empty() {
        queue.iterate();
        let read = |(index, handle)| match read(handle, &mut |chunk| on_chunk(index, chunk)) {
            ControlFlow::Continue(handle) => Some((index, handle)),
            ControlFlow::Break(result) => {
                results[index] = Some(result);
                None
            }
        };
        live = live.into_iter().filter_map(read).collect();
    }
    let ended = |result: Option<Result<Completion>>| result.unwrap_or(Err(Error::EngineStopped));
    results.into_iter().map(ended).collect()
}

/// Passes the pieces that have arrived; gives the handle back, or breaks with the result.
fn read(
    mut handle: RequestHandle,
    on_chunk: &mut dyn FnMut(&Chunk) -> ControlFlow<()>,
) -> ControlFlow<Result<Completion>, RequestHandle> {
    loop {
        match handle.try_next() {
            Some(Ok(chunk)) => {
                let cancel = handle.cancel_token();
                if !cancel.is_cancelled() && on_chunk(&chunk).is_break() {
                    cancel.cancel();
                }
            }
            Some(Err(error)) => return ControlFlow::Break(Err(error)),
            None if handle.has_ended() => return ControlFlow::Break(handle.finish()),
            None => return ControlFlow::Continue(handle),
        }
    }
}
