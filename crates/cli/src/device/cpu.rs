//! The engine of a command, on the CPU.

use ruvllm::{Engine, EngineOptions};

use crate::args::ModelArgs;
use crate::default_model::ModelChoice;
use crate::error::Result;
use crate::progress::Progress;
use crate::{output, plan_text};

/// Loads the model of a command, with a bar while it takes long, and a warning if it does not fit
/// the machine.
///
/// # Errors
/// A model that cannot be opened or run here, or an instruction set that this machine lacks.
pub(crate) fn engine(model: &ModelArgs, options: EngineOptions) -> Result<Engine> {
    let choice = ModelChoice::new(model.model.as_deref());
    choice.check()?;
    let mut progress = Progress::bytes(format!("loading {}", choice.name()));
    let engine = Engine::load(&choice.source(), &options, &mut |step| {
        progress.update(step.bytes_done, step.bytes_total);
    })?;
    warn(&engine);
    Ok(engine)
}

/// Says what of an engine's plan does not fit the machine.
pub(crate) fn warn(engine: &Engine) {
    for warning in &engine.plan().warnings {
        output::warn(&plan_text::warning(warning));
    }
}
