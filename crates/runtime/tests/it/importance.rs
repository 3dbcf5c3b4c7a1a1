//! Squared inputs of products over a text, for importance matrices.

use std::ops::ControlFlow;

use ruvllm_models::{HfFolder, ImportanceMatrix};
use ruvllm_testkit::model_data;

use crate::common::{load, tiny_options};
use crate::hybrid::{folder_of, ids};

/// The prediction head reads each token of a window beside the state before it, in any chunks.
#[test]
fn inputs_of_a_prediction_head_are_summed_beside_those_of_the_model() {
    for name in ["qwen35", "deepseek3"] {
        let folder = folder_of(&model_data("prediction").join(name));
        let observe = |prefill_chunk: usize| {
            let engine = load(folder.path().to_owned(), &tiny_options().with_prefill_chunk(prefill_chunk));
            let mut progress = |_: usize, _: usize| ControlFlow::Continue(());
            engine.observe_inputs(&ids(1, 85), 40, None, &mut progress).expect("a run")
        };
        let (squares, windows) = observe(512);
        assert_eq!(windows, 2, "{name}");
        assert_eq!(observe(16).0, squares, "{name}");
        let checkpoint = HfFolder::open(folder.path()).expect("the folder opens");
        let importance = ImportanceMatrix::new(&squares, &checkpoint, "text", (windows, 40));
        for part in ["nextn.eh_proj", "attn_output"] {
            let means = importance.means(&format!("blk.2.{part}.weight")).expect(part);
            assert!(means.iter().all(|&mean| mean > 0.0), "{name}: {part}");
        }
    }
}
