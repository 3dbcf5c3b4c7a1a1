//! Learning of one domain after another, with what protects the former ones.

use std::sync::Arc;

use ruvllm_sona::Result;
use ruvllm_sona::continual::{
    Adam, Ewc, EwcSettings, Fisher, Learner, PathIntegral, ReplayBuffer, ReplaySettings, RunningFisher,
    Split, StepSize,
};

use ruvllm_sona::random::Random;

use crate::adapter::{Adapter, Target};
use crate::data::{Data, TEST, TRAIN, Token, VALIDATION};

/// Tokens per step, and replayed tokens per step.
const BATCH: usize = 32;
const REPLAYED: usize = 16;
const LEARNING_RATE: f32 = 1e-3;
/// Tokens for the Fisher information of a domain.
const FISHER: usize = 512;
/// Tokens of a trajectory in the replay buffer.
const WINDOW: usize = 32;

/// Source of the importance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Importance {
    /// 1 everywhere: the distance from the anchor (L2).
    Uniform,
    /// Observed labels, at the end of a domain.
    Empirical,
    /// Labels drawn from the model, at the end of a domain.
    True,
    /// Moving average during training, with this rate (EWC++).
    Running(f64),
    /// Moving average and path scores (RWalk).
    Path(f64),
}

/// Protection of former domains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) importance: Option<(Importance, f32)>,
    /// Weight of the loss of replayed tokens, and bytes of the buffer.
    pub(crate) replay: Option<(f32, usize)>,
    /// Weight of the divergence from the adapter after the former domain, on replayed inputs: an
    /// anchor in the space of functions.
    pub(crate) function: Option<(f32, usize)>,
}

/// Held-out losses: `losses[stage][domain]` after each stage, and before all.
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
}

/// State of one run.
pub(crate) struct Run {
    method: Method,
    data: Arc<Data>,
    adapter: Adapter,
    random: Random,
    ewc: Ewc,
    running: Option<RunningFisher>,
    path: PathIntegral,
    replay: Option<ReplayBuffer<Token>>,
    anchor: Adapter,
}

impl Run {
    fn new(data: &Arc<Data>, method: Method, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let mut adapter = Adapter::new(data, || random.uniform())?;
        let start = adapter.parameters().to_vec();
        adapter.set_parameters(&start)?;
        let len = adapter.layout().len();
        let strength = method.importance.map_or(0.0, |(_, strength)| strength);
        let mut settings = EwcSettings::default();
        (settings.strength, settings.decay) = (strength, 1.0);
        let running = match method.importance {
            Some((Importance::Running(rate) | Importance::Path(rate), _)) => {
                Some(RunningFisher::new(len, rate, 10)?)
            }
            _ => None,
        };
        let bytes = method.replay.or(method.function).map(|(_, bytes)| bytes);
        let replay = match bytes {
            Some(tenant_bytes) => {
                let mut settings = ReplaySettings::default();
                (settings.tenant_bytes, settings.held_out) = (tenant_bytes, 0.1);
                Some(ReplayBuffer::new(settings)?)
            }
            None => None,
        };
        let (ewc, path) = (Ewc::new(adapter.layout().clone(), settings)?, PathIntegral::new(len, 10)?);
        let (data, anchor) = (Arc::clone(data), adapter.clone());
        Ok(Self { method, data, adapter, random, ewc, running, path, replay, anchor })
    }

    /// Learns a domain once, in an order of its own, and protects it.
    fn learn(&mut self, domain: usize) -> Result<()> {
        let mut tokens = self.data.tokens(Data::set(domain, TRAIN));
        for index in (1..tokens.len()).rev() {
            tokens.swap(index, self.random.below(index + 1));
        }
        let len = self.adapter.layout().len();
        let mut adam = Adam::new(len, LEARNING_RATE)?;
        let (mut gradient, mut other) = (vec![0.0; len], vec![0.0; len]);
        let mut parameters = self.adapter.parameters().to_vec();
        for batch in tokens.chunks(BATCH) {
            if let Some(running) = &mut self.running {
                self.adapter.gradient(&batch[0], &mut other)?;
                running.push(&other)?;
            }
            self.adapter.batch_gradient(batch, Target::Observed, &mut gradient)?;
            let of_loss = gradient.clone();
            if domain > 0 {
                self.add_replay(&mut gradient, &mut other)?;
            }
            let before = parameters.clone();
            adam.step(&mut parameters, &gradient)?;
            self.ewc.proximal_step(&mut parameters, StepSize::Each(adam.sizes()))?;
            if let (Some((Importance::Path(_), _)), Some(running)) = (self.method.importance, &self.running)
                && let Ok(fisher) = running.estimate()
            {
                let change: Vec<f32> = parameters.iter().zip(&before).map(|(a, b)| a - b).collect();
                self.path.push(&of_loss, &change, fisher.values())?;
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
        let parameters = self.adapter.parameters().to_vec();
        let fisher = match self.method.importance {
            None => None,
            Some((Importance::Uniform, _)) => Some(Fisher::from_values(vec![1.0; parameters.len()])?),
            Some((Importance::Empirical, _)) => {
                Some(Fisher::empirical(&mut self.adapter, &tokens[..FISHER.min(tokens.len())])?)
            }
            Some((Importance::True, _)) => {
                let seed = self.random.bits();
                Some(Fisher::sampled(&mut self.adapter, &tokens[..FISHER.min(tokens.len())], 1, seed)?)
            }
            Some((Importance::Running(_) | Importance::Path(_), _)) => {
                let running = self.running.as_ref().map(RunningFisher::estimate);
                running.transpose()?
            }
        };
        match (fisher, self.method.importance) {
            (Some(fisher), Some((Importance::Path(_), _))) => {
                let scores = self.path.finish_task();
                self.ewc.finish_task_with_path(&parameters, &fisher, &scores)?;
            }
            (Some(fisher), _) => {
                self.ewc.finish_task(&parameters, fisher)?;
                // RWalk keeps its average over tasks; the sum of EWC++ is of each task's own.
                if let Some(running) = &mut self.running {
                    running.reset();
                }
            }
            (None, _) => {}
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
pub(crate) fn run(data: &Arc<Data>, method: Method, seed: u64) -> Result<[Losses; 2]> {
    let mut run = Run::new(data, method, seed)?;
    let splits = [VALIDATION, TEST];
    let mut losses = Vec::new();
    for split in splits {
        losses.push(Losses { before: run.losses(split)?, after: Vec::new() });
    }
    for domain in 0..data.domains.len() {
        run.learn(domain)?;
        for (losses, split) in losses.iter_mut().zip(splits) {
            losses.after.push(run.losses(split)?);
        }
    }
    let test = losses.pop().expect("two");
    Ok([losses.pop().expect("one"), test])
}
