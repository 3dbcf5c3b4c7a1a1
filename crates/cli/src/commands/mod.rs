//! One module per command: its flags, what it does, and its two output forms.

use std::process::ExitCode;

use crate::args::{Cli, Command};
use crate::error::Result;

pub(crate) mod bench;
pub(crate) mod calibrate_kv;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod detokenize;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod eval;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod load;
pub(crate) mod quantize;
mod rewrite;
pub(crate) mod store;
pub(crate) mod template;
pub(crate) mod tokenize;

/// Runs the command and gives the exit code of its success; those that Ctrl-C stops in good order have another one than 0.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Generate(args) => return generate::run(&args, json),
        Command::Chat(args) => return chat::run(&args, json),
        Command::Convert(args) => return convert::run(&args, json),
        Command::Quantize(args) => return quantize::run(&args, json),
        Command::CalibrateKv(args) => return calibrate_kv::run(&args, json),
        Command::Inspect(args) => inspect::run(&args, json)?,
        Command::Tokenize(args) => tokenize::run(&args, json)?,
        Command::Detokenize(args) => detokenize::run(&args, json)?,
        Command::Template(args) => template::run(&args, json)?,
        Command::Embed(args) => embed::run(&args, json)?,
        Command::Eval(eval::EvalCommand::Perplexity(args)) => eval::perplexity::run(&args, json)?,
        Command::Eval(eval::EvalCommand::Passkey(args)) => eval::passkey::run(&args, json)?,
        Command::Eval(eval::EvalCommand::Logits(args)) => eval::logits::run(&args, json)?,
        Command::Bench(args) => bench::run(&args, json)?,
        Command::Pull(args) => store::pull::run(&args, json)?,
        Command::List(args) => store::list::run(&args, json)?,
        Command::Info(args) => store::info::run(&args, json)?,
        Command::Rm(args) => store::rm::run(&args, json)?,
        Command::Doctor(args) => doctor::run(&args, json)?,
    }
    Ok(ExitCode::SUCCESS)
}
