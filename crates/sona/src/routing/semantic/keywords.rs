//! Keywords of routes in a text.

/// Words of a text in lower case: runs of alphanumeric characters.
pub(super) fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Number of keywords, words or phrases, that occur in `text` as whole words.
pub(super) fn matches(keywords: &[Vec<String>], text: &[String]) -> usize {
    let occurs = |keyword: &&Vec<String>| {
        !keyword.is_empty() && text.windows(keyword.len()).any(|window| window == &keyword[..])
    };
    keywords.iter().filter(occurs).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_whole_words_and_phrases() {
        let keywords = ["unit test", "CI", "Übersetzung", ""].map(words);
        let count = |text: &str| matches(&keywords, &words(text));
        assert_eq!(count("Write a unit-test for the ci!"), 2);
        assert_eq!(count("a unit, then a test; circus"), 0);
        assert_eq!(count("die ÜBERSETZUNG"), 1);
        assert_eq!(count(""), 0);
    }
}
