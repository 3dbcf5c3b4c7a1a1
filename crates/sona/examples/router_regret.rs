//! Regret of the router over simulated worlds: median, least and most of the seeds, in percent of
//! the regret of random choice.
//!
//! `cargo run --release -p ruvllm-sona --example router_regret -- [SEEDS] [FIRST]`
//!
//! The settings were chosen on seeds 1 to 6 of these worlds; take others to test them.

use std::error::Error;

use ruvllm_sona::routing::simulated::{Kinds, World};
use ruvllm_sona::routing::{Router, RouterSettings, Strategy};

type Make = fn(u64) -> World;

const WORLDS: [(&str, Make); 8] = [
    ("6 kinds, 4 arms, 16 values", |seed| World::kinds(&Kinds::default(), seed)),
    ("12 kinds, 4 arms, 384 values", |seed| {
        let settings = Kinds { kinds: 12, dim: 384, noise: 1.0, common: 2.0, ..Kinds::default() };
        World::kinds(&settings, seed)
    }),
    ("3 kinds, 8 arms, 32 values", |seed| {
        let settings = Kinds { kinds: 3, arms: 8, dim: 32, noise: 0.6, common: 1.0, ..Kinds::default() };
        World::kinds(&settings, seed)
    }),
    ("linear, 4 arms, 16 values", |seed| World::linear(4, 16, 0.3, seed)),
    ("10 kinds, 6 arms, none stands out", |seed| {
        let settings = Kinds { kinds: 10, arms: 6, success: (0.2, 0.9), best: None, ..Kinds::default() };
        World::kinds(&settings, seed)
    }),
    ("one of 5 arms better by 0.3", |seed| World::one_best(5, 16, 0.3, seed)),
    ("one of 2 arms better by 0.1", |seed| World::one_best(2, 16, 0.1, seed)),
    // No setting was chosen on this one.
    ("8 kinds, 3 arms, 768 values", |seed| {
        let settings = Kinds { kinds: 8, arms: 3, dim: 768, noise: 0.8, common: 3.0, ..Kinds::default() };
        World::kinds(&settings, seed)
    }),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let seeds = arguments.next().transpose()?.unwrap_or(20);
    let first = arguments.next().transpose()?.unwrap_or(101);
    println!(
        "| world | strategy | 8,000 requests | of static rules' | first 2,000 | last 6,000 | 500 after a shift | 3,000 to 4,000 after it |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    for (name, make) in WORLDS {
        for strategy in [Strategy::LinUcb, Strategy::Thompson] {
            let runs = (first..first + seeds).map(|seed| run(make(seed), strategy));
            let runs: Vec<[f64; 6]> = runs.collect::<Result<_, _>>()?;
            let cells: Vec<String> =
                (0..6).map(|column| spread(runs.iter().map(|run| run[column]))).collect();
            println!("| {name} | {strategy:?} | {} |", cells.join(" | "));
        }
    }
    println!("\n| world | strategy | each rated | 1 of 3 | 1 of 10 | 1 of 30 | none: of static rules' |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    for (name, make) in WORLDS {
        for strategy in [Strategy::LinUcb, Strategy::Thompson] {
            let runs = (first..first + seeds).map(|seed| run_rated(make, seed, strategy));
            let runs: Vec<[f64; 5]> = runs.collect::<Result<_, _>>()?;
            let cells: Vec<String> =
                (0..5).map(|column| spread(runs.iter().map(|run| run[column]))).collect();
            println!("| {name} | {strategy:?} | {} |", cells.join(" | "));
        }
    }
    Ok(())
}

/// Percentages of 8,000 requests, of which shares are rated.
fn run_rated(make: Make, seed: u64, strategy: Strategy) -> Result<[f64; 5], ruvllm_sona::Error> {
    let mut shares = [1.0, 1.0 / 3.0, 0.1, 1.0 / 30.0, 0.0];
    for share in &mut shares {
        let mut world = make(seed);
        let settings = RouterSettings { strategy, ..RouterSettings::new(world.dim()) };
        let mut router = Router::new(settings, world.arm_list())?;
        let regret = world.serve_rated(&mut router, 8000, *share)?;
        *share = 100.0 * regret.router / if *share == 0.0 { regret.rules } else { regret.random };
    }
    Ok(shares)
}

/// Percentages: of all requests, of the same by static rules, of parts, after a shift.
fn run(mut world: World, strategy: Strategy) -> Result<[f64; 6], ruvllm_sona::Error> {
    let settings = RouterSettings { strategy, ..RouterSettings::new(world.dim()) };
    let mut router = Router::new(settings, world.arm_list())?;
    let early = world.serve(&mut router, 2000)?;
    let late = world.serve(&mut router, 6000)?;
    world.shift();
    let shifted = world.serve(&mut router, 500)?;
    world.serve(&mut router, 2500)?;
    let settled = world.serve(&mut router, 1000)?;
    let all = early.router + late.router;
    Ok([
        all / (early.random + late.random),
        all / (early.rules + late.rules),
        early.router / early.random,
        late.router / late.random,
        shifted.router / shifted.random,
        settled.router / settled.random,
    ]
    .map(|share| 100.0 * share))
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match &values[..] {
        [] => "-".to_owned(),
        [only] => format!("{only:.1}"),
        [least, .., most] => {
            format!("{:.1} ({least:.1} to {most:.1})", values[values.len() / 2])
        }
    }
}
