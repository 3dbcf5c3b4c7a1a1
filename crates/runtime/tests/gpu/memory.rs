//! Device memory: the budget, memory that is taken back for other sizes, the loss of the device.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm::{
    BackendQueue, CancelToken, Error, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend, Prompt,
    RequestHandle, TokenId,
};

use crate::support::{chain, gpu_with, options, tiny, try_load};

fn request(prompt: usize, new: usize) -> GenerateRequest {
    let tokens = (0..prompt).map(|i| ((i * 37) % 500 + 3) as TokenId).collect();
    GenerateRequest::new(Prompt::Tokens(tokens)).with_max_tokens(new).with_seed(3).with_ignore_eos(true)
}

fn tokens(backend: &GpuBackend, request: &GenerateRequest) -> Vec<TokenId> {
    let completion = backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    completion.unwrap_or_else(|error| panic!("{}", chain(&error))).tokens
}

#[test]
fn requests_of_all_sizes_fit_in_a_budget_that_their_passes_together_exceed() {
    let path = tiny("llama", "model-F16.gguf");
    let Some(free) = gpu_with(path.clone(), &options()) else { return };
    let requests: Vec<_> = [3, 20, 60, 120, 250, 450].map(|prompt| request(prompt, 12)).into();
    let loaded = free.device_bytes();
    // Passes of the largest size are there alone, then those of all sizes.
    let expected = tokens(&free, &requests[5]);
    let largest = free.device_bytes();
    let texts: Vec<_> = requests.iter().map(|request| tokens(&free, request)).collect();
    let all = free.device_bytes();
    assert!(loaded < largest && largest < all, "{loaded} {largest} {all}");
    let weights = free.weight_bytes();
    drop(free);

    let budget = largest + (all - largest) / 4;
    let tight = GpuOptions { budget: Some(budget), ..options() };
    let Some(backend) = gpu_with(path.clone(), &tight) else { return };
    for round in 0..3 {
        for (request, expected) in requests.iter().zip(&texts) {
            assert_eq!(tokens(&backend, request), *expected, "round {round}");
            let memory = backend.device_memory().expect("a device");
            assert!(memory.used <= budget && memory.budget == Some(budget), "{memory:?}");
            assert!(memory.weights + memory.kv < memory.used, "{memory:?}");
            assert!(memory.reserved.is_none_or(|reserved| reserved >= memory.used), "{memory:?}");
        }
    }
    assert_eq!(tokens(&backend, &requests[5]), expected);

    let nothing = GpuOptions { budget: Some(weights / 2), ..options() };
    let Some(Err(error)) = try_load(path.into(), &nothing) else { panic!("it cannot fit") };
    assert!(chain(&error).contains("GPU memory budget is full"), "{}", chain(&error));
}

#[test]
fn keys_and_values_take_the_bytes_that_they_are_given() {
    let options = GpuOptions { kv_bytes: Some(1 << 20), context: None, ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    let bytes = backend.kv_bytes();
    assert!(bytes <= 1 << 20 && bytes > (1 << 20) * 9 / 10, "{bytes}");
    assert!(backend.context_length() <= backend.kv_room());
    let small = GpuOptions { kv_bytes: Some(1), ..options };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &small) else { return };
    // A block; prompts that are longer are refused before they run.
    assert_eq!((backend.context_length(), backend.kv_room()), (32, 32));
    let error =
        backend.generate_with(&request(40, 1), &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(Error::PromptTooLong { context: 32, .. })), "{error:?}");
}

#[test]
fn requests_that_run_when_the_device_is_lost_fail_with_that_error() {
    let options = GpuOptions { sequences: 3, ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    let backend = Arc::new(backend);
    let queue = BackendQueue::start(Arc::clone(&backend) as Arc<dyn InferenceBackend>).expect("a thread");
    let mut handles: Vec<_> = (0..3).map(|_| queue.submit(&request(5, 400)).expect("submitted")).collect();
    for handle in &mut handles {
        assert!(matches!(handle.next(), Some(Ok(_))), "it runs");
    }
    assert!(!queue.is_lost());
    backend.destroy();
    for result in handles.into_iter().map(RequestHandle::wait) {
        assert!(matches!(result, Err(Error::BackendLost { .. })), "{result:?}");
    }
    assert!(queue.is_lost());
    let late = queue.submit(&request(5, 2)).and_then(RequestHandle::wait);
    assert!(matches!(late, Err(Error::BackendLost { .. })), "{late:?}");
}
