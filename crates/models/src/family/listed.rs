//! Lists of architecture names for error messages.

/// Names in alphabetical order; those that begin with the same word share it: `glm4{,moe}`.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    let mut groups = Vec::new();
    let mut rest = names.as_slice();
    while let Some(first) = rest.first() {
        let word = first.find(|c: char| !c.is_ascii_alphabetic()).map_or(*first, |end| &first[..end]);
        let (group, later) = rest.split_at(rest.partition_point(|name| name.starts_with(word)));
        groups.push(joined(group));
        rest = later;
    }
    groups.join(", ")
}

/// Names with a common beginning, sorted, as one.
fn joined(names: &[&str]) -> String {
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return String::new() };
    if names.len() == 1 {
        return (*first).to_owned();
    }
    // Names are ASCII, and those between the first and the last have what both have.
    let common = first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count();
    let ends: Vec<&str> = names.iter().map(|name| &name[common..]).collect();
    format!("{}{{{}}}", &first[..common], ends.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_begin_alike_share_their_beginning() {
        let names = ["qwen3", "gemma", "olmoe", "qwen2", "gpt-oss", "olmo2", "qwen3moe", "gemma2", "qwen2"];
        assert_eq!(listed(names.into_iter()), "gemma{,2}, gpt-oss, olmo{2,e}, qwen{2,3,3moe}");
        assert_eq!(listed(["a", "b"].into_iter()), "a, b");
        assert_eq!(listed([].into_iter()), "");
    }
}
