use std::time::Duration;

use proptest::prelude::*;

use super::router::{Router, View};
use super::*;
use crate::config::Config;
use crate::request::{Request, RequestId, TenantId};
use crate::simulator::memory::Change;
use crate::simulator::random::Random;
use crate::simulator::{Arrival, Lengths, Machine, Prefixes, TenantTraffic, simulate, trace};

fn config() -> Config {
    Config { max_waiting: usize::MAX, max_waiting_per_tenant: usize::MAX, ..Config::default() }
}

/// Prompts of 32 own tokens behind one of `prefixes` of 256.
fn fleet(workers: usize, policy: Policy, rate: f64, prefixes: usize) -> Fleet {
    let traffic = TenantTraffic {
        prompt: Lengths { median: 32.0, sigma: 0.3, most: 128 },
        output: Lengths { median: 8.0, sigma: 0.3, most: 32 },
        prefixes: Prefixes { count: prefixes, exponent: 1.0, tokens: 256 },
        ..TenantTraffic::chat(TenantId(1), rate)
    };
    let setup = Setup {
        machine: Machine { outliers: 0.0, ..Machine::default() },
        traffic: vec![traffic],
        requests: 600,
        cache_tokens: 2048,
        seed: 7,
    };
    Fleet {
        setup,
        workers,
        policy,
        routers: 1,
        selection: Duration::from_micros(100),
        event_delay: Duration::from_millis(1),
        event: Duration::from_micros(1),
        arrivals: Loop::Open,
        warm_up: 100,
    }
}

fn requests(fleet: &Fleet) -> Vec<Arrival> {
    trace(&fleet.setup.traffic, fleet.setup.requests, fleet.setup.seed)
}

fn run(fleet: &Fleet) -> FleetReport {
    simulate_fleet(&config(), fleet, &requests(fleet)).expect("invariants hold")
}

#[test]
fn one_worker_is_a_simulation_of_one_engine() {
    let at_once = Duration::ZERO;
    let fleet = Fleet { selection: at_once, warm_up: 0, ..fleet(1, Policy::KV_AWARE, 4.0, 10) };
    let (one, alone) = (run(&fleet), simulate(&config(), &fleet.setup).expect("invariants hold"));
    assert_eq!(one.time_to_first_token, alone.total().time_to_first_token);
    assert!(one.busy[0] <= alone.busy && one.busy[0] > alone.busy.mul_f64(0.95));
    assert_eq!(one.prompt_tokens, alone.prompt_tokens);
    assert_eq!(one.cached_tokens, alone.statistics.cached);
}

/// Mean waiting time of a queue with Poisson arrivals and one server of a constant time: `load *
/// time / (2 * (1 - load))` (Pollaczek 1930, Khinchine 1932).
#[test]
fn one_request_at_a_time_waits_as_in_a_queue_with_constant_service() {
    let (time, load) = (0.1, 0.7);
    let mut fleet = fleet(1, Policy::RoundRobin, load / time, 0);
    let machine = &mut fleet.setup.machine;
    (machine.noise, machine.step, machine.prefill) =
        (0.0, Duration::from_millis(20), Duration::from_millis(1));
    let traffic = &mut fleet.setup.traffic[0];
    traffic.prompt = Lengths { median: 80.0, sigma: 0.0, most: 80 };
    traffic.output = Lengths { median: 1.0, sigma: 0.0, most: 1 };
    (fleet.setup.requests, fleet.selection) = (40_000, Duration::ZERO);
    let config = Config { max_running: 1, ..config() };
    let report = simulate_fleet(&config, &fleet, &requests(&fleet)).expect("invariants hold");
    let expected = time + load * time / (2.0 * (1.0 - load));
    let mean = report.time_to_first_token.mean().as_secs_f64();
    // Five standard errors of the mean of this many waiting times, which are correlated over about
    // 1 / (1 - load)^2 requests.
    assert!((mean / expected - 1.0).abs() < 0.08, "{mean} instead of {expected}");
    assert!((report.utilization() - load).abs() < 0.02, "{}", report.utilization());
}

#[test]
fn same_seed_gives_the_same_result() {
    let fleet = Fleet { routers: 3, ..fleet(8, Policy::KV_AWARE, 20.0, 60) };
    assert_eq!(run(&fleet), run(&fleet));
    let mut other = fleet.clone();
    other.setup.seed += 1;
    assert_ne!(run(&fleet), run(&other));
}

#[test]
fn closed_loop_keeps_its_concurrency() {
    let fleet = Fleet {
        arrivals: Loop::Closed { concurrency: 2 },
        selection: Duration::ZERO,
        warm_up: 0,
        ..fleet(3, Policy::RoundRobin, 1.0, 20)
    };
    let report = run(&fleet);
    assert_eq!(report.requests, [200, 200, 200]);
    let busy: f64 = report.busy.iter().map(Duration::as_secs_f64).sum();
    let over = busy / report.window.as_secs_f64();
    // Two requests at a time keep at most two workers busy, and at least one.
    assert!((0.95..2.0).contains(&over), "{over}");
}

#[test]
fn selections_in_excess_of_a_router_wait() {
    let slow = Duration::from_millis(100);
    let one = run(&Fleet { selection: slow, ..fleet(8, Policy::RoundRobin, 20.0, 20) });
    let four = run(&Fleet { selection: slow, routers: 4, ..fleet(8, Policy::RoundRobin, 20.0, 20) });
    assert!(one.routing.percentile(0.5).as_secs_f64() > 5.0 && one.throughput() < 10.5);
    assert!(four.routing.percentile(0.5).as_secs_f64() < 0.3 && four.throughput() > 18.0);
}

#[test]
fn kv_aware_hits_lie_between_round_robin_and_the_bound() {
    let (kv, robin) = (fleet(8, Policy::KV_AWARE, 20.0, 60), fleet(8, Policy::RoundRobin, 20.0, 60));
    let bound = hit_bound(&requests(&kv), 8 * 2048, 32, kv.warm_up);
    let (kv, robin) = (run(&kv).hit_rate(), run(&robin).hit_rate());
    assert!(robin + 0.15 < kv && kv <= bound, "{robin} {kv} {bound}");
}

fn arrival(id: u64, prompt_tokens: usize, prefix: u64, prefix_tokens: usize) -> Arrival {
    let request = Request {
        id: RequestId(id),
        tenant: TenantId(1),
        priority: 0,
        deadline: None,
        prompt_tokens,
        max_new_tokens: 1,
        prefix: Some(prefix),
    };
    Arrival { at: Duration::ZERO, request, prefix_tokens, output: 1, cancel_at: None }
}

fn stored(prefix: u64, blocks: usize) -> Vec<Change> {
    vec![Change { prefix: Some(prefix), is_stored: true }; blocks]
}

#[test]
fn events_are_known_after_their_delay() {
    let ms = Duration::from_millis;
    let mut view = View::new(ms(10), ms(1));
    let mut router = Router::new(Policy::KV_AWARE, 2, 32, Random::new(1));
    view.send(ms(0), 1, stored(1, 8));
    view.send(ms(0), 0, stored(2, 8));
    // 10 ms and 8 blocks of 1 ms; the other's follow.
    view.advance(ms(18));
    let mut chosen = |id, prefix, view: &View| {
        let worker = router.choose(&arrival(id, 256, prefix, 256), view);
        router.ended(RequestId(id));
        worker
    };
    assert!((0..20).all(|id| chosen(id, 1, &view) == 1));
    assert!((20..60).any(|id| chosen(id, 2, &view) == 1));
    view.advance(ms(26));
    assert!((60..80).all(|id| chosen(id, 2, &view) == 0));
    view.send(ms(26), 0, vec![Change { prefix: Some(2), is_stored: false }; 8]);
    view.advance(ms(44));
    assert!((80..120).any(|id| chosen(id, 2, &view) == 1));
}

/// Costs by hand, in blocks of 32: a prompt of 320 tokens, 256 of them a prefix that worker 0 has.
#[test]
fn load_outweighs_a_hit() {
    let mut view = View::new(Duration::ZERO, Duration::ZERO);
    view.send(Duration::ZERO, 0, stored(1, 8));
    view.advance(Duration::ZERO);
    let mut router = Router::new(Policy::KV_AWARE, 2, 32, Random::new(1));
    // 10 - 8 + 10 = 12 against 10 + 10 = 20.
    assert_eq!(router.choose(&arrival(1, 320, 1, 256), &view), 0);
    // (64 + 320) / 32 - 8 + 10 + 2 = 16 against 20: its prefix is active there.
    assert_eq!(router.choose(&arrival(2, 320, 1, 256), &view), 0);
    // (128 + 320) / 32 - 8 + 12 + 2 = 20 against 20 is a tie; one more is not.
    router.choose(&arrival(3, 320, 9, 0), &view);
    router.choose(&arrival(4, 320, 9, 0), &view);
    router.prefilled(RequestId(1));
    router.ended(RequestId(1));
    // Worker 0: (64 + 320) / 32 - 8 + 10 + 2 = 16; worker 1: (640 + 320) / 32 + 20 + 10 = 60.
    assert_eq!(router.choose(&arrival(5, 320, 1, 256), &view), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 16, ..ProptestConfig::default() })]

    /// Each request ends once (checked by the simulation), and no hit exceeds what was stored.
    #[test]
    fn requests_are_conserved(
        workers in 1..12_usize,
        routers in 1..4_usize,
        rate in 1.0..60.0,
        prefixes in 0..40_usize,
        concurrency in prop::option::of(1..20_usize),
        credit in 0.0..2.0,
        delay in 0..1000_u64,
    ) {
        let policy = Policy::KvAware { overlap_credit: credit, prefill_load_scale: 1.0 };
        let arrivals = concurrency.map_or(Loop::Open, |concurrency| Loop::Closed { concurrency });
        let event_delay = Duration::from_millis(delay);
        let mut fleet = Fleet { routers, arrivals, event_delay, ..fleet(workers, policy, rate, prefixes) };
        (fleet.setup.requests, fleet.warm_up) = (200, 20);
        let trace = requests(&fleet);
        let report = simulate_fleet(&config(), &fleet, &trace).expect("invariants hold");
        prop_assert_eq!(report.requests.iter().sum::<u64>(), 180);
        prop_assert_eq!(report.time_to_first_token.count(), 180);
        let prompts: usize = trace[20..].iter().map(|arrival| arrival.request.prompt_tokens).sum();
        prop_assert_eq!(report.prompt_tokens, prompts as u64);
        prop_assert!(report.hit_rate() < 1.0 && (prefixes > 0 || report.cached_tokens == 0));
        prop_assert!(report.imbalance() >= 1.0 && report.imbalance() <= workers as f64 + 1e-9);
    }
}
