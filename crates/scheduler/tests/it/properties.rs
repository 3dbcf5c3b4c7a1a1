//! Random interleavings of all calls against a model that scans lists.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use ruvllm_scheduler::{Config, Refusal, Request, RequestId, Scheduler, TenantId, Work};

use crate::{config, ms};

#[derive(Debug, Clone)]
enum Call {
    Submit {
        tenant: u32,
        priority: i32,
        prompt: usize,
        output: usize,
        prefix: Option<u64>,
        deadline: Option<u64>,
    },
    Cancel(usize),
    Admit {
        free: usize,
        cached: usize,
    },
    Preempt(usize),
    Step {
        fails: bool,
    },
    Wait(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let prefix = prop::option::of(0_u64..3);
    let deadline = prop::option::weighted(0.2, 1_u64..10_000);
    let submit = (0_u32..3, -2_i32..3, 0_usize..300, 0_usize..60, prefix, deadline);
    prop_oneof![
        4 => submit.prop_map(|(tenant, priority, prompt, output, prefix, deadline)| {
            Call::Submit { tenant, priority, prompt, output, prefix, deadline }
        }),
        1 => (0_usize..100).prop_map(Call::Cancel),
        4 => (0_usize..1500, 0_usize..200).prop_map(|(free, cached)| Call::Admit { free, cached }),
        1 => (0_usize..100).prop_map(Call::Preempt),
        6 => prop::bool::weighted(0.1).prop_map(|fails| Call::Step { fails }),
        2 => (0_u64..3000).prop_map(Call::Wait),
    ]
}

#[derive(Debug)]
struct Known {
    request: Request,
    submitted: Duration,
    runs: bool,
    known: usize,
    computed: usize,
    /// Largest former value of `computed`.
    seen: usize,
}

#[derive(Debug, Default)]
struct Model {
    requests: BTreeMap<u64, Known>,
    prefilled_and_decoded: usize,
    recomputed: usize,
}

impl Model {
    fn count(&self, runs: bool) -> usize {
        self.requests.values().filter(|known| known.runs == runs).count()
    }

    /// A number among those of requests in a state.
    fn pick(&self, runs: bool, choice: usize) -> Option<u64> {
        let count = self.count(runs);
        let mut ids = self.requests.iter().filter(|(_, known)| known.runs == runs);
        ids.nth(choice.checked_rem(count)?).map(|(&id, _)| id)
    }

    fn advance(&mut self, work: Work, sampled: usize) {
        let known = self.requests.get_mut(&work.id.0).unwrap();
        let after = known.computed + work.tokens;
        let new = after.saturating_sub(known.seen.max(known.computed));
        self.prefilled_and_decoded += new;
        self.recomputed += work.tokens - new;
        known.seen = known.seen.max(after);
        known.computed = after;
        known.known += sampled;
    }

    fn check_step(&self, config: &Config, step: &[Work]) {
        let total: usize = step.iter().map(|work| work.tokens).sum();
        assert!(total <= config.step_tokens);
        let wants = |known: &&Known| known.runs && known.known > known.computed;
        let (mut decodes, mut prefill) = (0, 0);
        for known in self.requests.values().filter(wants) {
            let missing = known.known - known.computed;
            if missing == 1 { decodes += 1 } else { prefill += missing }
        }
        let decodes_in_step = step.iter().filter(|work| work.tokens == 1 && work.samples).count();
        if decodes + config.min_prefill_tokens <= config.step_tokens {
            assert!(decodes_in_step >= decodes, "{decodes} decodes: {step:?}");
        }
        assert_eq!(total == 0, decodes + prefill == 0, "no idle step while there is work");
        if prefill > 0 {
            let least = prefill.min(config.min_prefill_tokens.min(config.step_tokens / 2));
            assert!(total - decodes_in_step.min(decodes) >= least, "prefill goes on: {step:?}");
        }
        for work in step {
            let known = &self.requests[&work.id.0];
            let missing = known.known - known.computed;
            assert!(known.runs && (1..=missing).contains(&work.tokens));
            assert_eq!(work.samples, work.tokens == missing);
            assert_eq!(step.iter().filter(|other| other.id == work.id).count(), 1);
        }
    }
}

/// Carries one call out on both and compares them.
fn apply(
    call: Call,
    id: u64,
    now: &mut Duration,
    config: &Config,
    scheduler: &mut Scheduler,
    model: &mut Model,
) {
    match call {
        Call::Submit { tenant, priority, prompt, output, prefix, deadline } => {
            let request = Request {
                id: RequestId(id),
                tenant: TenantId(tenant),
                priority,
                deadline: deadline.map(ms),
                prompt_tokens: prompt,
                max_new_tokens: output,
                prefix,
            };
            let is_late = deadline.is_some_and(|deadline| ms(deadline) <= *now);
            let result = scheduler.submit(*now, request.clone());
            match result {
                Err(Refusal::Late { .. }) => assert!(is_late),
                Err(Refusal::EmptyPrompt) => assert_eq!(prompt, 0),
                Err(Refusal::QueueFull { waiting, .. }) => {
                    // Preempted requests wait beyond the limit.
                    assert!(waiting == model.count(false) && waiting >= config.max_waiting);
                }
                Err(refusal) => panic!("{refusal}"),
                Ok(()) => {
                    assert!(!is_late && prompt > 0 && model.count(false) < config.max_waiting);
                    let known =
                        Known { request, submitted: *now, runs: false, known: prompt, computed: 0, seen: 0 };
                    model.requests.insert(id, known);
                }
            }
        }
        Call::Cancel(choice) => {
            let id = model.pick(choice % 2 == 0, choice).unwrap_or(u64::MAX);
            assert_eq!(scheduler.finished(RequestId(id)), model.requests.remove(&id).is_some());
        }
        Call::Admit { free, cached } => admit(free, cached, *now, config, scheduler, model),
        Call::Preempt(choice) => {
            let Some(short) = model.pick(true, choice) else { return };
            let victim = scheduler.victim(RequestId(short)).0;
            assert!(model.requests[&victim].runs);
            scheduler.preempted(RequestId(victim));
            let known = model.requests.get_mut(&victim).unwrap();
            (known.runs, known.computed) = (false, 0);
        }
        Call::Step { fails } => step(fails, *now, config, scheduler, model),
        Call::Wait(time) => {
            *now += ms(time);
            while let Some(id) = scheduler.expire(*now) {
                let known = model.requests.remove(&id.0).unwrap();
                assert!(known.request.deadline.unwrap() <= *now);
            }
            assert!(model.requests.values().all(|known| known.request.deadline.is_none_or(|at| at > *now)));
        }
    }
    assert_eq!((scheduler.waiting(), scheduler.running()), (model.count(false), model.count(true)));
    assert_eq!(scheduler.is_idle(), model.requests.is_empty());
    let statistics = scheduler.statistics();
    let computed = statistics.prefilled + statistics.decoded;
    assert_eq!(
        (computed as usize, statistics.recomputed as usize),
        (model.prefilled_and_decoded, model.recomputed)
    );
}

fn admit(
    free: usize,
    cached: usize,
    now: Duration,
    config: &Config,
    scheduler: &mut Scheduler,
    model: &mut Model,
) {
    let alone = model.count(true) == 0;
    let Some(id) = scheduler.admit(now, free) else {
        assert!(!alone || model.count(false) == 0, "something can always run");
        return;
    };
    assert!(model.count(true) < config.max_running);
    let missing = |known: &Known| known.known - known.computed;
    let claimed: usize = model.requests.values().filter(|known| known.runs).map(missing).sum();
    let known = model.requests.get_mut(&id.0).unwrap();
    assert!(!known.runs && now >= known.submitted);
    assert!(alone || claimed + known.known <= free, "room for all that is known");
    known.runs = true;
    known.computed = cached.min(known.known - 1);
    known.seen = known.seen.max(known.computed);
    scheduler.started(id, cached);
}

fn step(fails: bool, now: Duration, config: &Config, scheduler: &mut Scheduler, model: &mut Model) {
    let mut step = Vec::new();
    scheduler.plan(now, &mut step);
    model.check_step(config, &step);
    if fails {
        return;
    }
    scheduler.observe(&step, ms(step.iter().map(|work| work.tokens).sum::<usize>() as u64));
    for work in step {
        let sampled = usize::from(work.samples);
        scheduler.advanced(work.id, work.tokens, sampled);
        model.advance(work, sampled);
        let known = &model.requests[&work.id.0];
        if known.known - known.request.prompt_tokens > known.request.max_new_tokens {
            assert!(scheduler.finished(work.id));
            model.requests.remove(&work.id.0);
        }
    }
}

proptest! {
    #[test]
    fn all_calls_agree_with_the_model(
        calls in prop::collection::vec(call(), 1..300),
        max_running in 1_usize..8,
        step_tokens in 1_usize..200,
        fair_shares in any::<bool>(),
    ) {
        let config = config(|config| {
            config.max_running = max_running;
            config.step_tokens = step_tokens;
            config.max_waiting = 20;
            config.fair_shares = fair_shares;
            config.min_prefill_tokens = 8.min(step_tokens);
        });
        let (mut scheduler, mut model) = (Scheduler::new(config.clone()), Model::default());
        let mut now = Duration::ZERO;
        for (id, call) in calls.into_iter().enumerate() {
            apply(call, id as u64, &mut now, &config, &mut scheduler, &mut model);
        }
        // All that is left finishes.
        for _ in 0..200_000 {
            if model.requests.is_empty() {
                break;
            }
            now += ms(10);
            let calls = [Call::Wait(0), Call::Admit { free: 100_000, cached: 0 }, Call::Step { fails: false }];
            for call in calls {
                apply(call, u64::MAX, &mut now, &config, &mut scheduler, &mut model);
            }
        }
        prop_assert!(model.requests.is_empty(), "{model:?}");
    }

    /// One tenant, room for all: the order is that of priority and age, also after preemptions.
    #[test]
    fn order_within_a_tenant_is_that_of_aged_priority(
        calls in prop::collection::vec((0_u8..4, -3_i32..4, 0_u64..1500), 1..200),
    ) {
        let mut scheduler = Scheduler::new(Config::default());
        let (mut waiting, mut running) = (Vec::<(i64, u64)>::new(), Vec::<(i64, u64)>::new());
        let mut now = 0_u64;
        for (id, (kind, priority, time)) in calls.into_iter().enumerate() {
            now += time;
            match kind {
                0 | 1 => {
                    let id = id as u64;
                    let request = Request { priority, ..crate::request(id, 10, 10) };
                    scheduler.submit(ms(now), request).unwrap();
                    waiting.push((now as i64 - 2000 * i64::from(priority), id));
                }
                2 => {
                    let admitted = scheduler.admit(ms(now), 1 << 20);
                    waiting.sort_unstable();
                    let expected = (!waiting.is_empty()).then(|| waiting.remove(0));
                    prop_assert_eq!(admitted.map(|id| id.0), expected.map(|first| first.1));
                    running.extend(expected);
                }
                _ => {
                    if let Some(preempted) = running.pop() {
                        scheduler.preempted(RequestId(preempted.1));
                        waiting.push(preempted);
                    }
                }
            }
        }
    }
}
