//! Requests over time.

use std::time::Duration;

use super::random::{Random, mix};
use crate::request::{Request, RequestId, TenantId};

/// Times between the requests of a tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Poisson process.
    Poisson,
    /// Poisson process that is on and off for exponentially distributed times; its rate while on is
    /// such that the mean over both is the tenant's rate.
    Bursts {
        /// Mean time on.
        on: Duration,
        /// Mean time off.
        off: Duration,
    },
}

/// Lognormal distribution of a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lengths {
    /// Median.
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// Largest value; larger ones count as this.
    pub most: usize,
}

impl Lengths {
    fn draw(&self, random: &mut Random) -> usize {
        let length = self.median * (self.sigma * random.normal()).exp();
        (length.round() as usize).clamp(1, self.most.max(1))
    }
}

/// Prefixes that prompts begin with, by a Zipf distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefixes {
    /// Number of different prefixes; none if 0.
    pub count: usize,
    /// Exponent: the k-th prefix is drawn with a probability proportional to `k^-exponent`.
    pub exponent: f64,
    /// Tokens of each.
    pub tokens: usize,
}

/// Requests of one tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantTraffic {
    /// The tenant. Its prefixes are its own.
    pub tenant: TenantId,
    /// Its weight.
    pub weight: f64,
    /// Priority of its requests.
    pub priority: i32,
    /// Requests per second.
    pub rate: f64,
    /// Times between them.
    pub arrivals: Arrivals,
    /// Tokens of a prompt behind its prefix.
    pub prompt: Lengths,
    /// New tokens; the largest value is the request's limit.
    pub output: Lengths,
    /// Prefixes of its prompts.
    pub prefixes: Prefixes,
    /// Time from arrival to deadline.
    pub deadline: Option<Duration>,
    /// Share of requests that are cancelled, after an exponentially distributed time of mean 5 s.
    pub cancelled: f64,
}

impl TenantTraffic {
    /// Chat: prompts of 400 own tokens in the median behind one of 64 prefixes of 512 tokens, 100
    /// new tokens in the median; a Poisson process.
    pub fn chat(tenant: TenantId, rate: f64) -> Self {
        Self {
            tenant,
            weight: 1.0,
            priority: 0,
            rate,
            arrivals: Arrivals::Poisson,
            prompt: Lengths { median: 400.0, sigma: 0.8, most: 4096 },
            output: Lengths { median: 100.0, sigma: 0.7, most: 512 },
            prefixes: Prefixes { count: 64, exponent: 1.0, tokens: 512 },
            deadline: None,
            cancelled: 0.0,
        }
    }
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Time at which it is submitted.
    pub at: Duration,
    /// The request; its number is its position in the trace.
    pub request: Request,
    /// Tokens of the prompt that belong to its prefix.
    pub prefix_tokens: usize,
    /// Tokens that it generates.
    pub output: usize,
    /// Time at which it is cancelled, unless it has finished.
    pub cancel_at: Option<Duration>,
}

/// Draws the first `count` requests of all tenants in the order of time.
pub fn trace(tenants: &[TenantTraffic], count: usize, seed: u64) -> Vec<Arrival> {
    let mut sources: Vec<Source<'_>> = tenants.iter().map(|tenant| Source::new(tenant, seed)).collect();
    let mut arrivals = Vec::with_capacity(count);
    for id in 0..count {
        let next = sources.iter_mut().min_by(|a, b| a.next.total_cmp(&b.next));
        let Some(source) = next.filter(|source| source.next.is_finite()) else { break };
        arrivals.push(source.draw(id as u64));
    }
    arrivals
}

struct Source<'t> {
    tenant: &'t TenantTraffic,
    random: Random,
    /// Cumulated probabilities of the prefixes.
    cumulated: Vec<f64>,
    next: f64,
    on_until: f64,
}

impl<'t> Source<'t> {
    fn new(tenant: &'t TenantTraffic, seed: u64) -> Self {
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=tenant.prefixes.count)
            .map(|k| {
                sum += (k as f64).powf(-tenant.prefixes.exponent);
                sum
            })
            .collect();
        cumulated.iter_mut().for_each(|part| *part /= sum);
        let random = Random::new(mix(seed ^ mix(u64::from(tenant.tenant.0))));
        let mut source = Self { tenant, random, cumulated, next: 0.0, on_until: 0.0 };
        source.advance();
        source
    }

    fn advance(&mut self) {
        if self.tenant.rate <= 0.0 {
            self.next = f64::INFINITY;
            return;
        }
        match self.tenant.arrivals {
            Arrivals::Poisson => self.next += self.random.exponential(1.0 / self.tenant.rate),
            Arrivals::Bursts { on, off } => {
                let (on, off) = (on.as_secs_f64(), off.as_secs_f64());
                let mean = on / ((on + off) * self.tenant.rate);
                loop {
                    let gap = self.random.exponential(mean);
                    if self.next + gap <= self.on_until {
                        self.next += gap;
                        break;
                    }
                    // The process has no memory: the gap is drawn anew in the next time on.
                    self.next = self.on_until.max(self.next) + self.random.exponential(off);
                    self.on_until = self.next + self.random.exponential(on);
                }
            }
        }
    }

    fn draw(&mut self, id: u64) -> Arrival {
        let at = Duration::from_secs_f64(self.next);
        let (tenant, random) = (self.tenant, &mut self.random);
        let own = tenant.prompt.draw(random);
        let output = tenant.output.draw(random);
        let choice = random.uniform();
        let k = self.cumulated.partition_point(|&part| part < choice);
        let prefix = (k < self.cumulated.len()).then_some(k);
        let prefix = prefix.map(|k| mix(u64::from(tenant.tenant.0) << 32 | k as u64));
        let prefix_tokens = if prefix.is_some() { tenant.prefixes.tokens } else { 0 };
        let is_cancelled = random.uniform() < tenant.cancelled;
        let patience = Duration::from_secs_f64(random.exponential(5.0));
        let request = Request {
            id: RequestId(id),
            tenant: tenant.tenant,
            priority: tenant.priority,
            deadline: tenant.deadline.map(|deadline| at + deadline),
            prompt_tokens: prefix_tokens + own,
            max_new_tokens: tenant.output.most,
            prefix,
        };
        self.advance();
        Arrival { at, request, prefix_tokens, output, cancel_at: is_cancelled.then(|| at + patience) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_and_bursts_are_bursty() {
        let gaps = |arrivals: Arrivals| {
            let tenant = TenantTraffic { arrivals, ..TenantTraffic::chat(TenantId(1), 20.0) };
            let trace = trace(&[tenant], 50_000, 7);
            let gaps: Vec<f64> =
                trace.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            (mean * 20.0, variance.sqrt() / mean)
        };
        let (rate, variation) = gaps(Arrivals::Poisson);
        assert!((rate - 1.0).abs() < 0.03 && (variation - 1.0).abs() < 0.03, "{rate} {variation}");
        let (on, off) = (Duration::from_secs(1), Duration::from_secs(3));
        let (rate, variation) = gaps(Arrivals::Bursts { on, off });
        assert!((rate - 1.0).abs() < 0.15 && variation > 3.0, "{rate} {variation}");
    }

    #[test]
    fn prefixes_follow_zipf() {
        let trace = trace(&[TenantTraffic::chat(TenantId(1), 1.0)], 20_000, 3);
        let mut counts = std::collections::HashMap::<u64, usize>::new();
        trace.iter().for_each(|a| *counts.entry(a.request.prefix.unwrap_or(0)).or_default() += 1);
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let harmonic: f64 = (1..=64).map(|k| 1.0 / f64::from(k)).sum();
        for k in [1, 2, 8] {
            let expected = 20_000.0 / harmonic / k as f64;
            assert!((counts[k - 1] as f64 / expected - 1.0).abs() < 0.15, "{k}: {counts:?}");
        }
        assert_eq!(trace, super::trace(&[TenantTraffic::chat(TenantId(1), 1.0)], 20_000, 3));
    }
}
