//! Reflection on failed answers: classes of errors, retry strategies chosen by past success, and
//! agreement between independent answers.

mod agreement;
mod errors;
mod retry;

pub use agreement::{Agreement, Answer, Calibration, Estimate, Matching, PERSPECTIVES, agreement};
pub use errors::{Choice, ErrorClass, ErrorMemory, Strategy, class_key};
pub use retry::{Attempt, Budget, Solved, solve};

#[cfg(test)]
mod tests;
