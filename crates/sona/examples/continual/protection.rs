//! Protection of former domains by the parameters that they need.

use ruvllm_sona::Result;
use ruvllm_sona::continual::{Ewc, EwcSettings, Fisher, Learner, PathIntegral, RunningFisher, StepSize};
use ruvllm_sona::random::Random;

use crate::adapter::Adapter;
use crate::data::Token;

/// Tokens for the Fisher information of a domain.
const FISHER: usize = 512;

/// A method that changes gradients or steps.
pub(crate) trait Protection {
    /// Needs the gradient of one example of each batch.
    fn needs_examples(&self) -> bool;

    /// Adds the gradient of an example, at the parameters before the step.
    fn push_example(&mut self, gradient: &[f32]) -> Result<()>;

    /// Changes the gradient of a batch before the optimizer.
    fn constrain(&mut self, _gradient: &mut [f32]) -> Result<()> {
        Ok(())
    }

    /// Changes the parameters after a step of the optimizer.
    fn finish_step(&mut self, step: &Step<'_>, parameters: &mut [f32]) -> Result<()>;

    /// Ends a domain, of which it may read tokens.
    fn finish_task(&mut self, adapter: &mut Adapter, tokens: &[Token], random: &mut Random) -> Result<()>;
}

/// A step of the optimizer.
pub(crate) struct Step<'s> {
    /// Parameters before it.
    pub(crate) before: &'s [f32],
    /// Gradient of the loss on new tokens, without replay.
    pub(crate) gradient: &'s [f32],
    /// Step size of each parameter.
    pub(crate) sizes: &'s [f32],
}

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

/// The penalty of `ruvllm-sona`.
pub(crate) struct Penalty {
    importance: Importance,
    ewc: Ewc,
    running: Option<RunningFisher>,
    path: PathIntegral,
}

impl Penalty {
    pub(crate) fn new(adapter: &Adapter, importance: Importance, strength: f32) -> Result<Self> {
        let layout = adapter.layout().clone();
        let running = match importance {
            Importance::Running(rate) | Importance::Path(rate) => {
                Some(RunningFisher::new(layout.len(), rate, 10)?)
            }
            _ => None,
        };
        let path = PathIntegral::new(layout.len(), 10)?;
        let mut settings = EwcSettings::default();
        (settings.strength, settings.decay) = (strength, 1.0);
        Ok(Self { importance, ewc: Ewc::new(layout, settings)?, running, path })
    }
}

impl Protection for Penalty {
    fn needs_examples(&self) -> bool {
        self.running.is_some()
    }

    fn push_example(&mut self, gradient: &[f32]) -> Result<()> {
        self.running.as_mut().map_or(Ok(()), |running| running.push(gradient))
    }

    fn finish_step(&mut self, step: &Step<'_>, parameters: &mut [f32]) -> Result<()> {
        self.ewc.proximal_step(parameters, StepSize::Each(step.sizes))?;
        if let (Importance::Path(_), Some(running)) = (self.importance, &self.running)
            && let Ok(fisher) = running.estimate()
        {
            let change: Vec<f32> = parameters.iter().zip(step.before).map(|(a, b)| a - b).collect();
            self.path.push(step.gradient, &change, fisher.values())?;
        }
        Ok(())
    }

    fn finish_task(&mut self, adapter: &mut Adapter, tokens: &[Token], random: &mut Random) -> Result<()> {
        let parameters = adapter.parameters().to_vec();
        let sample = &tokens[..FISHER.min(tokens.len())];
        let fisher = match (self.importance, &mut self.running) {
            (Importance::Uniform, _) => Fisher::from_values(vec![1.0; parameters.len()])?,
            (Importance::True, _) => Fisher::sampled(adapter, sample, 1, random.bits())?,
            (Importance::Path(_), Some(running)) => {
                // RWalk keeps its average over tasks; the sum of EWC++ is of each task's own.
                let (fisher, scores) = (running.estimate()?, self.path.finish_task());
                return self.ewc.finish_task_with_path(&parameters, &fisher, &scores);
            }
            (Importance::Running(_), Some(running)) => {
                let fisher = running.estimate()?;
                running.reset();
                fisher
            }
            _ => Fisher::empirical(adapter, sample)?,
        };
        self.ewc.finish_task(&parameters, fisher)
    }
}
