//! Runs of methods over seeds, the choice of settings, and the table.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::data::Data;
use crate::methods::{Losses, Method, run};
use crate::protection::{Importance, Penalty};

const MIB: usize = 1 << 20;
/// Share of the plasticity without protection that a chosen setting has at least.
const PLASTICITY: f64 = 0.9;

/// Without protection, with the methods of this project, and with replay.
pub(crate) fn own_methods() -> Vec<Method> {
    let none =
        Method { name: "none", setting: String::new(), protection: None, replay: None, function: None };
    let mut methods = vec![none.clone()];
    let ewc = |name, importance, strength: f32| Method {
        name,
        setting: strength.to_string(),
        protection: Some(Arc::new(move |adapter| Ok(Box::new(Penalty::new(adapter, importance, strength)?)))),
        ..none.clone()
    };
    for (name, importance, strengths) in [
        ("ewc++", Importance::Running(0.05), &[1e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2][..]),
        ("l2", Importance::Uniform, &[1e-3, 1e-2, 1e-1]),
        ("true ewc", Importance::True, &[1e-4, 1e-3, 1e-2]),
        ("empirical ewc", Importance::Empirical, &[1e-4, 1e-3, 1e-2]),
        ("fast ewc++", Importance::Running(0.9), &[1e-4, 1e-3, 1e-2]),
        ("rwalk", Importance::Path(0.05), &[1e-3, 1e-2, 1e-1]),
    ] {
        methods.extend(strengths.iter().map(|&strength| ewc(name, importance, strength)));
    }
    for (weight, mib) in [(1.0, 2), (1.0, 16), (0.3, 16)] {
        let (setting, sample) = (format!("{weight}, {mib} MiB"), Some((weight, mib * MIB)));
        methods.push(Method { name: "replay", setting: setting.clone(), replay: sample, ..none.clone() });
        methods.push(Method { name: "function", setting, function: sample, ..none.clone() });
    }
    for (strength, weight) in [(1e-3, 1.0), (1e-3, 0.3), (1e-2, 0.3)] {
        methods.push(Method {
            setting: format!("{strength}, {weight}, 16 MiB"),
            replay: Some((weight, 16 * MIB)),
            ..ewc("replay with ewc++", Importance::Running(0.05), strength)
        });
    }
    methods
}

/// A method with the losses of validation and test part by seed.
struct Found<'m> {
    method: &'m Method,
    seeds: Vec<[Losses; 2]>,
}

/// Reads the command line, runs all methods that it names, and prints lines and table.
pub(crate) fn run_all(methods: &[Method]) -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let found = arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned)
    };
    let number = |name, default| value(name).map_or(Ok(default), |value| value.parse::<usize>());
    let folder = PathBuf::from(arguments.first().ok_or("which folder?")?);
    let domains: Vec<String> =
        value("domains").unwrap_or_else(|| "a,b,c".to_owned()).split(',').map(str::to_owned).collect();
    let rate = value("rate").map_or(Ok(3e-4), |rate| rate.parse::<f32>())?;
    let (seeds, threads) = (number("seeds", 3)?, number("threads", 1)?);
    let data = Arc::new(Data::read(&folder, &domains, number("train", 12_000)?)?);
    let wanted = value("methods");
    let is_wanted = |method: &&Method| {
        let label = method.label() + " ";
        wanted.as_ref().is_none_or(|all| all.split(',').any(|part| label.starts_with(&format!("{part} "))))
    };
    let methods: Vec<&Method> = methods.iter().filter(is_wanted).collect();
    println!("method\tseed\tsplit\tlearned of each domain\tgain of each\tforgetting of each");
    let (next, output) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    // All methods of a seed before those of the next.
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let (seed, index) = (job / methods.len().max(1), job % methods.len().max(1));
                    let Some(method) = methods.get(index).filter(|_| seed < seeds) else { break };
                    let result = run(&data, method, 1 + seed as u64, rate);
                    let mut output = output.lock().expect("no panic");
                    if let Ok(parts) = &result {
                        for (split, losses) in ["validation", "test"].iter().zip(parts) {
                            println!("{}\t{seed}\t{split}\t{}", method.label(), line(losses));
                        }
                    }
                    output.push((index, result));
                }
            });
        }
    });
    let mut found: Vec<Found<'_>> =
        methods.iter().map(|method| Found { method, seeds: Vec::new() }).collect();
    for (index, result) in output.into_inner().expect("no panic") {
        found[index].seeds.push(result?);
    }
    print_table(&domains, &found);
    Ok(())
}

fn line(losses: &Losses) -> String {
    let list = |value: &dyn Fn(usize) -> f64| {
        (0..losses.before.len()).map(|domain| format!("{:.4}", value(domain))).collect::<Vec<_>>().join(" ")
    };
    let (learned, gain) = (list(&|domain| losses.learned(domain)), list(&|domain| losses.gain(domain)));
    format!("{learned}\t{gain}\t{}", list(&|domain| losses.forgetting(domain)))
}

impl Method {
    fn label(&self) -> String {
        format!("{} {}", self.name, self.setting).trim_end().to_owned()
    }
}

const VALIDATION: usize = 0;
const TEST: usize = 1;

impl Found<'_> {
    /// Mean of a value over seeds, and their standard deviation (0 for one seed).
    fn spread(&self, part: usize, value: impl Fn(&Losses) -> f64) -> [f64; 2] {
        let values: Vec<f64> = self.seeds.iter().map(|parts| value(&parts[part])).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        [mean, (squares / (n - 1.0).max(1.0)).sqrt()]
    }

    /// Sum over the domains behind the first of what is learned: only these are learned under
    /// protection.
    fn plasticity(&self, part: usize) -> f64 {
        self.spread(part, |losses| (1..losses.before.len()).map(|domain| losses.learned(domain)).sum())[0]
    }

    /// As `plasticity`, of the fall of the loss within the stage.
    fn gain(&self, part: usize) -> f64 {
        self.spread(part, |losses| (1..losses.before.len()).map(|domain| losses.gain(domain)).sum())[0]
    }

    /// Sum over all domains.
    fn forgetting(&self, part: usize) -> f64 {
        self.spread(part, |losses| (0..losses.before.len()).map(|domain| losses.forgetting(domain)).sum())[0]
    }
}

/// Least forgetting of the validation part at the required plasticity; without such a setting, the
/// highest plasticity.
fn is_chosen(found: &[Found<'_>], of: &Found<'_>, none: &Found<'_>) -> bool {
    let is_plastic = |of: &Found<'_>| of.plasticity(VALIDATION) >= PLASTICITY * none.plasticity(VALIDATION);
    let key = |of: &Found<'_>| match is_plastic(of) {
        true => (0, of.forgetting(VALIDATION)),
        false => (1, -of.plasticity(VALIDATION)),
    };
    let rivals = found.iter().filter(|rival| rival.method.name == of.method.name);
    let is_better = |a: (u8, f64), b: (u8, f64)| a.0 < b.0 || (a.0 == b.0 && a.1 < b.1);
    rivals.map(key).all(|rival| !is_better(rival, key(of)))
}

/// Test part: mean and standard deviation over seeds, and ratios of sums to those without
/// protection.
fn print_table(domains: &[String], found: &[Found<'_>]) {
    let Some(none) = found.iter().find(|of| of.method.name == "none") else { return };
    let mut head = vec!["method".to_owned(), "setting".to_owned(), "chosen".to_owned()];
    let last = domains.len() - 1;
    head.extend(domains.iter().map(|domain| format!("learned {domain}")));
    head.extend(domains[..last].iter().map(|domain| format!("forgetting {domain}")));
    head.extend(["forgetting / none", "learned / none", "gain / none"].map(str::to_owned));
    println!("\n| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for of in found {
        let is_chosen = if is_chosen(found, of, none) { "yes" } else { "" };
        let mut row = vec![of.method.name.to_owned(), of.method.setting.clone(), is_chosen.to_owned()];
        let mut push = |[mean, deviation]: [f64; 2]| row.push(format!("{mean:.4} ± {deviation:.4}"));
        for domain in 0..=last {
            push(of.spread(TEST, |losses| losses.learned(domain)));
        }
        for domain in 0..last {
            push(of.spread(TEST, |losses| losses.forgetting(domain)));
        }
        for (value, base) in [
            (of.forgetting(TEST), none.forgetting(TEST)),
            (of.plasticity(TEST), none.plasticity(TEST)),
            (of.gain(TEST), none.gain(TEST)),
        ] {
            row.push(format!("{:.2}", value / base));
        }
        println!("| {} |", row.join(" | "));
    }
}
