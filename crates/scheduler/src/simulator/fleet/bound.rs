//! Bound of the prefix hits of any router.

use std::collections::{BTreeSet, HashMap};

use crate::simulator::traffic::Arrival;

/// Largest share of prompt tokens that any router over workers with `cache_tokens` of KV cache
/// together, and any order of eviction, can find in their prefix caches, for the requests behind
/// the first `warm_up`, one after another.
///
/// One cache of all memory, which knows the future: it evicts the blocks whose next use is
/// farthest, and stores none that has no next use. No split of the memory over workers has more
/// different blocks.
///
/// # Source
/// Belady, "A study of replacement algorithms for a virtual-storage computer" (1966), with blocks
/// that need not be stored.
pub fn hit_bound(arrivals: &[Arrival], cache_tokens: usize, block_tokens: usize, warm_up: usize) -> f64 {
    let block_tokens = block_tokens.max(1);
    let capacity = cache_tokens / block_tokens;
    let next = next_uses(arrivals);
    // Blocks of each prefix, and prefixes by next use.
    let (mut held, mut by_next) = (HashMap::<u64, usize>::new(), BTreeSet::<(usize, u64)>::new());
    let (mut total, mut prompt, mut found) = (0, 0, 0);
    for (index, arrival) in arrivals.iter().enumerate() {
        // The last token of a prompt is always computed.
        let most = arrival.prefix_tokens.min(arrival.request.prompt_tokens.saturating_sub(1)) / block_tokens;
        let prefix = arrival.request.prefix;
        let known = prefix.and_then(|prefix| held.get(&prefix)).copied().unwrap_or(0);
        if index >= warm_up {
            prompt += arrival.request.prompt_tokens;
            found += known.min(most) * block_tokens;
        }
        let Some(prefix) = prefix else { continue };
        by_next.remove(&(index, prefix));
        held.remove(&prefix);
        total -= known;
        if let Some(next) = next[index] {
            let blocks = known.max(arrival.prefix_tokens / block_tokens);
            held.insert(prefix, blocks);
            by_next.insert((next, prefix));
            total += blocks;
        }
        while total > capacity {
            let Some(&(next, farthest)) = by_next.last() else { break };
            let blocks = held.get(&farthest).copied().unwrap_or(0);
            let evicted = blocks.min(total - capacity);
            total -= evicted;
            if evicted == blocks {
                by_next.remove(&(next, farthest));
                held.remove(&farthest);
            } else {
                held.insert(farthest, blocks - evicted);
            }
        }
    }
    found as f64 / prompt.max(1) as f64
}

/// Position of the next request with the same prefix.
fn next_uses(arrivals: &[Arrival]) -> Vec<Option<usize>> {
    let mut next = vec![None; arrivals.len()];
    let mut later = HashMap::new();
    for (index, arrival) in arrivals.iter().enumerate().rev() {
        if let Some(prefix) = arrival.request.prefix {
            next[index] = later.insert(prefix, index);
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::request::{Request, RequestId, TenantId};

    /// Requests of 4 tokens behind prefixes of 32, in this order.
    fn arrivals(order: &[u64]) -> Vec<Arrival> {
        let arrival = |(id, &prefix): (usize, &u64)| Arrival {
            at: Duration::ZERO,
            request: Request {
                id: RequestId(id as u64),
                tenant: TenantId(1),
                priority: 0,
                deadline: None,
                prompt_tokens: 36,
                max_new_tokens: 1,
                prefix: Some(prefix),
            },
            prefix_tokens: 32,
            output: 1,
            cancel_at: None,
        };
        order.iter().enumerate().map(arrival).collect()
    }

    #[test]
    fn farthest_next_use_is_evicted() {
        let share = |order: &[u64], prefixes: usize| {
            hit_bound(&arrivals(order), 32 * prefixes, 16, 0) * (36 * order.len()) as f64 / 32.0
        };
        // Room for all: every request but the first of its prefix.
        assert_eq!(share(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 3), 6.0);
        // The cyclic order that never hits under LRU: 1, then 1 and 2, by optimal eviction.
        assert_eq!(share(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 1), 2.0);
        assert_eq!(share(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 2), 4.0);
        // Half a prefix is worth its blocks.
        let half = hit_bound(&arrivals(&[1, 1]), 16, 16, 0);
        assert_eq!(half * 72.0, 16.0);
        assert_eq!(share(&[1, 2, 1, 2], 0), 0.0);
    }

    #[test]
    fn warm_up_is_not_counted() {
        assert_eq!(hit_bound(&arrivals(&[1, 1, 1]), 64, 16, 1), 32.0 / 36.0);
    }
}
