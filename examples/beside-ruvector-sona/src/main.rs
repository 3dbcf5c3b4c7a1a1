//! Comparison of EWC++ with the crate `ruvector-sona` 0.2.1, on the harness of the example
//! `continual` of `ruvllm-sona`.
//!
//! Without arguments: what the learning calls of its engine change (`engine.rs`). With the
//! arguments of `continual`: all methods of that example and `EwcPlusPlus` (`constraint.rs`).

#[path = "../../../crates/sona/examples/continual/adapter.rs"]
mod adapter;
#[path = "../../../crates/sona/examples/continual/comparison.rs"]
mod comparison;
mod constraint;
#[path = "../../../crates/sona/examples/continual/data.rs"]
mod data;
mod engine;
#[path = "../../../crates/sona/examples/continual/methods.rs"]
mod methods;
#[path = "../../../crates/sona/examples/continual/protection.rs"]
mod protection;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).is_none() {
        engine::report();
        return Ok(());
    }
    let mut methods = comparison::own_methods();
    methods.extend(constraint::methods());
    comparison::run_all(&methods)
}
