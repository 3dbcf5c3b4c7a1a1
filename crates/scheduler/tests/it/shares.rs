//! Fair shares of tenants.

use std::collections::HashMap;

use proptest::prelude::*;
use ruvllm_scheduler::{Config, Request, RequestId, Scheduler, TenantId};

use crate::{admit_all, compute, config, ms, of_tenant, plan, request};

const PLENTY: usize = 1 << 24;

#[test]
fn small_tenant_goes_before_the_backlog_of_a_large_one() {
    let mut scheduler = Scheduler::new(config(|config| config.max_running = 4));
    for id in 0..100 {
        scheduler.submit(ms(0), of_tenant(0, request(id, 1000, 10))).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), PLENTY), [0, 1, 2, 3], "alone: all places");
    scheduler.submit(ms(60_000), of_tenant(1, request(100, 1000, 10))).unwrap();
    scheduler.finished(RequestId(0));
    assert_eq!(admit_all(&mut scheduler, ms(60_000), PLENTY), [100]);
    // Beside another tenant one place stays free for those below their share.
    scheduler.finished(RequestId(1));
    assert_eq!(admit_all(&mut scheduler, ms(60_000), PLENTY), []);
    scheduler.finished(RequestId(2));
    assert_eq!(admit_all(&mut scheduler, ms(60_000), PLENTY), [4]);
}

#[test]
fn without_fair_shares_order_is_that_of_age() {
    let mut scheduler = Scheduler::new(config(|config| config.fair_shares = false));
    for id in 0..10 {
        scheduler.submit(ms(id), of_tenant(u32::from(id == 9), request(id, 1000, 10))).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(10), PLENTY), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(plan(&mut scheduler)[0].id, RequestId(0));
}

#[test]
fn prefill_of_a_step_is_shared() {
    let mut scheduler = Scheduler::new(Config::default());
    scheduler.set_weight(TenantId(2), 2.0);
    for (id, tenant) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
        scheduler.submit(ms(0), of_tenant(tenant, request(id, 100_000, 10))).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), PLENTY).len(), 4);
    let mut tokens = HashMap::<u64, usize>::new();
    for _ in 0..40 {
        compute(&mut scheduler).iter().for_each(|work| *tokens.entry(work.id.0).or_default() += work.tokens);
    }
    // 20,480 tokens in shares of 1 : 1 : 2, to the quantum.
    let near = |id: u64, expected: usize| tokens[&id].abs_diff(expected) <= 512;
    assert!(near(0, 5120) && near(2, 5120) && near(3, 10_240), "{tokens:?}");
    assert_eq!(tokens.get(&1), None, "within a tenant one prompt after the other");
}

#[test]
fn unused_share_is_kept_up_to_the_burst() {
    let mut scheduler = Scheduler::new(config(|config| config.burst_tokens = 2048));
    scheduler.submit(ms(0), of_tenant(1, request(9, 1, 1))).unwrap();
    scheduler.submit(ms(0), of_tenant(0, request(0, 1_000_000, 10))).unwrap();
    admit_all(&mut scheduler, ms(0), PLENTY);
    for _ in 0..50 {
        compute(&mut scheduler);
    }
    scheduler.submit(ms(1), of_tenant(1, request(1, 1_000_000, 10))).unwrap();
    assert_eq!(admit_all(&mut scheduler, ms(1), PLENTY), [1]);
    let steps: Vec<_> = (0..10).map(|_| compute(&mut scheduler)).collect();
    let of_new: Vec<usize> = steps
        .iter()
        .map(|step| step.iter().filter(|work| work.id.0 == 1).map(|work| work.tokens).sum())
        .collect();
    assert!(of_new[..4].iter().sum::<usize>() >= 1700, "{of_new:?}");
    assert!((1400..1700).contains(&of_new[4..].iter().sum::<usize>()), "{of_new:?}");
}

#[test]
fn idle_capacity_costs_nothing_later() {
    let mut scheduler = Scheduler::new(config(|config| config.max_running = 2));
    scheduler.submit(ms(0), of_tenant(0, request(0, 10, 1_000_000))).unwrap();
    scheduler.admit(ms(0), PLENTY);
    scheduler.advanced(RequestId(0), 10, 1);
    for _ in 0..100_000 {
        scheduler.advanced(RequestId(0), 1, 1);
    }
    // Alone, tenant 0 used what nobody else wanted: both get the same from now on.
    let mut admitted = [0, 0];
    for id in 1..400 {
        scheduler.submit(ms(1), of_tenant(id as u32 % 2, request(id, 512, 0))).unwrap();
    }
    scheduler.finished(RequestId(0));
    for _ in 0..100 {
        let id = scheduler.admit(ms(1), PLENTY).unwrap();
        admitted[id.0 as usize % 2] += 1;
        scheduler.advanced(id, 512, 0);
        scheduler.finished(id);
    }
    assert!(admitted[0] >= 40, "{admitted:?}");
}

proptest! {
    /// While all want more, no tenant gets further from its share than one turn and one request.
    #[test]
    fn service_is_proportional_to_weights(
        tenants in prop::collection::vec((1_u32..6, 1_usize..2000), 2..6),
    ) {
        let mut scheduler = Scheduler::new(config(|config| config.max_running = 1));
        for (tenant, &(weight, _)) in tenants.iter().enumerate() {
            scheduler.set_weight(TenantId(tenant as u32), f64::from(weight));
        }
        let mut next = 0;
        let mut submit = |scheduler: &mut Scheduler, tenant: usize| {
            next += 1;
            let request = of_tenant(tenant as u32, request(next, tenants[tenant].1, 0));
            scheduler.submit(ms(0), request).unwrap();
            next
        };
        let mut owner: HashMap<u64, usize> =
            (0..tenants.len()).map(|tenant| (submit(&mut scheduler, tenant), tenant)).collect();
        let mut served = vec![0.0; tenants.len()];
        for _ in 0..300 {
            let id = scheduler.admit(ms(0), 0).unwrap();
            let tenant = owner.remove(&id.0).unwrap();
            let (weight, tokens) = tenants[tenant];
            served[tenant] += tokens as f64 / f64::from(weight);
            owner.insert(submit(&mut scheduler, tenant), tenant);
            scheduler.advanced(id, tokens, 0);
            scheduler.finished(id);
            let (least, most) = served.iter().fold((f64::MAX, 0_f64), |(l, m), &s| (l.min(s), m.max(s)));
            let largest = tenants.iter().map(|t| t.1 as f64 / f64::from(t.0)).fold(0.0, f64::max);
            prop_assert!(most - least <= 2.0 * (256.0 + largest), "{served:?}");
        }
    }
}

/// Priorities order what is served within a round; they buy no larger share.
#[test]
fn high_priority_takes_no_share_of_others() {
    let mut scheduler = Scheduler::new(config(|config| config.max_running = 1));
    let with =
        |tenant: u32, id| Request { priority: tenant as i32, ..of_tenant(tenant, request(id, 600, 0)) };
    for id in 0..400 {
        scheduler.submit(ms(0), with(id as u32 % 2, id)).unwrap();
    }
    let mut served = [0, 0];
    for round in 0..200 {
        let id = scheduler.admit(ms(0), 0).unwrap();
        if round == 0 {
            assert_eq!(id, RequestId(1), "the high priority goes first");
        }
        served[id.0 as usize % 2] += 1;
        scheduler.advanced(id, 600, 0);
        scheduler.finished(id);
    }
    assert!(served[0] >= 98, "admission: {served:?}");

    let mut scheduler = Scheduler::new(Config::default());
    for id in [0, 1, 2] {
        // The last one never starts: both tenants want more.
        let tenant = id as u32 % 2;
        scheduler.submit(ms(id), with(tenant, id)).unwrap();
        scheduler.finished(RequestId(id));
        scheduler.submit(ms(id), Request { prompt_tokens: 1 << 20, ..with(tenant, id) }).unwrap();
    }
    scheduler.admit(ms(5), PLENTY).unwrap();
    scheduler.admit(ms(5), PLENTY).unwrap();
    let mut tokens = [0, 0];
    for _ in 0..40 {
        compute(&mut scheduler).iter().for_each(|work| tokens[work.id.0 as usize % 2] += work.tokens);
    }
    assert!(tokens[0].abs_diff(tokens[1]) <= 1024, "prefill: {tokens:?}");
}
