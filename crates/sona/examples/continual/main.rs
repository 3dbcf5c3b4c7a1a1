//! Forgetting of domains that are learned one after another, by method.
//!
//! `continual FOLDER [domains=a,b,c] [train=12000] [seeds=3] [threads=1] [methods=SUBSTRING,..]`
//! reads final hidden states of a language model (`data.rs`), trains low-rank updates behind its
//! last layer on each domain in turn, and prints the gain on each domain and its later loss. One
//! line per method, seed and split: gain and forgetting of each domain in nats per token.

mod adapter;
mod data;
mod methods;

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use data::Data;
use methods::{Importance, Losses, Method, run};

const MIB: usize = 1 << 20;

fn methods() -> Vec<Method> {
    let none = Method { name: "none", importance: None, replay: None, function: None };
    let mut methods = vec![none];
    let mut ewc = |name, importance, strengths: &[f32]| {
        methods.extend(strengths.iter().map(|&strength| Method {
            name,
            importance: Some((importance, strength)),
            ..none
        }));
    };
    ewc("l2", Importance::Uniform, &[1e-4, 1e-3, 1e-2]);
    ewc("ewc-true", Importance::True, &[1e-4, 1e-3, 1e-2]);
    ewc("ewc-empirical", Importance::Empirical, &[1e-4, 1e-3, 1e-2]);
    ewc("ewc++", Importance::Running(0.05), &[1e-5, 1e-4, 1e-3, 1e-2]);
    ewc("ewc++-0.9", Importance::Running(0.9), &[1e-4, 1e-3, 1e-2]);
    ewc("rwalk", Importance::Path(0.05), &[1e-3, 1e-2, 1e-1]);
    let replay = Some((1.0, 2 * MIB));
    methods.push(Method { name: "replay", replay, ..none });
    methods.push(Method { name: "function", function: replay, ..none });
    for strength in [1e-4, 1e-3] {
        let importance = Some((Importance::Running(0.05), strength));
        methods.push(Method { name: "ewc++ and replay", importance, replay, ..none });
    }
    methods
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let found = arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned)
    };
    let number = |name, default| value(name).map_or(Ok(default), |value| value.parse::<usize>());
    let folder = PathBuf::from(arguments.first().ok_or("which folder?")?);
    let domains: Vec<String> =
        value("domains").unwrap_or_else(|| "a,b,c".to_owned()).split(',').map(str::to_owned).collect();
    let data = Arc::new(Data::read(&folder, &domains, number("train", 12_000)?)?);
    let wanted = value("methods");
    let is_wanted = |method: &Method| {
        let label = label(method);
        wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|part| label.starts_with(part)))
    };
    let methods: Vec<Method> = methods().into_iter().filter(is_wanted).collect();
    let jobs: Vec<(Method, usize)> =
        (0..number("seeds", 3)?).flat_map(|seed| methods.iter().map(move |method| (*method, seed))).collect();
    println!("method\tseed\tsplit\tgain of each domain\tforgetting of each domain\tloss of each domain");
    let (next, output) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..number("threads", 1).unwrap_or(1) {
            scope.spawn(|| {
                while let Some((method, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = run(&data, *method, 1 + *seed as u64);
                    let mut output = output.lock().expect("no panic");
                    match result {
                        Ok([validation, test]) => {
                            for (split, losses) in [("validation", &validation), ("test", &test)] {
                                println!("{}\t{seed}\t{split}\t{}", label(method), line(losses));
                            }
                        }
                        Err(error) => output.push(format!("{} {seed}: {error}", label(method))),
                    }
                }
            });
        }
    });
    match output.into_inner().expect("no panic") {
        errors if errors.is_empty() => Ok(()),
        errors => Err(errors.join("\n").into()),
    }
}

fn label(method: &Method) -> String {
    match method.importance {
        Some((_, strength)) => format!("{} {strength}", method.name),
        None => method.name.to_owned(),
    }
}

fn line(losses: &Losses) -> String {
    let n = losses.before.len();
    let list = |value: &dyn Fn(usize) -> f64| {
        (0..n).map(|domain| format!("{:.4}", value(domain))).collect::<Vec<_>>().join(" ")
    };
    format!(
        "{}\t{}\t{}",
        list(&|domain| losses.gain(domain)),
        list(&|domain| losses.forgetting(domain)),
        list(&|domain| losses.after[n - 1][domain])
    )
}
