//! Function masking: conversations with tools whose names mean nothing, as training data.
//!
//! A model that is fine-tuned on calls learns the names of these functions by heart, and makes up
//! names for others. Copies with names that no other copy has can only be answered by reading the
//! list of tools (Lin et al. 2024, "Hammer: Robust Function-Calling for On-Device Language Models
//! via Function Masking").

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::random::Random;

/// Smallest number of words that names are made of.
const MIN_WORDS: usize = 32;
/// Letters of a word.
const LETTERS: std::ops::RangeInclusive<usize> = 3..=9;
/// Probability that a value of the user's text is replaced.
const REPLACED: f64 = 0.6;
/// Largest made-up integer.
const MAX_INTEGER: usize = 200;

/// Maker of masked conversations.
///
/// In a copy, every function and every parameter has a made-up name, in the list of tools and in
/// the calls, and the tools have another order. Argument values that the user's text has once are
/// replaced in both, text by words and integers by integers, so that values have to be copied too.
/// Names and words are made of words of the conversations.
///
/// # Examples
/// ```
/// use ruvllm_sona::FunctionMasking;
/// use serde_json::json;
///
/// let conversation = json!({
///     "messages": [
///         {"role": "user", "content": "Wake me at seven, please, and say good morning to everybody in the house"},
///         {"role": "assistant", "tool_calls": [{"name": "set_alarm", "arguments": {"time": "seven"}}]}
///     ],
///     "tools": [{"type": "function", "function": {
///         "name": "set_alarm",
///         "description": "Rings a bell at the given time of the day, every morning from Monday until Friday",
///         "parameters": {"type": "object", "properties": {"time": {"type": "string"}}, "required": ["time"]}
///     }}]
/// });
/// # let mut texts = vec![conversation.clone()];
/// # texts.push(json!("apple basket candle desert engine forest garden hammer island jungle kitchen ladder"));
/// # let conversations = &texts;
/// let mut masking = FunctionMasking::new(conversations, 1)?;
/// let masked = masking.mask(&conversation).expect("its call names a tool");
/// let name = &masked["tools"][0]["function"]["name"];
/// assert_ne!(name, "set_alarm");
/// assert_eq!(&masked["messages"][1]["tool_calls"][0]["name"], name);
/// # Ok::<(), ruvllm_sona::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct FunctionMasking {
    words: Vec<String>,
    random: Random,
}

/// Made-up names of a function and of its parameters.
struct Names {
    function: String,
    parameters: BTreeMap<String, String>,
}

impl FunctionMasking {
    /// Makes names of the lower-case words of these conversations. Equal conversations and seeds
    /// give equal copies.
    ///
    /// # Errors
    /// [`Error::DataSet`] for conversations of fewer than 32 different words of 3 to 9 letters.
    pub fn new<'v>(conversations: impl IntoIterator<Item = &'v Value>, seed: u64) -> Result<Self> {
        let mut words = BTreeSet::new();
        conversations.into_iter().for_each(|value| collect_words(value, &mut words));
        if words.len() < MIN_WORDS {
            let reason = format!(
                "{} different words are too few to make up names of functions; {MIN_WORDS} are needed",
                words.len()
            );
            return Err(Error::DataSet { reason });
        }
        Ok(Self { words: words.into_iter().collect(), random: Random::new(seed) })
    }

    /// A masked copy of `{messages, tools}` up to the first message with calls, since later ones
    /// may repeat values that are replaced; other fields stay. `None` for a conversation without
    /// tools or calls, or with a call or argument that its tools do not have.
    pub fn mask(&mut self, conversation: &Value) -> Option<Value> {
        let mut masked = conversation.clone();
        let names = self.mask_tools(masked.get_mut("tools")?.as_array_mut()?)?;
        let messages = masked.get_mut("messages")?.as_array_mut()?;
        let calls = |message: &Value| message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        let first = messages.iter().position(calls)?;
        messages.truncate(first + 1);
        let (before, call) = messages.split_at_mut(first);
        for call in call.first_mut()?.get_mut("tool_calls")?.as_array_mut()? {
            self.mask_call(function_of(call)?, &names, before)?;
        }
        Some(masked)
    }

    /// Renames the functions of a list of tools, and their parameters.
    fn mask_tools(&mut self, tools: &mut [Value]) -> Option<BTreeMap<String, Names>> {
        let (mut names, mut used) = (BTreeMap::new(), BTreeSet::new());
        for tool in tools.iter_mut() {
            let function = function_of(tool)?;
            let name = self.new_name(&mut used);
            let former = function.insert("name".to_owned(), name.clone().into())?.as_str()?.to_owned();
            let parameters = self.mask_parameters(function)?;
            names.insert(former, Names { function: name, parameters });
        }
        self.random.shuffle(tools);
        Some(names)
    }

    fn mask_parameters(&mut self, function: &mut Map<String, Value>) -> Option<BTreeMap<String, String>> {
        let Some(schema) = function.get_mut("parameters").and_then(Value::as_object_mut) else {
            return Some(BTreeMap::new());
        };
        let (mut names, mut used) = (BTreeMap::new(), BTreeSet::new());
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            for (former, property) in std::mem::take(properties) {
                let name = self.new_name(&mut used);
                properties.insert(name.clone(), property);
                names.insert(former, name);
            }
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            for name in required {
                *name = names.get(name.as_str()?)?.clone().into();
            }
        }
        Some(names)
    }

    /// Renames a call, and replaces values that the latest text of the user has once.
    fn mask_call(
        &mut self,
        call: &mut Map<String, Value>,
        names: &BTreeMap<String, Names>,
        before: &mut [Value],
    ) -> Option<()> {
        let names = names.get(call.get("name")?.as_str()?)?;
        call.insert("name".to_owned(), names.function.clone().into());
        let arguments = call.get_mut("arguments")?;
        // Some formats have the arguments as JSON text.
        let is_text = arguments.is_string();
        let mut values: Map<String, Value> = match arguments.as_str() {
            Some(text) => serde_json::from_str(text).ok()?,
            None => arguments.as_object()?.clone(),
        };
        let user = before.iter_mut().rev().find(|message| message["role"] == "user");
        let mut text = user.and_then(|message| message.get_mut("content")).filter(|text| text.is_string());
        let mut masked = Map::new();
        for (former, mut value) in std::mem::take(&mut values) {
            if let Some(Value::String(text)) = text.as_deref_mut()
                && self.random.uniform() < REPLACED
            {
                self.replace_value(&mut value, text);
            }
            masked.insert(names.parameters.get(&former)?.clone(), value);
        }
        let masked = Value::Object(masked);
        *arguments = if is_text { masked.to_string().into() } else { masked };
        Some(())
    }

    /// Replaces a value that stands once in the text, as a whole word, there and here.
    fn replace_value(&mut self, value: &mut Value, text: &mut String) {
        let former = match value {
            Value::String(former) if former.chars().all(|c| c.is_alphanumeric() || " '".contains(c)) => {
                former.clone()
            }
            Value::Number(number) if number.is_u64() => number.to_string(),
            _ => return,
        };
        let Some(place) = only_place(text, &former) else { return };
        let replaced = match value {
            Value::String(_) => {
                let is_name = former.starts_with(char::is_uppercase);
                let words: Vec<String> = (0..1 + self.random.below(3))
                    .map(|_| if is_name { capitalized(self.word()) } else { self.word().to_owned() })
                    .collect();
                *value = words.join(" ").into();
                words.join(" ")
            }
            _ => {
                let number = 1 + self.random.below(MAX_INTEGER);
                *value = number.into();
                number.to_string()
            }
        };
        text.replace_range(place..place + former.len(), &replaced);
    }

    fn word(&mut self) -> &str {
        let index = self.random.below(self.words.len());
        &self.words[index]
    }

    /// A name that is not used: one to three words, in snake case or camel case.
    fn new_name(&mut self, used: &mut BTreeSet<String>) -> String {
        loop {
            let is_snake = self.random.below(5) < 3;
            let mut name = self.word().to_owned();
            for _ in 0..[0, 1, 1, 1, 2][self.random.below(5)] {
                let word = self.word();
                name =
                    if is_snake { format!("{name}_{word}") } else { format!("{name}{}", capitalized(word)) };
            }
            if used.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The function of a tool or call, which may stand in a field `function`.
fn function_of(value: &mut Value) -> Option<&mut Map<String, Value>> {
    match value.get("function").is_some_and(Value::is_object) {
        true => value.get_mut("function")?.as_object_mut(),
        false => value.as_object_mut(),
    }
}

/// Place of a value in a text that has it once, not within a word.
fn only_place(text: &str, value: &str) -> Option<usize> {
    let mut places = text.match_indices(value).map(|(place, _)| place);
    let place = places.next().filter(|_| !value.is_empty())?;
    let is_border = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    let (before, after) = (&text[..place], &text[place + value.len()..]);
    let is_whole = is_border(before.chars().next_back()) && is_border(after.chars().next());
    (is_whole && places.next().is_none()).then_some(place)
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Lower-case words of all texts in a value.
fn collect_words(value: &Value, words: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let all = text.split(|c: char| !c.is_ascii_alphabetic());
            let fits = all.filter(|word| LETTERS.contains(&word.len()));
            words.extend(fits.map(str::to_ascii_lowercase));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_words(item, words)),
        Value::Object(fields) => fields.values().for_each(|field| collect_words(field, words)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn conversation(arguments: Value) -> Value {
        let tool = |name: &str, parameters: &[&str]| {
            let properties: Map<String, Value> =
                parameters.iter().map(|&name| (name.to_owned(), json!({"type": "string"}))).collect();
            json!({"type": "function", "function": {"name": name, "parameters":
                {"type": "object", "properties": properties, "required": parameters}}})
        };
        json!({
            "kind": "one",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Book a table for 4 at Blue Moon tomorrow"},
                {"role": "assistant", "content": "", "tool_calls": [{"name": "book_table", "arguments": arguments}]},
                {"role": "tool", "content": "done"},
            ],
            "tools": [tool("book_table", &["place", "guests"]), tool("get_weather", &["city"])],
        })
    }

    fn words() -> Value {
        let letters = "abcdefghijklmnopqrstuvwxyz".chars();
        json!(letters.flat_map(|c| [format!("{c}{c}{c}"), format!("{c}{c}{c}{c}")]).collect::<Vec<_>>())
    }

    #[test]
    fn copies_are_consistent_and_keep_the_rest() {
        let original = conversation(json!({"place": "Blue Moon", "guests": 4}));
        let mut masking = FunctionMasking::new([&words()], 3).expect("enough words");
        let (mut values, mut names) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..50 {
            let copy = masking.mask(&original).expect("a copy");
            let call = &copy["messages"][2]["tool_calls"][0];
            let tools = copy["tools"].as_array().expect("tools");
            let tool = tools.iter().find(|tool| tool["function"]["name"] == call["name"]).expect("its tool");
            let schema = &tool["function"]["parameters"];
            let arguments = call["arguments"].as_object().expect("arguments");
            assert_eq!(arguments.len(), 2);
            assert!(arguments.keys().all(|name| schema["properties"].get(name).is_some()), "{copy}");
            assert!(
                schema["required"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|name| arguments.contains_key(name.as_str().unwrap()))
            );
            let text = copy["messages"][1]["content"].as_str().expect("text");
            for value in arguments.values() {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                assert!(text.contains(&value), "{value} in {text}");
                values.insert(value);
            }
            names.insert(call["name"].to_string());
            assert_eq!((&copy["kind"], &copy["messages"][0]), (&json!("one"), &original["messages"][0]));
            assert_eq!(copy["messages"].as_array().expect("messages").len(), 3);
        }
        assert!(values.len() > 30 && names.len() > 40 && values.contains("4"), "{values:?}");
        assert!(!names.contains("\"book_table\""));
    }

    #[test]
    fn arguments_as_text_stay_text() {
        let mut original = conversation(json!({}));
        original["messages"][2]["tool_calls"][0] = json!({"id": "1", "type": "function", "function":
            {"name": "book_table", "arguments": "{\"place\": \"Blue Moon\"}"}});
        let copy = FunctionMasking::new([&words()], 3).unwrap().mask(&original).expect("a copy");
        let call = &copy["messages"][2]["tool_calls"][0];
        assert_eq!(call["id"], "1");
        let arguments: Map<String, Value> =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("text")).expect("JSON");
        assert!(arguments.len() == 1 && !arguments.contains_key("place"));
    }

    #[test]
    fn conversations_that_cannot_be_masked_give_none() {
        let mut masking = FunctionMasking::new([&words()], 3).expect("enough words");
        assert!(masking.mask(&conversation(json!({"other": 1}))).is_none(), "an argument of no parameter");
        let mut without = conversation(json!({"place": "x"}));
        without["messages"][2]["tool_calls"][0]["name"] = "none".into();
        assert!(masking.mask(&without).is_none(), "a call of no tool");
        without["messages"].as_array_mut().unwrap().truncate(2);
        assert!(masking.mask(&without).is_none(), "no call");
        for other in [json!({"text": "a"}), json!([]), json!(null), json!({"messages": [], "tools": [1]})] {
            assert!(masking.mask(&other).is_none(), "{other}");
        }
        let error = FunctionMasking::new([&json!("three words only")], 1).unwrap_err().to_string();
        assert!(error.contains("3 different words"), "{error}");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<u8>().prop_map(Value::from),
            "[a-c ]{0,4}".prop_map(Value::from),
            prop_oneof![Just("name"), Just("user")].prop_map(Value::from)
        ];
        let key = prop_oneof![
            Just("messages"),
            Just("tools"),
            Just("tool_calls"),
            Just("function"),
            Just("name"),
            Just("arguments"),
            Just("parameters"),
            Just("properties"),
            Just("required"),
            Just("role"),
            Just("content")
        ];
        leaf.prop_recursive(6, 64, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6).prop_map(|fields| {
                    Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_masked_or_refused(value in any_json(), seed: u64) {
            let mut masking = FunctionMasking::new([&words()], seed).expect("enough words");
            if let Some(copy) = masking.mask(&value) {
                prop_assert!(copy["tools"].is_array());
            }
        }
    }
}
