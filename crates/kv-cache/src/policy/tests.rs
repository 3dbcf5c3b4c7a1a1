use proptest::prelude::*;
use ruvllm_kernels::attention::KvFormat;

use super::*;

fn parse(text: &str) -> KvPolicy {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_format_stores_everything_in_it() {
    for name in ["f32", "f16", "bf16", "q8", "q4", "q8+q4", "q8+kivi4"] {
        let policy = parse(name);
        assert_eq!(policy.tiers().map(|formats| formats.to_string()).collect::<Vec<_>>(), [name]);
        assert_eq!(policy.to_string(), name);
        assert_eq!(policy.block_tokens(), 32);
    }
}

#[test]
fn a_format_without_single_tokens_keeps_one_group_in_half_precision() {
    for (name, group) in [
        ("kivi4", 32),
        ("kivi2-g128", 128),
        ("kivi4+kivi2", 32),
        ("nuq3", 32),
        ("q8+nuq3", 32),
        ("turbo3", 32),
    ] {
        let policy = parse(name);
        assert_eq!((policy.hot, policy.hot_tokens), (KvFormat::F16.into(), group));
        assert_eq!((policy.sink_tokens, policy.block_tokens()), (0, group));
        assert_eq!(policy.to_string(), name);
    }
}

#[test]
fn short_names_count_bits() {
    assert_eq!(parse("k4v2"), parse("kivi4+kivi2"));
    assert_eq!(parse("k8v4"), parse("q8+kivi4"));
    assert_eq!(parse("k16v8"), parse("f16+q8"));
}

#[test]
fn tiered_has_the_defaults_of_the_evidence() {
    let policy = parse("tiered");
    assert_eq!((policy.hot_tokens, policy.sink_tokens), (256, 4));
    assert_eq!(policy.to_string(), "tiered");
    let names = |policy: KvPolicy| policy.tiers().map(|formats| formats.to_string()).collect::<Vec<_>>();
    assert_eq!(names(policy.for_model(true)), ["f16", "kivi4"], "no 2 bits where heads are shared");
    assert_eq!(names(policy.for_model(false)), ["f16", "kivi4", "kivi2"]);
    let asked = parse("tiered:cold=kivi2");
    assert_eq!(asked.for_model(true), asked, "what was asked for stays");
}

#[test]
fn options_are_read() {
    let policy =
        parse("tiered:hot=128,hot_format=bf16,sink=0,warm=k4v2,warm_tokens=512,cold=kivi2,rotate=off");
    assert_eq!(policy.hot, KvFormat::BF16.into());
    assert_eq!((policy.hot_tokens, policy.sink_tokens, policy.warm_tokens), (128, 0, 512));
    assert_eq!(policy.warm, Some("k4v2".parse().expect("a name")));
    assert!(parse("q4:rotate=on").rotated);
    assert!(parse("kivi2:squat=on").squat && !parse("tiered:squat=on,squat=off").squat);
}

#[test]
fn a_format_of_rotated_values_rotates_every_tier() {
    for text in [
        "turbo3",
        "turbo3+kivi2",
        "q4+turbo3",
        "tiered:warm=turbo3",
        "tiered:warm=q4,cold=turbo3",
        "q4:rotate=on",
    ] {
        assert!(parse(text).rotates(), "{text}");
        assert_eq!(parse(text).to_string(), text);
    }
    assert!(!parse("q4").rotates() && !parse("tiered").rotates());
}

#[test]
fn a_target_is_held_in_millionths() {
    let policy = parse("tiered:target=0.02");
    assert_eq!(policy.target.map(ErrorTarget::get), Some(0.02));
    assert_eq!(policy.to_string(), "tiered:target=0.02");
    assert_eq!(parse("tiered:target=0.0200001"), policy, "the nearest step");
    assert_eq!(parse("kivi4:target=1").target.map(ErrorTarget::get), Some(1.0));
    assert_eq!(parse("tiered").target, None);
}

#[test]
fn unknown_option_names_the_known_ones() {
    let message = |text: &str| text.parse::<KvPolicy>().expect_err(text).to_string();
    assert!(message("q5").contains("\"q5\"") && message("q5").contains("kivi4"), "{}", message("q5"));
    assert!(message("tiered:hto=3").contains("hot=TOKENS"));
    assert!(message("tiered:target=2").contains("above 0 and at most 1"));
    assert!(message("tiered:hot=many").contains("hot=TOKENS, a whole number"));
    assert!(
        message("tiered:cold=f17").contains("cold=FORMAT|off")
            && !message("tiered:cold=f17").contains("hot=")
    );
    assert!(message("tiered:hot").contains("hot=TOKENS"), "an option without a value");
    for text in [
        "",
        ":",
        "tiered:",
        "tiered:hot",
        "tiered:hot=-1",
        "tiered:hot=x",
        "tiered:warm=f17",
        "tiered:target=0",
        "tiered:target=1e-9",
        "tiered:target=1.5",
        "tiered:target=nan",
        "f16+",
        "k4",
        "kv",
        "k3v2",
    ] {
        assert!(text.parse::<KvPolicy>().is_err(), "{text:?}");
    }
}

#[test]
fn contradictions_are_refused() {
    let reason = |text: &str| match text.parse::<KvPolicy>() {
        Err(Error::PolicyConflict { reason, .. }) => reason,
        other => panic!("{text}: {other:?}"),
    };
    assert!(reason("tiered:warm=f32").contains("not smaller"));
    assert!(reason("tiered:warm=kivi2,cold=kivi4").contains("not smaller"));
    assert!(reason("f16:cold=kivi2").contains("a warm one"));
    assert!(reason("f16:target=0.1").contains("nothing is quantized"));
    assert!(reason("tiered:rotate=on").contains("channels"));
    assert!(reason("kivi4:rotate=on").contains("channels"));
    assert!(reason("q4+nuq3:rotate=on").contains("channels"));
    assert!("tiered:warm=q4,rotate=on".parse::<KvPolicy>().is_ok());
    assert!(reason("tiered:cold=turbo3").contains("turbo3 rotates all tiers"), "kivi4 is the warm tier");
    assert!(reason("kivi2+turbo3").contains("kivi2+turbo3 rotates all tiers"));
    assert!(reason("tiered:warm=nuq3,cold=turbo3").contains("channels"));
    assert!(reason("tiered:warm=q4,squat=on").contains("no tier has such"));
    assert!(reason("tiered:warm=q4+kivi4,squat=on").contains("no tier has such"), "values do not count");
    assert!(reason("f16:squat=on").contains("no tier has such"));
    assert!("tiered:warm=q8,cold=k4v2,squat=on".parse::<KvPolicy>().is_ok());
}

fn formats() -> impl Strategy<Value = KvFormats> {
    let one = || proptest::sample::select(KvFormat::ALL.to_vec());
    (one(), one()).prop_map(|(keys, values)| KvFormats { keys, values })
}

proptest! {
    #[test]
    fn every_valid_policy_survives_its_text(
        uniform in any::<bool>(),
        base in formats(),
        hot in proptest::sample::select(vec![KvFormat::F16, KvFormat::BF16, KvFormat::F32]),
        tokens in prop::array::uniform4(0usize..5000),
        lower in (formats(), proptest::option::of(formats()), any::<bool>()),
        (rotated, squat) in (any::<bool>(), any::<bool>()),
        target in proptest::option::of(1u32..=1_000_000),
    ) {
        let (warm, cold, open) = lower;
        let target = target.and_then(|steps| ErrorTarget::new(f64::from(steps) / 1e6));
        let policy = if uniform {
            KvPolicy { rotated, squat, ..KvPolicy::uniform(base) }
        } else {
            let cold = cold.map_or(if open { ColdTier::ByModel } else { ColdTier::Off }, ColdTier::At);
            let [hot_tokens, sink_tokens, warm_tokens, kept_blocks] = tokens;
            let warm = Some(warm);
            let hot = hot.into();
            KvPolicy {
                hot, hot_tokens, sink_tokens, kept_blocks, target, warm, warm_tokens, cold, rotated, squat
            }
        };
        prop_assume!(policy.validate().is_ok());
        let text = policy.to_string();
        prop_assert_eq!(text.parse::<KvPolicy>().expect("its own text"), policy, "{}", text);
    }
}
