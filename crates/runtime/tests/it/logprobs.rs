//! Log-probabilities of requests: those of the model at each position, in pieces and results.

use ruvllm::{Completion, Constraint, Error, GenerateRequest, Prompt, Sampler, SamplingParams};

use crate::common::{complete, greedy, tiny};

fn prompt() -> Prompt {
    Prompt::Tokens((0..30).map(|i| 3 + i * 7 % 400).collect())
}

/// Compares the log-probabilities of a completion with those of the logits of its whole sequence.
fn check(request: &GenerateRequest, completion: &Completion, top_n: usize) {
    let engine = tiny();
    let mut tokens = engine.encode_prompt(&request.prompt).expect("a prompt");
    let first = tokens.len();
    tokens.extend(&completion.tokens);
    let vocab_size = engine.config().vocab_size;
    let positions: Vec<usize> = (first - 1..tokens.len() - 1).collect();
    let rows = engine.logits(&tokens, &positions).expect("logits");
    let sampled = vocab_size.min(engine.tokenizer().vocab_size());
    let mut sampler = Sampler::new(engine.kernels(), &SamplingParams::greedy(), sampled).expect("a sampler");
    assert_eq!(completion.logprobs.len(), completion.tokens.len());
    for ((found, row), &token) in
        completion.logprobs.iter().zip(rows.chunks(vocab_size)).zip(&completion.tokens)
    {
        let expected = sampler.logprobs(&row[..sampled], token, top_n).expect("a distribution");
        assert_eq!(found, &expected);
        assert_eq!(found.top.len(), top_n);
    }
}

#[test]
fn each_token_has_those_of_the_models_distribution() {
    let sampling = SamplingParams::default().with_seed(Some(5));
    for (top_n, sampling) in [(0, SamplingParams::greedy()), (3, sampling.clone()), (128, sampling)] {
        let request =
            GenerateRequest::new(prompt()).with_sampling(sampling).with_max_tokens(12).with_ignore_eos(true);
        let plain = complete(tiny(), &request);
        assert!(plain.logprobs.is_empty() && plain.mean_logprob().is_none());
        let request = request.with_logprobs(top_n);
        let completion = complete(tiny(), &request);
        assert_eq!(completion.tokens, plain.tokens);
        check(&request, &completion, top_n);
        let mean = completion.logprobs.iter().map(|all| all.token.logprob).sum::<f64>() / 12.0;
        assert_eq!(completion.mean_logprob(), Some(mean));
    }
}

#[test]
fn pieces_carry_those_of_their_tokens() {
    let request = greedy(prompt(), 20).with_logprobs(2).with_ignore_eos(true);
    let mut handle = tiny().submit(&request).expect("a handle");
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    for chunk in &mut handle {
        let chunk = chunk.expect("a piece");
        assert_eq!(chunk.tokens.len(), chunk.logprobs.len());
        tokens.extend(chunk.tokens);
        logprobs.extend(chunk.logprobs);
    }
    let completion = handle.completion().expect("a result").clone();
    assert_eq!((&tokens, &logprobs), (&completion.tokens, &completion.logprobs));
    check(&request, &completion, 2);
    // Unread pieces are cut from all lists.
    let mut handle = tiny().submit(&request).expect("a handle");
    let first = handle.next().expect("a piece").expect("no error");
    let cut = handle.finish().expect("a result");
    assert_eq!((cut.tokens, cut.logprobs), (first.tokens, first.logprobs));
}

#[cfg(feature = "structured-output")]
#[test]
fn forced_tokens_have_them_too_and_stay_the_same() {
    let constraint = Constraint::choices(["a long text that is forced", "b"]).expect("choices");
    let request = greedy(prompt(), 60).with_constraint(constraint);
    let plain = complete(tiny(), &request);
    let request = request.with_logprobs(1);
    let completion = complete(tiny(), &request);
    assert_eq!((&completion.tokens, &completion.text), (&plain.tokens, &plain.text));
    check(&request, &completion, 1);
}

#[test]
fn more_than_the_limit_is_refused() {
    let error = tiny().generate(greedy(prompt(), 1).with_logprobs(129)).expect_err("too many");
    assert!(matches!(error, Error::InvalidOption { name: "logprobs", value: 129, .. }), "{error:?}");
}
