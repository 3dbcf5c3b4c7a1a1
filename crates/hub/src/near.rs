//! Names that a mistyped one may have meant.

use crate::limits::{MAX_COMPARED, MAX_COMPARED_CHARS};

/// The names of `all` that come near to `wanted`, the nearest first: those that contain it or are
/// contained in it, and those that differ in a few letters. Of many names the first are compared,
/// and long ones are not, because the time of a comparison grows with the square of the length.
pub(crate) fn nearest<'a>(wanted: &str, all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    if wanted.len() > MAX_COMPARED_CHARS {
        return Vec::new();
    }
    let tolerated = (wanted.chars().count() / 3).max(1);
    let mut near: Vec<(usize, &str)> = all
        .filter(|name| name.len() <= MAX_COMPARED_CHARS)
        .take(MAX_COMPARED)
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let is_part =
                wanted.len().min(lower.len()) >= 3 && (lower.contains(&wanted) || wanted.contains(&lower));
            let distance = if is_part { 0 } else { strsim::levenshtein(&wanted, &lower) };
            (distance <= tolerated).then_some((distance, name))
        })
        .collect();
    near.sort();
    near.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found() {
        let all = ["llama-3-8b", "llama-2-7b", "Qwen2-0.5B", "phi"];
        let near = |wanted| nearest(wanted, all.into_iter());
        assert_eq!(near("lama-3-8b"), ["llama-3-8b", "llama-2-7b"]);
        assert_eq!(near("qwen2"), ["Qwen2-0.5B"]);
        assert_eq!(near("phi-3"), ["phi"]);
        assert!(near("mistral").is_empty() && near("").is_empty());
    }

    #[test]
    fn names_beyond_the_limits_are_not_compared() {
        let near = |count: usize| {
            let others = (0..count).map(|_| "something else");
            nearest("llama", others.chain(["lama"])).len()
        };
        assert_eq!((near(MAX_COMPARED - 1), near(MAX_COMPARED)), (1, 0));
        let long = "l".repeat(MAX_COMPARED_CHARS);
        assert_eq!(nearest(&long, [long.as_str()].into_iter()).len(), 1);
        let longer = "l".repeat(MAX_COMPARED_CHARS + 1);
        assert!(nearest(&longer, [long.as_str()].into_iter()).is_empty());
        assert!(nearest(&long, [longer.as_str()].into_iter()).is_empty());
    }
}
