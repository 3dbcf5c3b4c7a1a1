//! Table of commands; the only module above the command modules.

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, Parser, Subcommand};

use crate::commands::{
    adapter, bench, calibrate_kv, chat, completions, convert, detokenize, doctor, embed, eval, generate,
    imatrix, inspect, key, man, pack, quantize, rerank, run, serve, session, show, sona, store, template,
    tokenize, witness,
};
use crate::error::Result;

/// Help heading of the flags common to all commands.
const OUTPUT: &str = "Output";

const HELP: &str = "\
Without --model every command uses the small English model inside the program, offline.

Examples:
  ruvllm generate --chat \"Tell me a story about a turtle.\"
  ruvllm run org/repo-GGUF
  ruvllm pull org/repo-GGUF/Q4_K_M --as small
  ruvllm show small
  ruvllm doctor

Settings: ruvllm/config.toml in $XDG_CONFIG_HOME or ~/.config, with the long names of flags as keys, such as
`threads = 4` or `kv-budget = \"512MiB\"`. A flag goes before the environment, the environment before the file.
RUVLLM_CONFIG=FILE names another file, an empty value none; `ruvllm doctor` shows where each value comes from.

Errors: one line on standard error. With --json also {error: {kind, message, hint}} on standard output; kind is usage,
config, model_not_found, invalid_model, chat_template, invalid_adapter, invalid_pack, invalid_input, context_exceeded, out_of_memory,
output, hub or engine; hint is null where there is none.

Exit codes: 0 success, 1 failure, 2 usage error, 130, 143, 129 stopped by Ctrl-C, SIGTERM, SIGHUP.";

/// Run language models on the hardware you have
#[derive(Debug, Parser)]
#[command(name = "ruvllm", version, after_help = HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Print one JSON document on standard output instead of text
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub(crate) json: bool,

    /// Write errors alone to standard error: no progress, notes and warnings
    #[arg(long, short, global = true, help_heading = OUTPUT, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Write the plan and the timings to standard error
    #[arg(long, short, global = true, help_heading = OUTPUT)]
    pub(crate) verbose: bool,

    #[arg(help = "Colours: auto (at a terminal without NO_COLOR), always or never")]
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    #[arg(hide_possible_values = true, help_heading = OUTPUT)]
    pub(crate) color: ColorChoice,

    /// Command to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands. The texts of the help are those of the argument structs.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub(crate) enum Command {
    /// Chat with a model or answer one message; pulls the model if needed
    #[command(after_help = run::HELP, mut_arg("model", |model| model.hide(true)))]
    Run(Box<run::RunArgs>),
    Chat(Box<chat::ChatArgs>),
    Generate(Box<generate::GenerateArgs>),
    Serve(Box<serve::ServeArgs>),
    #[command(subcommand)]
    Key(key::KeyCommand),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Detokenize(detokenize::DetokenizeArgs),
    Template(template::TemplateArgs),
    Embed(Box<embed::EmbedArgs>),
    Rerank(Box<rerank::RerankArgs>),
    #[command(subcommand)]
    Eval(eval::EvalCommand),
    Bench(bench::BenchArgs),
    Convert(convert::ConvertArgs),
    Quantize(quantize::QuantizeArgs),
    Imatrix(imatrix::ImatrixArgs),
    CalibrateKv(calibrate_kv::CalibrateKvArgs),
    Pull(store::pull::PullArgs),
    #[command(visible_alias = "ls")]
    List(store::list::ListArgs),
    #[command(visible_alias = "info")]
    Show(show::ShowArgs),
    #[command(visible_alias = "remove")]
    Rm(store::rm::RmArgs),
    #[command(subcommand)]
    Adapter(adapter::AdapterCommand),
    #[command(subcommand)]
    Sona(sona::SonaCommand),
    #[command(subcommand)]
    Session(session::SessionCommand),
    #[command(subcommand)]
    Witness(witness::WitnessCommand),
    #[command(subcommand)]
    Pack(pack::PackCommand),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

impl Cli {
    /// Runs the command and returns its exit code, which is not 0 after a clean stop by a signal.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let json = self.json;
        match self.command {
            Command::Run(args) => return run::run(*args, json),
            Command::Generate(args) => return generate::run(&args, json),
            Command::Chat(args) => return chat::run(&args, json),
            Command::Convert(args) => return convert::run(&args, json),
            Command::Quantize(args) => return quantize::run(&args, json),
            Command::Imatrix(args) => return imatrix::run(&args, json),
            Command::CalibrateKv(args) => return calibrate_kv::run(&args, json),
            Command::Embed(args) => return embed::run(&args, json),
            Command::Rerank(args) => rerank::run(&args, json)?,
            Command::Adapter(adapter::AdapterCommand::Merge(args)) => {
                return adapter::merge::run(&args, json);
            }
            Command::Adapter(adapter::AdapterCommand::Extract(args)) => {
                return adapter::extract::run(&args, json);
            }
            Command::Eval(eval::EvalCommand::Perplexity(args)) => return eval::perplexity::run(&args, json),
            Command::Eval(eval::EvalCommand::Kl(args)) => return eval::kl::run(&args, json),
            Command::Eval(eval::EvalCommand::Passkey(args)) => return eval::passkey::run(&args, json),
            Command::Eval(eval::EvalCommand::Tools(args)) => return eval::tools::run(&args, json),
            Command::Inspect(args) => inspect::run(&args, json)?,
            Command::Tokenize(args) => tokenize::run(&args, json)?,
            Command::Detokenize(args) => detokenize::run(&args, json)?,
            Command::Template(args) => template::run(&args, json)?,
            Command::Eval(eval::EvalCommand::Logits(args)) => eval::logits::run(&args, json)?,
            Command::Eval(eval::EvalCommand::Routing(args)) => eval::agents::routing(&args, json)?,
            Command::Eval(eval::EvalCommand::Embedding(args)) => eval::agents::embedding(&args, json)?,
            Command::Eval(eval::EvalCommand::Full(args)) => eval::agents::full(&args, json)?,
            Command::Bench(args) => bench::run(&args, json)?,
            Command::Pull(args) => store::pull::run(&args, json)?,
            Command::List(args) => store::list::run(&args, json)?,
            Command::Show(args) => show::run(&args, json)?,
            Command::Rm(args) => store::rm::run(&args, json)?,
            Command::Adapter(adapter::AdapterCommand::Add(args)) => adapter::add::run(&args, json)?,
            Command::Adapter(adapter::AdapterCommand::List(args)) => adapter::list::run(&args, json)?,
            Command::Adapter(adapter::AdapterCommand::Show(args)) => adapter::show::run(&args, json)?,
            Command::Adapter(adapter::AdapterCommand::Rm(args)) => adapter::rm::run(&args, json)?,
            Command::Adapter(adapter::AdapterCommand::Verify(args)) => {
                return Ok(ExitCode::from(u8::from(!adapter::verify::run(&args, json)?)));
            }
            Command::Sona(sona::SonaCommand::Feedback(args)) => return sona::feedback::run(&args, json),
            Command::Sona(sona::SonaCommand::Train(args)) => return sona::train::run(&args, json),
            Command::Sona(sona::SonaCommand::Bank(command)) => sona::bank::run(&command, json)?,
            Command::Sona(sona::SonaCommand::Status(args)) => sona::status::run(&args, json)?,
            Command::Sona(sona::SonaCommand::Consolidate(args)) => sona::consolidate::run(&args, json)?,
            Command::Sona(sona::SonaCommand::Export(args)) => sona::export::run(&args, json)?,
            Command::Sona(sona::SonaCommand::Forget(args)) => sona::forget::run(&args, json)?,
            Command::Sona(sona::SonaCommand::Replay(args)) => {
                return Ok(ExitCode::from(u8::from(!sona::replay::run(&args, json)?)));
            }
            Command::Sona(sona::SonaCommand::Release(args)) => sona::release::run(&args, json)?,
            Command::Session(session::SessionCommand::List(args)) => session::list::run(&args, json)?,
            Command::Session(session::SessionCommand::Fork(args)) => session::fork::run(&args, json)?,
            Command::Session(session::SessionCommand::Rm(args)) => session::rm::run(&args, json)?,
            Command::Serve(args) => serve::run(&args, json)?,
            Command::Key(key::KeyCommand::New(args)) => key::new::run(&args, json)?,
            Command::Key(key::KeyCommand::List(args)) => key::list::run(&args, json)?,
            Command::Key(key::KeyCommand::Rm(args)) => key::rm::run(&args, json)?,
            Command::Key(key::KeyCommand::Rotate(args)) => key::rotate::run(&args, json)?,
            Command::Witness(witness::WitnessCommand::Verify(args)) => {
                return Ok(ExitCode::from(u8::from(!witness::verify::run(&args, json)?)));
            }
            Command::Witness(witness::WitnessCommand::Show(args)) => witness::show::run(&args, json)?,
            Command::Witness(witness::WitnessCommand::Export(args)) => witness::export::run(&args, json)?,
            Command::Witness(witness::WitnessCommand::Key(args)) => witness::key::run(&args, json)?,
            Command::Pack(command) => pack::run(&command, json)?,
            Command::Doctor(args) => doctor::run(&args, json)?,
            Command::Completions(args) => completions::run(&args, &mut Self::command(), json)?,
            Command::Man(args) => man::run(&args, Self::command(), json)?,
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
