//! Flags of thinking, and variables of the chat template that switch it.

use std::io::{self, IsTerminal};

use clap::Args;
use ruvllm::GenerateRequest;
use serde_json::Value;

use super::values;

/// Thinking of reasoning models.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Thinking")]
pub(crate) struct ThinkingArgs {
    /// Thinking before the answer: show, fold to one line, or hide
    /// [default: show at a terminal, hide elsewhere]
    #[arg(long, value_enum, value_name = "show|fold|hide", hide_possible_values = true)]
    thinking: Option<ThinkingView>,

    /// Maximum number of tokens of thinking, then the answer is forced; 0 = no thinking
    #[arg(long, value_name = "N")]
    thinking_budget: Option<usize>,

    /// A variable of the chat template: JSON, or else text
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::variable)]
    set: Vec<(String, Value)>,
}

/// Output of thinking for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ThinkingView {
    /// As it is generated; dimmed at a terminal.
    Show,
    /// One line with its duration.
    Fold,
    /// Not at all.
    Hide,
}

impl ThinkingArgs {
    /// The view of the flag, or that of standard output.
    pub(crate) fn view(&self) -> ThinkingView {
        let of_output = || if io::stdout().is_terminal() { ThinkingView::Show } else { ThinkingView::Hide };
        self.thinking.unwrap_or_else(of_output)
    }

    /// A request with these flags.
    pub(crate) fn apply(&self, mut request: GenerateRequest) -> GenerateRequest {
        request.template_variables.extend(self.set.iter().cloned());
        request.with_thinking_budget(self.thinking_budget)
    }
}
