//! The engine of a command, on the CPU.

use ruvllm::{Engine, EngineOptions};

use crate::args::ModelArgs;
use crate::commands::offer;
use crate::error::Result;
use crate::progress::Progress;
use crate::{output, plan_text};

/// Loads the model of a command with a progress bar; warns if it does not fit the machine.
///
/// # Errors
/// A model that cannot be opened or run here, or an instruction set that this machine lacks.
pub(crate) fn engine(model: &ModelArgs, options: EngineOptions) -> Result<Engine> {
    let choice = offer::model(model.model.as_deref())?;
    let mut progress = Progress::bytes(format!("loading {}", choice.name()));
    let engine = Engine::load(&choice.source(), &options, &mut |step| {
        progress.update(step.bytes_done, step.bytes_total);
    })?;
    warn(&engine);
    output::detail(&details(&engine, &choice.name()));
    Ok(engine)
}

/// Prints the warnings of an engine's plan.
pub(crate) fn warn(engine: &Engine) {
    for warning in &engine.plan().warnings {
        output::warn(&plan_text::warning(warning));
    }
}

/// Plan and load time of an engine, for `--verbose`.
pub(crate) fn details(engine: &Engine, model: &str) -> String {
    let plan = engine.plan();
    let rows = [
        ("threads", plan.threads.value.to_string(), plan_text::reason(&plan.threads.reason)),
        ("context", plan.context.value.to_string(), plan_text::reason(&plan.context.reason)),
        ("kv", plan.kv.value.to_string(), plan_text::reason(&plan.kv.reason)),
        ("kv-budget", output::bytes(plan.kv_budget.value as u64), plan_text::reason(&plan.kv_budget.reason)),
    ];
    let rows = rows.map(|(name, value, reason)| vec![format!("  {name}"), value, reason]);
    let load_ms = engine.load_time().as_secs_f64() * 1e3;
    format!("{model} loaded in {load_ms:.0} ms\n{}", output::table(&rows, &[]))
}
