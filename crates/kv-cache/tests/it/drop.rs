//! Tokens that are dropped behind the attention sinks.

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::attention::{AttentionScratch, AttentionShape, Mask};
use ruvllm_memory::PressurePolicy;

use crate::oracle::{Checked, SHAPE, kernels, pool, store};

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
}

/// Attention of a query over one layer of a sequence.
fn attend(checked: &Checked, query: &[f32]) -> Vec<f32> {
    let reader = checked.sequence.read();
    let mut blocks = Vec::new();
    let view = reader.view(1, &mut blocks);
    let shape = AttentionShape {
        n_heads: query.len() / SHAPE.head_dim,
        n_kv_heads: SHAPE.n_kv_heads,
        head_dim: SHAPE.head_dim,
        query_start: checked.sequence.len() - checked.sequence.dropped_tokens() - 1,
        n_queries: 1,
        scale: 0.25,
        mask: Mask::Causal { window: None },
        soft_cap: None,
        alibi: None,
    };
    let mut out = vec![0.0; query.len()];
    kernels().attention(&ThreadPool::single(), &shape, query, &view, &mut out, &mut AttentionScratch::new());
    out
}

#[test]
fn a_sequence_goes_on_beyond_its_budget_with_its_sinks_and_its_last_tokens() {
    for policy in ["f16", "tiered:hot=64,sink=4,warm=kivi4,cold=kivi2"] {
        let pool = pool(4);
        let store = store(policy, &pool);
        let mut checked = Checked::new(&store, 1 << 20);
        let threads = ThreadPool::single();
        let mut room = 0;
        let n = loop {
            let n = checked.sequence.len();
            checked.sequence.settle(&kernels(), &threads, PressurePolicy::DropOldest);
            let made =
                checked.sequence.make_room(&kernels(), &threads, 100..=100, PressurePolicy::DropOldest);
            assert_eq!(made.expect("room is made of its own tokens"), 100, "{policy}");
            checked.append(&ids(100, n as u32)).expect("room was made");
            if checked.sequence.dropped_tokens() == 0 {
                room = n;
            } else if n > 4 * room {
                break checked.sequence.len();
            }
        };
        let dropped = checked.sequence.dropped_tokens();
        assert!(dropped > n / 2 && dropped.is_multiple_of(32), "{policy}: {dropped} of {n}");
        assert_eq!(checked.sequence.released(), dropped + 32, "the first block is a sink");
        // Attention of what is left is that of a sequence with only those tokens.
        let mut kept = ids(32, 0);
        kept.extend(ids(n - dropped - 32, (dropped + 32) as u32));
        if policy == "f16" {
            let roomy = self::pool(16);
            let mut expected = Checked::new(&crate::oracle::store(policy, &roomy), 1 << 20);
            expected.append(&kept).expect("room");
            let query: Vec<f32> = (0..2 * SHAPE.width()).map(|i| (i as f32 * 0.37).sin()).collect();
            assert_eq!(attend(&checked, &query), attend(&expected, &query));
        }
        let reader = checked.sequence.read();
        assert_eq!(reader.view(0, &mut Vec::new()).blocks().len(), (n - dropped).div_ceil(32));
        drop(reader);
        assert!(checked.sequence.truncate(n / 2).is_err(), "the dropped tokens cannot be cut back to");
        checked.sequence.clear();
        assert_eq!((checked.sequence.dropped_tokens(), checked.sequence.released()), (0, 0));
    }
}

#[test]
fn other_policies_end_with_an_error_and_drop_nothing() {
    for policy in [PressurePolicy::LowerPrecision, PressurePolicy::EvictPrefixes, PressurePolicy::Reject] {
        let pool = pool(4);
        let store = store("tiered:hot=64,sink=4,warm=kivi4,cold=kivi2", &pool);
        let mut checked = Checked::new(&store, 1 << 20);
        let threads = ThreadPool::single();
        let error = loop {
            checked.sequence.settle(&kernels(), &threads, policy);
            match checked.sequence.make_room(&kernels(), &threads, 32..=128, policy) {
                Ok(n) => checked.append(&ids(n, checked.tokens.len() as u32)).expect("room was made"),
                Err(error) => break error,
            };
        };
        assert!(error.is_memory_short() && checked.sequence.dropped_tokens() == 0, "{policy}: {error}");
    }
}
