use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn machine(memory_bytes: u64, cpus: usize) -> Machine {
    Machine {
        total_bytes: Some(memory_bytes),
        available_bytes: None,
        limit_bytes: None,
        cpus,
        cores: Some(cpus),
    }
}

/// A model of 8 billion parameters in 4 bits; keys and values take 128 KiB per token in F16.
fn large() -> ModelSize {
    ModelSize {
        weights_bytes: 49 * GIB / 10,
        context_length: 131_072,
        window: None,
        kv_shape: KvShape::new(32, 8, 128),
        state_bytes: 0,
    }
}

fn plan(machine: &Machine, model: &ModelSize) -> Plan {
    Plan::new(machine, model, &EngineOptions::default())
}

fn policy(text: &str) -> KvPolicy {
    text.parse().expect("a policy")
}

#[test]
fn a_small_model_gets_all_that_it_was_made_for() {
    let kv_shape = KvShape::new(6, 4, 64);
    let small =
        ModelSize { weights_bytes: 31 << 20, context_length: 4096, window: None, kv_shape, state_bytes: 0 };
    let plan = plan(&machine(24 * GIB, 2), &small);
    assert_eq!(plan.context, Choice { value: 4096, reason: Reason::Model });
    assert_eq!((plan.kv.value, plan.kv.reason), (policy("f16"), Reason::HalfPrecision { tokens: 4096 }));
    assert_eq!(plan.kv_budget.reason, Reason::Sequences { sequences: 4 });
    assert_eq!(plan.threads, Choice { value: 2, reason: Reason::Processors });
    assert_eq!((plan.sequence_bytes, plan.warnings), (4096 * 6 * 4 * 64 * 2 * 2, vec![]));
}

#[test]
fn the_memory_beside_the_weights_decides_the_context() {
    let plan = plan(&machine(16 * GIB, 8), &large());
    // 15 GiB less the weights are 10.1 GiB, half of which is 5.05 GiB or 41369 tokens.
    assert_eq!(plan.context.value, 41_216);
    assert!(matches!(plan.context.reason, Reason::Memory { token_bytes: 131_072, .. }), "{plan:?}");
    assert_eq!(plan.kv.value, policy("f16"));
    assert!(matches!(plan.kv_budget.reason, Reason::Share { .. }), "{plan:?}");
    assert_eq!(plan.warnings, []);
}

#[test]
fn a_control_group_counts_like_a_smaller_machine() {
    let whole = machine(64 * GIB, 8);
    let limited = Machine { limit_bytes: Some(16 * GIB), ..whole };
    assert_eq!(plan(&limited, &large()), plan(&machine(16 * GIB, 8), &large()));
    assert!(plan(&whole, &large()).context.value > plan(&limited, &large()).context.value);
}

#[test]
fn eight_bits_are_taken_where_half_precision_has_too_little_room() {
    let plan = plan(&machine(6 * GIB, 4), &large());
    assert_eq!(plan.kv.value, policy("q8"));
    let Reason::EightBits { half_tokens, tokens } = plan.kv.reason else { panic!("{plan:?}") };
    assert!(half_tokens < 4096 && half_tokens < tokens);
    assert!(plan.context.value <= tokens && plan.context.value > half_tokens, "{plan:?}");
    assert_eq!(plan.warnings, []);
}

#[test]
fn what_does_not_fit_is_said_with_numbers() {
    let without_room = plan(&machine(4 * GIB, 4), &large());
    let weights = Warning::Weights { weights_bytes: large().weights_bytes, memory_bytes: 4 * GIB };
    assert_eq!(without_room.warnings, [weights]);
    assert_eq!((without_room.context.value, without_room.kv_budget.reason), (256, Reason::Least));

    let options = EngineOptions { context: Some(131_072), ..EngineOptions::default() };
    let asked = Plan::new(&machine(12 * GIB, 4), &large(), &options);
    assert_eq!((asked.context.reason, asked.kv.value), (Reason::Asked, policy("q8")));
    assert!(matches!(asked.warnings[..], [Warning::Context { tokens: 131_072, .. }]), "{asked:?}");
    // The plan is still made for the requested context.
    assert!(asked.kv_budget.value as u64 >= asked.sequence_bytes);

    let busy = Machine { available_bytes: Some(3 * GIB), ..machine(16 * GIB, 4) };
    let needed_bytes = large().weights_bytes + plan(&busy, &large()).sequence_bytes;
    let shortage = Warning::Available { needed_bytes, available_bytes: 3 * GIB };
    assert_eq!(plan(&busy, &large()).shortage(&busy), Some(shortage));
    let idle = Machine { available_bytes: Some(15 * GIB), ..busy };
    assert_eq!(plan(&busy, &large()).shortage(&idle), None);
}

#[test]
fn what_was_asked_for_is_done() {
    let options = EngineOptions {
        threads: Some(3),
        context: Some(1000),
        kv: Some(policy("tiered")),
        kv_budget: Some(123),
        ..EngineOptions::default()
    };
    let plan = Plan::new(&machine(16 * GIB, 8), &large(), &options);
    let asked = (plan.threads.value, plan.context.value, plan.kv.value, plan.kv_budget.value);
    assert_eq!(asked, (3, 1000, policy("tiered"), 123));
    for reason in [plan.threads.reason, plan.context.reason, plan.kv.reason, plan.kv_budget.reason] {
        assert_eq!(reason, Reason::Asked);
    }
    let beyond = EngineOptions { context: Some(200_000), ..EngineOptions::default() };
    let context = Plan::new(&machine(64 * GIB, 8), &large(), &beyond).context;
    assert_eq!(context, Choice { value: 131_072, reason: Reason::AskedBeyondModel { asked: 200_000 } });
}

#[test]
fn tiers_have_room_for_more() {
    let tokens = |kv: &str| {
        let options = EngineOptions { kv: Some(policy(kv)), ..EngineOptions::default() };
        Plan::new(&machine(16 * GIB, 8), &large(), &options).context.value
    };
    assert!(tokens("f32") < tokens("f16") && tokens("f16") < tokens("tiered"));
    assert_eq!(tokens("tiered:warm=kivi2"), 131_072);
}

#[test]
fn a_window_bounds_what_is_kept() {
    let windowed = ModelSize { window: Some(4096), ..large() };
    let plan = plan(&machine(8 * GIB, 8), &windowed);
    assert_eq!(plan.context, Choice { value: 131_072, reason: Reason::Model });
    assert_eq!(plan.sequence_bytes, 4096 * 131_072);
}

/// States of several sequences are left out of the memory for keys and values.
#[test]
fn states_take_memory_from_keys_and_values() {
    let machine = machine(8 * GIB, 8);
    let hybrid = ModelSize { state_bytes: 100 << 20, ..large() };
    let (without, with) = (plan(&machine, &large()), plan(&machine, &hybrid));
    assert_eq!((without.state_bytes, with.state_bytes), (0, 100 << 20));
    assert!(with.context.value < without.context.value && with.kv_budget.value < without.kv_budget.value);
}

#[test]
fn processors_of_one_core_get_one_thread() {
    let shared = Machine { cores: Some(4), ..machine(16 * GIB, 8) };
    assert_eq!(plan(&shared, &large()).threads, Choice { value: 4, reason: Reason::Cores { cpus: 8 } });
    // A CPU quota below the number of cores, and a machine that does not report its cores.
    for cores in [Some(64), None] {
        let machine = Machine { cores, ..machine(16 * GIB, 8) };
        assert_eq!(plan(&machine, &large()).threads, Choice { value: 8, reason: Reason::Processors });
    }
}

fn machines() -> impl Strategy<Value = Machine> {
    let bytes = || prop::option::of(prop_oneof![0..64 * GIB, any::<u64>()]);
    (bytes(), bytes(), bytes(), 0usize..300, prop::option::of(0usize..300)).prop_map(
        |(total_bytes, available_bytes, limit_bytes, cpus, cores)| Machine {
            total_bytes,
            available_bytes,
            limit_bytes,
            cpus,
            cores,
        },
    )
}

fn models() -> impl Strategy<Value = ModelSize> {
    let shape = (1usize..200, 1usize..130, prop::sample::select(vec![2usize, 48, 64, 80, 128, 256, 4096]));
    let weights = prop_oneof![0..100 * GIB, any::<u64>()];
    let context = prop_oneof![1usize..5000, 1usize..=u32::MAX as usize];
    (weights, context, prop::option::of(1usize..10_000), shape).prop_map(
        |(weights_bytes, context_length, window, (n_layers, n_kv_heads, head_dim))| ModelSize {
            weights_bytes,
            context_length,
            window,
            kv_shape: KvShape::new(n_layers, n_kv_heads, head_dim),
            state_bytes: 0,
        },
    )
}

proptest! {
    #[test]
    fn every_plan_is_usable_and_what_it_says_fits(machine in machines(), model in models()) {
        let plan = plan(&machine, &model);
        prop_assert!(plan.threads.value >= 1 && plan.threads.value <= machine.cpus.max(1));
        prop_assert!((1..=model.context_length).contains(&plan.context.value));
        prop_assert!(plan.kv_budget.value as u64 >= plan.sequence_bytes, "a full context fits the budget");
        let memory = machine.memory_bytes().unwrap_or(8 * GIB);
        if plan.warnings.is_empty() {
            prop_assert!(model.weights_bytes <= memory);
            let whole = model.weights_bytes.saturating_add(plan.sequence_bytes);
            prop_assert!(whole <= memory || plan.sequence_bytes <= MIN_KV_BUDGET, "{plan:?}");
        }
    }

    #[test]
    fn more_memory_never_means_less_context(
        model in models(),
        memory in 0..64 * GIB,
        more in 0..64 * GIB,
        kv in prop::sample::select(vec!["f16", "q8", "tiered"]),
    ) {
        let options = EngineOptions { kv: Some(policy(kv)), ..EngineOptions::default() };
        let context = |memory| Plan::new(&machine(memory, 4), &model, &options).context.value;
        prop_assert!(context(memory) <= context(memory + more));
    }
}
