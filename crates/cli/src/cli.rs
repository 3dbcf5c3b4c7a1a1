//! The table of commands: the one place above their modules.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, calibrate_kv, chat, convert, detokenize, doctor, embed, eval, generate, inspect, quantize, store,
    template, tokenize,
};
use crate::error::Result;

const HELP: &str = "\
Without --model every command uses the small English model inside the program, offline.

Examples:
  ruvllm generate --chat \"Tell me a story about a turtle.\"
  ruvllm chat
  ruvllm inspect model.gguf
  ruvllm pull hf://org/repo-GGUF/Q4_K_M --as small
  ruvllm doctor

Exit codes: 0 success, 1 failure, 2 usage error, 130, 143, 129 stopped by Ctrl-C, SIGTERM, SIGHUP.";

/// Run language models on the hardware you have
#[derive(Debug, Parser)]
#[command(name = "ruvllm", version, after_help = HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Print one JSON document on standard output instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Command to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands. The texts of the help are those of the argument structs.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub(crate) enum Command {
    Generate(Box<generate::GenerateArgs>),
    Chat(Box<chat::ChatArgs>),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Detokenize(detokenize::DetokenizeArgs),
    Template(template::TemplateArgs),
    Embed(Box<embed::EmbedArgs>),
    #[command(subcommand)]
    Eval(eval::EvalCommand),
    Bench(bench::BenchArgs),
    Convert(convert::ConvertArgs),
    Quantize(quantize::QuantizeArgs),
    CalibrateKv(calibrate_kv::CalibrateKvArgs),
    Pull(store::pull::PullArgs),
    List(store::list::ListArgs),
    Info(store::info::InfoArgs),
    Rm(store::rm::RmArgs),
    Doctor(doctor::DoctorArgs),
}

impl Cli {
    /// Runs the command and gives the exit code of its success; those that Ctrl-C stops in good
    /// order have another one than 0.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let json = self.json;
        match self.command {
            Command::Generate(args) => return generate::run(&args, json),
            Command::Chat(args) => return chat::run(&args, json),
            Command::Convert(args) => return convert::run(&args, json),
            Command::Quantize(args) => return quantize::run(&args, json),
            Command::CalibrateKv(args) => return calibrate_kv::run(&args, json),
            Command::Embed(args) => return embed::run(&args, json),
            Command::Eval(eval::EvalCommand::Perplexity(args)) => return eval::perplexity::run(&args, json),
            Command::Eval(eval::EvalCommand::Passkey(args)) => return eval::passkey::run(&args, json),
            Command::Inspect(args) => inspect::run(&args, json)?,
            Command::Tokenize(args) => tokenize::run(&args, json)?,
            Command::Detokenize(args) => detokenize::run(&args, json)?,
            Command::Template(args) => template::run(&args, json)?,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
