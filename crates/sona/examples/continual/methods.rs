//! Learning of one domain after another, with what protects the former ones.

use std::sync::Arc;

use ruvllm_sona::Result;
use ruvllm_sona::continual::{Adam, Learner, ReplayBuffer, ReplaySettings, Split};
use ruvllm_sona::random::Random;

use crate::adapter::{Adapter, Target};
use crate::data::{Data, TEST, TRAIN, Token, VALIDATION};
use crate::protection::{Protection, Step};

/// Tokens per step, and replayed tokens per step.
const BATCH: usize = 32;
const REPLAYED: usize = 16;
/// Tokens of a trajectory in the replay buffer.
const WINDOW: usize = 32;

/// Constructor of a protection for the parameters of an adapter.
pub(crate) type NewProtection = Arc<dyn Fn(&Adapter) -> Result<Box<dyn Protection>> + Send + Sync>;

/// Protection of former domains.
#[derive(Clone)]
pub(crate) struct Method {
    /// Name that all settings share among which one is chosen.
    pub(crate) name: &'static str,
    pub(crate) setting: String,
    pub(crate) protection: Option<NewProtection>,
    /// Weight of the loss of replayed tokens, and bytes of the buffer.
    pub(crate) replay: Option<(f32, usize)>,
    /// Weight of the divergence from the adapter after the former domain, on replayed inputs: an
    /// anchor in the space of functions.
    pub(crate) function: Option<(f32, usize)>,
}

/// Held-out losses: `after[stage][domain]` after each stage, and before all.
pub(crate) struct Losses {
    pub(crate) before: Vec<f64>,
    pub(crate) after: Vec<Vec<f64>>,
}

impl Losses {
    /// Rise of the loss of a domain from the end of its stage to the end.
    pub(crate) fn forgetting(&self, domain: usize) -> f64 {
        self.after[self.after.len() - 1][domain] - self.after[domain][domain]
    }

    /// Fall of the loss of a domain during its stage.
    pub(crate) fn gain(&self, domain: usize) -> f64 {
        let before = if domain == 0 { &self.before } else { &self.after[domain - 1] };
        before[domain] - self.after[domain][domain]
    }

    /// Loss of the base model on a domain, less that at the end of its stage: the plasticity, which
    /// does not count what former stages had damaged.
    pub(crate) fn learned(&self, domain: usize) -> f64 {
        self.before[domain] - self.after[domain][domain]
    }
}

/// State of one run.
struct Run {
    method: Method,
    data: Arc<Data>,
    adapter: Adapter,
    random: Random,
    protection: Option<Box<dyn Protection>>,
    replay: Option<ReplayBuffer<Token>>,
    anchor: Adapter,
}

impl Run {
    fn new(data: &Arc<Data>, method: Method, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let mut adapter = Adapter::new(data, || random.uniform())?;
        let start = adapter.parameters().to_vec();
        adapter.set_parameters(&start)?;
        let protection = method.protection.as_ref().map(|new| new(&adapter)).transpose()?;
        let bytes = method.replay.or(method.function).map(|(_, bytes)| bytes);
        let replay = match bytes {
            Some(tenant_bytes) => {
                let mut settings = ReplaySettings::default();
                (settings.tenant_bytes, settings.held_out) = (tenant_bytes, 0.1);
                Some(ReplayBuffer::new(settings)?)
            }
            None => None,
        };
        let (data, anchor) = (Arc::clone(data), adapter.clone());
        Ok(Self { method, data, adapter, random, protection, replay, anchor })
    }

    /// Learns a domain once, in an order of its own, and protects it.
    fn learn(&mut self, domain: usize, rate: f32) -> Result<()> {
        let mut tokens = self.data.tokens(Data::set(domain, TRAIN));
        for index in (1..tokens.len()).rev() {
            tokens.swap(index, self.random.below(index + 1));
        }
        let len = self.adapter.layout().len();
        let mut adam = Adam::new(len, rate)?;
        let (mut gradient, mut other) = (vec![0.0; len], vec![0.0; len]);
        let mut parameters = self.adapter.parameters().to_vec();
        for batch in tokens.chunks(BATCH) {
            if let Some(protection) = &mut self.protection
                && protection.needs_examples()
            {
                self.adapter.gradient(&batch[0], &mut other)?;
                protection.push_example(&other)?;
            }
            self.adapter.batch_gradient(batch, Target::Observed, &mut gradient)?;
            let of_loss = gradient.clone();
            if domain > 0 {
                self.add_replay(&mut gradient, &mut other)?;
            }
            if let Some(protection) = &mut self.protection {
                protection.constrain(&mut gradient)?;
            }
            let before = parameters.clone();
            adam.step(&mut parameters, &gradient)?;
            if let Some(protection) = &mut self.protection {
                let step = Step { before: &before, gradient: &of_loss, sizes: adam.sizes() };
                protection.finish_step(&step, &mut parameters)?;
            }
            self.adapter.set_parameters(&parameters)?;
        }
        self.protect(domain, &tokens)
    }

    /// Adds the gradient on replayed tokens.
    fn add_replay(&mut self, gradient: &mut [f32], other: &mut [f32]) -> Result<()> {
        let Some(replay) = &self.replay else { return Ok(()) };
        let windows: Vec<Token> =
            replay.examples("", Split::Train).map(|replayed| replayed.example).collect();
        let batch: Vec<Token> = (0..REPLAYED)
            .map(|_| {
                let window = windows[self.random.below(windows.len())];
                Token { index: window.index + self.random.below(WINDOW), ..window }
            })
            .collect();
        let anchor = &mut self.anchor;
        for (weight, target) in
            [(self.method.replay, Target::Observed), (self.method.function, Target::Of(anchor))]
        {
            if let Some((weight, _)) = weight {
                self.adapter.batch_gradient(&batch, target, other)?;
                gradient.iter_mut().zip(&*other).for_each(|(sum, g)| *sum += weight * g);
            }
        }
        Ok(())
    }

    /// Ends a domain: importance, anchors and replay.
    fn protect(&mut self, domain: usize, tokens: &[Token]) -> Result<()> {
        if let Some(protection) = &mut self.protection {
            protection.finish_task(&mut self.adapter, tokens, &mut self.random)?;
        }
        self.anchor = self.adapter.clone();
        if let Some(replay) = &mut self.replay {
            let set = Data::set(domain, TRAIN);
            for start in (0..tokens.len() / WINDOW * WINDOW).step_by(WINDOW) {
                let identity = ((set as u128) << 64) | start as u128;
                // A hidden state and a token each.
                let bytes = WINDOW * (4 * crate::data::DIM + 4);
                replay.push("", domain as u64, identity, Token { set, index: start }, bytes);
            }
        }
        Ok(())
    }

    fn losses(&mut self, split: usize) -> Result<Vec<f64>> {
        (0..self.data.domains.len())
            .map(|domain| {
                let tokens = self.data.tokens(Data::set(domain, split));
                self.adapter.mean_loss(&tokens)
            })
            .collect()
    }
}

/// Learns all domains in order; the losses of the validation part and of the test part.
pub(crate) fn run(data: &Arc<Data>, method: &Method, seed: u64, rate: f32) -> Result<[Losses; 2]> {
    let mut run = Run::new(data, method.clone(), seed)?;
    let splits = [VALIDATION, TEST];
    let mut losses = Vec::new();
    for split in splits {
        losses.push(Losses { before: run.losses(split)?, after: Vec::new() });
    }
    for domain in 0..data.domains.len() {
        run.learn(domain, rate)?;
        for (losses, split) in losses.iter_mut().zip(splits) {
            losses.after.push(run.losses(split)?);
        }
    }
    let test = losses.pop().expect("two");
    Ok([losses.pop().expect("one"), test])
}
