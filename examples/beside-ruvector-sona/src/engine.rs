//! Changes of weights by the learning calls of the engine of `ruvector-sona`.

use ruvector_sona::SonaEngine;

const DIM: usize = 512;
const FEEDBACKS: usize = 5;
const TRAJECTORIES: usize = 40;

/// Prints sums of changes after feedback and after forced background learning.
pub(crate) fn report() {
    let engine = SonaEngine::new(DIM);
    let [down, up] = micro_weights(&engine);
    let state: Vec<f32> = (0..DIM).map(|index| (index as f32 * 0.7).sin()).collect();
    for _ in 0..FEEDBACKS {
        feedback(&engine, &state);
    }
    let [down_after, up_after] = micro_weights(&engine);
    let change: Vec<f32> = up_after.iter().zip(&up).map(|(after, before)| after - before).collect();
    println!(
        "after {FEEDBACKS} feedbacks: MicroLoRA down {:.4}, up {:.4}",
        distance(&down_after, &down),
        sum(&change)
    );
    println!("cosine of the change of `up` and the state: {:.4}", cosine(&change[..DIM], &state));
    for index in 0..TRAJECTORIES {
        let state: Vec<f32> = (0..DIM).map(|at| ((at + index) as f32 * 0.7).sin()).collect();
        feedback(&engine, &state);
    }
    println!("{}", engine.force_learn());
    let ewc = engine.coordinator().ewc().read();
    println!(
        "EWC++: {} gradients of {}, {} tasks",
        ewc.samples_seen(),
        ewc.importance_scores().len(),
        ewc.task_count()
    );
    let base = engine.coordinator().base_lora().read();
    let updates: f32 = base.layers.iter().map(|layer| sum(&layer.up_proj)).sum();
    let mut output = vec![0.0; DIM];
    (0..base.num_layers()).for_each(|layer| engine.apply_base_lora(layer, &state, &mut output));
    println!("BaseLoRA: up {updates:.6}, output of all layers {:.4}", sum(&output));
}

/// The calls of `learn_from_feedback`, which is compiled for WebAssembly alone, for a success of
/// quality 0.9.
fn feedback(engine: &SonaEngine, state: &[f32]) {
    let mut builder = engine.begin_trajectory(state.to_vec());
    builder.add_step(state.to_vec(), Vec::new(), 0.9);
    engine.submit_trajectory(builder.build_with_latency(0.9, 50_000));
    engine.flush();
}

fn micro_weights(engine: &SonaEngine) -> [Vec<f32>; 2] {
    engine.coordinator().get_micro_lora_weights().into()
}

fn sum(values: &[f32]) -> f32 {
    values.iter().map(|value| value.abs()).sum()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    product(a, b) / (product(a, a) * product(b, b)).sqrt()
}
