//! Prediction heads of backends (ADR-0160): the pairs of tokens and states that they read, and the
//! drafts that follow.

use std::ops::ControlFlow;
use std::sync::Mutex;

use ruvllm::{
    BackendBatch, BackendHead, BackendSession, CancelToken, Completion, Decoded, GenerateRequest, HeadPart,
    InferenceBackend, ModelConfig, NextToken, OnDecoded, OnStates, Prompt, Result, SamplingParams,
    Speculation, TextCodec, TokenId,
};

use crate::common::tiny;

/// Tokens, and the states before them.
type Pairs = Vec<(TokenId, [f32; 2])>;

/// States of a prompt that the backend has at hand.
const OF_PROMPT: usize = 5;

/// The tiny engine with states that name their token and its position, and a head that foretells
/// every other token of known texts.
#[derive(Default)]
struct Stated {
    /// Texts of the requests, prompts included.
    texts: Mutex<Vec<Vec<TokenId>>>,
    /// Pairs of the sequences of the head that have ended.
    ended: Mutex<Vec<Pairs>>,
    /// Steps that asked for states.
    steps: Mutex<usize>,
}

fn state(token: f32, position: usize) -> Vec<f32> {
    let mut state = vec![0.0; tiny().config().model_dim];
    state[..2].copy_from_slice(&[token, position as f32]);
    state
}

impl InferenceBackend for Stated {
    fn name(&self) -> &str {
        "stated"
    }

    fn config(&self) -> &ModelConfig {
        tiny().config()
    }

    fn codec(&self) -> &TextCodec {
        InferenceBackend::codec(tiny())
    }

    fn context_length(&self) -> usize {
        tiny().context_length()
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        Ok(Box::new(Sequence {
            session: InferenceBackend::session(tiny(), capacity)?,
            logits: Vec::new(),
            states: Vec::new(),
        }))
    }

    fn batch(&self) -> Box<dyn BackendBatch + '_> {
        Box::new(Sequences { backend: self, sequences: Vec::new(), capacities: Vec::new() })
    }

    fn prediction_head(&self) -> Option<Box<dyn BackendHead + '_>> {
        Some(Box::new(Head { backend: self, sequences: Vec::new() }))
    }
}

struct Sequence<'b> {
    session: Box<dyn BackendSession + 'b>,
    logits: Vec<f32>,
    states: Vec<f32>,
}

impl BackendSession for Sequence<'_> {
    fn len(&self) -> usize {
        self.session.len()
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        self.session.forward(tokens)
    }

    fn truncate(&mut self, len: usize) -> Result<usize> {
        self.session.truncate(len)
    }

    fn prefill_with_states(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        most: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<(&[f32], &[f32])>> {
        let start = self.len();
        self.logits = self.session.prefill(tokens, chunk, go_on)?.expect("not cancelled").to_vec();
        let last = tokens.len().saturating_sub(most.min(OF_PROMPT))..tokens.len();
        self.states = last.flat_map(|at| state(tokens[at] as f32, start + at)).collect();
        Ok(Some((&self.logits, &self.states)))
    }
}

struct Sequences<'b> {
    backend: &'b Stated,
    sequences: Vec<Option<Box<dyn BackendSession + 'b>>>,
    capacities: Vec<usize>,
}

impl BackendBatch for Sequences<'_> {
    fn begin(&mut self, capacity: usize) -> Result<usize> {
        self.sequences.push(Some(self.backend.session(capacity)?));
        self.capacities.push(capacity);
        Ok(self.sequences.len() - 1)
    }

    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
        match self.sequences.get_mut(number)? {
            Some(session) => Some(&mut **session),
            None => None,
        }
    }

    fn end(&mut self, number: usize) {
        self.sequences[number] = None;
    }

    fn draft_room(&self, number: usize) -> usize {
        let room =
            self.sequences[number].as_ref().map_or(0, |session| self.capacities[number] - session.len());
        room.min(8).saturating_sub(1)
    }

    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        self.step(tokens, &mut |rows, decoded, _| on_decoded(rows, decoded))
    }

    fn decode_with_states(&mut self, tokens: &[NextToken], on_decoded: &mut OnStates<'_>) -> Result<()> {
        *self.backend.steps.lock().expect("no panic") += 1;
        self.step(tokens, on_decoded)
    }
}

impl Sequences<'_> {
    /// Results of the sequences in reverse, all tokens of each together.
    fn step(&mut self, tokens: &[NextToken], on_decoded: &mut OnStates<'_>) -> Result<()> {
        let mut runs: Vec<Vec<usize>> = Vec::new();
        for (row, next) in tokens.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if tokens[run[0]].sequence == next.sequence => run.push(row),
                _ => runs.push(vec![row]),
            }
        }
        for run in runs.iter().rev() {
            let (mut logits, mut states) = (Vec::new(), Vec::new());
            for &row in run {
                let session = self.sequences[tokens[row].sequence].as_mut().expect("it began");
                states.extend(state(tokens[row].token as f32, session.len()));
                logits.extend_from_slice(session.forward(&[tokens[row].token])?);
            }
            on_decoded(run, Decoded::Logits(&logits), &states);
        }
        Ok(())
    }
}

struct Head<'b> {
    backend: &'b Stated,
    sequences: Vec<Pairs>,
}

impl BackendHead for Head<'_> {
    fn capacity(&self) -> usize {
        24
    }

    fn begin(&mut self) -> Result<usize> {
        self.sequences.push(Vec::new());
        Ok(self.sequences.len() - 1)
    }

    fn truncate(&mut self, number: usize, len: usize) -> Result<usize> {
        self.sequences[number].truncate(len);
        Ok(self.sequences[number].len())
    }

    fn end(&mut self, number: usize) {
        let pairs = std::mem::take(&mut self.sequences[number]);
        self.backend.ended.lock().expect("no panic").push(pairs);
    }

    fn predict(&mut self, parts: &[HeadPart<'_>], on_predicted: &mut OnStates<'_>) -> Result<()> {
        let width = tiny().config().model_dim;
        for (index, part) in parts.iter().enumerate().rev() {
            let pairs = part.tokens.iter().zip(part.states.chunks_exact(width));
            let sequence = &mut self.sequences[part.sequence];
            sequence.extend(pairs.map(|(&token, state)| (token, [state[0], state[1]])));
            assert!(sequence.len() <= 24, "more pairs than its capacity");
            if let [.., (_, [_, before]), (_, [_, position])] = sequence[..] {
                assert_eq!(position, before + 1.0, "a state of another sequence");
            }
            let &(token, [_, position]) = sequence.last().expect("a pair");
            let position = position as usize;
            let texts = self.backend.texts.lock().expect("no panic");
            let text = texts.iter().find(|text| text.get(position + 1) == Some(&token));
            let right = text.and_then(|text| text.get(position + 2)).copied().unwrap_or(3);
            let mut logits = vec![0.0; tiny().config().vocab_size];
            logits[if position.is_multiple_of(4) { 3 } else { right as usize }] = 9.0;
            on_predicted(&[index], Decoded::Logits(&logits), &state(-1.0, position + 1));
        }
        Ok(())
    }
}

fn prompt(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

fn requests(speculation: Speculation) -> Vec<GenerateRequest> {
    let request = |seed: usize| {
        let sampling = match seed {
            0 => SamplingParams::greedy(),
            _ => SamplingParams::default().with_temperature(0.6).with_seed(Some(seed as u64)),
        };
        GenerateRequest::new(Prompt::Tokens(prompt(seed, 4 + 3 * seed)))
            .with_max_tokens(40)
            .with_ignore_eos(true)
            .with_sampling(sampling)
            .with_speculation(speculation)
    };
    (0..3).map(request).collect()
}

fn run(backend: &Stated, requests: &[GenerateRequest]) -> Vec<Completion> {
    let found = backend.generate_many(requests, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()));
    found.expect("threads").into_iter().map(|found| found.expect("text")).collect()
}

#[test]
fn heads_read_each_token_with_the_state_before_it() {
    let backend = Stated::default();
    let plain = run(&backend, &requests(Speculation::Off));
    assert_eq!(*backend.steps.lock().unwrap(), 0, "plain steps ask for no states");
    assert!(backend.ended.lock().unwrap().iter().all(Vec::is_empty), "nothing was drafted");
    let text =
        |(seed, found): (usize, &Completion)| [prompt(seed, 4 + 3 * seed), found.tokens.clone()].concat();
    let texts: Vec<Vec<TokenId>> = plain.iter().enumerate().map(text).collect();
    *backend.texts.lock().unwrap() = texts.clone();
    for n in [1, 3, 8] {
        backend.ended.lock().unwrap().clear();
        let found = run(&backend, &requests(Speculation::Fixed(n)));
        for (found, plain) in found.iter().zip(&plain) {
            assert_eq!(found.tokens, plain.tokens);
            let [drafted, accepted] = [found.drafted_tokens, found.accepted_tokens];
            assert!(accepted > 10 && drafted > accepted, "{accepted} of {drafted} by {n}");
        }
        let ended = backend.ended.lock().unwrap();
        assert_eq!(ended.len(), 3, "each sequence has ended");
        for pairs in &*ended {
            let of_model: Vec<_> = pairs.iter().filter(|(_, [token, _])| *token >= 0.0).collect();
            assert!(!of_model.is_empty(), "{pairs:?}");
            let fits = |text: &Vec<TokenId>| {
                of_model.iter().all(|(token, [before, position])| {
                    let at = *position as usize;
                    text[at] as f32 == *before && text[at + 1] == *token
                })
            };
            assert!(texts.iter().any(fits), "{pairs:?}");
            let positions = of_model.windows(2).all(|pair| pair[0].1[1] + 1.0 == pair[1].1[1]);
            assert!(positions, "no gaps: {pairs:?}");
        }
    }
}
