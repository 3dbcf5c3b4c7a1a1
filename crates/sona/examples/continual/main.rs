//! Forgetting of domains that are learned one after another, by method.
//!
//! `continual FOLDER [domains=a,b,c] [train=12000] [rate=0.0003] [seeds=3] [threads=1]
//! [methods=WORDS,..]` reads final hidden states of a language model (`data.rs`; the program
//! `final_hidden` of the benches writes them), trains low-rank updates behind its last layer on
//! each domain in turn, and measures the held-out loss of all domains after each. One line per
//! method, seed and split, in nats per token; then a table of the test split, with the setting of
//! each method that the validation split chooses (`comparison.rs`). `methods` are the first words
//! of names and settings.

mod adapter;
mod comparison;
mod data;
mod methods;
mod protection;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    comparison::run_all(&comparison::own_methods())
}
