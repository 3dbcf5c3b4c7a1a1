//! Orders that are known: a text, its sentences shuffled, a text in a loop.

use std::sync::Arc;

use crate::error::Error;
use crate::lexical::{HashedWords, mix, sentences};

use super::*;

/// Texts with a course: each sentence takes up words of the one before.
const TEXTS: [&str; 3] = [
    "A bakery opens before sunrise. Before sunrise the baker lights the oven. The oven needs an hour to \
     reach its heat. While it gathers heat, the dough rests under a cloth. The cloth keeps the dough from \
     drying. Dough that has rested is shaped into loaves. The loaves are cut with a blade and dusted with \
     flour. Dusted with flour, they slide from the board into the hot chamber. In the chamber steam makes \
     the crust shine. When the crust is brown, the bread is lifted out. Bread that cools on a rack sings \
     quietly. The first customers hear it and buy a bag of rolls. Rolls are sold out by nine.",
    "A page cache keeps parts of files in memory. Memory is divided into pages of four kibibytes. A page \
     that a program wrote is dirty. Dirty pages are written to the disk by a kernel thread. The thread \
     wakes up when many pages wait or time has passed. Time matters because a crash loses what was not \
     written. A program that cannot lose data calls fsync. The call to fsync returns when the drive has \
     confirmed the write. Some drives confirm from a volatile buffer. A volatile buffer needs a flush \
     command. The flush command costs milliseconds on a spinning disk. Spinning disks therefore profit \
     from a journal.",
    "The river rises in the hills above the village. In the village an old mill stands at its bank. The \
     mill has a wheel of oak. Oak resists water for decades. After decades of work the wheel still turns \
     two stones. The stones grind rye and spelt. Spelt is grown on narrow fields to the south. The fields \
     were flooded in spring. In spring the snow of the mountains melts within a week. Within that week \
     ferries stop, and people wait at the landing. At the landing a bell calls the ferryman. The ferryman \
     knows each rock under the surface.",
];

fn shuffled(text: &str, seed: u64) -> String {
    let mut sentences = sentences(text);
    for i in (1..sentences.len()).rev() {
        sentences.swap(i, mix(i as u64, seed) as usize % (i + 1));
    }
    sentences.join(" ")
}

fn looped(text: &str) -> String {
    let beginning: Vec<&str> = sentences(text)[..2].to_vec();
    [&sentences(text)[..3], &beginning.repeat(10)].concat().join(" ")
}

fn quality() -> Quality {
    let mut quality = Quality::new();
    let embed = Arc::new(HashedWords { dimension: 256 });
    quality.add(Box::new(Coherence::new(embed, 64)), 1.0, Some(0.5)).unwrap();
    quality.add(Box::new(Diversity), 1.0, None).unwrap();
    quality.add(Box::new(Repetition), 1.0, Some(0.6)).unwrap();
    quality.add(Box::new(Uniqueness), 1.0, None).unwrap();
    quality.add(Box::new(SchemaCompliance), 1.0, None).unwrap();
    quality
}

#[test]
fn a_text_is_above_its_shuffled_order_and_that_above_a_loop() {
    let quality = quality();
    for text in TEXTS {
        let report = |text: &str| quality.assess(&Sample::new(text)).unwrap();
        let good = report(text);
        assert!(good.value("coherence").unwrap() > 0.9 && good.passes(), "{good:?}");
        assert_eq!(good.value("uniqueness"), None);
        let in_loop = report(&looped(text));
        assert_eq!(in_loop.scores[2].passes, Some(false));
        let mut mean = 0.0;
        for seed in 0..20 {
            let shuffled = report(&shuffled(text, seed));
            // Word pairs differ only where sentences meet.
            assert!((good.value("diversity").unwrap() - shuffled.value("diversity").unwrap()).abs() < 0.05);
            assert!(good.overall.unwrap() > shuffled.overall.unwrap());
            for name in ["diversity", "repetition", "overall"] {
                assert!(shuffled.value(name).unwrap() > in_loop.value(name).unwrap() + 0.1, "{name}");
            }
            mean += shuffled.value("coherence").unwrap() / 20.0;
        }
        // Shuffled texts are spread over the scale by definition.
        assert!((0.3..0.7).contains(&mean), "{mean}");
    }
}

#[test]
fn an_output_repeated_in_part_is_less_unique() {
    let mut history = History::new(8).unwrap();
    assert!(history.push(TEXTS[0]));
    let value = |text: &str| {
        Uniqueness.score(&Sample { history: Some(&history), ..Sample::new(text) }).unwrap().value.unwrap()
    };
    let half = format!("{} {}", &TEXTS[0][..400], &TEXTS[1][..400]);
    assert!(value(TEXTS[1]) > 0.95 && value(&half) > value(TEXTS[0]) + 0.3 && value(&half) < 0.9);
    assert_eq!(value(TEXTS[0]), 0.0);
    assert!(value(&shuffled(TEXTS[0], 1)) < 0.5);
}

#[test]
fn odd_texts_have_absent_scores_or_low_ones() {
    let quality = quality();
    for text in ["", "   \n", "ok", "🙂🙂", "\u{0}\u{301}", "...", "'"] {
        let report = quality.assess(&Sample::new(text)).unwrap();
        assert_eq!(report.overall, None, "{text:?}");
        assert!(report.scores.iter().all(|scored| scored.score.note.is_some()));
    }
    for text in ["!".repeat(500), "ha".repeat(500), "| - ".repeat(60), "对".repeat(90)] {
        let report = quality.assess(&Sample::new(&text)).unwrap();
        assert!(report.value("repetition").unwrap() < 0.1, "{text}: {report:?}");
    }
}

#[test]
fn settings_outside_their_range_are_refused() {
    let mut quality = quality();
    for (weight, threshold) in [(f64::NAN, None), (-1.0, None), (1.0, Some(1.5)), (1.0, Some(f64::NAN))] {
        let scorer = Box::new(TemporalRealism::new("t"));
        assert!(matches!(quality.add(scorer, weight, threshold), Err(Error::Setting { .. })));
    }
    assert!(quality.add(Box::new(Diversity), 1.0, None).is_err(), "a second scorer of one name");
}

fn report_of(overall: Option<f64>) -> QualityReport {
    QualityReport { scores: Vec::new(), overall }
}

#[test]
fn alerts_have_hysteresis() {
    let rule = |raise_below, clear_above, window| AlertRule {
        score: "overall".into(),
        raise_below,
        clear_above,
        window,
    };
    for bad in
        [rule(0.6, 0.5, 2), rule(0.5, 0.5, 2), rule(0.5, 1.1, 2), rule(f64::NAN, 0.5, 2), rule(0.4, 0.6, 0)]
    {
        assert!(Alerts::new(vec![bad]).is_err());
    }
    let mut alerts = Alerts::new(vec![rule(0.4, 0.6, 2)]).unwrap();
    let mut changes = Vec::new();
    // Means: -, 0.35, 0.5, 0.5, 0.61, 0.41, 0.39
    for value in [0.3, 0.4, 0.6, 0.4, 0.82, 0.0, 0.78] {
        alerts.observe(&report_of(None));
        changes.push(alerts.observe(&report_of(Some(value))).first().map(|alert| alert.is_raised));
    }
    assert_eq!(changes, [None, Some(true), None, None, Some(false), None, Some(true)]);
    assert_eq!(alerts.raised().collect::<Vec<_>>(), ["overall"]);
}
