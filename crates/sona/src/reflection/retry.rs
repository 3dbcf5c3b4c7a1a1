//! Retries of a task until its answer passes a check or the budget is spent.

use crate::error::{Error, Result};
use crate::model::{Generate, GenerateText};

use super::errors::{ErrorMemory, Strategy};

/// Characters of an error or answer that are shown to the model.
const MAX_SHOWN: usize = 2_000;

/// Limits of [`solve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of requests, the first included.
    pub attempts: usize,
    /// Maximum number of tokens to generate: the sum of [`GenerateText::max_tokens`].
    pub tokens: usize,
    /// Model for [`Strategy::EscalateModel`]; `None` makes it unavailable.
    pub stronger_model: Option<String>,
}

/// Request of a task and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Strategy of the request; `None` for the first.
    pub strategy: Option<Strategy>,
    /// Message of the failed check or model; `None` for the answer that passed.
    pub error: Option<String>,
}

/// Result of [`solve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solved {
    /// The answer that passed; `None` if none did.
    pub answer: Option<String>,
    /// All attempts in order.
    pub attempts: Vec<Attempt>,
    /// Tokens that the requests allowed.
    pub tokens: usize,
}

/// Asks a model until `check` accepts the answer. After each failure the memory chooses a strategy
/// by the class of the error; it learns the outcome. A strategy is used once per task. Failures of
/// the model are errors like those of the check.
///
/// # Errors
/// [`Error::Setting`] if the budget does not allow the first request.
pub fn solve(
    model: &dyn Generate,
    request: &GenerateText,
    check: &dyn Fn(&str) -> Result<(), String>,
    memory: &mut ErrorMemory,
    budget: &Budget,
) -> Result<Solved> {
    if budget.attempts == 0 || budget.tokens < request.max_tokens {
        return Err(Error::Setting {
            name: "budget",
            value: format!("{} attempts, {} tokens", budget.attempts, budget.tokens),
            range: "at least one request",
        });
    }
    let mut solved = Solved { answer: None, attempts: Vec::new(), tokens: 0 };
    let mut available = Strategy::ALL.to_vec();
    if budget.stronger_model.is_none() {
        available.retain(|&strategy| strategy != Strategy::EscalateModel);
    }
    let mut next = request.clone();
    // Strategy of the next request, and the class of the error that it answers.
    let mut tried: Option<(Strategy, String)> = None;
    loop {
        solved.tokens += next.max_tokens;
        let answer = model.generate(&next).map_err(|error| message_of(&error));
        let outcome = answer.as_deref().map_err(Clone::clone).and_then(check);
        if let Some((strategy, class)) = &tried {
            memory.record(class, *strategy, outcome.is_ok());
        }
        let strategy = tried.map(|(strategy, _)| strategy);
        solved.attempts.push(Attempt { strategy, error: outcome.as_ref().err().cloned() });
        let Err(error) = outcome else {
            solved.answer = answer.ok();
            return Ok(solved);
        };
        let class = memory.observe(&error);
        let has_room = solved.attempts.len() < budget.attempts
            && solved.tokens.saturating_add(request.max_tokens) <= budget.tokens;
        let Some(choice) = memory.choose(&class, &available).filter(|_| has_room) else {
            return Ok(solved);
        };
        available.retain(|&strategy| strategy != choice.strategy);
        next = choice.strategy.request(request, answer.as_deref().unwrap_or(""), &error, budget);
        // Another sample, if the request samples.
        next.seed = request.seed.wrapping_add(solved.attempts.len() as u64);
        tried = Some((choice.strategy, class));
    }
}

/// Message of an error and its causes.
fn message_of(error: &Error) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    message
}

impl Strategy {
    /// Request of the strategy after a failed answer to `request`.
    fn request(self, request: &GenerateText, answer: &str, error: &str, budget: &Budget) -> GenerateText {
        let cut = |text: &str| text.chars().take(MAX_SHOWN).collect::<String>();
        let (task, answer, error) = (&request.prompt, cut(answer), cut(error));
        let mut next = request.clone();
        match self {
            Self::RetryWithError => {
                next.prompt = format!(
                    "{task}\n\nA previous answer was:\n{answer}\n\nIt was rejected with this error:\n{error}\n\n\
                     Answer the task again without this error."
                );
            }
            Self::AddConstraint => {
                next.prompt = format!("{task}\n\nThe answer must not lead to this error:\n{error}");
            }
            Self::Simplify => {
                next.prompt = format!(
                    "{task}\n\nGive the simplest answer that fulfils the task, without optional parts."
                );
            }
            Self::EscalateModel => next.model.clone_from(&budget.stronger_model),
        }
        next
    }
}
