//! Data sets of texts with the agent that should serve each.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Set that is part of this crate: `data/README.md` describes it.
const BUILT_IN: &str = include_str!("../../data/agents.json");

/// Form of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A request that names the task.
    Request,
    /// A question.
    Question,
    /// A situation from which the task follows.
    Situation,
    /// A request with the words of another agent.
    Crossed,
}

/// Difficulty of a case for a person who knows the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difficulty {
    /// The agent's own words.
    Easy,
    /// Other words.
    Medium,
    /// Words that point elsewhere.
    Hard,
}

/// An agent and the texts that teach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// One sentence about its work.
    pub description: String,
    /// Words that speak for it.
    pub keywords: Vec<String>,
    /// Train split.
    pub train: Vec<String>,
}

/// A text of the test split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The text.
    pub text: String,
    /// Name of the agent that should serve it.
    pub agent: String,
    /// Name of the agent that it is most easily mistaken for.
    pub not: String,
    /// Form of the text.
    pub form: Form,
    /// Difficulty.
    pub difficulty: Difficulty,
}

/// An example of a class: text and index of the agent.
pub type Example<'d> = (&'d str, usize);

/// Agents with a train split, and cases of the test split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// Agents.
    pub agents: Vec<Agent>,
    /// Texts that no agent should serve, to calibrate thresholds.
    pub outside_train: Vec<String>,
    /// Texts that no agent should serve, to test.
    pub outside_test: Vec<String>,
    /// Test split.
    pub cases: Vec<Case>,
}

impl DataSet {
    /// Set of this crate: 13 agents with 8 train texts each, 104 cases.
    ///
    /// # Errors
    /// None: a test reads it.
    pub fn built_in() -> Result<Self> {
        Self::from_json(BUILT_IN)
    }

    /// Reads a set in the format of `data/agents.json`.
    ///
    /// # Errors
    /// [`Error::DataSet`] for JSON of another shape, an unknown agent, an agent without train
    /// texts, and a text that occurs twice: nothing may be tested on what was taught.
    pub fn from_json(json: &str) -> Result<Self> {
        let set: Self =
            serde_json::from_str(json).map_err(|error| Error::DataSet { reason: error.to_string() })?;
        set.check()?;
        Ok(set)
    }

    fn check(&self) -> Result<()> {
        let fail = |reason: String| Err(Error::DataSet { reason });
        let mut seen = std::collections::BTreeSet::new();
        let train = self.agents.iter().flat_map(|agent| &agent.train).chain(&self.outside_train);
        let test = self.cases.iter().map(|case| &case.text).chain(&self.outside_test);
        for text in train.chain(test) {
            let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
            if words.is_empty() || !seen.insert(words) {
                return fail(format!("the text {text:?} is empty or occurs twice"));
            }
        }
        let mut names = std::collections::BTreeSet::new();
        for agent in &self.agents {
            if agent.train.is_empty() || !names.insert(&agent.name) {
                return fail(format!("agent {:?} has no train text or occurs twice", agent.name));
            }
        }
        for case in &self.cases {
            if !names.contains(&case.agent) || !names.contains(&case.not) || case.agent == case.not {
                return fail(format!("case {:?} needs two different known agents", case.text));
            }
        }
        if self.agents.len() < 2 || self.cases.is_empty() {
            return fail("at least two agents and one case are needed".to_owned());
        }
        Ok(())
    }

    /// Index of an agent.
    pub(super) fn agent(&self, name: &str) -> Option<usize> {
        self.agents.iter().position(|agent| agent.name == name)
    }

    /// All train texts.
    pub fn train(&self) -> impl Iterator<Item = Example<'_>> {
        let agents = self.agents.iter().enumerate();
        agents.flat_map(|(index, agent)| agent.train.iter().map(move |text| (text.as_str(), index)))
    }
}
