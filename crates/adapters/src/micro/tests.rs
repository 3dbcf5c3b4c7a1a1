use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use ruvllm_memory::{PagePool, PoolConfig, Request};

use super::*;
use crate::place::Site;

const LAYERS: usize = 3;

fn base() -> Arc<BaseModel> {
    Arc::new(BaseModel {
        architecture: "llama".to_owned(),
        n_layers: LAYERS,
        model_dim: 24,
        query_dim: 16,
        kv_dim: 8,
        head_dim: 8,
        ffn_dim: 40,
        vocab_size: 50,
        interleaved_heads: true,
        joint_attention: false,
        joint_feed_forward: false,
    })
}

fn pool(pages: usize) -> PagePool {
    PagePool::new(PoolConfig::new(pages << 21)).expect("a pool")
}

fn micro(config: &MicroConfig, pool: &PagePool) -> MicroLora {
    MicroLora::new(&base(), config, pool, &Request::default()).expect("an adapter")
}

fn preset(name: &str) -> MicroConfig {
    Preset::named(name).expect("a preset").into()
}

/// Adds `by` to all factors of a site.
fn shift(edit: &mut Edit<'_>, layer: usize, site: Site, by: f32) {
    let mut factors = edit.site(layer, site).expect("a site");
    factors.a().iter_mut().for_each(|value| *value += by);
    for expansion in 0..factors.shape().expansions().len() {
        factors.b(expansion).iter_mut().for_each(|value| *value += by);
    }
}

#[test]
fn it_begins_without_effect_and_with_components_of_each_module() {
    let pool = pool(4);
    let adapter = micro(&preset("all"), &pool).current();
    for layer in 0..LAYERS {
        for (site, modules) in [
            (Site::AttentionInput, 3),
            (Site::AttentionOutput, 1),
            (Site::FeedForwardInput, 2),
            (Site::FeedForwardOutput, 1),
        ] {
            let update = adapter.at(layer, site).expect("all sites");
            let shape = update.shape();
            assert_eq!((shape.rank(), shape.expansions().len()), (2 * modules, modules));
            let a = update.a().values();
            let bound = 1.0 / (shape.inputs() as f32).sqrt();
            assert!(a.iter().all(|value| value.abs() <= bound && *value != 0.0));
            for module in 0..modules {
                assert_eq!(shape.expansions()[module].first, 2 * module);
                assert!(update.b(module).values().iter().all(|value| *value == 0.0));
            }
        }
    }
    assert!(adapter.at(0, Site::Logits).is_none() && adapter.at(0, Site::FinalHidden).is_none());
    let other = micro(&MicroConfig { seed: 1, ..preset("all") }, &pool).current();
    assert_ne!(adapter.factors(), other.factors(), "the seed draws A");
}

#[test]
fn presets_have_unique_names_and_small_ranks() {
    for preset in Preset::ALL {
        assert_eq!(Preset::named(preset.name), Some(*preset));
        assert!((1..=MAX_RANK).contains(&preset.rank) && !preset.targets.is_empty());
    }
    assert_eq!(Preset::named("none"), None);
}

#[test]
fn what_cannot_be_made_is_refused() {
    let pool = pool(4);
    let refused = |rank: usize, targets: &[Projection]| {
        let config = MicroConfig { rank, targets: targets.to_vec(), seed: 0 };
        MicroLora::new(&base(), &config, &pool, &Request::default()).unwrap_err().to_string()
    };
    for rank in [0, MAX_RANK + 1] {
        assert!(refused(rank, &[Projection::Query]).contains("1 to 4"));
    }
    assert!(refused(1, &[]).contains("no target"));
    assert!(refused(1, &[Projection::Up, Projection::Key, Projection::Up]).contains("twice"));
}

#[test]
fn versions_have_digests_of_their_own() {
    let pool = pool(8);
    let [one, two] = [0, 1].map(|_| micro(&preset("qv"), &pool));
    let first = one.current();
    assert_eq!(first.factors(), two.current().factors());
    assert_ne!(first.digest(), two.current().digest(), "later versions differ in contents");
    one.update(|edit| shift(edit, 0, Site::AttentionInput, 1.0)).unwrap();
    assert_ne!(first.digest(), one.current().digest());
    assert_ne!(first.kv_digest(), one.current().kv_digest());
    assert_eq!((one.version(), two.version()), (1, 0));

    for (target, site) in [(Projection::Logits, Site::Logits), (Projection::FinalHidden, Site::FinalHidden)] {
        let last = micro(&MicroConfig { rank: 1, targets: vec![target], seed: 0 }, &pool);
        assert_eq!(last.current().kv_digest(), None, "keys and values do not depend on it");
        last.update(|edit| shift(edit, 0, site, 1.0)).unwrap();
        assert_eq!(last.current().kv_digest(), None);
        assert!(last.current().at(1, site).is_none(), "it is in no layer");
    }
}

#[test]
fn values_that_are_no_numbers_are_not_published() {
    let pool = pool(8);
    let micro = micro(&preset("qkvo"), &pool);
    micro.update(|edit| shift(edit, 1, Site::AttentionOutput, 0.5)).unwrap();
    let before = micro.current().factors().to_vec();
    for (at, value) in [(0, f32::NAN), (17, f32::INFINITY), (23, f32::NEG_INFINITY)] {
        let failed = micro.update(|edit| {
            shift(edit, 0, Site::AttentionInput, 1.0);
            edit.site(2, Site::AttentionOutput).expect("a site").a()[at] = value;
        });
        assert!(matches!(failed, Err(Error::NotFinite { name }) if name.contains("layer 2")));
        assert_eq!((micro.current().factors(), micro.version()), (&before[..], 1));
    }
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        micro.update(|edit| {
            shift(edit, 0, Site::AttentionInput, 1.0);
            panic!("a rule of learning");
        })
    }));
    assert!(panics.is_err());
    assert_eq!(micro.current().factors(), &before[..]);
    micro.update(|_| ()).unwrap();
    assert_eq!(micro.current().factors(), &before[..], "nothing of the failed edits is left");
}

#[test]
fn a_pool_without_room_keeps_the_version() {
    let pool = pool(2);
    let micro = micro(&preset("qv"), &pool);
    micro.update(|edit| shift(edit, 0, Site::AttentionInput, 1.0)).unwrap();
    micro.update(|edit| shift(edit, 0, Site::AttentionInput, 1.0)).unwrap();
    let (older, _newer) = {
        let older = micro.current();
        micro.update(|edit| shift(edit, 0, Site::AttentionInput, 1.0)).unwrap();
        (older, micro.current())
    };
    let short = micro.update(|edit| shift(edit, 0, Site::AttentionInput, 1.0));
    assert!(matches!(short, Err(Error::Memory { .. })), "both buffers are read: {short:?}");
    assert_eq!(micro.version(), 3);
    drop(older);
    micro.update(|edit| shift(edit, 0, Site::AttentionInput, 1.0)).unwrap();
    assert_eq!(micro.version(), 4);
}

#[test]
fn readers_see_whole_versions() {
    let pool = pool(16);
    let micro = Arc::new(micro(&preset("qkvo"), &pool));
    // All factors are equal in every version.
    micro
        .update(|edit| {
            for layer in 0..LAYERS {
                for site in [Site::AttentionInput, Site::AttentionOutput] {
                    let mut factors = edit.site(layer, site).expect("a site");
                    factors.a().fill(0.0);
                }
            }
        })
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0.0;
                while !done.load(Ordering::Relaxed) {
                    let adapter = micro.current();
                    let value = adapter.at(0, Site::AttentionInput).expect("a site").a().values()[0];
                    assert!(value >= last);
                    last = value;
                    for at in adapter.layout().sites() {
                        let update = adapter.at(at.layer, at.site).expect("a site");
                        assert!(update.a().values().iter().all(|other| *other == value));
                    }
                }
            });
        }
        for _ in 0..300 {
            let all = |edit: &mut Edit<'_>| {
                for layer in 0..LAYERS {
                    shift(edit, layer, Site::AttentionInput, 1.0);
                    shift(edit, layer, Site::AttentionOutput, 1.0);
                }
            };
            micro.update(all).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any updates, with readers that hold versions, give what a plain copy gives.
    #[test]
    fn versions_are_those_of_a_plain_copy(
        steps in prop::collection::vec(
            (prop::collection::vec((0..LAYERS, 0usize..2, -2f32..2.0), 0..4), 0usize..4),
            1..30,
        ),
    ) {
        let pool = pool(64);
        let micro = micro(&preset("qkvo"), &pool);
        let mut plain = micro.current().factors().to_vec();
        let (mut held, mut snapshots) = (Vec::new(), vec![(micro.snapshot(), plain.clone())]);
        for (edits, what) in steps {
            if what == 3 {
                let (snapshot, factors) = &snapshots[edits.len() % snapshots.len()];
                micro.restore(snapshot).unwrap();
                plain.clone_from(factors);
            } else {
                micro.update(|edit| for &(layer, site, by) in &edits {
                    let site = [Site::AttentionInput, Site::AttentionOutput][site];
                    shift(edit, layer, site, by);
                    let shape = edit.layout().at(layer, site).expect("a site");
                    let values = |plain: &mut Vec<u8>, start: usize, len: usize| {
                        for value in bytemuck::cast_slice_mut::<u8, f32>(&mut plain[start..][..4 * len]) {
                            *value += by;
                        }
                    };
                    values(&mut plain, shape.a(), shape.rank() * shape.inputs());
                    for (index, expansion) in shape.expansions().iter().enumerate() {
                        values(&mut plain, shape.b(index), expansion.rank * expansion.outputs);
                    }
                }).unwrap();
            }
            let current = micro.current();
            prop_assert_eq!(current.factors(), &plain[..]);
            match what {
                0 => held.push((micro.current(), plain.clone())),
                1 => held.clear(),
                2 => snapshots.push((micro.snapshot(), plain.clone())),
                _ => {}
            }
            for (adapter, factors) in &held {
                prop_assert_eq!(adapter.factors(), &factors[..], "a version that is held stays");
            }
        }
    }
}
