//! Nesting of JSON, bounded before a parser sees it.

/// True if arrays and objects of a JSON text are nested deeper than `most`.
///
/// Invalid JSON gives any answer; the parser refuses it afterwards.
pub(crate) fn is_too_deep(text: &[u8], most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in text {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                depth += 1;
                if depth > most {
                    return true;
                }
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), "[\\[\\]{}\"\\\\a]{0,6}".prop_map(Value::from)];
        leaf.prop_recursive(6, 32, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::hash_map("[{}\"\\\\]{0,2}", inner, 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_depth_is_that_of_the_value(value in values(), most in 0_usize..8) {
            let text = value.to_string();
            prop_assert_eq!(is_too_deep(text.as_bytes(), most), depth(&value) > most);
        }
    }

    #[test]
    fn deep_texts_are_found_without_recursion() {
        let text = "[".repeat(10_000_000);
        assert!(is_too_deep(text.as_bytes(), 9_999_999));
        assert!(!is_too_deep(text.as_bytes(), 10_000_000));
    }
}
