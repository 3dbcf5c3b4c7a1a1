//! Triggers, trials and rollback.

use std::time::Duration;

use proptest::prelude::*;

use super::simulator::{Phase, Report, shifting_load, simulate};
use super::*;
use crate::error::Error;

/// KiB of the simulated KV cache: 2 GiB.
const CAPACITY: f64 = 2.0 * 1024.0 * 1024.0;

fn bounds() -> Bounds {
    Bounds {
        low: StepSettings {
            hot_tokens: 64,
            warm_tokens: 64,
            max_batch: 2,
            prefill_chunk: 32,
            draft_tokens: 0,
        },
        high: StepSettings {
            hot_tokens: 8192,
            warm_tokens: 8192,
            max_batch: 96,
            prefill_chunk: 1024,
            draft_tokens: 8,
        },
    }
}

fn start() -> StepSettings {
    StepSettings { hot_tokens: 1024, warm_tokens: 1024, max_batch: 32, prefill_chunk: 256, draft_tokens: 0 }
}

fn run(load: &[Phase], start: StepSettings, is_tuned: bool, seed: u64) -> Report {
    simulate(load, CAPACITY, &TunerSettings::new(bounds()), start, is_tuned, seed).unwrap()
}

/// Static settings to compare with: every combination of two to four values per setting.
fn grid() -> Vec<StepSettings> {
    let mut grid = Vec::new();
    for hot_tokens in [128, 1024, 8192] {
        for max_batch in [8, 16, 32, 64] {
            for prefill_chunk in [64, 256] {
                for draft_tokens in [0, 2, 4] {
                    let warm_tokens = hot_tokens;
                    grid.push(StepSettings {
                        hot_tokens,
                        warm_tokens,
                        max_batch,
                        prefill_chunk,
                        draft_tokens,
                    });
                }
            }
        }
    }
    grid
}

#[test]
fn tuner_beats_the_best_static_setting_on_a_shifting_load() {
    // Static settings have nothing to learn: a shorter load ranks them.
    let score = |settings: StepSettings| run(&shifting_load(60.0), settings, false, 9).score;
    let scores = grid().into_iter().map(|settings| (score(settings), settings));
    let (_, best) = scores.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    for seed in 1..=2 {
        let fixed = run(&shifting_load(400.0), best, false, seed);
        let tuned = run(&shifting_load(400.0), start(), true, seed);
        println!(
            "{seed}: static {:.1} {:.0?}, tuned {:.1} {:.0?}",
            fixed.score, fixed.phases, tuned.score, tuned.phases
        );
        assert!(tuned.score > 1.02 * fixed.score, "{} {} {best:?}", tuned.score, fixed.score);
    }
}

#[test]
fn settings_come_to_rest_under_a_steady_load() {
    let load = [shifting_load(600.0)[1]];
    let report = run(&load, start(), true, 1);
    let kept = |change: &&Change| matches!(change.outcome, Outcome::Kept { .. });
    let late: Vec<_> =
        report.changes.iter().filter(kept).filter(|change| change.step > report.steps / 2).collect();
    assert!(late.len() <= 3, "{late:?}");
    let tries = report.changes.iter().filter(|c| matches!(c.outcome, Outcome::Tried | Outcome::Applied));
    let late = tries.clone().filter(|change| change.step > report.steps / 2).count();
    assert!(late < tries.count() - late, "{late}");
}

/// A step of four sequences.
fn step(ms: f64, kv_pressure: f64) -> StepEnd {
    StepEnd {
        duration: Duration::from_secs_f64(ms / 1e3),
        decode_rows: 4,
        emitted_tokens: 4,
        kv_pressure,
        tier_tokens: [1000, 0, 0],
        ..StepEnd::default()
    }
}

fn only(change: impl Fn(&mut StepSettings)) -> Tuner {
    let start = start();
    let mut bounds = Bounds { low: start, high: start };
    change(&mut bounds.low);
    Tuner::new(TunerSettings::new(bounds), start).unwrap()
}

/// Runs steps whose duration and pressure depend on the settings.
fn drive(tuner: &mut Tuner, steps: usize, measure: impl Fn(&StepSettings) -> StepEnd) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..steps {
        let settings = tuner.before(&StepStart { running: 4, waiting: 0 });
        changes.extend(tuner.after(&measure(&settings)).unwrap());
    }
    changes
}

#[test]
fn pressure_releases_memory_step_by_step_and_says_why() {
    let mut tuner = only(|low| (low.hot_tokens, low.warm_tokens) = (128, 256));
    let pressure =
        |s: &StepSettings| step(20.0, ((s.hot_tokens * 2 + s.warm_tokens) as f64 / 3000.0).min(1.0));
    let changes = drive(&mut tuner, 400, pressure);
    let first = changes.first().unwrap();
    assert!(first.step <= 2, "{first}");
    assert_eq!(first.to_string(), format!("step {}: FewerHot applied: KV pressure 1.00", first.step));
    let applied: Vec<u64> =
        changes.iter().filter(|c| c.outcome == Outcome::Applied).map(|change| change.step).collect();
    assert!(applied.windows(2).all(|pair| pair[1] - pair[0] >= 24), "{applied:?}");
    let end = tuner.current();
    assert!((end.hot_tokens * 2 + end.warm_tokens) as f64 / 3000.0 <= 0.9, "{end:?}");
    assert!(changes.iter().any(|c| matches!(c.outcome, Outcome::Kept { .. })));
}

#[test]
fn changes_that_make_steps_slower_are_rolled_back() {
    let start = start();
    let high = StepSettings { draft_tokens: 8, ..start };
    let mut tuner = Tuner::new(TunerSettings::new(Bounds { low: start, high }), start).unwrap();
    let slower = |s: &StepSettings| step(20.0 + 5.0 * s.draft_tokens as f64, 0.3);
    let changes = drive(&mut tuner, 6000, slower);
    assert_eq!(tuner.current(), start);
    let rolled_back: Vec<u64> = changes
        .iter()
        .filter(|change| matches!(change.outcome, Outcome::RolledBack { gain } if gain < -0.2))
        .map(|change| change.step)
        .collect();
    assert!((2..=5).contains(&rolled_back.len()), "{changes:?}");
    let gaps: Vec<u64> = rolled_back.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0]), "rests grow: {gaps:?}");
}

#[test]
fn a_trend_is_not_taken_for_a_gain() {
    let start = start();
    let high = StepSettings { draft_tokens: 8, ..start };
    let mut tuner = Tuner::new(TunerSettings::new(Bounds { low: start, high }), start).unwrap();
    let mut changes = Vec::new();
    for i in 0..1000 {
        tuner.before(&StepStart { running: 4, waiting: 0 });
        // Steps become faster by themselves, threefold in all.
        changes.extend(tuner.after(&step(60.0 - 0.04 * f64::from(i), 0.3)).unwrap());
    }
    assert!(changes.iter().any(|change| change.outcome == Outcome::Tried));
    assert!(!changes.iter().any(|c| matches!(c.outcome, Outcome::Kept { .. })), "{changes:?}");
}

#[test]
fn low_quality_makes_more_tokens_hot() {
    let start = start();
    let high = StepSettings { hot_tokens: 8192, ..start };
    let mut tuner = Tuner::new(TunerSettings::new(Bounds { low: start, high }), start).unwrap();
    let quality = |s: &StepSettings| {
        let quality = Some(if s.hot_tokens < 4096 { 0.5 } else { 0.8 });
        StepEnd { quality, ..step(20.0 + s.hot_tokens as f64 / 1024.0, 0.3) }
    };
    let changes = drive(&mut tuner, 900, quality);
    assert_eq!(tuner.current().hot_tokens, 4096);
    assert!(changes[0].to_string().ends_with("MoreHot applied: quality 0.50"), "{}", changes[0]);
}

#[test]
fn measurements_out_of_range_are_refused() {
    let mut tuner = only(|low| low.hot_tokens = 64);
    let good = step(20.0, 0.5);
    for bad in [
        StepEnd { kv_pressure: f64::NAN, ..good },
        StepEnd { kv_pressure: 1.5, ..good },
        StepEnd { quality: Some(-0.1), ..good },
        StepEnd { accepted_tokens: 3, drafted_tokens: 2, ..good },
    ] {
        assert!(matches!(tuner.after(&bad), Err(Error::Input { .. })));
    }
    let settings = TunerSettings { window: 1, ..TunerSettings::new(bounds()) };
    let error = Tuner::new(settings, start()).unwrap_err().to_string();
    assert_eq!(error, "window is 1; it must be 8 to 100000");
    let outside = StepSettings { max_batch: 97, ..start() };
    let error = Tuner::new(TunerSettings::new(bounds()), outside).unwrap_err().to_string();
    assert_eq!(error, "max_batch is 97; it must be within `bounds`");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn settings_stay_within_bounds_for_any_measurements(
        steps in prop::collection::vec(
            (0.0..500.0_f64, 0.0..=1.0_f64, prop::option::of(0.0..=1.0_f64), 0_usize..60, 0_usize..200),
            500..1500,
        ),
    ) {
        let mut tuner = Tuner::new(TunerSettings::new(bounds()), start()).unwrap();
        for (ms, kv_pressure, quality, rows, prefill_tokens) in steps {
            let settings = tuner.before(&StepStart { running: rows, waiting: rows / 2 });
            let (low, high) = (bounds().low, bounds().high);
            prop_assert!((low.hot_tokens..=high.hot_tokens).contains(&settings.hot_tokens));
            prop_assert!((low.warm_tokens..=high.warm_tokens).contains(&settings.warm_tokens));
            prop_assert!((low.max_batch..=high.max_batch).contains(&settings.max_batch));
            prop_assert!((low.prefill_chunk..=high.prefill_chunk).contains(&settings.prefill_chunk));
            prop_assert!((low.draft_tokens..=high.draft_tokens).contains(&settings.draft_tokens));
            let end = StepEnd {
                duration: Duration::from_secs_f64(ms / 1e3),
                prefill_tokens,
                decode_rows: rows,
                emitted_tokens: rows,
                kv_pressure,
                quality,
                ..StepEnd::default()
            };
            tuner.after(&end).unwrap();
        }
    }
}
