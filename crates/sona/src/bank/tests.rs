//! The bank as its callers use it: tenants, reopening, expiry, outcomes, distillation, damage.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::evaluate::{EvalConfig, Subject, evaluate};
use super::simulated::{ConventionLessons, ConventionTasks};
use super::*;
use crate::model::Embed;
use crate::random::{Random, mix};

/// With fewer values, chance decides which of two texts with common words is nearer.
const DIM: usize = 128;

/// Embedding by whole words: the sum of a pseudo-random direction per word. Texts without a word in
/// common are orthogonal up to chance, whatever their letters.
#[derive(Clone, Copy)]
struct Words {
    dimension: usize,
}

impl Embed for Words {
    fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let mut sum = vec![0.0; self.dimension];
        for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            let seed = word.to_lowercase().bytes().fold(1, |state, byte| mix(state ^ u64::from(byte)));
            let mut random = Random::new(seed);
            sum.iter_mut().for_each(|x| *x += random.uniform() as f32 - 0.5);
        }
        Ok(sum)
    }
}

fn embed(text: &str) -> Vec<f32> {
    Words { dimension: DIM }.embed(text).unwrap()
}

/// Settings without decay, expiry and control arm.
fn config() -> BankConfig {
    BankConfig { control_share: 0.0, half_life: None, expires_after: None, ..BankConfig::new(DIM) }
}

fn open(folder: &Path) -> Bank {
    Bank::open(folder, config()).unwrap()
}

#[cfg(unix)]
#[test]
fn its_files_are_for_their_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    drop(bank);
    let path = folder.path().join("bank.redb");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

fn lesson(task: &str, body: &str) -> NewItem {
    let text = ItemText::new("Title", "When it applies.", body).unwrap();
    NewItem {
        content: embed(body),
        text,
        query: embed(task),
        verdict: Verdict::Success,
        quality: 0.8,
        expires: None,
    }
}

fn learn(bank: &Bank, tenant: &str, trajectory: &str, task: &str, body: &str) -> Learned {
    bank.learn(tenant, trajectory, &[lesson(task, body)], 0).unwrap()
}

/// Bodies that a request gets.
fn given(bank: &Bank, tenant: &str, task: &str, now: u64) -> Vec<String> {
    let retrieval = bank.retrieve(tenant, "request", &embed(task), now).unwrap();
    retrieval.items.iter().map(|retrieved| retrieved.item.text.body().to_owned()).collect()
}

#[test]
fn the_most_similar_item_above_the_minimum_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    learn(&bank, "a", "t1", "sort the list of names", "Compare without case.");
    learn(&bank, "a", "t2", "parse the date of an invoice", "Day before month.");
    assert_eq!(given(&bank, "a", "sort a list of names", 0), ["Compare without case."]);
    assert_eq!(given(&bank, "a", "parse the date of a letter", 0), ["Day before month."]);
    assert!(given(&bank, "a", "zebra quantum umbrella", 0).is_empty());
    let retrieval = bank.retrieve("a", "r", &embed("sort a list of names"), 0).unwrap();
    let text = PromptTemplate::default().render(retrieval.items.iter().map(|r| &r.item)).unwrap();
    assert!(text.ends_with("\n- Worked before: Title. When it applies. Compare without case."), "{text}");
    let short = PromptTemplate { max_chars: 90, ..PromptTemplate::default() };
    assert_eq!(short.render(retrieval.items.iter().map(|r| &r.item)), None);
}

#[test]
fn a_tenant_never_sees_or_changes_items_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let id = learn(&bank, "a", "t", "open the red door", "Turn left.").added[0];
    learn(&bank, "a/b", "t", "open the red door", "Turn right.");
    assert_eq!(given(&bank, "a", "open the red door", 0), ["Turn left."]);
    assert_eq!(given(&bank, "a/b", "open the red door", 0), ["Turn right."]);
    for other in ["b", "a/", "A", "a\0", "a/b/c"] {
        assert!(given(&bank, other, "open the red door", 0).is_empty(), "{other:?}");
        assert_eq!(bank.item(other, id).unwrap(), None);
        assert!(matches!(bank.remove(other, id), Err(Error::NoItem { .. })));
        assert!(matches!(bank.set_enabled(other, id, false), Err(Error::NoItem { .. })));
        assert!(bank.provenance(other, id).unwrap().is_empty());
        assert!(bank.forget_trajectory(other, "t").unwrap().is_empty());
        assert_eq!(bank.distill(other, &DistillConfig::default(), u64::MAX).unwrap().before, 0);
        // A receipt with the ids of another tenant counts nothing there.
        let receipt =
            Receipt { tenant: other.to_owned(), request: "r".into(), arm: Arm::Memory, items: vec![id] };
        bank.record_outcome(&receipt, Verdict::Failure, 0).unwrap();
        bank.forget_tenant(other).unwrap();
    }
    let item = bank.item("a", id).unwrap().unwrap();
    assert_eq!((item.with, item.is_enabled), (Counts::default(), true));
    assert_eq!(bank.tenants().unwrap(), ["a", "a/b"]);
    assert!(bank.learn("", "t", &[], 0).is_err() && bank.retrieve("", "r", &embed("x"), 0).is_err());
}

#[test]
fn everything_is_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    for i in 0..50 {
        learn(&bank, "a", &format!("t{i}"), &format!("task number {i} of kind {}", i % 7), &format!("b{i}"));
    }
    let retrieval = bank.retrieve("a", "r1", &embed("task number 3 of kind 3"), 0).unwrap();
    bank.record_outcome(&retrieval.receipt, Verdict::Success, 5).unwrap();
    let before = (bank.items("a").unwrap(), given(&bank, "a", "task number 9 of kind 2", 0));
    drop(bank);
    let bank = open(folder.path());
    assert_eq!(bank.recovery("a").unwrap(), Recovery { kept: 50, ..Recovery::default() });
    assert_eq!((bank.items("a").unwrap(), given(&bank, "a", "task number 9 of kind 2", 0)), before);
    assert!(!bank.record_outcome(&retrieval.receipt, Verdict::Success, 6).unwrap());
    assert!(learn(&bank, "a", "t1", "new", "new").was_known);
    drop(bank);
    let other = BankConfig { dim: DIM + 1, ..config() };
    let error = Bank::open(folder.path(), other).err().unwrap().to_string();
    assert!(error.contains("dim") && error.contains("Some(128)") && error.contains("129"), "{error}");
}

#[test]
fn damaged_graphs_are_built_again_and_a_damaged_database_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    for i in 0..20 {
        learn(&bank, "a", &format!("t{i}"), &format!("task {i}"), &format!("body {i}"));
    }
    let before = given(&bank, "a", "task 7", 0);
    drop(bank);
    let graph = fs::read_dir(folder.path().join("index")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&graph).unwrap();
    fs::write(&graph, &bytes[..bytes.len() / 2]).unwrap();
    let bank = open(folder.path());
    let recovery = bank.recovery("a").unwrap();
    assert!(recovery.refused.is_some() && recovery.inserted == 20, "{recovery:?}");
    assert_eq!(given(&bank, "a", "task 7", 0), before);
    drop(bank);
    // The rebuilt graph was saved.
    assert_eq!(open(folder.path()).recovery("a").unwrap().kept, 20);

    let database = folder.path().join("bank.redb");
    let whole = fs::read(&database).unwrap();
    for damaged in [b"not a database".to_vec(), whole[..4096].to_vec(), vec![0xff; whole.len()]] {
        fs::write(&database, damaged).unwrap();
        assert!(matches!(
            Bank::open(folder.path(), config()),
            Err(Error::Database(_) | Error::BankRecord { .. })
        ));
    }
    fs::write(&database, whole).unwrap();
    assert_eq!(open(folder.path()).items("a").unwrap().len(), 20);
}

#[test]
fn a_second_process_cannot_open_the_bank() {
    let folder = tempfile::tempdir().unwrap();
    let _bank = open(folder.path());
    assert!(matches!(Bank::open(folder.path(), config()), Err(Error::Database(_))));
}

#[test]
fn a_request_has_bounds_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    learn(&bank, "a", "t1", "sort the list of names", "Compare without case.");
    learn(&bank, "a", "t2", "sort the list of dates", "Year before month.");
    let query = embed("sort the list of names");
    let own = RetrievalLimits::from(bank.config());
    let found = |limits| bank.retrieve_within("a", "r", &query, limits, 0);
    assert_eq!(found(own).unwrap(), bank.retrieve("a", "r", &query, 0).unwrap());
    assert_eq!(found(own).unwrap().items.len(), 1);
    let two = RetrievalLimits { max_items: 2, ..own };
    assert_eq!(found(two).unwrap().receipt.items, [1, 2]);
    assert_eq!(found(RetrievalLimits { min_similarity: 0.99, ..two }).unwrap().receipt.items, [1]);
    let control = found(RetrievalLimits { control_share: 1.0, ..two }).unwrap();
    assert_eq!((control.receipt.arm, control.items.len()), (Arm::Control, 0));
    assert_eq!(bank.arm("a", "r"), Arm::Memory, "the bank has no control arm");
    for bad in [
        RetrievalLimits { max_items: 0, ..own },
        RetrievalLimits { max_items: 17, ..own },
        RetrievalLimits { min_similarity: f32::NAN, ..own },
        RetrievalLimits { control_share: 1.5, ..own },
    ] {
        assert!(matches!(found(bad), Err(Error::Setting { .. })), "{bad:?}");
    }
}

#[test]
fn expired_disabled_and_removed_items_are_not_given() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Bank::open(folder.path(), BankConfig { expires_after: Some(100), ..config() }).unwrap();
    let first = learn(&bank, "a", "t1", "fold the blue paper", "first").added[0];
    let mut second = lesson("fold the blue paper now", "second");
    second.expires = Some(500);
    let second = bank.learn("a", "t2", &[second], 0).unwrap().added[0];
    let give = |now| given(&bank, "a", "fold the blue paper", now);
    assert_eq!(
        (give(99), give(100), give(499)),
        (vec!["first".into()], vec!["second".into()], vec!["second".into()])
    );
    assert!(give(500).is_empty());
    bank.set_enabled("a", first, false).unwrap();
    assert_eq!(give(0), ["second"]);
    bank.remove("a", second).unwrap();
    assert!(give(0).is_empty());
    bank.set_enabled("a", first, true).unwrap();
    assert_eq!(give(0), ["first"]);
    assert_eq!(bank.forget_trajectory("a", "t1").unwrap(), [first]);
    assert!(give(0).is_empty());
    // A removed lesson does not come back from its trajectory.
    assert!(learn(&bank, "a", "t1", "fold the blue paper", "first").was_known);
    assert_eq!(bank.forget_tenant("a").unwrap(), 0);
    assert_eq!(learn(&bank, "a", "t1", "fold the blue paper", "first").added.len(), 1);
}

#[test]
fn usable_items_behind_many_expired_ones_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    for i in 0..60 {
        let mut item = lesson("wind the old clock", &format!("number {i} {}", "z".repeat(i)));
        item.expires = (i != 30).then_some(10);
        bank.learn("a", &format!("t{i}"), &[item], 0).unwrap();
    }
    let found = given(&bank, "a", "wind the old clock", 10);
    assert!(found.len() == 1 && found[0].starts_with("number 30 "), "{found:?}");
}

#[test]
fn outcomes_move_an_item_up_or_down_and_are_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let first = learn(&bank, "a", "t1", "water the plants today", "first").added[0];
    learn(&bank, "a", "t2", "water the plants", "second");
    let task = "water the plants today";
    assert_eq!(given(&bank, "a", task, 0), ["first"]);
    for i in 0..20 {
        let receipt = bank.retrieve("a", &format!("r{i}"), &embed(task), 0).unwrap().receipt;
        if receipt.items != [first] {
            break;
        }
        assert!(bank.record_outcome(&receipt, Verdict::Failure, 0).unwrap());
        assert!(!bank.record_outcome(&receipt, Verdict::Success, 0).unwrap());
    }
    let item = bank.item("a", first).unwrap().unwrap();
    assert!(item.with.losses > 0 && item.with.wins == 0 && item.with.uses == item.with.losses);
    assert_eq!(given(&bank, "a", task, 0), ["second"]);
}

#[test]
fn the_control_arm_gets_nothing_and_gives_the_uplift() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Bank::open(folder.path(), BankConfig { control_share: 0.3, ..config() }).unwrap();
    let id = learn(&bank, "a", "t1", "feed the cat", "At noon.").added[0];
    assert_eq!(bank.uplift("a").unwrap(), None);
    let mut control = 0;
    for i in 0..200 {
        let retrieval = bank.retrieve("a", &format!("r{i}"), &embed("feed the cat"), 0).unwrap();
        assert_eq!(retrieval.receipt.items, [id]);
        let is_control = retrieval.receipt.arm == Arm::Control;
        assert_eq!(retrieval.items.is_empty(), is_control);
        control += u64::from(is_control);
        // With memory 4 of 5 succeed, without 1 of 5.
        let wins = if is_control { i % 5 == 0 } else { i % 5 != 0 };
        let verdict = if wins { Verdict::Success } else { Verdict::Failure };
        bank.record_outcome(&retrieval.receipt, verdict, 0).unwrap();
    }
    let uplift = bank.uplift("a").unwrap().unwrap();
    assert_eq!((uplift.with.trials, uplift.without.trials), (200 - control, control));
    assert!(uplift.low > 0.3 && uplift.high < 0.9, "{uplift:?}");
    assert_eq!(bank.item("a", id).unwrap().unwrap().uplift(), Some(uplift));
    // Requests without a match belong to no arm.
    let receipt = bank.retrieve("a", "other", &embed("quantum zebra umbrella"), 0).unwrap().receipt;
    bank.record_outcome(&receipt, Verdict::Success, 0).unwrap();
    assert_eq!(bank.uplift("a").unwrap(), Some(uplift));
}

#[test]
fn bad_input_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let good = lesson("x y", "body");
    for bad in [
        NewItem { query: vec![1.0; 3], ..good.clone() },
        NewItem { query: vec![f32::NAN; DIM], ..good.clone() },
        NewItem { content: vec![0.0; DIM], ..good.clone() },
        NewItem { quality: f32::NAN, ..good.clone() },
        NewItem { quality: 1.5, ..good.clone() },
    ] {
        assert!(bank.learn("a", "t", &[good.clone(), bad], 0).is_err());
    }
    assert!(!bank.is_known("a", "t").unwrap() && bank.items("a").unwrap().is_empty());
    assert!(bank.retrieve("a", "r", &[1.0; 3], 0).is_err());
    assert!(bank.retrieve("a", "r", &[f32::NAN; DIM], 0).is_err());
    for config in [
        BankConfig { control_share: 1.5, ..config() },
        BankConfig { outcome_prior: 0.0, ..config() },
        BankConfig { min_similarity: f32::NAN, ..config() },
        BankConfig { max_items: 0, ..config() },
    ] {
        assert!(matches!(Bank::open(folder.path(), config), Err(Error::Setting { .. })));
    }
}

/// Lessons of 60 trajectories: 6 groups of near-duplicates.
fn history() -> Vec<(String, NewItem)> {
    (0..60)
        .map(|i| {
            let kind = ["sort", "parse", "mail", "draw", "count", "merge"][i % 6];
            let task = format!("{kind} the things of set number {}", i / 6);
            let body = format!("{kind} {kind} {kind} {kind} {kind} {kind} step {i}");
            (format!("trajectory-{i}"), lesson(&task, &body))
        })
        .collect()
}

#[test]
fn cycles_over_the_same_history_never_grow() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Bank::open(folder.path(), BankConfig { near_duplicate: 0.99, ..config() }).unwrap();
    let limits = DistillConfig { max_items: 24, ..DistillConfig::default() };
    let mut counts = Vec::new();
    for _ in 0..8 {
        for (trajectory, item) in history() {
            bank.learn("a", &trajectory, &[item], 0).unwrap();
        }
        let distilled = bank.distill("a", &limits, 0).unwrap();
        assert_eq!(distilled.after, bank.items("a").unwrap().len());
        counts.push(distilled.after);
    }
    assert!(counts[0] <= 24 && counts.iter().all(|&count| count == counts[0]), "{counts:?}");
    // Nothing of the history is lost.
    let sources: usize =
        bank.items("a").unwrap().iter().map(|item| bank.provenance("a", item.id).unwrap().len()).sum();
    assert_eq!(sources, 60);
    drop(bank);
    let bank = Bank::open(folder.path(), BankConfig { near_duplicate: 0.99, ..config() }).unwrap();
    assert_eq!(bank.items("a").unwrap().len(), counts[0]);
    assert!(!given(&bank, "a", "sort the things of set number 3", 0).is_empty());
}

#[test]
fn distillation_merges_near_duplicates_with_their_counts() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Bank::open(folder.path(), BankConfig { near_duplicate: 1.0, ..config() }).unwrap();
    for (trajectory, item) in history().into_iter().take(12) {
        bank.learn("a", &trajectory, &[item], 0).unwrap();
    }
    let receipt =
        |id| Receipt { tenant: "a".into(), request: format!("r{id}"), arm: Arm::Memory, items: vec![id] };
    let ids: Vec<u64> = bank.items("a").unwrap().iter().map(|item| item.id).collect();
    assert_eq!(ids.len(), 12);
    ids.iter().for_each(|&id| assert!(bank.record_outcome(&receipt(id), Verdict::Success, 7).unwrap()));
    drop(bank);
    let bank = open(folder.path());
    let distilled = bank.distill("a", &DistillConfig::default(), 0).unwrap();
    assert_eq!((distilled.merged.len(), distilled.after), (6, 6), "{distilled:?}");
    for item in bank.items("a").unwrap() {
        assert_eq!((item.with.wins, item.sources, item.version, item.confirmed), (2, 2, 2, 7));
    }
    let again = bank.distill("a", &DistillConfig::default(), 0).unwrap();
    assert_eq!(again, Distilled { before: 6, after: 6, ..Distilled::default() });
}

#[test]
fn harmful_idle_and_expired_items_are_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Bank::open(folder.path(), config()).unwrap();
    let words = ["alpha", "beta", "gamma", "delta"];
    let ids: Vec<u64> =
        words.iter().map(|word| learn(&bank, "a", word, &format!("{word} {word}"), word).added[0]).collect();
    let record = |id, arm, verdict, i| {
        let request = format!("{id}-{arm:?}-{i}");
        let receipt = Receipt { tenant: "a".into(), request, arm, items: vec![id] };
        bank.record_outcome(&receipt, verdict, 1000).unwrap();
    };
    for i in 0..20 {
        // The first item harms, the second helps.
        record(ids[0], Arm::Memory, if i == 0 { Verdict::Success } else { Verdict::Failure }, i);
        record(ids[0], Arm::Control, Verdict::Success, i);
        record(ids[1], Arm::Memory, Verdict::Success, i);
        record(ids[1], Arm::Control, Verdict::Failure, i);
    }
    record(ids[2], Arm::Memory, Verdict::Success, 0);
    let limits = DistillConfig { max_idle: Some(500), ..DistillConfig::default() };
    let distilled = bank.distill("a", &limits, 1000).unwrap();
    assert_eq!(distilled.pruned, [ids[0], ids[3]]);
    assert_eq!(distilled.after, 2);
    assert!(bank.distill("a", &DistillConfig { max_items: 0, ..limits }, 0).is_err());
}

#[test]
fn distillation_is_the_same_in_every_run() {
    let run = || {
        let folder = tempfile::tempdir().unwrap();
        let bank = Bank::open(folder.path(), BankConfig { near_duplicate: 1.0, ..config() }).unwrap();
        for (trajectory, item) in history() {
            bank.learn("a", &trajectory, &[item], 0).unwrap();
        }
        let limits = DistillConfig { max_items: 10, seed: 4, ..DistillConfig::default() };
        (bank.distill("a", &limits, 0).unwrap(), bank.items("a").unwrap())
    };
    assert_eq!(run(), run());
}

/// Values per embedding of an evaluation: enough to tell ten kinds apart, and quick.
const EVALUATION_DIM: usize = 32;

fn evaluation(embedder: &dyn Embed, noise: f64) -> evaluate::Report {
    let family = ConventionTasks::new(8, noise, 11).unwrap();
    let lessons = ConventionLessons(Words { dimension: EVALUATION_DIM });
    let subject = Subject {
        tasks: family.tasks(),
        solver: &family,
        embedder,
        judge: &family,
        extractor: &lessons,
        grader: &family,
    };
    let folder = tempfile::tempdir().unwrap();
    let bank = BankConfig { dim: EVALUATION_DIM, min_similarity: 0.4, ..config() };
    evaluate(&subject, &EvalConfig { seeds: 1, ..EvalConfig::new(bank) }, folder.path()).unwrap()
}

/// Embedding function that finds all texts equal.
struct Blind;

impl Embed for Blind {
    fn embed(&self, _: &str) -> Result<Vec<f32>> {
        Ok(vec![1.0; EVALUATION_DIM])
    }
}

#[test]
fn the_evaluation_shows_a_gain_only_where_retrieval_finds_the_kind() {
    let report = evaluation(&Words { dimension: EVALUATION_DIM }, 0.0);
    let difference = report.difference.unwrap();
    assert_eq!(report.runs.len(), 5);
    assert!(difference.mean > 0.1 && difference.deviation.is_some(), "{report:?}");
    assert!(report.runs.iter().any(|run| run.with != report.runs[0].with), "{report:?}");
    assert!(report.runs.iter().all(|run| run.without == report.runs[0].without));
    let blind = evaluation(&Blind, 0.0).difference.unwrap();
    assert!(blind.mean < difference.mean / 2.0, "{blind:?} against {difference:?}");
    let wrong = evaluation(&Words { dimension: EVALUATION_DIM }, 1.0).difference.unwrap();
    assert!(wrong.mean <= 0.0, "a judge that is always wrong: {wrong:?}");
}

#[test]
fn an_evaluation_of_one_order_is_refused() {
    let family = ConventionTasks::new(1, 0.0, 1).unwrap();
    let embedder = Words { dimension: DIM };
    let lessons = ConventionLessons(embedder);
    let subject = Subject {
        tasks: family.tasks(),
        solver: &family,
        embedder: &embedder,
        judge: &family,
        extractor: &lessons,
        grader: &family,
    };
    let folder = tempfile::tempdir().unwrap();
    let config = EvalConfig { orders: 1, ..EvalConfig::new(config()) };
    assert!(matches!(evaluate(&subject, &config, folder.path()), Err(Error::Setting { .. })));
    assert!(ConventionTasks::new(1, f64::NAN, 1).is_err());
}

#[derive(Debug, Clone)]
enum Step {
    Learn(u8, u8, u8),
    Remove(u8, u8),
    Distill(u8),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..3u8, 0..20u8, any::<u8>()).prop_map(|(tenant, t, seed)| Step::Learn(tenant, t, seed)),
        2 => (0..3u8, any::<u8>()).prop_map(|(tenant, i)| Step::Remove(tenant, i)),
        1 => (0..3u8).prop_map(Step::Distill),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn index_and_store_agree_after_any_steps(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut bank = Some(open(folder.path()));
        for step in steps {
            let open_bank = bank.as_ref().unwrap();
            match step {
                Step::Learn(tenant, trajectory, seed) => {
                    let mut random = Random::new(u64::from(seed));
                    let mut vector = || (0..DIM).map(|_| random.uniform() as f32 - 0.5).collect::<Vec<_>>();
                    let item = NewItem { query: vector(), content: vector(), ..lesson("x", "body") };
                    open_bank.learn(&tenant.to_string(), &trajectory.to_string(), &[item], 0).unwrap();
                }
                Step::Remove(tenant, i) => {
                    let tenant = tenant.to_string();
                    let items = open_bank.items(&tenant).unwrap();
                    if let Some(item) = items.get(usize::from(i) % items.len().max(1)) {
                        open_bank.remove(&tenant, item.id).unwrap();
                    }
                }
                Step::Distill(tenant) => {
                    let limits = DistillConfig { max_items: 6, ..DistillConfig::default() };
                    let distilled = open_bank.distill(&tenant.to_string(), &limits, 0).unwrap();
                    prop_assert!(distilled.after <= 6);
                }
                Step::Reopen => {
                    drop(bank.take());
                    bank = Some(open(folder.path()));
                }
            }
            let bank = bank.as_ref().unwrap();
            for tenant in ["0", "1", "2"] {
                let loaded = bank.loaded(tenant).unwrap();
                let loaded = loaded.read();
                let items = bank.items(tenant).unwrap();
                prop_assert_eq!(items.len(), loaded.index.len());
                prop_assert_eq!(items.len(), loaded.facts.len());
                prop_assert!(items.iter().all(|item| loaded.index.contains(item.id)));
                for item in &items {
                    prop_assert_eq!(item.sources as usize, bank.provenance(tenant, item.id).unwrap().len());
                }
            }
        }
    }
}
