//! Models not in the store yet: pulled on request at a terminal, an error elsewhere.

use std::io::{self, BufRead, IsTerminal, Write};

use ruvllm_hub::ModelReference;

use super::store::pull;
use crate::console;
use crate::default_model::ModelChoice;
use crate::error::Result;
use crate::output;

/// Model of a command; a hub reference is pulled if the user at the terminal agrees.
///
/// # Errors
/// A pull that fails; [`Error::NotPulled`](crate::error::Error::NotPulled) and the other refusals
/// of [`ModelChoice::check`].
pub(crate) fn model(flag: Option<&std::path::Path>) -> Result<ModelChoice> {
    let choice = ModelChoice::new(flag);
    if let Some(reference) = choice.not_pulled().filter(|_| is_answered()) {
        let question = format!("{} is not here. Pull {reference} from the hub? [y/N] ", choice.name());
        if asks(&question) {
            return pulled(&reference, flag);
        }
    }
    choice.check()?;
    Ok(choice)
}

/// As [`model`], but pulls at a terminal without asking.
pub(super) fn pulled_model(flag: &std::path::Path) -> Result<ModelChoice> {
    let choice = ModelChoice::new(Some(flag));
    match choice.not_pulled().filter(|_| io::stderr().is_terminal()) {
        Some(reference) => pulled(&reference, Some(flag)),
        None => {
            choice.check()?;
            Ok(choice)
        }
    }
}

fn pulled(reference: &ModelReference, flag: Option<&std::path::Path>) -> Result<ModelChoice> {
    output::hint(&format!("pulling {reference}"));
    let pulled = pull::fetch(reference, None)?;
    output::hint(&format!("pulled as {}", pulled.model.name));
    let choice = ModelChoice::new(flag);
    choice.check()?;
    Ok(choice)
}

/// True if the user can be asked: standard input and error are terminals, no `--quiet`.
fn is_answered() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal() && !console::is_quiet()
}

/// Asks a yes/no question; no answer means no.
fn asks(question: &str) -> bool {
    let mut stderr = io::stderr();
    // A question that cannot be written must not count as agreed to.
    if write!(stderr, "{question}").and_then(|()| stderr.flush()).is_err() {
        return false;
    }
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
