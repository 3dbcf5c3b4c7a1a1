//! Values of JSON without their contents: of lists and objects is kept whether they are empty. A
//! list of numbers in the general form takes 36 times the memory of its text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value of JSON.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Simple {
    Null,
    Flag(bool),
    Number(f64),
    Text(String),
    /// A list or an object.
    Compound {
        is_empty: bool,
    },
}

impl<'de> Deserialize<'de> for Simple {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Simple;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Simple, E> {
                Ok(Simple::Null)
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Simple, E> {
                Ok(Simple::Flag(flag))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Simple, E> {
                Ok(Simple::Number(number as f64))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Simple, E> {
                Ok(Simple::Number(number as f64))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Simple, E> {
                Ok(Simple::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Simple, E> {
                Ok(Simple::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Simple, A::Error> {
                let mut is_empty = true;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    is_empty = false;
                }
                Ok(Simple::Compound { is_empty })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Simple, A::Error> {
                let mut is_empty = true;
                while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    is_empty = false;
                }
                Ok(Simple::Compound { is_empty })
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

impl Simple {
    /// True for a value that asks for something: neither `null` nor `false`, nor empty.
    pub(super) fn is_set(&self) -> bool {
        !matches!(self, Self::Null | Self::Flag(false) | Self::Compound { is_empty: true })
    }
}

/// The fields of an object that are numbers; the others become `null`. In the order of the text.
pub(super) fn numbers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    struct Object;
    impl<'de> Visitor<'de> for Object {
        type Value = Option<Map<String, Value>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            let mut fields = Map::new();
            while let Some((key, value)) = object.next_entry()? {
                let number =
                    if let Simple::Number(number) = value { Value::from(number) } else { Value::Null };
                fields.insert(key, number);
            }
            Ok(Some(fields))
        }
    }
    deserializer.deserialize_any(Object)
}

/// The first of `names` that is a set field of an object.
pub(super) fn first_set(text: &[u8], names: &[&'static str]) -> serde_json::Result<Option<&'static str>> {
    struct Names<'a>(&'a [&'static str]);
    impl<'de> Visitor<'de> for Names<'_> {
        type Value = Option<&'static str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            let mut set = vec![false; self.0.len()];
            while let Some(key) = object.next_key::<String>()? {
                match self.0.iter().position(|name| *name == key) {
                    Some(index) => set[index] = object.next_value::<Simple>()?.is_set(),
                    None => drop(object.next_value::<IgnoredAny>()?),
                }
            }
            Ok(set.iter().position(|set| *set).map(|index| self.0[index]))
        }
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.deserialize_map(Names(names))
}
