//! Regret, shifts, coverage, persistence and bad input of the router.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::random::Random;
use crate::routing::Strategy;
use crate::routing::simulated::{Kinds, Regret, Request, World};

const DIM: usize = 16;

fn arms(count: usize) -> Vec<Arm> {
    (0..count).map(|i| Arm { adapter: Some(format!("adapter-{i}")), ..Arm::model("base") }).collect()
}

fn prompt(embedding: &[f32]) -> Prompt<'_> {
    Prompt { embedding, tokens: 200, has_tools: false, is_constrained: false, turns: 0 }
}

fn settings(strategy: Strategy) -> RouterSettings {
    RouterSettings { strategy, ..RouterSettings::new(DIM) }
}

/// A world of six kinds of requests and four arms, one of which is clearly the best of a kind.
fn clusters(seed: u64) -> World {
    World::kinds(&Kinds { dim: DIM, ..Kinds::default() }, seed)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Regret of the first 2,000 requests and of the 6,000 after them.
fn regrets(world: &mut World, strategy: Strategy) -> [Regret; 2] {
    let settings = RouterSettings { strategy, ..RouterSettings::new(world.dim()) };
    let mut router = Router::new(settings, arms(world.arms())).unwrap();
    [2000, 6000].map(|requests| world.serve(&mut router, requests).unwrap())
}

#[test]
fn regret_is_a_tenth_of_random_choice_and_rules_are_beaten() {
    for strategy in [Strategy::LinUcb, Strategy::Thompson] {
        let runs: Vec<[Regret; 2]> = (1..=5).map(|seed| regrets(&mut clusters(seed), strategy)).collect();
        let share =
            |[first, later]: &[Regret; 2]| (first.router + later.router) / (first.random + later.random);
        println!("{strategy:?}: {:.3?}", runs.iter().map(share).collect::<Vec<_>>());
        assert!(median(runs.iter().map(share)) < 0.06, "{strategy:?}: {runs:?}");
        for [first, later] in runs {
            let router = first.router + later.router;
            // Against the best fixed arm, which knows the world but not the kind of a request,
            // regret is negative: the router earns more.
            assert!(router < first.fixed + later.fixed);
            assert!(router < 0.2 * (first.random + later.random), "{strategy:?}: {first:?} {later:?}");
            assert!(later.router < 0.1 * later.random, "{strategy:?}: {later:?}");
            // The rules always choose arm 0.
            assert!(router < 0.25 * (first.rules + later.rules), "{strategy:?}: {first:?} {later:?}");
        }
    }
}

#[test]
fn other_worlds_are_learned_too() {
    let wide = Kinds { kinds: 12, dim: 384, noise: 1.0, common: 2.0, ..Kinds::default() };
    let many = Kinds { kinds: 3, arms: 8, dim: 32, noise: 0.6, common: 1.0, ..Kinds::default() };
    for strategy in [Strategy::LinUcb, Strategy::Thompson] {
        for (name, make, most) in [
            ("wide", &(|seed| World::kinds(&wide, seed)) as &dyn Fn(u64) -> World, 0.2),
            ("many arms", &|seed| World::kinds(&many, seed), 0.15),
            ("linear", &|seed| World::linear(4, DIM, 0.3, seed), 0.12),
        ] {
            let share = |seed| {
                let [first, later] = regrets(&mut make(seed), strategy);
                (first.router + later.router) / (first.random + later.random)
            };
            let shares: Vec<f64> = (1..=3).map(share).collect();
            println!("{strategy:?} {name}: {shares:.3?}");
            assert!(median(shares.iter().copied()) < most, "{strategy:?} {name}: {shares:?}");
        }
    }
}

#[test]
fn shifts_are_followed_within_3000_requests() {
    for strategy in [Strategy::LinUcb, Strategy::Thompson] {
        let follow = |seed| {
            let mut world = clusters(seed);
            let mut router = Router::new(settings(strategy), arms(4)).unwrap();
            world.serve(&mut router, 4000).unwrap();
            world.shift();
            let mut share = |requests| {
                let regret = world.serve(&mut router, requests).unwrap();
                regret.router / regret.random
            };
            let first = share(500);
            share(2500);
            [first, share(1000)]
        };
        let shares: Vec<[f64; 2]> = (1..=5).map(follow).collect();
        println!("{strategy:?}: {shares:.3?}");
        assert!(shares.iter().all(|share| share[0] > 0.3), "the shift is none: {shares:?}");
        assert!(median(shares.iter().map(|share| share[1])) < 0.1, "{strategy:?}: {shares:?}");
        assert!(shares.iter().all(|share| share[1] < 0.3), "{strategy:?}: {shares:?}");
    }
}

#[test]
fn nothing_is_explored_for_those_who_never_rate() {
    let mut router = Router::new(settings(Strategy::Thompson), arms(4)).unwrap();
    let regret = clusters(1).serve_rated(&mut router, 2000, 0.0).unwrap();
    assert!((50..100).contains(&regret.explored), "{regret:?}");
    let decision = router.choose(&prompt(&[1.0; DIM]), |_| true, None).unwrap();
    assert_eq!((decision.arm, decision.reason), (0, Reason::Rule));
    router.learn(&decision, 1.0).unwrap();
    let regret = clusters(1).serve_rated(&mut router, 50, 0.0).unwrap();
    assert!(regret.explored > 20, "a reward makes it explore again: {regret:?}");
}

#[test]
fn a_draft_model_is_chosen_where_it_suffices() {
    // Both models answer easy requests, the draft in a tenth of the time; hard ones need the base.
    let mut random = Random::new(8);
    let mut router =
        Router::new(settings(Strategy::LinUcb), vec![Arm::model("base"), Arm::model("draft")]).unwrap();
    let mut served = [[0_usize; 2]; 2];
    for request in 0..4000 {
        let is_hard = random.below(2);
        let embedding: Vec<f32> =
            (0..DIM).map(|i| (random.normal() * 0.3) as f32 + if i == is_hard { 1.0 } else { 0.0 }).collect();
        let decision = router.choose(&prompt(&embedding), |_| true, None).unwrap();
        let is_right = random.uniform() < if decision.arm == 1 && is_hard == 1 { 0.2 } else { 0.9 };
        let latency = Duration::from_millis(if decision.arm == 1 { 400 } else { 4000 });
        let reward = router.reward(if is_right { 1.0 } else { -1.0 }, latency).unwrap();
        router.learn(&decision, reward).unwrap();
        if request >= 2000 {
            served[is_hard][decision.arm] += 1;
        }
    }
    println!("{served:?}");
    assert!(served[0][1] > 9 * served[0][0] && served[1][0] > 9 * served[1][1], "{served:?}");
}

#[test]
fn confidence_intervals_cover_the_expected_reward() {
    let (mut random, mut covered, mut total) = (Random::new(5), 0, 0);
    let weights: Vec<Vec<f64>> =
        (0..3).map(|_| (0..DIM).map(|_| 0.25 * random.normal() / (DIM as f64).sqrt()).collect()).collect();
    let settings = RouterSettings { discount: 0.995, ..settings(Strategy::LinUcb) };
    let mut router = Router::new(settings, arms(3)).unwrap();
    for _ in 0..3000 {
        let embedding: Vec<f32> = (0..DIM).map(|_| random.normal() as f32).collect();
        let unit = vector::normalized(&embedding);
        let decision = router.choose(&prompt(&embedding), |_| true, None).unwrap();
        let expected = |arm: usize| {
            let product: f64 = weights[arm].iter().zip(&unit).map(|(w, e)| w * f64::from(*e)).sum();
            0.5 + 2.0 * product
        };
        for (arm, score) in decision.scores.iter().enumerate() {
            let Score { mean, width, .. } = score.unwrap();
            covered += usize::from((mean - expected(arm)).abs() <= width);
            total += 1;
        }
        let reward = f64::from(u8::from(random.uniform() < expected(decision.arm)));
        router.learn(&decision, reward).unwrap();
    }
    let share = covered as f64 / total as f64;
    assert!(share >= 0.9, "{share}");
}

#[test]
fn exploration_keeps_its_share() {
    for (warm_up, share) in [(0, 0.0), (0, 0.02), (0, 0.3), (50, 0.0), (50, 0.02)] {
        let settings = RouterSettings { warm_up, exploration_share: share, ..settings(Strategy::Thompson) };
        let mut router = Router::new(settings, arms(4)).unwrap();
        let regret = clusters(1).serve(&mut router, 1000).unwrap();
        let most = warm_up as usize + if share == 0.0 { 0 } else { (1000.0 * share) as usize + 16 };
        assert!(regret.explored <= most, "{warm_up} {share}: {regret:?}");
        assert!(regret.explored >= most.min(30) / 2, "{warm_up} {share}: {regret:?}");
    }
}

#[test]
fn rules_and_opinions_decide_while_arms_are_unsure() {
    let rules =
        Rules { rules: vec![(Condition { has_tools: Some(true), ..Condition::default() }, 2)], otherwise: 1 };
    let settings = RouterSettings { rules, warm_up: 0, exploration_share: 0.0, ..settings(Strategy::LinUcb) };
    let mut router = Router::new(settings, arms(4)).unwrap();
    let plain = prompt(&[1.0; DIM]);
    let with_tools = Prompt { has_tools: true, ..plain };
    let mut choose = |prompt: &Prompt<'_>, permitted: fn(usize) -> bool, opinion: Option<&[f32]>| {
        let decision = router.choose(prompt, permitted, opinion).unwrap();
        (decision.arm, decision.reason)
    };
    assert_eq!(choose(&plain, |_| true, None), (1, Reason::Rule));
    assert_eq!(choose(&with_tools, |_| true, None), (2, Reason::Rule));
    assert_eq!(choose(&with_tools, |arm| arm != 2, None), (1, Reason::Rule));
    assert_eq!(choose(&with_tools, |arm| arm == 3, None), (3, Reason::OnlyArm));
    let opinion = [0.3, 0.2, 0.1, 0.9];
    assert_eq!(choose(&plain, |_| true, Some(&opinion)), (3, Reason::Opinion));
    assert_eq!(choose(&plain, |arm| arm != 3, Some(&opinion)), (1, Reason::Rule));
    // Twenty rewards make arm 0 sure, although the rules would choose arm 1.
    let mut decision = router.choose(&plain, |_| true, None).unwrap();
    decision.arm = 0;
    (0..20).for_each(|_| router.learn(&decision, 0.8).unwrap());
    let decision = router.choose(&plain, |_| true, None).unwrap();
    assert_eq!((decision.arm, decision.reason), (0, Reason::Best));
    let text = decision.to_string();
    assert!(text.starts_with("arm 0 (best); 0: 0.7") && text.contains("of 20; 1: 0.000"), "{text}");
}

#[test]
fn ties_are_decided_by_the_opinion() {
    let settings = RouterSettings { warm_up: 0, exploration_share: 0.0, ..settings(Strategy::LinUcb) };
    let mut router = Router::new(settings, arms(3)).unwrap();
    let plain = prompt(&[1.0; DIM]);
    let mut decision = router.choose(&plain, |_| true, None).unwrap();
    for (arm, reward) in [(0, 0.7), (1, 0.71), (2, 0.3)] {
        decision.arm = arm;
        (0..30).for_each(|_| router.learn(&decision, reward).unwrap());
    }
    let mut reason = |opinion: Option<&[f32]>| {
        let decision = router.choose(&plain, |_| true, opinion).unwrap();
        (decision.arm, decision.reason)
    };
    assert_eq!(reason(None), (1, Reason::Best));
    assert_eq!(reason(Some(&[0.9, 0.2, 1.0])), (0, Reason::Tie));
}

#[test]
fn poisoned_rewards_and_foreign_decisions_are_refused() {
    let mut router = Router::new(settings(Strategy::LinUcb), arms(2)).unwrap();
    let decision = router.choose(&prompt(&[1.0; DIM]), |_| true, None).unwrap();
    let before = router.save("t");
    for reward in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
        assert!(matches!(router.learn(&decision, reward), Err(Error::Input { what: "reward", .. })));
    }
    let mut foreign = decision.clone();
    foreign.context = vec![1.0; 3].into();
    assert!(matches!(router.learn(&foreign, 0.5), Err(Error::Dimension { .. })));
    foreign.context = vec![f64::NAN; decision.context.len()].into();
    assert!(matches!(router.learn(&foreign, 0.5), Err(Error::NotFinite { .. })));
    foreign = decision.clone();
    foreign.arm = 2;
    assert!(matches!(router.learn(&foreign, 0.5), Err(Error::Input { what: "arm", .. })));
    assert_eq!(router.save("t"), before);
    assert!(matches!(router.choose(&prompt(&[1.0; DIM]), |_| false, None), Err(Error::NoArm)));
    assert!(router.choose(&prompt(&[1.0; DIM]), |_| true, Some(&[0.5])).is_err());
    assert!(router.choose(&prompt(&[f32::INFINITY; DIM]), |_| true, None).is_err());
    assert_eq!(router.save("t"), before);
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = fn(&mut RouterSettings);
    let cases: [(Change, &str); 8] = [
        (|s| s.exploration = -1.0, "exploration is -1; it must be 0 to 10"),
        (|s| s.warm_up = 1_000_001, "warm_up is 1000001; it must be 0 to 1000000"),
        (|s| s.projection = 65, "projection is 65; it must be 1 to 64"),
        (|s| s.ridge = 0.0, "ridge is 0; it must be 0.000001 to 1000000"),
        (|s| s.discount = f64::NAN, "discount is NaN; it must be 0.5 to 1"),
        (|s| s.rules.otherwise = 2, "arm of a rule is 2; it must be an index of the arms"),
        (|s| s.reward.latency_weight = 2.0, "latency_weight is 2; it must be 0 to 1"),
        (|s| s.embedding_dim = 0, "embedding_dim is 0; it must be above 0"),
    ];
    for (change, message) in cases {
        let mut settings = settings(Strategy::LinUcb);
        change(&mut settings);
        assert_eq!(Router::new(settings, arms(2)).unwrap_err().to_string(), message);
    }
    assert!(Router::new(settings(Strategy::LinUcb), vec![]).is_err());
}

#[test]
fn loaded_routers_decide_bit_for_bit() {
    for strategy in [Strategy::LinUcb, Strategy::Thompson] {
        let mut world = clusters(1);
        let mut router = Router::new(settings(strategy), arms(4)).unwrap();
        world.serve(&mut router, 300).unwrap();
        let text = serde_json::to_string(&router.save("tenant")).unwrap();
        let saved: SavedRouter = serde_json::from_str(&text).unwrap();
        let mut loaded = Router::load(settings(strategy), arms(4), saved, "tenant").unwrap();
        for _ in 0..200 {
            let Request { embedding, success } = world.draw();
            let decisions =
                [&mut router, &mut loaded].map(|r| r.choose(&prompt(&embedding), |_| true, None).unwrap());
            assert_eq!(decisions[0], decisions[1]);
            let reward = world.reward(success[decisions[0].arm]);
            for router in [&mut router, &mut loaded] {
                router.learn(&decisions[0], reward).unwrap();
            }
        }
        assert_eq!(router.save("tenant"), loaded.save("tenant"));
    }
}

#[test]
fn states_of_others_and_damaged_ones_are_refused() {
    let mut router = Router::new(settings(Strategy::LinUcb), arms(2)).unwrap();
    let two = Kinds { kinds: 2, arms: 2, dim: DIM, ..Kinds::default() };
    World::kinds(&two, 1).serve(&mut router, 20).unwrap();
    let saved = serde_json::to_value(router.save("a")).unwrap();
    let load = |value: serde_json::Value, settings: RouterSettings, tenant: &str| {
        let saved: SavedRouter = serde_json::from_value(value).unwrap();
        assert_eq!(saved.tenant(), "a");
        Router::load(settings, arms(2), saved, tenant).map(|_| ())
    };
    let own = settings(Strategy::LinUcb);
    load(saved.clone(), own.clone(), "a").unwrap();
    assert!(matches!(load(saved.clone(), own.clone(), "b"), Err(Error::Foreign { of: "tenant", .. })));
    let other = RouterSettings { ridge: 0.3, ..own.clone() };
    assert!(matches!(load(saved.clone(), other, "a"), Err(Error::Foreign { .. })));
    let mut newer = saved.clone();
    newer["version"] = 3.into();
    assert!(matches!(load(newer, own.clone(), "a"), Err(Error::Version { found: 3, .. })));
    for (field, value) in [
        ("inverse", serde_json::json!([1])),
        ("weights", serde_json::json!([f64::NAN.to_bits()])),
        ("next", 1000.into()),
        ("time", u64::MAX.into()),
        ("errors", serde_json::json!([0])),
    ] {
        let mut damaged = saved.clone();
        damaged["arms"][1][field] = value;
        assert!(matches!(load(damaged, own.clone(), "a"), Err(Error::Damaged { .. })), "{field}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_rewards_leaves_finite_scores_and_constant_memory(
        seed in any::<u64>(),
        discount in 0.5..=1.0,
        scale in -30.0..30.0_f64,
        rewards in prop::collection::vec((0.0..=1.0, 0_usize..3), 1..200),
    ) {
        let settings = RouterSettings { discount, ..settings(Strategy::LinUcb) };
        let mut router = Router::new(settings, arms(3)).unwrap();
        let size = |router: &Router| {
            let saved = serde_json::to_value(router.save("t")).unwrap();
            saved["arms"][0]["inverse"].as_array().unwrap().len()
        };
        let (before, mut random) = (size(&router), Random::new(seed));
        for (reward, arm) in rewards {
            let mut value = || (random.normal() * 10_f64.powf(scale)) as f32;
            let embedding: Vec<f32> = (0..DIM).map(|_| value()).collect();
            let mut decision = router.choose(&prompt(&embedding), |_| true, None).unwrap();
            for score in decision.scores.iter().flatten() {
                prop_assert!(score.mean.is_finite() && score.width.is_finite() && score.width >= 0.0);
                prop_assert!(score.mean.abs() < 20.0, "{score:?}");
            }
            decision.arm = arm;
            router.learn(&decision, reward).unwrap();
        }
        prop_assert_eq!(size(&router), before);
    }
}
