//! Shapes and places of all factors of an adapter in one range of bytes.

use ruvllm_kernels::low_rank::{Expansion, FactorFormat, LowRankShape};

use crate::error::{Error, Result};
use crate::place::{BaseModel, Projection, Site};

/// Shapes of the factors at one site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteShape {
    /// Layer index; 0 for sites in no layer.
    pub layer: usize,
    /// The site.
    pub site: Site,
    /// Sum of the ranks of its updates.
    pub rank: usize,
    /// Input width of its products.
    pub inputs: usize,
    /// `B` of each update and target; the updates in any order, with the components of `rank` that
    /// they read.
    pub expansions: Vec<Expansion>,
}

impl SiteShape {
    /// Sites of an adapter of `rank` per target module in every layer, each module with components
    /// of its own; those of no layer once.
    pub fn of_modules(base: &BaseModel, modules: &[Projection], rank: usize) -> Vec<Self> {
        let mut shapes: Vec<Self> = Vec::new();
        for layer in 0..base.n_layers {
            for &projection in modules {
                let site = base.site(projection);
                if layer > 0 && !site.is_in_layers() {
                    continue;
                }
                let at = shapes.iter().rposition(|shape| (shape.layer, shape.site) == (layer, site));
                let at = at.unwrap_or_else(|| {
                    let inputs = base.inputs(site);
                    shapes.push(Self { layer, site, rank: 0, inputs, expansions: Vec::new() });
                    shapes.len() - 1
                });
                let shape = &mut shapes[at];
                shape.expansions.extend(base.targets(projection).iter().map(|target| Expansion {
                    target: target.index,
                    first: shape.rank,
                    rank,
                    outputs: target.rows.len(),
                }));
                shape.rank += rank;
            }
        }
        shapes.sort_by_key(|shape| (shape.layer, shape.site));
        shapes
    }
}

/// Factors at one site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteLayout {
    /// Layer index; 0 for sites in no layer.
    pub layer: usize,
    /// The site.
    pub site: Site,
    /// Shapes, and places in the adapter's bytes.
    pub factors: LowRankShape,
}

/// Number format and places of an adapter's factors.
///
/// Sites ascend by `(layer, site)`. All places follow from the shapes: a file needs to store
/// [`shapes`](Self::shapes) only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    format: FactorFormat,
    sites: Vec<SiteLayout>,
    bytes: usize,
}

impl Layout {
    /// Lays out factors of these shapes.
    ///
    /// # Errors
    /// [`Error::Layout`] for no site, sites that do not ascend, a rank or width of 0, a target
    /// with two widths, components beyond the rank, and more bytes than there are addresses.
    pub fn new(format: FactorFormat, shapes: impl IntoIterator<Item = SiteShape>) -> Result<Self> {
        let (mut sites, mut bytes) = (Vec::<SiteLayout>::new(), 0);
        for shape in shapes {
            check(&shape)?;
            let SiteShape { layer, site, rank, inputs, expansions } = shape;
            if sites.last().is_some_and(|last| (last.layer, last.site) >= (layer, site)) {
                return Err(wrong(layer, site, "is not in ascending order"));
            }
            let factors = LowRankShape::new(format, rank, inputs, expansions, bytes);
            bytes = factors.end();
            sites.push(SiteLayout { layer, site, factors });
        }
        if sites.is_empty() || isize::try_from(bytes).is_err() {
            let what = if sites.is_empty() { "there are no factors" } else { "they are too large" };
            return Err(Error::Layout { what: what.to_owned() });
        }
        Ok(Self { format, sites, bytes })
    }

    /// Number format of all factors.
    pub fn format(&self) -> FactorFormat {
        self.format
    }

    /// Factors by site, ascending by `(layer, site)`.
    pub fn sites(&self) -> &[SiteLayout] {
        &self.sites
    }

    /// Shapes of the sites, from which [`new`](Self::new) makes the layout again, also in another
    /// format.
    pub fn shapes(&self) -> impl Iterator<Item = SiteShape> + '_ {
        self.sites.iter().map(|at| SiteShape {
            layer: at.layer,
            site: at.site,
            rank: at.factors.rank(),
            inputs: at.factors.inputs(),
            expansions: at.factors.expansions().to_vec(),
        })
    }

    /// Bytes of all factors.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Factors at a site of a layer; `None` if there are none.
    pub fn at(&self, layer: usize, site: Site) -> Option<&LowRankShape> {
        let found = self.sites.binary_search_by_key(&(layer, site), |at| (at.layer, at.site)).ok()?;
        Some(&self.sites[found].factors)
    }

    /// Checks that the sites are those of a model, with its sizes.
    pub(crate) fn check(&self, base: &BaseModel) -> Result<()> {
        for SiteLayout { layer, site, factors } in &self.sites {
            let layers = if site.is_in_layers() { base.n_layers } else { 1 };
            if *layer >= layers || factors.inputs() != base.inputs(*site) {
                return Err(wrong(*layer, *site, "is not one of the model"));
            }
            let fits =
                |expansion: &Expansion| base.outputs(*site, expansion.target) == Some(expansion.outputs);
            if !factors.expansions().iter().all(fits) {
                return Err(wrong(*layer, *site, "has targets that are not those of the model"));
            }
        }
        Ok(())
    }
}

/// Checks the shapes of a site in themselves.
fn check(shape: &SiteShape) -> Result<()> {
    let &SiteShape { layer, site, rank, inputs, ref expansions } = shape;
    if rank == 0 || inputs == 0 || expansions.is_empty() {
        return Err(wrong(layer, site, "has an empty factor"));
    }
    for (index, &Expansion { target, first, rank: part, outputs }) in expansions.iter().enumerate() {
        if part == 0 || outputs == 0 {
            return Err(wrong(layer, site, "has an empty factor"));
        }
        if first.checked_add(part).is_none_or(|end| end > rank) {
            return Err(wrong(layer, site, "reads components beyond its rank"));
        }
        if expansions[..index].iter().any(|other| other.target == target && other.outputs != outputs) {
            return Err(wrong(layer, site, "has two widths of one target"));
        }
    }
    Ok(())
}

fn wrong(layer: usize, site: Site, what: &str) -> Error {
    Error::Layout { what: format!("{site:?} of layer {layer} {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(layer: usize, site: Site, rank: usize) -> SiteShape {
        let expansions = vec![Expansion { target: 0, first: 0, rank, outputs: 6 }];
        SiteShape { layer, site, rank, inputs: 10, expansions }
    }

    #[test]
    fn places_follow_from_the_shapes() {
        let shapes = [site(0, Site::AttentionOutput, 3), site(2, Site::AttentionInput, 1)];
        for (format, places) in [
            (FactorFormat::F32, [(0, 128, 200), (256, 320, 344)]),
            (FactorFormat::F16, [(0, 64, 100), (128, 192, 204)]),
            (FactorFormat::I8, [(0, 128, 204), (256, 384, 452)]),
        ] {
            let layout = Layout::new(format, shapes.clone()).expect("a layout");
            let found = [0, 1].map(|index| {
                let factors = &layout.sites()[index].factors;
                (factors.a(), factors.b(0), factors.end())
            });
            assert_eq!((found, layout.bytes()), (places, places[1].2), "{format:?}");
            assert!(layout.at(0, Site::AttentionInput).is_none());
            assert_eq!(layout.at(2, Site::AttentionInput).map(LowRankShape::rank), Some(1));
            assert_eq!(Layout::new(format, layout.shapes()).expect("the same"), layout);
        }
    }

    #[test]
    fn shapes_that_make_no_layout_are_refused() {
        let refused = |shapes: Vec<SiteShape>| {
            let Err(Error::Layout { what }) = Layout::new(FactorFormat::I8, shapes) else {
                panic!("accepted")
            };
            what
        };
        assert!(refused(vec![]).contains("no factors"));
        let one = site(1, Site::Logits, 1);
        assert!(refused(vec![one.clone(), one.clone()]).contains("ascending"));
        assert!(refused(vec![site(1, Site::Logits, 0)]).contains("empty"));
        assert!(
            refused(vec![SiteShape { rank: usize::MAX, inputs: usize::MAX, ..one.clone() }])
                .contains("large")
        );
        let with = |expansion: Expansion| {
            refused(vec![SiteShape {
                expansions: [one.expansions.clone(), vec![expansion]].concat(),
                ..one.clone()
            }])
        };
        let expansion = one.expansions[0];
        assert!(with(Expansion { first: usize::MAX, ..expansion }).contains("beyond"));
        assert!(with(Expansion { outputs: 5, ..expansion }).contains("two widths"));
        assert!(with(Expansion { outputs: 0, ..expansion }).contains("empty"));
    }
}
