//! Duration of a step as a linear function of its tokens, learned from measured steps.

use std::time::Duration;

use crate::work::Work;

/// Part of the past that each step keeps: the mean age of the samples is 50 steps.
const MEMORY: f64 = 0.98;
/// Mean absolute errors beyond which a sample loses weight (Huber 1964).
const TOLERANCE: f64 = 3.0;
/// Spread that is assumed at least, as a part of the expected time.
const MIN_SPREAD: f64 = 0.02;
/// Mean absolute errors between expected time and target: 95 % of normally distributed times keep
/// the target (1.645 standard deviations of 1.25 mean absolute errors).
const MARGIN: f64 = 2.06;
/// Weight of the former estimate where the samples do not tell terms apart.
const INERTIA: f64 = 1e-3;
/// Sweeps of coordinate descent per step; each starts where the last one ended.
const SWEEPS: usize = 8;

/// Order of the terms: the first ones explain what several could explain, so that work is priced
/// rather than thought free.
const PREFILL: usize = 0;
const DECODE: usize = 1;
const STEP: usize = 2;

/// `seconds = step + prefill * tokens + decode * rows`, all terms non-negative: weighted least
/// squares over steps that lose weight exponentially with age and with their distance from the
/// estimate.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCost {
    moments: [[f64; 3]; 3],
    products: [f64; 3],
    terms: [f64; 3],
    /// Mean absolute error, in seconds.
    spread: f64,
    samples: u32,
}

impl StepCost {
    /// Learns from one step.
    pub(crate) fn observe(&mut self, step: &[Work], duration: Duration) {
        let decodes = step.iter().filter(|work| work.tokens == 1).count();
        let prefill: usize = step.iter().filter(|work| work.tokens > 1).map(|work| work.tokens).sum();
        if decodes + prefill == 0 {
            return;
        }
        let (sizes, seconds) = ([prefill as f64, decodes as f64, 1.0], duration.as_secs_f64());
        let expected = self.seconds(&sizes);
        let error = (seconds - expected).abs();
        let limit = TOLERANCE * self.spread.max(MIN_SPREAD * expected);
        let weight = if self.samples < 8 || error <= limit { 1.0 } else { limit / error };
        for (row, &size) in sizes.iter().enumerate() {
            for (moment, &other) in self.moments[row].iter_mut().zip(&sizes) {
                *moment = *moment * MEMORY + weight * size * other;
            }
            self.products[row] = self.products[row] * MEMORY + weight * size * seconds;
        }
        self.solve();
        // Errors count up to twice the limit: the spread follows a machine that became slower, and
        // no single step moves it far.
        let counted = if self.samples < 8 { error } else { error.min(2.0 * limit) };
        let rate = if self.samples == 0 { 0.0 } else { 0.05 };
        self.spread += rate * (counted - self.spread);
        self.samples = self.samples.saturating_add(1);
    }

    fn solve(&mut self) {
        let former = self.terms;
        for _ in 0..SWEEPS {
            for term in [PREFILL, DECODE, STEP] {
                let own = self.moments[term][term];
                if own > 0.0 {
                    let others: f64 =
                        (0..3).filter(|&o| o != term).map(|o| self.moments[term][o] * self.terms[o]).sum();
                    let inertia = if self.samples == 0 { 0.0 } else { INERTIA * own };
                    let target = self.products[term] - others + inertia * former[term];
                    self.terms[term] = (target / (own + inertia)).max(0.0);
                }
            }
        }
    }

    fn seconds(&self, sizes: &[f64; 3]) -> f64 {
        self.terms.iter().zip(sizes).map(|(term, size)| term * size).sum()
    }

    /// Expected duration of a step; absent before anything was measured.
    pub(crate) fn expected(&self, prefill: usize, decodes: usize) -> Option<Duration> {
        let seconds = self.seconds(&[prefill as f64, decodes as f64, 1.0]);
        (self.samples > 0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Prefill tokens that a step with `decodes` rows can take within `target`; no limit before
    /// anything was measured.
    pub(crate) fn prefill_within(&self, target: Duration, decodes: usize) -> usize {
        // A token of a prompt costs no more than a decoded one: the price until prefill was
        // measured.
        let prefill =
            if self.moments[PREFILL][PREFILL] > 0.0 { self.terms[PREFILL] } else { self.terms[DECODE] };
        if self.samples == 0 || prefill <= 0.0 {
            return usize::MAX;
        }
        let rest = self.seconds(&[0.0, decodes as f64, 1.0]) + MARGIN * self.spread;
        ((target.as_secs_f64() - rest) / prefill).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestId;

    fn step(prefill: usize, decodes: usize) -> Vec<Work> {
        let work = |tokens| Work { id: RequestId(0), tokens, samples: true };
        let chunk = (prefill > 0).then(|| work(prefill));
        chunk.into_iter().chain((0..decodes).map(|_| work(1))).collect()
    }

    /// Milliseconds of a machine.
    fn truth(prefill: usize, decodes: usize) -> f64 {
        8.0 + 0.3 * prefill as f64 + 0.5 * decodes as f64
    }

    fn feed(cost: &mut StepCost, steps: usize, factor: impl Fn(usize) -> f64) {
        for i in 0..steps {
            let (prefill, decodes) = ((i * 37) % 200, (i * 13) % 30 + 1);
            let ms = truth(prefill, decodes) * factor(i);
            cost.observe(&step(prefill, decodes), Duration::from_secs_f64(ms / 1e3));
        }
    }

    fn error_at(cost: &StepCost, prefill: usize, decodes: usize, factor: f64) -> f64 {
        let expected = cost.expected(prefill, decodes).unwrap().as_secs_f64() * 1e3;
        (expected / (truth(prefill, decodes) * factor) - 1.0).abs()
    }

    #[test]
    fn learns_all_three_terms() {
        let mut cost = StepCost::default();
        assert_eq!(cost.expected(1, 1), None);
        assert_eq!(cost.prefill_within(Duration::ZERO, 5), usize::MAX);
        feed(&mut cost, 200, |i| 1.0 + 0.02 * ((i % 5) as f64 - 2.0));
        for (prefill, decodes) in [(0, 1), (0, 40), (100, 10), (400, 0)] {
            assert!(error_at(&cost, prefill, decodes, 1.0) < 0.05, "{cost:?}");
        }
        let prefill = cost.prefill_within(Duration::from_millis(100), 20) as f64;
        assert!((0.85..=1.0).contains(&(prefill / ((100.0 - 18.0) / 0.3))), "{prefill}");
    }

    #[test]
    fn outliers_move_little_and_a_slower_machine_is_followed() {
        let mut cost = StepCost::default();
        feed(&mut cost, 200, |i| 1.0 + 0.02 * ((i % 5) as f64 - 2.0));
        feed(&mut cost, 20, |i| if i % 10 == 3 { 20.0 } else { 1.0 });
        assert!(error_at(&cost, 100, 10, 1.0) < 0.1, "{}", error_at(&cost, 100, 10, 1.0));
        feed(&mut cost, 300, |_| 3.0);
        assert!(error_at(&cost, 100, 10, 3.0) < 0.1, "{}", error_at(&cost, 100, 10, 3.0));
    }

    #[test]
    fn prefill_is_priced_before_it_was_measured() {
        let mut cost = StepCost::default();
        for decodes in 1..20 {
            let ms = truth(0, decodes);
            cost.observe(&step(0, decodes), Duration::from_secs_f64(ms / 1e3));
        }
        let prefill = cost.prefill_within(Duration::from_millis(100), 10);
        assert!((100..250).contains(&prefill), "{prefill}");
    }

    #[test]
    fn empty_steps_teach_nothing() {
        let mut cost = StepCost::default();
        cost.observe(&[], Duration::from_secs(1));
        assert_eq!(cost.expected(1, 1), None);
    }
}
