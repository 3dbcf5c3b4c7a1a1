//! The built-in set, and evaluations over embeddings whose quality is known.

use super::*;
use crate::HashedWords;
use crate::error::{Error, Result};
use crate::model::Embed;
use crate::routing::SemanticSettings;

/// Embeds a text of the set as the direction of its agent, turned towards another agent for texts
/// in `wrong`.
struct Oracle<'s> {
    set: &'s DataSet,
    wrong: usize,
}

impl Embed for Oracle<'_> {
    fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let mut values = vec![0.01; self.set.agents.len() + 1];
        let case = self.set.cases.iter().position(|case| case.text == text);
        let name = match case.map(|index| (&self.set.cases[index], index)) {
            Some((case, index)) => Some(if index < self.wrong { &case.not } else { &case.agent }),
            None => self.set.agents.iter().find(|a| a.train.iter().any(|t| t == text)).map(|a| &a.name),
        };
        let place = name.and_then(|name| self.set.agents.iter().position(|a| a.name == *name));
        values[place.unwrap_or(self.set.agents.len())] = 1.0;
        Ok(values)
    }
}

#[test]
fn built_in_set_has_its_documented_shape() {
    let set = DataSet::built_in().unwrap();
    assert_eq!((set.agents.len(), set.cases.len(), set.train().count()), (13, 104, 104));
    for agent in &set.agents {
        let cases: Vec<&Case> = set.cases.iter().filter(|case| case.agent == agent.name).collect();
        for form in [Form::Request, Form::Question, Form::Situation, Form::Crossed] {
            assert_eq!(cases.iter().filter(|case| case.form == form).count(), 2, "{}", agent.name);
        }
        assert!(cases.iter().all(|c| (c.form == Form::Crossed) == (c.difficulty == Difficulty::Hard)));
    }
}

#[test]
fn reports_follow_from_the_embeddings() {
    let set = DataSet::built_in().unwrap();
    let settings = SemanticSettings { keyword_weight: 0.0, ..SemanticSettings::default() };
    let report = evaluate_routing(&set, &Oracle { set: &set, wrong: 0 }, &settings).unwrap();
    assert_eq!((report.accuracy, report.mrr, report.ndcg_at_3), (1.0, 1.0, 1.0));
    assert_eq!((report.hard_negative_accuracy, report.coverage), (1.0, 1.0));
    assert!(report.top3_accuracy == 1.0 && report.hard_negative_margin > 0.9, "{report:?}");
    assert_eq!((report.accuracy_of_routed, report.outside_rejected), (1.0, Some(1.0)));
    assert!(report.by_agent.values().all(|share| *share == Share { right: 8, cases: 8 }));
    assert!(report.latency.is_some() && report.embedding_latency.is_some());
    let wrong = evaluate_routing(&set, &Oracle { set: &set, wrong: 26 }, &settings).unwrap();
    assert_eq!((wrong.accuracy, wrong.hard_negative_accuracy), (0.75, 0.75));
    assert!(wrong.mrr > 0.75 && wrong.mrr < 1.0);
    assert_eq!(wrong.by_form[&Form::Request], Share { right: 18, cases: 26 });

    let report = evaluate_embedding(&set, &Oracle { set: &set, wrong: 0 }).unwrap();
    assert_eq!((report.nearest_accuracy, report.mrr, report.hard_negative_accuracy), (1.0, 1.0, 1.0));
    // Ten places, eight texts of each agent.
    assert!((report.ndcg_at_10 - 1.0).abs() < 1e-12 && (report.purity - 1.0).abs() < 1e-12);
    assert!(report.silhouette > 0.99, "{}", report.silhouette);
    let wrong = evaluate_embedding(&set, &Oracle { set: &set, wrong: 26 }).unwrap();
    assert_eq!((wrong.nearest_accuracy, wrong.hard_negative_accuracy), (0.75, 0.75));
    assert!(wrong.silhouette < report.silhouette && wrong.purity < 1.0);
}

/// An embedding that tells nothing, so that keywords alone decide.
struct Same;

impl Embed for Same {
    fn embed(&self, _: &str) -> Result<Vec<f32>> {
        Ok(vec![1.0])
    }
}

#[test]
fn ties_count_against_the_right_route() {
    let set = DataSet::built_in().unwrap();
    let settings = SemanticSettings { keyword_weight: 0.0, ..SemanticSettings::default() };
    let report = evaluate_routing(&set, &Same, &settings).unwrap();
    assert_eq!((report.accuracy, report.top3_accuracy, report.hard_negative_margin), (0.0, 0.0, 0.0));
    assert!((report.mrr - 1.0 / 13.0).abs() < 1e-12, "{}", report.mrr);
    let keywords = evaluate_routing(&set, &Same, &SemanticSettings::default()).unwrap();
    println!("{keywords:#?}");
    assert!(keywords.accuracy > 1.0 / 13.0 && keywords.top3_accuracy >= keywords.accuracy);
}

#[test]
fn a_baseline_without_meaning_is_above_chance_and_far_from_perfect() {
    let set = DataSet::built_in().unwrap();
    let baseline = HashedWords { dimension: 512 };
    let report = evaluate_routing(&set, &baseline, &SemanticSettings::default()).unwrap();
    println!("{report:#?}");
    println!("{:#?}", evaluate_embedding(&set, &baseline).unwrap());
    let share = |difficulty: Difficulty| {
        let share: Share = report.by_difficulty[&difficulty];
        share.right as f64 / share.cases as f64
    };
    // Chance is 1/13.
    assert!(report.accuracy > 2.0 / 13.0 && report.accuracy < 0.95, "{}", report.accuracy);
    assert!(share(Difficulty::Easy) > share(Difficulty::Hard));
}

#[test]
fn sets_that_break_the_rules_are_refused() {
    let set = DataSet::built_in().unwrap();
    let refuse = |change: fn(&mut DataSet), part: &str| {
        let mut set = set.clone();
        change(&mut set);
        let error = DataSet::from_json(&serde_json::to_string(&set).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("data set: ") && error.contains(part), "{error}");
    };
    refuse(|set| set.cases[0].text = set.agents[3].train[1].to_uppercase(), "occurs twice");
    refuse(|set| set.cases[0].not = "nobody".into(), "two different known agents");
    refuse(|set| set.cases[0].not = set.cases[0].agent.clone(), "two different known agents");
    refuse(|set| set.agents[0].train.clear(), "no train text");
    refuse(|set| set.outside_test[0] = " ".into(), "is empty");
    assert!(matches!(DataSet::from_json("{}"), Err(Error::DataSet { .. })));
    let nan = NotANumber;
    assert!(matches!(evaluate_embedding(&set, &nan), Err(Error::NotFinite { .. })));
}

struct NotANumber;

impl Embed for NotANumber {
    fn embed(&self, _: &str) -> Result<Vec<f32>> {
        Ok(vec![f32::NAN; 4])
    }
}
