//! Sites of adapters that cached keys and values depend on.

use std::sync::Arc;

use ruvllm_adapters::{
    Adapter, BaseModel, Digests, FactorFormat, Layout, ScaledAdapter, Site, SiteShape, kv_digest,
};
use ruvllm_kernels::low_rank::Expansion;
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_models::{KvFormat, LogitsRows, Model, Segment, Workspace};

use crate::fixtures::{self, Expected, bits};

/// Targets of each site with their widths, and the input width.
fn sites(base: &BaseModel) -> Vec<(Site, usize, Vec<usize>)> {
    let &BaseModel { model_dim, query_dim, kv_dim, ffn_dim, vocab_size, .. } = base;
    vec![
        (Site::AttentionInput, model_dim, vec![query_dim, kv_dim, kv_dim]),
        (Site::AttentionOutput, query_dim, vec![model_dim]),
        (Site::FeedForwardInput, model_dim, vec![ffn_dim, ffn_dim]),
        (Site::FeedForwardOutput, ffn_dim, vec![model_dim]),
        (Site::Logits, model_dim, vec![vocab_size]),
        (Site::FinalHidden, model_dim, vec![model_dim]),
    ]
}

/// An adapter of one product, with drawn factors.
pub(crate) fn adapter(
    base: &Arc<BaseModel>,
    layer: usize,
    site: Site,
    inputs: usize,
    (target, outputs): (usize, usize),
) -> ScaledAdapter {
    const RANK: usize = 2;
    let expansions = vec![Expansion { target, first: 0, rank: RANK, outputs }];
    let layout = Layout::new(FactorFormat::F32, [SiteShape { layer, site, rank: RANK, inputs, expansions }]);
    let layout = Arc::new(layout.expect("a layout"));
    let mut bytes = vec![0; layout.bytes() + 64];
    let start = bytes.as_ptr().align_offset(64);
    let factors = &layout.sites()[0].factors;
    for (place, width) in [(factors.a(), inputs), (factors.b(0), outputs)] {
        let values: Vec<f32> = (0..RANK * width).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect();
        let part = &mut bytes[start + place..][..FactorFormat::F32.bytes(RANK, width)];
        FactorFormat::F32.quantize(width, &values, part);
    }
    let digests = Digests::new(base, &layout, &bytes[start..]);
    let end = start + layout.bytes();
    let bytes = SharedBytes::new(bytes).slice(start..end);
    let adapter = Adapter::from_bytes(Arc::clone(base), layout, bytes, digests);
    Arc::new(adapter.expect("factors of the model")).into()
}

/// Logits of the token behind a prompt whose keys and values were computed with `adapters`; that
/// token has none.
fn next_logits(model: &Model, adapters: &[ScaledAdapter]) -> (Vec<f32>, Vec<f32>) {
    let (compute, mut workspace) = (fixtures::compute(), Workspace::new());
    let tokens = &Expected::read("tiny/llama").prompt("medium")[..20];
    let mut cache = fixtures::new_cache(model, KvFormat::F32, tokens.len()).expect("a cache");
    let mut step = |tokens: &[u32], adapters: &[ScaledAdapter]| {
        let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::Last).expect("room");
        model.forward(&compute, &mut workspace, [segment.with_adapters(adapters)]).expect("a step").to_vec()
    };
    let own = step(&tokens[..19], adapters);
    (own, step(&tokens[19..], &[]))
}

/// For each product of each layer: the digest says that keys and values change if they do. They
/// do not with the queries of the last layer, which the digest takes in for SQuat.
#[test]
fn the_kv_digest_takes_the_sites_that_change_keys_and_values() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let (base, n_layers) = (model.adapter_base(), model.config().n_layers);
    let (own, next) = next_logits(&model, &[]);
    let mut without = 0;
    for (layer, (site, inputs, targets)) in
        (0..n_layers).flat_map(|layer| sites(base).into_iter().map(move |site| (layer, site)))
    {
        for (target, &outputs) in targets.iter().enumerate() {
            if matches!(site, Site::Logits | Site::FinalHidden) && layer > 0 {
                continue;
            }
            let adapters = [adapter(base, layer, site, inputs, (target, outputs))];
            let (changed, after) = next_logits(&model, &adapters);
            let what = format!("layer {layer} of {n_layers}, {site:?}, target {target}");
            assert_ne!(bits(&changed), bits(&own), "{what}: it changes the logits of its own tokens");
            let last_queries = layer + 1 == n_layers && site == Site::AttentionInput && target == 0;
            let in_digest = kv_digest(&adapters).is_some();
            assert_eq!(in_digest, base.changes_kv(layer, site), "{what}");
            assert_eq!(bits(&after) != bits(&next), in_digest && !last_queries, "{what}");
            without += usize::from(!in_digest);
        }
    }
    assert_eq!(without, 6, "output, gate, up and down of the last layer, final state and logits");
}

#[test]
fn kv_digests_of_lists_follow_content_scale_and_order() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let base = model.adapter_base();
    let of = |layer, site, inputs, outputs| adapter(base, layer, site, inputs, (0, outputs));
    let first = of(0, Site::AttentionOutput, base.query_dim, base.model_dim);
    let second = of(0, Site::AttentionInput, base.model_dim, base.query_dim);
    let logits = of(0, Site::Logits, base.model_dim, base.vocab_size);
    let hidden = of(0, Site::FinalHidden, base.model_dim, base.model_dim);
    let scaled = |of: &ScaledAdapter, scale| ScaledAdapter { scale, ..of.clone() };
    assert_eq!(kv_digest(&[]), None);
    assert_eq!(kv_digest(&[logits.clone(), hidden.clone(), scaled(&first, 0.0)]), None);
    let one = kv_digest(std::slice::from_ref(&first));
    assert!(one.is_some());
    assert_eq!(one, kv_digest(&[logits, first.clone(), hidden]));
    let both = kv_digest(&[first.clone(), second.clone()]);
    let others = [
        one,
        kv_digest(&[scaled(&first, 0.5)]),
        kv_digest(&[second.clone(), first.clone()]),
        kv_digest(&[first.clone(), scaled(&second, 2.0)]),
    ];
    assert!(others.iter().all(|other| *other != both) && others[0] != others[1]);
}
