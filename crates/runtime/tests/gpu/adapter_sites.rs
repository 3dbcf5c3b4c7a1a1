//! Adapters of one site, with drawn factors.

use std::sync::Arc;

use ruvllm::crates::adapters::{Digests, Layout, SiteShape};
use ruvllm::crates::kernels::low_rank::Expansion;
use ruvllm::crates::kernels::quant::SharedBytes;
use ruvllm::{Adapter, FactorFormat, ScaledAdapter};
use ruvllm_adapters::{BaseModel, Projection, Site};

const RANK: usize = 3;

/// A site with its last target.
pub(crate) struct Of {
    pub(crate) site: Site,
    pub(crate) is_in_layers: bool,
    inputs: usize,
    target: usize,
    outputs: usize,
}

/// All sites of a model; the final hidden state is the last.
pub(crate) fn sites(base: &BaseModel) -> Vec<Of> {
    let all = [
        Site::AttentionInput,
        Site::AttentionOutput,
        Site::FeedForwardInput,
        Site::FeedForwardOutput,
        Site::Logits,
        Site::FinalHidden,
    ];
    let of = |site: Site| {
        let widths = base.output_widths(site);
        let target = widths.len() - 1;
        let is_in_layers = !matches!(site, Site::Logits | Site::FinalHidden);
        Of { site, is_in_layers, inputs: base.inputs(site), target, outputs: widths[target] }
    };
    all.map(of).into()
}

/// An adapter of a site.
pub(crate) fn of_site(base: &Arc<BaseModel>, layer: usize, of: &Of) -> ScaledAdapter {
    of_values(base, layer, of, 0.5)
}

/// An adapter of a site with values up to `most`, in F32.
pub(crate) fn of_values(base: &Arc<BaseModel>, layer: usize, of: &Of, most: f32) -> ScaledAdapter {
    let &Of { site, inputs, target, outputs, .. } = of;
    let expansions = vec![Expansion { target, first: 0, rank: RANK, outputs }];
    of_shapes(base, vec![SiteShape { layer, site, rank: RANK, inputs, expansions }], most, 0).into()
}

/// An adapter of some modules of all layers, with values drawn from `seed`.
pub(crate) fn of_modules(
    base: &Arc<BaseModel>,
    modules: &[Projection],
    rank: usize,
    seed: usize,
) -> Arc<Adapter> {
    of_shapes(base, SiteShape::of_modules(base, modules, rank), 0.1, seed)
}

fn of_shapes(base: &Arc<BaseModel>, shapes: Vec<SiteShape>, most: f32, seed: usize) -> Arc<Adapter> {
    let layout = Arc::new(Layout::new(FactorFormat::F32, shapes).expect("a layout"));
    let mut bytes = vec![0; layout.bytes() + 64];
    let start = bytes.as_ptr().align_offset(64);
    let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 101.0 - 0.5;
    for at in layout.sites() {
        let factors = &at.factors;
        let b = (0..).zip(factors.expansions()).map(|(index, b)| (factors.b(index), b.rank * b.outputs));
        for (place, n) in std::iter::once((factors.a(), factors.rank() * factors.inputs())).chain(b) {
            let values: Vec<f32> = (0..n).map(|i| value(i + place) * 2.0 * most).collect();
            let part = &mut bytes[start + place..][..FactorFormat::F32.bytes(1, n)];
            FactorFormat::F32.quantize(n, &values, part);
        }
    }
    let digests = Digests::new(base, &layout, &bytes[start..]);
    let end = start + layout.bytes();
    let bytes = SharedBytes::new(bytes).slice(start..end);
    let adapter = Adapter::from_bytes(Arc::clone(base), layout, bytes, digests);
    Arc::new(adapter.expect("factors of the model"))
}
