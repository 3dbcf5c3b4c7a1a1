//! `ruvllm sona`: adapters that learn from feedback, and fine-tuning.

pub(crate) mod bank;
pub(crate) mod consolidate;
mod data;
pub(crate) mod export;
pub(crate) mod feedback;
pub(crate) mod forget;
mod learned;
mod lessons;
pub(crate) mod release;
pub(crate) mod replay;
pub(crate) mod status;
pub(crate) mod train;

use clap::Subcommand;

/// Teach a model by feedback, fine-tune it, and see or undo what it has learned
#[derive(Debug, Subcommand)]
pub(crate) enum SonaCommand {
    Feedback(feedback::FeedbackArgs),
    #[command(subcommand)]
    Bank(bank::BankCommand),
    Status(status::StatusArgs),
    Consolidate(consolidate::ConsolidateArgs),
    Train(train::TrainArgs),
    Export(export::ExportArgs),
    Forget(forget::ForgetArgs),
    Replay(replay::ReplayArgs),
    Release(release::ReleaseArgs),
}
