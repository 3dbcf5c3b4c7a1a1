//! The scheduler under simulated traffic: invariants, fairness, effect of its settings.

use std::time::Duration;

use proptest::prelude::*;
use ruvllm_scheduler::simulator::{
    Arrivals, Lengths, Machine, Prefixes, Report, Setup, TenantTraffic, simulate,
};
use ruvllm_scheduler::{Config, TenantId};

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    (config.max_waiting, config.max_waiting_per_tenant) = (usize::MAX, usize::MAX);
    change(&mut config);
    config
}

fn setup(traffic: Vec<TenantTraffic>, requests: usize) -> Setup {
    Setup { machine: Machine::default(), traffic, requests, cache_tokens: 65_536, seed: 1 }
}

fn bursty(tenant: TenantTraffic) -> TenantTraffic {
    let (on, off) = (Duration::from_secs(5), Duration::from_secs(15));
    TenantTraffic { arrivals: Arrivals::Bursts { on, off }, ..tenant }
}

fn first_token(report: &Report, tenant: u32, share: f64) -> f64 {
    report.tenants[&TenantId(tenant)].time_to_first_token.percentile(share).as_secs_f64()
}

/// Ten thousand requests of four unlike tenants, a little more than the machine can serve.
#[test]
fn invariants_hold_over_ten_thousand_requests() {
    let traffic = vec![
        TenantTraffic { weight: 2.0, ..TenantTraffic::chat(TenantId(1), 0.9) },
        bursty(TenantTraffic { priority: 3, cancelled: 0.2, ..TenantTraffic::chat(TenantId(2), 0.7) }),
        TenantTraffic { deadline: Some(Duration::from_secs(20)), ..TenantTraffic::chat(TenantId(3), 0.5) },
        bursty(TenantTraffic::chat(TenantId(4), 0.2)),
    ];
    let setup = setup(traffic, 10_000);
    let report = simulate(&config(|_| {}), &setup).unwrap();
    let (total, statistics) = (report.total(), report.statistics);
    assert_eq!(total.completed + total.abandoned, 10_000);
    assert!(total.abandoned > 300 && statistics.expired > 50 && statistics.held > 50, "{statistics:?}");
    // Requests that are cancelled before they start generate no first token.
    assert!(total.time_to_first_token.count() >= total.completed);
    let late = report.late_steps.0 as f64 / report.late_steps.1 as f64;
    assert!(late < 0.07, "{late} of the steps with decodes are longer than the target");
    assert_eq!(report, simulate(&config(|_| {}), &setup).unwrap(), "the same seed, the same result");
}

#[test]
fn preempted_requests_complete() {
    // Most outputs are short, so that the reserve is too low where many long ones come together.
    let tenant = |id, rate, median| TenantTraffic {
        prompt: Lengths { median: 50.0, sigma: 0.6, most: 400 },
        output: Lengths { median, sigma: 0.2, most: 512 },
        prefixes: Prefixes { count: 4, exponent: 1.0, tokens: 64 },
        ..TenantTraffic::chat(TenantId(id), rate)
    };
    let traffic = vec![tenant(1, 3.0, 10.0), bursty(tenant(2, 1.0, 400.0))];
    let setup = Setup { cache_tokens: 8192, ..setup(traffic, 1000) };
    let report = simulate(&config(|_| {}), &setup).unwrap();
    let statistics = report.statistics;
    assert!(statistics.preempted > 3 && statistics.recomputed > 0, "{statistics:?}");
    assert_eq!(report.total().completed, 1000);
    // Preemption stays rare: the reserve learns from it.
    assert!(statistics.preempted < 100, "{statistics:?}");
}

#[test]
fn full_queue_refuses_in_overload() {
    let setup = setup(vec![TenantTraffic::chat(TenantId(1), 10.0)], 2000);
    let report = simulate(&config(|config| config.max_waiting = 50), &setup).unwrap();
    let total = report.total();
    assert!(total.refused > 1000, "{}", total.refused);
    assert_eq!(total.refused, report.statistics.refused_queue_full);
    assert_eq!(total.completed + total.refused, 2000);
}

/// A tenant that sends ten times as much saturates the machine. The other one has 24 % of its
/// capacity alone, prompts of 1,500 tokens in the median, and steps of 256 tokens that decodes take
/// little of: what remains of the other tenant is one step at the arrival, one that its prefill
/// fills at the end, and the rows of its decodes.
#[test]
fn large_tenant_hardly_delays_a_small_one() {
    let tenant = |id, rate| TenantTraffic {
        prompt: Lengths { median: 1500.0, sigma: 0.8, most: 4096 },
        ..TenantTraffic::chat(TenantId(id), rate)
    };
    let settings = |fair_shares| {
        config(|config| {
            (config.max_running, config.step_tokens, config.fair_shares) = (32, 256, fair_shares);
            config.token_latency = Duration::from_millis(300);
        })
    };
    let run = |large: f64, fair_shares: bool, seed: u64| {
        let traffic = vec![tenant(1, 0.1 * large), tenant(2, 0.1)];
        let requests = (400.0 * (1.0 + large)) as usize;
        let machine = Machine { decode: Duration::from_micros(200), ..Machine::default() };
        let setup = Setup { machine, cache_tokens: 131_072, seed, ..setup(traffic, requests) };
        let report = simulate(&settings(fair_shares), &setup).unwrap();
        if large > 0.0 {
            assert!(report.busy.as_secs_f64() / report.duration.as_secs_f64() > 0.97, "saturated");
        }
        first_token(&report, 2, 0.95)
    };
    for seed in [1, 2] {
        let (alone, beside) = (run(0.0, true, seed), run(10.0, true, seed));
        assert!(beside < 1.2 * alone, "seed {seed}: {beside} s instead of {alone} s");
        let unfair = run(10.0, false, seed);
        assert!(unfair > 10.0 * alone, "without shares: {unfair} s");
    }
}

#[test]
fn tenants_get_tokens_by_weight() {
    let traffic = [(1, 1.0), (2, 2.0), (3, 4.0)]
        .map(|(id, weight)| TenantTraffic { weight, ..TenantTraffic::chat(TenantId(id), 1e4) });
    // All requests are there at the start; a deadline ends the run while all still wait.
    let traffic = traffic.map(|tenant| TenantTraffic { deadline: Some(Duration::from_secs(300)), ..tenant });
    let report = simulate(&config(|_| {}), &setup(traffic.to_vec(), 3000)).unwrap();
    let tokens = [1, 2, 3].map(|id| report.tenants[&TenantId(id)].tokens as f64);
    for (id, ratio) in [(1, 2.0), (2, 4.0)] {
        let found = tokens[id] / tokens[0];
        assert!((found / ratio - 1.0).abs() < 0.2, "{tokens:?}");
    }
}

#[test]
fn requests_that_share_prefixes_find_them() {
    // Long prefixes and bursts: several requests want a prefix that none has computed yet.
    let tenant = TenantTraffic {
        prompt: Lengths { median: 100.0, sigma: 0.5, most: 512 },
        prefixes: Prefixes { count: 200, exponent: 0.8, tokens: 2048 },
        ..bursty(TenantTraffic::chat(TenantId(1), 0.9))
    };
    let run = |prefix_ordering| {
        let setup = Setup { cache_tokens: 40_000, ..setup(vec![tenant.clone()], 2000) };
        simulate(&config(|config| config.prefix_ordering = prefix_ordering), &setup).unwrap()
    };
    let (with, without) = (run(true), run(false));
    assert!(with.hit_rate() > 1.1 * without.hit_rate(), "{} {}", with.hit_rate(), without.hit_rate());
    assert!(first_token(&with, 1, 0.95) < first_token(&without, 1, 0.95));
}

fn tenant() -> impl Strategy<Value = TenantTraffic> {
    let prompt =
        (1.0_f64..800.0, 0.0_f64..1.5).prop_map(|(m, s)| Lengths { median: m, sigma: s, most: 2000 });
    let output = (1.0_f64..200.0, 0.0_f64..1.0).prop_map(|(m, s)| Lengths { median: m, sigma: s, most: 400 });
    let prefixes = (0_usize..20, 0.0_f64..2.0, 0_usize..600).prop_map(|(count, exponent, tokens)| Prefixes {
        count,
        exponent,
        tokens,
    });
    let fates = (prop::option::of(1_u64..60), prop::sample::select(vec![0.0, 0.3]));
    (0.2_f64..4.0, -2_i32..3, 0.05_f64..20.0, any::<bool>(), prompt, output, prefixes, fates).prop_map(
        |(weight, priority, rate, is_bursty, prompt, output, prefixes, (deadline, cancelled))| {
            let tenant = TenantTraffic {
                weight,
                priority,
                prompt,
                output,
                prefixes,
                deadline: deadline.map(Duration::from_secs),
                cancelled,
                ..TenantTraffic::chat(TenantId(0), rate)
            };
            if is_bursty { bursty(tenant) } else { tenant }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64.max(ProptestConfig::default().cases / 4), ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_for_any_traffic_and_settings(
        mut traffic in prop::collection::vec(tenant(), 1..5),
        (max_running, step_tokens, block_tokens) in (1_usize..64, 1_usize..600, 1_usize..64),
        (fair_shares, prefix_ordering) in any::<(bool, bool)>(),
        (cache_tokens, ageing, seed) in (3_200_usize..40_000, 1_u64..5_000, any::<u64>()),
        (quantum, burst, headroom) in (1_usize..2000, 1_usize..20_000, 0.0_f64..0.5),
    ) {
        for (id, tenant) in traffic.iter_mut().enumerate() {
            tenant.tenant = TenantId(id as u32);
        }
        let config = config(|config| {
            (config.max_running, config.step_tokens) = (max_running, step_tokens);
            (config.block_tokens, config.ageing) = (block_tokens, Duration::from_millis(ageing));
            (config.fair_shares, config.prefix_ordering) = (fair_shares, prefix_ordering);
            (config.quantum_tokens, config.burst_tokens) = (quantum, burst);
            config.headroom = headroom;
        });
        let setup = Setup { cache_tokens, seed, ..setup(traffic, 150) };
        let report = simulate(&config, &setup);
        prop_assert!(report.is_ok(), "{}", report.unwrap_err());
    }
}
