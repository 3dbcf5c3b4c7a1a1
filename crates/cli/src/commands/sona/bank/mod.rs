//! `ruvllm sona bank`: a bank of lessons that prompts can use.

pub(crate) mod add;
mod document;
pub(crate) mod learn;
pub(crate) mod list;
mod open;
pub(crate) mod outcome;
pub(crate) mod recall;
pub(crate) mod remove;
pub(crate) mod search;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod transfer;

use clap::Subcommand;

/// Keep lessons of earlier tasks, and give them to later prompts
#[derive(Debug, Subcommand)]
pub(crate) enum BankCommand {
    Add(add::AddArgs),
    Learn(learn::LearnArgs),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Search(search::SearchArgs),
    Outcome(outcome::OutcomeArgs),
    Status(status::StatusArgs),
    Remove(remove::RemoveArgs),
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
}

/// Runs a command of the bank.
///
/// # Errors
/// Errors of the command.
pub(crate) fn run(command: &BankCommand, json: bool) -> crate::error::Result<()> {
    match command {
        BankCommand::Add(args) => add::run(args, json),
        BankCommand::Learn(args) => learn::run(args, json),
        BankCommand::List(args) => list::run(args, json),
        BankCommand::Show(args) => show::run(args, json),
        BankCommand::Search(args) => search::run(args, json),
        BankCommand::Outcome(args) => outcome::run(args, json),
        BankCommand::Status(args) => status::run(args, json),
        BankCommand::Remove(args) => remove::run(args, json),
        BankCommand::Export(args) => transfer::export(args, json),
        BankCommand::Import(args) => transfer::import(args, json),
    }
}
