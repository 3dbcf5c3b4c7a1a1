//! Named routes and agents by examples and keywords.
//!
//! `nearest.rs`: index of examples; `keywords.rs`: words of a text; `calibration.rs`: thresholds.

mod calibration;
mod keywords;
mod nearest;

pub use nearest::{ExactScan, Nearest, Neighbour};

use crate::error::{Error, Result};
use crate::routing::vector::normalized;
use keywords::{matches, words};

/// A route before it is taught.
#[derive(Debug, Clone, PartialEq)]
pub struct Route<'r> {
    /// Its name.
    pub name: &'r str,
    /// Words and phrases that speak for it.
    pub keywords: &'r [&'r str],
}

/// Settings of a [`SemanticRouter`].
#[derive(Debug, Clone, PartialEq)]
pub struct SemanticSettings {
    /// Examples asked of the index per query.
    pub neighbours: usize,
    /// Nearest examples of a route whose mean similarity is its score.
    pub per_route: usize,
    /// Score added for keywords: `keyword_weight * (1 - 2^-n)` for `n` keywords that occur.
    pub keyword_weight: f32,
    /// Difference of the two best scores below which there is no route.
    pub margin: f32,
    /// Share of a route's own examples that its threshold accepts, 0 to 1.
    pub recall: f32,
}

impl Default for SemanticSettings {
    fn default() -> Self {
        Self { neighbours: 48, per_route: 3, keyword_weight: 0.2, margin: 0.01, recall: 0.95 }
    }
}

impl SemanticSettings {
    fn check(&self) -> Result<()> {
        let within = |name, value: f32, most: f32, range| {
            let value_is_allowed = (0.0..=most).contains(&value);
            value_is_allowed.then_some(()).ok_or(Error::Setting { name, value: value.to_string(), range })
        };
        within("keyword_weight", self.keyword_weight, 10.0, "0 to 10")?;
        within("margin", self.margin, 2.0, "0 to 2")?;
        within("recall", self.recall, 1.0, "0 to 1")?;
        for (name, value) in [("neighbours", self.neighbours), ("per_route", self.per_route)] {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".into(), range: "above 0" });
            }
        }
        Ok(())
    }
}

/// Score of one route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Index of the route.
    pub route: usize,
    /// Similarity and keywords together.
    pub score: f32,
    /// Mean cosine similarity of the route's nearest examples.
    pub similarity: f32,
    /// Keywords that occur.
    pub keywords: usize,
}

/// Reason for no route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoRoute {
    /// No route has an example.
    Untaught,
    /// The best score is below the route's threshold.
    BelowThreshold {
        /// Threshold of the best route.
        threshold: f32,
    },
    /// The two best scores are too near to each other.
    Ambiguous {
        /// Their difference.
        difference: f32,
    },
}

/// Result of routing a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Routed {
    /// Index of the route, or the reason for none.
    pub route: Result<usize, NoRoute>,
    /// All routes, best first.
    pub ranked: Vec<Ranked>,
}

/// Router of texts to named routes by the similarity of embeddings and by keywords.
#[derive(Debug, Clone)]
pub struct SemanticRouter<N = ExactScan> {
    settings: SemanticSettings,
    dim: usize,
    names: Vec<String>,
    keywords: Vec<Vec<Vec<String>>>,
    thresholds: Vec<f32>,
    /// Route and words of each example.
    examples: Vec<Example>,
    index: N,
}

#[derive(Debug, Clone)]
struct Example {
    route: usize,
    unit: Vec<f32>,
    words: Vec<String>,
}

impl<N: Nearest> SemanticRouter<N> {
    /// Makes a router for embeddings of `dim` values, over an empty index.
    ///
    /// # Errors
    /// [`Error::Setting`] names a setting out of range.
    pub fn new(settings: SemanticSettings, dim: usize, routes: &[Route<'_>], index: N) -> Result<Self> {
        settings.check()?;
        if routes.is_empty() || dim == 0 {
            let name = if dim == 0 { "dim" } else { "number of routes" };
            return Err(Error::Setting { name, value: "0".into(), range: "above 0" });
        }
        let split = |route: &Route<'_>| route.keywords.iter().map(|keyword| words(keyword)).collect();
        Ok(Self {
            settings,
            dim,
            names: routes.iter().map(|route| route.name.to_owned()).collect(),
            keywords: routes.iter().map(split).collect(),
            thresholds: vec![f32::NEG_INFINITY; routes.len()],
            examples: Vec::new(),
            index,
        })
    }

    /// Names of the routes, by index.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Thresholds by route; negative infinity before [`calibrate`](Self::calibrate).
    pub fn thresholds(&self) -> &[f32] {
        &self.thresholds
    }

    /// Teaches an example of a route.
    ///
    /// # Errors
    /// [`Error::Input`] for an unknown route, [`Error::Dimension`], [`Error::NotFinite`].
    pub fn teach(&mut self, route: usize, embedding: &[f32], text: &str) -> Result<()> {
        if route >= self.names.len() {
            let range = "an index of the routes";
            return Err(Error::Input { what: "route", value: route as f64, range });
        }
        let unit = self.unit(embedding)?;
        self.index.insert(&unit);
        self.examples.push(Example { route, unit, words: words(text) });
        Ok(())
    }

    /// Routes a text.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`].
    pub fn route(&self, embedding: &[f32], text: &str) -> Result<Routed> {
        let ranked = self.rank(&self.unit(embedding)?, &words(text), None);
        let Some(best) = ranked.first().filter(|_| !self.examples.is_empty()) else {
            return Ok(Routed { route: Err(NoRoute::Untaught), ranked });
        };
        let threshold = self.thresholds[best.route];
        let difference = ranked.get(1).map_or(f32::INFINITY, |second| best.score - second.score);
        let route = if best.score < threshold {
            Err(NoRoute::BelowThreshold { threshold })
        } else if difference < self.settings.margin {
            Err(NoRoute::Ambiguous { difference })
        } else {
            Ok(best.route)
        };
        Ok(Routed { route, ranked })
    }

    fn unit(&self, embedding: &[f32]) -> Result<Vec<f32>> {
        if embedding.len() != self.dim {
            let (expected, got) = (self.dim, embedding.len());
            return Err(Error::Dimension { what: "embedding of a text", expected, got });
        }
        if !embedding.iter().all(|v| v.is_finite()) {
            return Err(Error::NotFinite { what: "embedding of a text" });
        }
        Ok(normalized(embedding))
    }

    /// Scores of all routes, best first; example `left_out` does not count.
    fn rank(&self, unit: &[f32], text: &[String], left_out: Option<usize>) -> Vec<Ranked> {
        let extra = usize::from(left_out.is_some());
        let mut found = self.index.nearest(unit, self.settings.neighbours + extra);
        found.retain(|neighbour| Some(neighbour.example) != left_out);
        // Examples that the index did not return are at most as similar as the last one.
        let floor = found.last().map_or(0.0, |last| last.similarity);
        let mut sums = vec![(0.0, 0); self.names.len()];
        for neighbour in &found {
            let Some(example) = self.examples.get(neighbour.example) else { continue };
            let (sum, count) = &mut sums[example.route];
            if *count < self.settings.per_route {
                (*sum, *count) = (*sum + neighbour.similarity, *count + 1);
            }
        }
        let mut ranked: Vec<Ranked> = Vec::with_capacity(sums.len());
        for (route, (sum, count)) in sums.into_iter().enumerate() {
            let missing = self.settings.per_route - count;
            let similarity = (sum + floor * missing as f32) / self.settings.per_route as f32;
            let keywords = matches(&self.keywords[route], text);
            let bonus = 1.0 - 0.5_f32.powi(keywords.min(64) as i32);
            let score = similarity + self.settings.keyword_weight * bonus;
            ranked.push(Ranked { route, score, similarity, keywords });
        }
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: [Route<'_>; 2] =
        [Route { name: "code", keywords: &["rust"] }, Route { name: "mail", keywords: &["letter"] }];

    fn taught() -> SemanticRouter {
        let settings = SemanticSettings { per_route: 2, margin: 0.05, ..SemanticSettings::default() };
        let mut router = SemanticRouter::new(settings, 3, &ROUTES, ExactScan::default()).unwrap();
        for (route, embedding) in [
            (0, [1.0, 0.1, 0.0]),
            (0, [1.0, -0.1, 0.0]),
            (0, [1.0, 0.0, 0.1]),
            (1, [0.1, 1.0, 0.0]),
            (1, [-0.1, 1.0, 0.0]),
            (1, [0.0, 1.0, 0.1]),
        ] {
            router.teach(route, &embedding, "").unwrap();
        }
        router.calibrate(&[]).unwrap();
        router
    }

    #[test]
    fn near_texts_are_routed_and_others_are_not() {
        let router = taught();
        let route = |embedding: &[f32], text| router.route(embedding, text).unwrap();
        assert_eq!(route(&[2.0, 0.2, 0.0], "").route, Ok(0));
        assert_eq!(route(&[0.2, 2.0, 0.0], "").route, Ok(1));
        let both = route(&[1.0, 1.0, 0.0], "");
        assert!(matches!(both.route, Err(NoRoute::BelowThreshold { .. })), "{both:?}");
        let neither = route(&[0.0, 0.0, 1.0], "");
        assert!(matches!(neither.route, Err(NoRoute::BelowThreshold { .. })), "{neither:?}");
        assert_eq!(neither.ranked.len(), 2);
    }

    #[test]
    fn keywords_decide_between_near_routes_and_ambiguity_is_told() {
        let mut router = taught();
        router.thresholds.fill(0.0);
        let between = [1.0, 1.0, 0.0];
        let route = |text| router.route(&between, text).unwrap().route;
        assert!(matches!(route("hello"), Err(NoRoute::Ambiguous { .. })));
        assert_eq!(route("a letter to mother"), Ok(1));
        assert_eq!(route("in Rust, please"), Ok(0));
        assert!(matches!(route("a letter about Rust"), Err(NoRoute::Ambiguous { .. })));
    }

    #[test]
    fn bad_input_is_refused_and_an_untaught_router_says_so() {
        let mut router =
            SemanticRouter::new(SemanticSettings::default(), 3, &ROUTES, ExactScan::default()).unwrap();
        assert_eq!(router.route(&[1.0; 3], "").unwrap().route, Err(NoRoute::Untaught));
        assert!(router.teach(2, &[1.0; 3], "").is_err() && router.teach(0, &[1.0; 2], "").is_err());
        assert!(router.route(&[1.0, f32::NAN, 0.0], "").is_err());
        let settings = SemanticSettings { recall: f32::NAN, ..SemanticSettings::default() };
        assert!(SemanticRouter::new(settings, 3, &ROUTES, ExactScan::default()).is_err());
    }

    #[test]
    fn scans_return_the_best_in_order() {
        let mut scan = ExactScan::default();
        for x in [0.1, 0.9, 0.5, 0.7] {
            scan.insert(&[x, 0.0]);
        }
        let ids = |k| scan.nearest(&[1.0, 0.0], k).iter().map(|n| n.example).collect::<Vec<_>>();
        assert_eq!((ids(2), ids(9), ids(0)), (vec![1, 3], vec![1, 3, 2, 0], vec![]));
    }
}
