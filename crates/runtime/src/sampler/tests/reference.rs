//! Naive reference of every step in f64, by sorting and by quadratic searches.

use super::*;

/// Difference below which rounding could decide.
const NEAR: f64 = 1e-5;

/// Inputs of the reference besides the logits.
pub(super) struct Reference<'a> {
    pub(super) params: &'a SamplingParams,
    /// Tokens of the sequence.
    pub(super) history: &'a [TokenId],
    /// XTC's choice at the position.
    pub(super) is_excluding: bool,
}

type Logits = Vec<(TokenId, f64)>;

impl Reference<'_> {
    /// Tokens with their probabilities, by id, after all steps; `None` where rounding could decide.
    pub(super) fn distribution(&self, logits: &[f32]) -> Option<Vec<(TokenId, f64)>> {
        let mut left: Logits = logits.iter().zip(0..).map(|(&x, id)| (id, f64::from(x))).collect();
        for &step in self.params.samplers.steps() {
            self.apply(step, &mut left)?;
        }
        let mut tokens = sorted(&left);
        tokens.sort_by_key(|t| t.0);
        Some(tokens)
    }

    fn apply(&self, step: SamplerStep, left: &mut Logits) -> Option<()> {
        let Self { params, history, is_excluding } = *self;
        let tokens = sorted(left);
        let retain = |left: &mut Logits, ids: &[TokenId]| left.retain(|(id, _)| ids.contains(id));
        match step {
            SamplerStep::Penalties => {
                let recent = &history[history.len().saturating_sub(params.repeat_last_n)..];
                left.iter_mut().for_each(|(id, x)| *x = penalized(params, recent, *id, *x));
            }
            SamplerStep::Dry => {
                for (id, x) in left {
                    *x -= self::dry::penalty(params, history, &[], *id);
                }
            }
            SamplerStep::TopNSigma if params.top_n_sigma > 0.0 => {
                let n = left.len() as f64;
                let mean = left.iter().map(|t| t.1).sum::<f64>() / n;
                let sigma = (left.iter().map(|t| (t.1 - mean).powi(2)).sum::<f64>() / n).sqrt();
                let max = left.iter().map(|t| t.1).fold(f64::MIN, f64::max);
                let threshold = max - f64::from(params.top_n_sigma) * sigma;
                if left.iter().any(|t| t.1 != max && (t.1 - threshold).abs() < NEAR) {
                    return None;
                }
                left.retain(|t| t.1 == max || t.1 > threshold);
            }
            SamplerStep::TopK if (1..tokens.len()).contains(&params.top_k) => {
                let (last, next) = (tokens[params.top_k - 1], tokens[params.top_k]);
                if last.1 != next.1 && (last.1 / next.1 - 1.0).abs() < NEAR {
                    return None;
                }
                let ids: Vec<_> = tokens.iter().map(|t| t.0).take(params.top_k).collect();
                retain(left, &ids);
            }
            SamplerStep::TypicalP if params.typical_p < 1.0 => {
                let ids = typical(&tokens, f64::from(params.typical_p))?;
                retain(left, &ids);
            }
            SamplerStep::TopP if params.top_p < 1.0 => {
                let ids = prefix(&tokens, f64::from(params.top_p))?;
                retain(left, &ids);
            }
            SamplerStep::MinP if params.min_p > 0.0 => {
                let threshold = f64::from(params.min_p) * tokens[0].1;
                if tokens.iter().any(|(_, p)| (p / threshold - 1.0).abs() < NEAR) {
                    return None;
                }
                let ids: Vec<_> = tokens.iter().filter(|(_, p)| *p > threshold).map(|t| t.0).collect();
                retain(left, &ids);
            }
            SamplerStep::Xtc if is_excluding => {
                let threshold = f64::from(params.xtc_threshold);
                if tokens.iter().any(|(_, p)| (p - threshold).abs() < NEAR) {
                    return None;
                }
                let top = tokens.iter().filter(|(_, p)| *p > threshold).count();
                let ids: Vec<_> = tokens.iter().skip(top.saturating_sub(1)).map(|t| t.0).collect();
                retain(left, &ids);
            }
            SamplerStep::Temperature => {
                let temperature = temperature(params, &tokens);
                for (_, x) in left {
                    *x /= temperature;
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// A logit with the repetition, presence and frequency penalties.
fn penalized(params: &SamplingParams, recent: &[TokenId], id: TokenId, x: f64) -> f64 {
    let count = recent.iter().filter(|&&token| token == id).count();
    if count == 0 {
        return x;
    }
    let repeat = f64::from(params.repeat_penalty);
    let scaled = if x > 0.0 { x / repeat } else { x * repeat };
    scaled - f64::from(params.presence_penalty) - count as f64 * f64::from(params.frequency_penalty)
}

/// Entropy of probabilities in nats.
fn entropy(tokens: &[(TokenId, f64)]) -> f64 {
    tokens.iter().map(|(_, p)| -p * p.ln()).sum()
}

/// Ids that the typical filter keeps; `None` where rounding could decide.
fn typical(tokens: &[(TokenId, f64)], mass: f64) -> Option<Vec<TokenId>> {
    let entropy = entropy(tokens);
    let distance = |p: f64| (-p.ln() - entropy).abs();
    let mut by_distance = tokens.to_vec();
    by_distance.sort_by(|a, b| {
        distance(a.1).total_cmp(&distance(b.1)).then(b.1.total_cmp(&a.1)).then(a.0.cmp(&b.0))
    });
    let ids = prefix(&by_distance, mass)?;
    let (last, next) = (by_distance.get(ids.len() - 1)?, by_distance.get(ids.len()));
    let is_near = next.is_some_and(|n| last.1 != n.1 && (distance(last.1) - distance(n.1)).abs() < NEAR);
    (!is_near).then_some(ids)
}

/// Temperature, fixed or dynamic.
fn temperature(params: &SamplingParams, tokens: &[(TokenId, f64)]) -> f64 {
    let temperature = f64::from(params.temperature);
    if params.dynatemp_range == 0.0 || tokens.len() <= 1 {
        return temperature;
    }
    let share = entropy(tokens) / (tokens.len() as f64).ln();
    let low = (temperature - f64::from(params.dynatemp_range)).max(0.0);
    let high = temperature + f64::from(params.dynatemp_range);
    low + (high - low) * share.powf(f64::from(params.dynatemp_exponent))
}

/// Tokens and their probabilities, most likely first.
pub(super) fn sorted(logits: &[(TokenId, f64)]) -> Vec<(TokenId, f64)> {
    let max = logits.iter().map(|t| t.1).fold(f64::MIN, f64::max);
    let total: f64 = logits.iter().map(|(_, x)| (x - max).exp()).sum();
    let mut all: Vec<_> = logits.iter().map(|&(id, x)| (id, (x - max).exp() / total)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

/// Shortest prefix of at least probability `mass`; `None` if rounding could decide its length.
fn prefix(tokens: &[(TokenId, f64)], mass: f64) -> Option<Vec<TokenId>> {
    let mut sum = 0.0;
    for (i, (_, p)) in tokens.iter().enumerate() {
        sum += p;
        if (sum - mass).abs() < NEAR {
            return None;
        }
        if sum > mass {
            // Of nearly equal tokens rounding could choose another one.
            let next = tokens.get(i + 1).is_some_and(|next| next.1 != *p && (next.1 / p - 1.0).abs() < NEAR);
            return (!next).then(|| tokens[..=i].iter().map(|t| t.0).collect());
        }
    }
    Some(tokens.iter().map(|t| t.0).collect())
}
