//! Reports of the benchmark; speed is not tested.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ruvllm::{BenchOptions, BenchTest, Error};

use crate::common::tiny;

#[test]
fn every_test_is_run_with_every_thread_count() {
    let options = BenchOptions::default()
        .with_tests(vec![BenchTest::Prefill(20), BenchTest::Decode(3)])
        .with_batch(8)
        .with_depth(5)
        .with_threads(vec![1, 2])
        .with_runs(3);
    let mut seen = Vec::new();
    let results = tiny()
        .bench(&options, &mut |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .expect("a valid benchmark");
    let names: Vec<_> = results.iter().map(|r| (r.test.to_string(), r.threads)).collect();
    let expected =
        [("pp20", 1), ("pp20", 2), ("tg3", 1), ("tg3", 2)].map(|(name, threads)| (name.to_owned(), threads));
    assert_eq!(names, expected);
    for result in results {
        assert_eq!((result.batch, result.depth, result.runs), (8, 5, 3));
        assert_eq!(result.kv, *tiny().kv_policy());
        let speed = result.tokens_per_s;
        assert!(0.0 < speed.min && speed.min <= speed.median && speed.median <= speed.max);
        assert_eq!(result.tokens_per_cpu_s, None, "nobody told the CPU time");
    }
    assert_eq!(seen, (0..=12).map(|done| (done, 12)).collect::<Vec<_>>());
}

#[test]
fn cpu_time_of_the_caller_is_used() {
    /// A clock that advances one second per call.
    fn cpu_time() -> Option<Duration> {
        static SECONDS: AtomicU64 = AtomicU64::new(0);
        Some(Duration::from_secs(SECONDS.fetch_add(1, Ordering::Relaxed)))
    }
    let options =
        BenchOptions::default().with_tests(vec![BenchTest::Decode(4)]).with_runs(2).with_cpu_time(cpu_time);
    let results = tiny().bench(&options, &mut |_, _| ControlFlow::Continue(())).expect("a valid benchmark");
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].threads, tiny().threads(), "without a list the engine's own threads compute");
    // 4 tokens in one second of CPU time on 2 threads.
    assert_eq!(results[0].tokens_per_cpu_s.map(|speed| (speed.min, speed.max)), Some((8.0, 8.0)));
}

#[test]
fn impossible_benchmarks_are_refused() {
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let bad = BenchOptions::default().with_runs(0);
    assert!(matches!(tiny().bench(&bad, go_on), Err(Error::InvalidOption { name: "runs", .. })));
    let depth = tiny().config().context_length;
    for depth in [depth, usize::MAX] {
        let long = BenchOptions::default().with_tests(vec![BenchTest::Decode(1)]).with_depth(depth);
        assert!(matches!(tiny().bench(&long, go_on), Err(Error::ContextTooLong { .. })));
    }
    let short = BenchOptions::default().with_tests(vec![BenchTest::Decode(1)]);
    assert!(matches!(tiny().bench(&short, &mut |_, _| ControlFlow::Break(())), Err(Error::Cancelled)));
}
