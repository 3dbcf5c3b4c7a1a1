//! Choices of a router, and the static rules that hold while it is unsure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::features::Prompt;

/// One choice: a combination that the caller can serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Arm {
    /// Name of the model, for example of the base model or of a draft model.
    pub model: String,
    /// Name of the adapter; absent for none.
    pub adapter: Option<String>,
    /// Name of the KV policy; absent for the engine's default.
    pub kv_policy: Option<String>,
    /// MicroLoRA on.
    pub micro_lora: bool,
}

impl Arm {
    /// A model without adapter, with the default KV policy and without MicroLoRA.
    pub fn model(name: impl Into<String>) -> Self {
        Self { model: name.into(), adapter: None, kv_policy: None, micro_lora: false }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)?;
        if let Some(adapter) = &self.adapter {
            write!(f, " adapter={adapter}")?;
        }
        if let Some(policy) = &self.kv_policy {
            write!(f, " kv={policy}")?;
        }
        f.write_str(if self.micro_lora { " micro-lora" } else { "" })
    }
}

/// Conditions on a prompt, all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Condition {
    /// Smallest number of tokens.
    pub min_tokens: Option<usize>,
    /// Largest number of tokens.
    pub max_tokens: Option<usize>,
    /// Tools present or absent.
    pub has_tools: Option<bool>,
    /// Output constrained or free.
    pub is_constrained: Option<bool>,
    /// Smallest number of earlier turns of the session.
    pub min_turns: Option<usize>,
}

impl Condition {
    fn holds(&self, prompt: &Prompt<'_>) -> bool {
        self.min_tokens.is_none_or(|min| prompt.tokens >= min)
            && self.max_tokens.is_none_or(|max| prompt.tokens <= max)
            && self.has_tools.is_none_or(|tools| prompt.has_tools == tools)
            && self.is_constrained.is_none_or(|constrained| prompt.is_constrained == constrained)
            && self.min_turns.is_none_or(|min| prompt.turns >= min)
    }
}

/// Static rules: the first condition that holds decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rules {
    /// Conditions and the index of the arm that each chooses.
    pub rules: Vec<(Condition, usize)>,
    /// Index of the arm without a rule that holds.
    pub otherwise: usize,
}

impl Rules {
    /// Index of the chosen arm: that of the first rule that holds and is permitted, else
    /// `otherwise` if permitted, else the first permitted arm. Absent if nothing is permitted.
    pub fn choose(
        &self,
        prompt: &Prompt<'_>,
        permitted: impl Fn(usize) -> bool,
        arms: usize,
    ) -> Option<usize> {
        let rules = self.rules.iter().filter(|(condition, _)| condition.holds(prompt));
        let candidates = rules.map(|(_, arm)| *arm).chain([self.otherwise]).chain(0..arms);
        candidates.into_iter().find(|&arm| arm < arms && permitted(arm))
    }

    /// Largest index of an arm that the rules name.
    pub(super) fn largest_arm(&self) -> usize {
        self.rules.iter().map(|(_, arm)| *arm).fold(self.otherwise, usize::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rule_that_holds_and_is_permitted_decides() {
        let tools = Condition { has_tools: Some(true), ..Condition::default() };
        let long = Condition { min_tokens: Some(100), max_tokens: Some(200), ..Condition::default() };
        let late = Condition { min_turns: Some(3), is_constrained: Some(true), ..Condition::default() };
        let rules = Rules { rules: vec![(tools, 2), (long, 1), (late, 3)], otherwise: 0 };
        let prompt = |tokens, has_tools, is_constrained, turns| Prompt {
            embedding: &[],
            tokens,
            has_tools,
            is_constrained,
            turns,
        };
        let all = |_: usize| true;
        assert_eq!(rules.choose(&prompt(150, true, false, 0), all, 4), Some(2));
        assert_eq!(rules.choose(&prompt(150, true, false, 0), |arm| arm != 2, 4), Some(1));
        assert_eq!(rules.choose(&prompt(201, false, true, 3), all, 4), Some(3));
        assert_eq!(rules.choose(&prompt(99, false, true, 2), all, 4), Some(0));
        assert_eq!(rules.choose(&prompt(99, false, false, 9), |arm| arm == 3, 4), Some(3));
        assert_eq!(rules.choose(&prompt(99, false, false, 9), |_| false, 4), None);
    }

    #[test]
    fn arms_are_written_in_words() {
        let mut arm = Arm::model("base");
        assert_eq!(arm.to_string(), "base");
        (arm.adapter, arm.kv_policy, arm.micro_lora) = (Some("sql".into()), Some("q8".into()), true);
        assert_eq!(arm.to_string(), "base adapter=sql kv=q8 micro-lora");
    }
}
